"""`lacli cost`: what steps of many rows cost, measured or from the records."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.options import with_groups
from lacli.errors import Interrupted, UsageError
from lacli.llamacpp.settings import ModelSettings

if TYPE_CHECKING:
    from lacli.auto.step_cost import Cost

Contexts = Annotated[str, typer.Option("--contexts", metavar="TOKENS,..", help="Tokens before the steps.")]
Rows = Annotated[str, typer.Option("--rows", metavar="ROWS,..", help="Sizes of the steps: 1-16,32-128*2.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="About how long to measure.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")]


@with_groups(model=options.model_of, settings=options.model_group)
def cost(
    model: str | None,
    contexts: Contexts = "64,2048",
    rows: Rows = "",
    seconds: Seconds = 20,
    fresh: Fresh = False,
    *,
    settings: ModelSettings,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure what steps of many rows cost here, once for a model and its flags, and what must come of lookahead."""
    from lacli.auto.model_cost import cost_of, measure_cost
    from lacli.auto.step_cost import ROWS, MeasurePlan
    from lacli.bench.cost_report import as_json, as_lines
    from lacli.bench.sweep import parse_numbers
    from lacli.ik.choice import open_model, with_engine
    from lacli.llamacpp.probe import proven
    from lacli.terminal.interrupts import ctrl_c_ends_at_once
    from lacli.terminal.screen import Screen, loading_model
    from lacli.text.files import columns, state_file

    chosen = sorted(parse_numbers(contexts, "--contexts")), sorted(parse_numbers(rows, "--rows")) if rows else ROWS
    if not all(1 <= number <= 2**20 for numbers in chosen for number in numbers):
        raise UsageError("--contexts and --rows take numbers from 1 to 1048576")
    plan = MeasurePlan(tuple(chosen[0]), tuple(chosen[1]), seconds)
    screen = Screen(quiet=quiet)
    path = options.model_path(model, screen, offline)
    settings, fault = proven(settings)
    screen.notes([fault] if fault else [], [])
    settings = with_engine(path, settings)

    def measured() -> Cost:
        with loading_model(screen, verbose=verbose) as loading:
            opened = open_model(path, settings, verbose=verbose, loading=loading)
        with opened:
            try:
                return measure_cost(opened, settings, plan, screen.note, opening=ctrl_c_ends_at_once())
            except KeyboardInterrupt:
                raise Interrupted("stopped before the steps were measured") from None

    found, is_saved = cost_of(path, settings, plan, state_file(), measured, fresh=fresh, progress=screen.note)
    if json:
        screen.json(as_json(path, settings, found, is_saved=is_saved))
    else:
        screen.line(as_lines(settings, found, time() - found.measured_at if is_saved else None, width=columns()))
