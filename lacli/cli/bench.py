"""The command `lacli bench`: turns its flags into a `BenchRequest`, and prints the report."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from lacli.cli import options
from lacli.cli.options import Loading, PromptOptions, setting, typed, with_groups
from lacli.settings import MODES

DEFAULT_MODES = "lookup,lookahead,auto"
"""Without jacobi: on a CPU it takes several times as long as plain decoding, for 1.05 tokens a step."""

COMPARED = ("mode", "window", "ngram", "guesses")
"""Parameters of `bench` that choose the settings to compare."""

Modes = Annotated[str, typer.Option("--modes", "--mode", help="Modes to compare. Plain always runs.")]
Window = Annotated[str, setting("-W", "--window", show_default="15", help="Columns of the window: 5 or 1,5,15.")]
Ngram = Annotated[str, setting("-N", "--ngram", show_default="5", help="Tokens of an n-gram: 5 or 3,5.")]
Guesses = Annotated[str, setting("-G", "--guesses", help="Limit a step to so many n-grams: 5 or 1,5,15.")]
Classes = Annotated[str | None, typer.Option(help="Classes of prompts, such as code,edit,chat.")]
Repetitions = Annotated[int | None, typer.Option("-r", "--repetitions", min=1, help="Ask each prompt at most N times.")]
Predict = Annotated[
    int | None,
    typer.Option("-n", "--predict", "--n-predict", "--max-tokens", min=1, help="Limit each answer to N tokens (128)."),
]
Seconds = Annotated[float, typer.Option("--seconds", min=6, help="Seconds for everything, loading included.")]
OutputFormat = Annotated[
    Literal["text", "md", "json"], typer.Option("-o", "--output", help="text: summary; md: also a table; json: rows.")
]


@with_groups(model=options.model_of, loading=options.loading_group(Loading, without=COMPARED))
def bench(
    model: str | None,
    mode: Modes = DEFAULT_MODES,
    classes: Classes = None,
    prompts: options.Tasks = None,
    each: options.Each = None,
    repetitions: Repetitions = None,
    predict: Predict = None,
    seconds: Seconds = 180.0,
    *,
    window: Window = "",
    ngram: Ngram = "",
    guesses: Guesses = "",
    loading: Loading,
    output: OutputFormat = "text",
    quiet: options.Quiet = False,
    called: typer.Context,
) -> None:
    """Compare the speed of the modes with plain decoding, on prompts of many kinds.

    Every mode answers every prompt in turn until the time is up, three minutes by default.
    """
    from lacli.bench.plan import Axes, parse_names, parse_numbers, tasks_of
    from lacli.bench.run import BenchRequest, compared, finish
    from lacli.terminal.screen import Screen

    screen = Screen(quiet=quiet)
    # A download takes none of the seconds.
    path = options.model_path(model, screen, loading.offline)
    sizes = {"-W": window, "-N": ngram, "-G": guesses}
    numbers = [tuple(parse_numbers(text, flag)) if text else () for flag, text in sizes.items()]
    request = BenchRequest(
        tasks=tuple(tasks_of(prompts, classes)),
        seconds=seconds,
        each=each,
        repetitions=repetitions,
        max_tokens=predict,
        axes=Axes(tuple(parse_names(mode, MODES, "mode")), *numbers),
        form=output,
        leave_out=typed(called).isdisjoint(COMPARED),
    )
    with loading.as_reference.opened(str(path), PromptOptions(), screen) as engine:
        rounds, machine = compared(engine, request, screen)
    finish(rounds, machine, request, screen)
