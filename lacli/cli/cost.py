"""`lacli cost`: what steps of many rows cost, measured or from the records."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.groups import with_groups
from lacli.errors import Interrupted, UsageError
from lacli.llamacpp.settings import ModelSettings

if TYPE_CHECKING:
    from lacli.auto.step_cost import Cost

MAX_ROWS, MAX_CONTEXT = 4096, 2**20

Contexts = Annotated[str, typer.Option("--contexts", metavar="TOKENS,..", help="Tokens before the steps.")]
Rows = Annotated[
    str | None,
    typer.Option("--rows", metavar="ROWS,..", show_default="31 sizes from 1 to 128",
                 help="Sizes of the steps, also ranges: 1-16,32-128*2."),
]  # fmt: skip
Seconds = Annotated[
    float,
    typer.Option("--seconds", min=0.1,
                 help="About how long to measure once the model is loaded. Slow models get fewer sizes, at least two."),
]  # fmt: skip
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")]


@with_groups(model=options.model_of, settings=options.model_group)
def cost(
    model: str | None,
    contexts: Contexts = "64,2048",
    rows: Rows = None,
    seconds: Seconds = 20,
    fresh: Fresh = False,
    *,
    settings: ModelSettings,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure what steps of many rows cost here.

    It says what lookahead must bring to pay for itself. A model is measured once on a machine and for its flags; the
    numbers are kept in the user's cache directory.
    """
    from json import dumps

    from lacli.auto.model_cost import cost_of, measure_cost
    from lacli.auto.step_cost import ROWS, MeasurePlan
    from lacli.bench.cost_report import as_json, as_lines
    from lacli.ik.choice import open_model, with_engine
    from lacli.llamacpp.probe import proven
    from lacli.terminal.interrupts import ctrl_c_ends_at_once
    from lacli.terminal.screen import Screen, loading_model
    from lacli.text.files import columns, state_file

    plan = MeasurePlan(
        contexts=_sizes(contexts, "--contexts", MAX_CONTEXT),
        rows=_sizes(rows, "--rows", MAX_ROWS) if rows is not None else ROWS,
        seconds=seconds,
    )
    screen = Screen(quiet=quiet)
    path = options.model_path(model, screen, offline)
    settings, fault = proven(settings)
    if fault:
        screen.note(fault)
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
        screen.line(dumps(as_json(path, settings, found, is_saved=is_saved), ensure_ascii=False))
    else:
        age = time() - found.measured_at if is_saved else None
        screen.line(as_lines(settings, found, age, width=columns()))


def _sizes(text: str, flag: str, most: int) -> tuple[int, ...]:
    """Return numbers and ranges, written as llama-bench takes them, in order; each from 1 to `most`."""
    from lacli.bench.sweep import parse_numbers

    numbers = sorted(parse_numbers(text, flag))
    if not 1 <= numbers[0] <= numbers[-1] <= most:
        raise UsageError(f"{flag} takes numbers from 1 to {most}")
    return tuple(numbers)
