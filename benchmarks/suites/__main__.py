"""`python -m benchmarks.suites NAME [MODEL]`: a public data set as `lacli bench` asks its prompts, and its scores."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.commands import chosen, request_of, run
from benchmarks.suites.files import read_suite
from benchmarks.suites.scores import check_samples, check_scorer, save_samples, score_table, scores
from benchmarks.suites.sets import SUITES, load_suite, suite_of
from lacli.bench.run import BenchOutcome, compared, finish, opened
from lacli.bench.tasks import of_classes
from lacli.cli import options
from lacli.cli.bench import DEFAULT_MODES, Amount, Classes, Modes, OutputFormat
from lacli.cli.groups import with_groups
from lacli.cli.lookahead_options import lookahead_group
from lacli.cli.options import model_group
from lacli.cli.sampling_options import sampling_group
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help=f"The suite: {', '.join(SUITES)}.")]
File = Annotated[
    str, typer.Option("--file", metavar="FILE", help="The suite's file, downloaded by hand.", show_default=False)
]
Samples = Annotated[
    str,
    typer.Option("--samples", metavar="FILE", show_default=False,
                 help="Write HumanEval's completions for its evaluator, a file a mode."),
]  # fmt: skip


@app.command()
@with_groups(amount=Amount, sampling=sampling_group, decode_settings=lookahead_group, model_settings=model_group)
def suites(
    name: Name,
    model: options.Model = None,
    mode: Modes = DEFAULT_MODES,
    classes: Classes = None,
    file: File = "",
    samples: Samples = "",
    *,
    amount: Amount,
    sampling: SamplingSettings,
    decode_settings: DecodeSettings,
    model_settings: ModelSettings,
    output: OutputFormat = "md",
    offline: options.Offline = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure the modes on a public data set, fetched once, with the lookahead paper's limits; score the answers."""
    suite, screen = suite_of(name), Screen(quiet=quiet)
    check_scorer(name)
    found = read_suite(file, kind=name, first=suite.first) if file else load_suite(name, offline=offline)
    tasks = of_classes(found, classes)
    if samples:
        check_samples(samples, tasks)
    request = request_of(tasks, amount, chosen(mode), output)
    with opened(
        options.model_path(model, screen, offline), model_settings, decode_settings, sampling, request, screen
    ) as session:
        outcome = compared(session, request, screen)
    if not outcome.interrupted:
        _score(name, samples, outcome, screen)
    finish(outcome, request, screen)


def _score(name: str, samples: str, outcome: BenchOutcome, screen: Screen) -> None:
    """Add the scores to a benchmark and write the samples; what fails is said and loses nothing."""
    try:
        scored = scores(name, outcome.rounds)
        outcome.columns |= scored
        outcome.tables.append(score_table(scored, outcome.contenders))
        for written in save_samples(samples, outcome.rounds) if samples else ():
            screen.note(f"completions are in {written}")
    except LacliError as error:
        screen.error(error)


if __name__ == "__main__":
    run(app)
