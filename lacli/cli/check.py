"""The command `lacli check`: opens a model, checks its modes and prints the result."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.options import Loading, PromptOptions, typed, with_groups
from lacli.errors import Interrupted, UsageError
from lacli.llamacpp.settings import ContextSize, fit_to_batch
from lacli.settings import MODES

Predict = Annotated[
    int, typer.Option("-n", "--predict", "--n-predict", "--max-tokens", min=1, help="Limit each answer to N tokens.")
]


@with_groups(model=options.model_of, loading=options.loading_group(Loading, mode="all"))
def check(
    model: str | None,
    prompts: options.Tasks = None,
    each: options.Each = None,
    predict: Predict = 64,
    *,
    loading: Loading,
    json: options.Json = False,
    quiet: options.Quiet = False,
    called: typer.Context,
) -> None:
    """Check whether every mode, or the mode of --mode, gives the same text as plain decoding.

    The prompts are lacli's own eight, or the first turns of --prompts. If a text differs, a replay decides whether
    rounding explains the difference; otherwise it is a BUG (exit code 3).
    """
    from lacli.bench.plan import by_class, read_tasks
    from lacli.check import compare
    from lacli.check.report import as_json, as_lines
    from lacli.engine.libraries import open_context
    from lacli.terminal.input import terminal_columns
    from lacli.terminal.screen import Screen

    if loading.model_settings.replicas > 1 or loading.model_settings.rpc:
        raise UsageError("lacli check runs one copy of a model, on this machine", "leave out --replicas and --rpc")
    if loading.sampling.draws_otherwise:
        what = "--verify rejection draws other random numbers than plain decoding, so the texts differ anyway"
        raise UsageError(what, "use --verify match")
    screen = Screen(quiet=quiet)
    tasks = read_tasks(prompts or str(files("lacli") / "data" / "check_prompts.jsonl"))
    tasks = [task for group in by_class(tasks).values() for task in group[:each]]
    wanted = (loading.decode_settings.mode,) if "mode" in typed(called) else MODES[1:]
    with loading.as_reference.opened(model, PromptOptions(), screen) as engine:
        opened, model_settings = engine.model, engine.model_settings
        settings, possible = compare.possible_modes(engine, wanted, screen.note)
        modes = [fit_to_batch(replace(settings, mode=mode), model_settings) for mode in possible]
        asked = [engine.prompts.question(task.turns[0], task.system, raw=task.raw) for task in tasks]
        # Each mode opens its own context, and memory may not hold one more.
        engine.context.close()
        result = compare.check_modes(
            lambda mode: open_context(opened, model_settings, ContextSize.of(mode), backend_greedy=False),
            asked,
            modes,
            predict,
            sampler=engine.sampler,
            repeats=not opened.offloaded,
            progress=screen.note,
        )
        screen.line(as_json(engine, result) if json else as_lines(engine, result, terminal_columns()))
    if result.stopped:
        raise Interrupted("")
    if result.verdict == "bug":
        raise typer.Exit(3)
