"""`lacli tune`: its flags, turned into settings and one call of `tune`."""

from __future__ import annotations

from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.bench import tasks_of
from lacli.cli.folders import cost_folder, tuned_folder
from lacli.cli.groups import with_groups
from lacli.cli.options import model_group
from lacli.cli.sampling_options import sampling_group
from lacli.sampling import SamplingSettings
from lacli.settings import ModelSettings

TUNING = "Tuning"

Prompts = Annotated[
    str | None,
    typer.Option("--prompts", metavar="FILE", show_default=False, rich_help_panel=TUNING,
                 help='Prompts of your own, as lacli bench takes them: JSON lines, {"prompt": ...}. '
                 "(default: those of lacli bench)"),
]  # fmt: skip
Classes = Annotated[
    str | None,
    typer.Option("--classes", metavar="CLASS,...", show_default=False, rich_help_panel=TUNING,
                 help="Some classes of the prompts: code,edit for example."),
]  # fmt: skip
Seconds = Annotated[float, typer.Option("--seconds", min=1, help="About how long it may take.", rich_help_panel=TUNING)]
Predict = Annotated[
    int | None,
    typer.Option("-n", "--predict", "--n-predict", "--max-tokens", min=1, show_default=False,
                 help="Tokens of an answer at most. (default: up to 128, as time allows)", rich_help_panel=TUNING),
]  # fmt: skip
Forget = Annotated[
    bool, typer.Option("--forget", help="Forget all that is remembered of MODEL, and stop.", rich_help_panel=TUNING)
]


@with_groups(sampling=sampling_group, loading=model_group)
def tune(
    model: options.Model = None,
    prompts: Prompts = None,
    classes: Classes = None,
    seconds: Seconds = 120,
    predict: Predict = None,
    forget: Forget = False,
    *,
    sampling: SamplingSettings,
    loading: ModelSettings,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Search the fixed setting that is fastest for a model on your prompts, and remember it for --preset tuned.

    Mode auto, which needs no tuning, is compared with it. What is remembered
    holds for this machine, this content of the model file and these -t, -tb,
    -ngl, -fa, -ctk and -ctv. Greedy and sampled answers have different winners:
    tune with the sampling that you use, the last result takes the place of others.
    """
    from lacli.amounts import counted
    from lacli.tune.product import TunePlan
    from lacli.tune.product import forget as forget_model
    from lacli.tune.product import tune as search
    from lacli.ui import Screen

    screen = Screen(color=color, quiet=quiet)
    if forget:
        path = options.model_path(model, screen, offline=True)
        forget_model(path, loading, tuned_folder(), screen, as_object=json)
        return
    tasks = tasks_of(classes, prompts, None, offline, screen)
    asked = f"{counted(len(tasks), 'prompt')} {f'of {prompts}' if prompts else 'that come with lacli'}"
    plan = TunePlan(tasks, asked, tuned_folder(), cost_folder(), seconds, predict, model or "", json, verbose)
    search(options.model_path(model, screen, offline), loading, sampling, plan, screen)
