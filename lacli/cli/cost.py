"""`lacli cost`: its flags, turned into settings and one call of `show_cost`."""

from __future__ import annotations

from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.folders import cost_folder
from lacli.cli.groups import with_groups
from lacli.cli.options import model_group
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings

COST = "Cost"
MOST_ROWS, MOST_CONTEXT = 4096, 2**20


def sizes(text: str, flag: str, most: int) -> tuple[int, ...]:
    """Numbers and ranges as llama-bench takes them, each from 1 to `most`, in order."""
    from lacli.bench.sweep import parse_numbers

    numbers = sorted(parse_numbers(text, flag))
    for number in numbers:
        if not 1 <= number <= most:
            raise UsageError(f"{flag} takes numbers from 1 to {most}, not {number}")
    return tuple(numbers)


Contexts = Annotated[
    str,
    typer.Option("--contexts", metavar="TOKENS,..", help="Tokens before the steps.", rich_help_panel=COST),
]
Rows = Annotated[
    str | None,
    typer.Option("--rows", metavar="ROWS,..", show_default=False, rich_help_panel=COST,
                 help="Sizes of the steps, also ranges: 1-16,32-128*2. (default: 24 sizes from 1 to 128)"),
]  # fmt: skip
Seconds = Annotated[
    float,
    typer.Option("--seconds", min=0.1, help="About how long to measure; slow models get fewer sizes.",
                 rich_help_panel=COST),
]  # fmt: skip
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.", rich_help_panel=COST)]


@with_groups(loading=model_group)
def cost(
    model: options.Model = None,
    contexts: Contexts = "64,2048",
    rows: Rows = None,
    seconds: Seconds = 20,
    fresh: Fresh = False,
    *,
    loading: ModelSettings,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Measure what steps of many rows cost here, and which W, N and G can pay for themselves.

    A model is measured once on a machine and for its flags; the numbers are kept in the user's cache directory.
    """
    from lacli.cost.measure import ROWS, MeasurePlan
    from lacli.cost.product import CostPlan, show_cost
    from lacli.terminal.screen import Screen

    measured = MeasurePlan(
        contexts=sizes(contexts, "--contexts", MOST_CONTEXT),
        rows=sizes(rows, "--rows", MOST_ROWS) if rows is not None else ROWS,
        seconds=seconds,
    )
    screen = Screen(color=color, quiet=quiet)
    path = options.model_path(model, screen, offline)
    show_cost(path, loading, CostPlan(measured, cost_folder(), fresh, json, verbose), screen)
