"""`python -m benchmarks.insight table3|inside|law`: what lies behind the paper's numbers."""

from __future__ import annotations

from dataclasses import replace
from json import dumps
from typing import Annotated

import typer

from benchmarks.commands import Rows, chosen, read_json, request_of, run
from benchmarks.insight import law as scaling
from benchmarks.insight.inside import TOKENS, as_columns, as_lines, look_inside
from benchmarks.insight.table3 import table3 as rows_of_table3
from lacli.bench.contenders import points_of, with_plain
from lacli.bench.run import asker_of, compared, contexts_of, finish, opened
from lacli.bench.tasks import by_class, tasks_of
from lacli.cli import options
from lacli.cli.bench import Amount, Classes, OutputFormat, Prompts
from lacli.cli.groups import with_groups
from lacli.cli.lookahead_options import lookahead_group
from lacli.cli.options import model_group
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Modes = Annotated[str, typer.Option("--modes", metavar="MODE,...", help="Whose answers are looked into.")]


@app.command()
@with_groups(amount=Amount, model_settings=model_group)
def table3(
    model: options.Model = None,
    classes: Classes = None,
    prompts: Prompts = None,
    *,
    amount: Amount,
    model_settings: ModelSettings,
    output: OutputFormat = "md",
    offline: options.Offline = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure the nine settings of the paper's Table 3 as `lacli bench` measures modes."""
    screen = Screen(quiet=quiet)
    request = request_of(tasks_of(prompts, classes), amount, chosen("lookahead"), output)
    path = options.model_path(model, screen, offline)
    with opened(path, model_settings, DecodeSettings(), SamplingSettings(), request, screen) as session:
        if session.model.chain_only:
            raise LacliError(f"Table 3 is about lookahead: {session.model.chain_only}", "lacli bench measures the rest")
        found, skipped = rows_of_table3(session.settings, session.model_settings)
        for each in skipped:
            screen.note(f"left out: {each.label}: {each.reason}")
        outcome = compared(session, request, screen, points=with_plain(found))
    finish(outcome, request, screen)


@app.command()
@with_groups(decode_settings=lookahead_group, model_settings=model_group)
def inside(
    model: options.Model = None,
    mode: Modes = "jacobi,lookahead",
    classes: Classes = None,
    prompts: Prompts = None,
    *,
    decode_settings: DecodeSettings,
    model_settings: ModelSettings,
    json: options.Json = False,
    offline: options.Offline = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer a prompt of each class: how the pool grows, what a match brings, how Jacobi blocks converge, memory."""
    screen = Screen(quiet=quiet)
    request = request_of(tasks_of(prompts, classes), Amount(), chosen(mode), "md")
    path = options.model_path(model, screen, offline)
    with opened(path, model_settings, decode_settings, SamplingSettings(), request, screen) as session:
        asker = asker_of(session)
        first = [tasks[0] for tasks in by_class(request.tasks).values()]
        asked = [asker.exchange(replace(task, max_tokens=TOKENS), []) for task in first]
        exchanges = [exchange for exchange in asked if exchange]
        with contexts_of(session, points_of(session, request.axes, screen)) as (contexts, competing):
            screen.note(f"answers of up to {TOKENS} tokens, one a class and setting")
            seen = dict(look_inside(competing, exchanges, contexts.of, session.decoder_in))
    if json:
        screen.line(dumps([{"setting": competing[number].label, **as_columns(seen[number])} for number in seen]))
    else:
        screen.line(as_lines(seen, competing))


@app.command()
def law(file: Rows = "-") -> None:
    """Fit the paper's scaling law to a sweep: lacli bench --modes lookahead -W 1,5,15 -N 3,5 -o json."""
    Screen().line(scaling.law_sentence(scaling.sweep_points(read_json(file))))


if __name__ == "__main__":
    run(app)
