"""`lacli bench`: its flags, turned into settings and one call of `benchmark`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lacli.cli import options
from lacli.cli.environment import setting
from lacli.cli.groups import typed, with_groups
from lacli.cli.lookahead_options import DECODE, GUESSING, lookahead_group
from lacli.cli.model_names import complete_modes
from lacli.cli.options import OUTPUT, model_group
from lacli.cli.placement_options import replica_group
from lacli.cli.prompt_options import ChatTemplateKwargs
from lacli.cli.sampling_options import sampling_group
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.settings import MODES, DecodeSettings, spellings

if TYPE_CHECKING:
    from lacli.bench.plan import Wish
    from lacli.bench.summary import Typed
    from lacli.bench.sweep import Axes

BENCH = "Benchmark"
PEOPLE = ("text", "md")
"""Formats of -o that are not for programs."""

EVERY_MODE = ",".join(MODES)
IN_COMPANY = "lookup,auto"
"""Modes of --parallel where none are named: fixed windows have their rows for each text."""

COMPARED = {"mode", "window", "ngram", "guesses"}
"""Parameters that say what is compared."""

ANSWERS = 0.85
"""Share of the time that the answers may take; the rest is for loading, warming up and judging texts."""

Modes = Annotated[
    str,
    typer.Option("--modes", "--mode", metavar="MODE,..", show_default="all", rich_help_panel=BENCH,
                 autocompletion=complete_modes,
                 help="Modes to compare. Plain always runs."),
]  # fmt: skip
Window = Annotated[
    str | None,
    setting("-W", "--window", metavar="RANGE", show_default=str(DECODE.window), rich_help_panel=GUESSING,
            help="Columns of the lookahead window. 5, 1,5,15, 10-30+10 or 1-16*2: several values are compared."),
]  # fmt: skip
Ngram = Annotated[
    str | None,
    setting("-N", "--ngram", metavar="RANGE", show_default=str(DECODE.ngram), rich_help_panel=GUESSING,
            help="Tokens of an n-gram. Several values as in -W."),
]  # fmt: skip
Guesses = Annotated[
    str | None,
    setting("-G", "--guesses", metavar="RANGE|W", show_default=str(DECODE.guesses), rich_help_panel=GUESSING,
            help="N-grams verified in a step at most. Several values as in -W; W: as many as -W, which is the default "
            "where -W has several values."),
]  # fmt: skip
Classes = Annotated[
    str | None,
    typer.Option("--classes", metavar="CLASS,..", show_default="all", rich_help_panel=BENCH,
                 help="Classes of the built-in prompts. Some of code, edit, chat, summary, extract, translate, "
                 "maths, story, docs, forms."),
]  # fmt: skip
Prompts = Annotated[
    str | None,
    typer.Option("--prompts", metavar="FILE", show_default=False, rich_help_panel=BENCH,
                 help='A file of prompts of your own. JSON lines: {"prompt": ..., "class": ...} or {"turns": [...]}, '
                 "as MT-bench and Spec-Bench have them."),
]  # fmt: skip
Each = Annotated[
    int | None,
    typer.Option("--each", min=1, show_default=False, help="Prompts of a class. (default: as time allows)",
                 rich_help_panel=BENCH),
]  # fmt: skip
Repetitions = Annotated[
    int | None,
    typer.Option("-r", "--repetitions", min=1, show_default=False, rich_help_panel=BENCH,
                 help="Answers to every prompt. (default: up to 5, as time allows)"),
]  # fmt: skip
Predict = Annotated[
    int | None,
    typer.Option("-n", "--predict", "--n-predict", "--max-tokens", "--n-gen", min=1, show_default=False,
                 help="Tokens of an answer at most. (default: up to 128, as time allows)", rich_help_panel=BENCH),
]  # fmt: skip
Seconds = Annotated[
    float,
    typer.Option("--seconds", min=6, rich_help_panel=BENCH,
                 help="About how long all of it takes, at least a short answer of each mode. It decides what --each, "
                 "-r and -n leave open."),
]  # fmt: skip
Full = Annotated[
    bool, typer.Option("--full", help="All prompts, 5 times, however long it takes.", rich_help_panel=BENCH)
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Judge every text that is not plain decoding's; exit with 3 for a bug.",
                 rich_help_panel=BENCH),
]  # fmt: skip
Parallel = Annotated[
    str | None,
    typer.Option("--parallel", "-np", metavar="N,..", show_default=False, rich_help_panel=BENCH,
                 help="Decode that many texts at a time, 1,2,4,8 for example, and say what it brings. Modes are auto "
                 "and lookup unless --modes names them."),
]  # fmt: skip
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", show_default=False, rich_help_panel=OUTPUT,
                 help="Draw the speed-ups into a .png, .svg or .pdf file."),
]  # fmt: skip
Rpc = Annotated[str, setting(*spellings("rpc"), hidden=True)]
"""Taken only to be refused with the reason: `lacli run` and `chat` have it."""
OutputFormat = Annotated[
    Literal["text", "md", "json", "jsonl", "csv"],
    typer.Option("-o", "--output", help="A summary for people, whole tables in Markdown, or rows for programs.",
                 rich_help_panel=OUTPUT),
]  # fmt: skip
Details = Annotated[
    bool,
    typer.Option("--details", rich_help_panel=OUTPUT,
                 help="Tables before the summary: tokens/s, intervals, tokens and rows a step, what was accepted."),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print rows as JSON, the same as -o json.", rich_help_panel=OUTPUT)]


@dataclass(frozen=True)
class Amount:
    """How much is asked, as it was typed."""

    each: Each = None
    repetitions: Repetitions = None
    predict: Predict = None
    seconds: Seconds = 180.0
    full: Full = False

    @property
    def wish(self) -> Wish:
        from lacli.bench.plan import Wish

        return Wish(self.each, self.repetitions, self.predict, None if self.full else self.seconds * ANSWERS)


@with_groups(
    model=options.model_name,
    amount=Amount,
    sampling=sampling_group,
    decode_settings=lookahead_group,
    model_settings=model_group,
    copies=replica_group,
)
def bench(
    model: str | None,
    mode: Modes = "",
    classes: Classes = None,
    prompts: Prompts = None,
    *,
    amount: Amount,
    parallel: Parallel = None,
    check: Check = False,
    chat_template_kwargs: ChatTemplateKwargs = "",
    window: Window = None,
    ngram: Ngram = None,
    guesses: Guesses = None,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    model_settings: ModelSettings,
    copies: ReplicaSettings,
    rpc: Rpc = "",
    offline: options.Offline = False,
    output: OutputFormat = "text",
    json: Json = False,
    details: Details = False,
    plot: Plot = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
    called: typer.Context,
) -> None:
    """Compare the modes on prompts of many kinds, and say which pays.

    By default it takes as many prompts, repetitions and tokens as fit into three minutes.
    """
    from lacli.bench.plot import check_plot_path
    from lacli.bench.run import Request, benchmark
    from lacli.bench.tasks import tasks_of
    from lacli.bench.together import benchmark_together
    from lacli.terminal.screen import Screen
    from lacli.text.records import state_file
    from lacli.text.template import read_variables

    if rpc:
        raise UsageError(
            "--rpc: a benchmark has contexts for all its modes at once, and an RPC server serves one",
            "lacli run --rpc --stats says what one answer took",
        )
    screen = Screen(color=color, quiet=quiet)
    axes = _axes(mode or (IN_COMPANY if parallel else EVERY_MODE), window, ngram, guesses)
    tasks = tuple(tasks_of(prompts, classes))
    output = "json" if json else output
    if details and output not in PEOPLE:
        raise UsageError(f"--details is for people and -o {output} for programs", "leave one of them out")
    numbers: tuple[int, ...] = ()
    if parallel is not None:
        several = any(values[1:] for values in (axes.windows, axes.ngrams, axes.guesses))
        refused = {
            "--check": check,
            "--plot": plot,
            "--strict": decode_settings.strict,
            "--replicas": copies != ReplicaSettings(limit_s=copies.limit_s),
            "several values of -W, -N or -G": several,
            "sampling": not sampling.greedy,
        }
        numbers = _numbers(parallel, [name for name, given in refused.items() if given])
    if plot:
        check_plot_path(plot)
    wish = replace(amount.wish, names_contenders=not typed(called).isdisjoint(COMPARED))
    request = Request(
        tasks=tasks,
        state=state_file(),
        axes=axes,
        wish=wish,
        form=output,
        typed=_typed(called, model, wish),
        details=details,
        check=check,
        plot=plot,
        replicas=copies,
        parallel=numbers,
        template_variables=read_variables(chat_template_kwargs),
        verbose=verbose,
    )
    path = options.model_path(model, screen, offline)
    run = benchmark_together if numbers else benchmark
    code = run(path, model_settings, decode_settings, sampling, request, screen)
    if code:
        raise typer.Exit(code)


def _typed(called: typer.Context, model: str | None, wish: Wish) -> Typed:
    """What was typed; flags of the benchmark alone are those of its own panel and of its output."""
    from lacli.bench.summary import Typed

    kinds: dict[str, list[str]] = {"model": [quote(model)] if model else [], "compared": [], "flags": []}
    given = typed(called) - {"argument", "model_file", "hf_repo", "seconds"}
    for parameter in called.command.params:
        if parameter.name in given:
            value = called.params[parameter.name]
            own = getattr(parameter, "rich_help_panel", None) in (BENCH, OUTPUT)
            kind = "compared" if parameter.name in COMPARED else "flags" if own else "model"
            kinds[kind] += _as_typed(parameter, value)
    parts = {kind: " ".join(words) for kind, words in kinds.items()}
    # Longer answers alone would hardly make it surer.
    return Typed(**parts, seconds=round((wish.seconds or 0) / ANSWERS) if wish.is_timed else None)


def _as_typed(parameter: Any, value: object) -> Iterator[str]:
    """A flag and its value as the command line has them."""
    if parameter.is_flag:
        yield (parameter.opts if value else parameter.secondary_opts)[0]
    else:
        for each in value if isinstance(value, list | tuple) else [value]:
            yield f"{parameter.opts[0]} {quote(str(each))}"


def _axes(mode: str, window: str | None, ngram: str | None, guesses: str | None) -> Axes:
    """What is compared, from the flags as they were typed."""
    from lacli.bench.sweep import Axes, parse_guesses, parse_modes, parse_numbers

    return Axes(
        modes=parse_modes(mode),
        windows=tuple(parse_numbers(window, "-W")) if window is not None else (),
        ngrams=tuple(parse_numbers(ngram, "-N")) if ngram is not None else (),
        guesses=tuple(parse_guesses(guesses)) if guesses is not None else (),
    )


def _numbers(parallel: str, refused: Sequence[str]) -> tuple[int, ...]:
    """The numbers of texts at a time, one of them 1. `refused`: what was given besides and does not go with them."""
    from lacli.bench.sweep import parse_numbers

    numbers = parse_numbers(parallel, "--parallel")
    if not all(numbers):
        raise UsageError("--parallel is 0", "--parallel must be at least 1")
    if refused:
        raise UsageError(f"--parallel does not go with {refused[0]}", "leave one of them out")
    return tuple(sorted({1, *numbers}))
