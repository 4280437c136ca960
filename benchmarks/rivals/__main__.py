"""`python -m benchmarks.rivals PROGRAM,... [MODEL]`: `lacli bench` with llama.cpp's own programs in the same table."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from benchmarks.commands import chosen, request_of, run
from benchmarks.rivals.found import RIVALS, find_rivals, rivals
from lacli.bench.run import compared, finish, opened
from lacli.bench.tasks import tasks_of
from lacli.cli import options
from lacli.cli.bench import EVERY_MODE, Amount, Classes, Modes, OutputFormat, Prompts
from lacli.cli.groups import with_groups
from lacli.cli.lookahead_options import lookahead_group
from lacli.cli.options import model_group
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Names = Annotated[
    str,
    typer.Argument(
        metavar="PROGRAM,...",
        help=f"Programs on PATH: {', '.join(RIVALS)} (with every kind of n-gram speculation it has, or "
        "llama-server:KIND).",
    ),
]


@app.command()
@with_groups(amount=Amount, decode_settings=lookahead_group, model_settings=model_group)
def compare(
    programs: Names,
    model: options.Model = None,
    mode: Modes = EVERY_MODE,
    classes: Classes = None,
    prompts: Prompts = None,
    *,
    amount: Amount,
    decode_settings: DecodeSettings,
    model_settings: ModelSettings,
    output: OutputFormat = "md",
    offline: options.Offline = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure llama.cpp's programs beside the modes, greedily, on the same prompts, in turns."""
    screen = Screen(quiet=quiet)
    found = find_rivals(programs.split(","))
    request = request_of(tasks_of(prompts, classes), amount, chosen(mode), output)
    path = options.model_path(model, screen, offline)
    with ExitStack() as stack:
        session = stack.enter_context(
            opened(path, model_settings, decode_settings, SamplingSettings(), request, screen)
        )
        outcome = compared(session, request, screen, beside=rivals(session, found, stack))
    finish(outcome, request, screen)


if __name__ == "__main__":
    run(app)
