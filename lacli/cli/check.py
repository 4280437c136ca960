"""`lacli check`: its flags, turned into settings and one call of `examine`."""

from __future__ import annotations

from typing import Annotated

import typer

from lacli import settings
from lacli.cli import options
from lacli.cli.groups import with_groups
from lacli.cli.lookahead_options import GUESSING, lookahead_group
from lacli.cli.options import model_group
from lacli.cli.sampling_options import sampling_group
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings

CHECK = "Check"
PROMPTS = 8
"""The built-in ones (`lacli/check/compare.py`)."""

Mode = Annotated[
    settings.ModeName | None,
    typer.Option(
        "--mode",
        metavar="MODE",
        show_default=False,
        help="Check one mode: jacobi, lookup, lookahead or auto; plain is checked against itself. (default: the four)",
        rich_help_panel=GUESSING,
    ),
]
Prompts = Annotated[
    int, typer.Option("--prompts", min=1, max=PROMPTS, help="How many of the built-in prompts.", rich_help_panel=CHECK)
]
Prompt = Annotated[
    str | None,
    typer.Option("-p", "--prompt", help="Check with this prompt instead of the built-in ones.", rich_help_panel=CHECK),
]
PromptFile = Annotated[str | None, typer.Option("-f", "--file", help="The same from a file.", rich_help_panel=CHECK)]
Predict = Annotated[
    int,
    typer.Option("-n", "--predict", "--n-predict", "--max-tokens", min=1, help="Tokens of an answer at most.",
                 rich_help_panel=CHECK),
]  # fmt: skip
FailOnDifference = Annotated[
    bool,
    typer.Option("--fail-on-difference", help="Exit with 3 where rounding changes a text too.", rich_help_panel=CHECK),
]


@with_groups(sampling=sampling_group, decoding=lookahead_group, loading=model_group)
def check(
    model: options.Model = None,
    prompts: Prompts = PROMPTS,
    prompt: Prompt = None,
    file: PromptFile = None,
    predict: Predict = 64,
    fail_on_difference: FailOnDifference = False,
    *,
    mode: Mode = None,
    decoding: DecodeSettings,
    sampling: SamplingSettings,
    loading: ModelSettings,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Check how exact a model is here: whether every mode gives the text of plain decoding, and if not, why.

    A text that differs is judged: the batches were rounded in another way, or there is a BUG (exit code 3).
    """
    from lacli.cli.examine import Plan, examine
    from lacli.terminal.screen import Screen
    from lacli.text.question import check_text, read_text

    screen = Screen(color=color, quiet=quiet)
    path = options.model_path(model, screen, offline)
    own = read_text(file) if file is not None else check_text(prompt or "", "-p")
    plan = Plan(prompts, predict, mode, fail_on_difference, json, verbose, own)
    code = examine(path, loading, decoding, sampling, plan, screen)
    if code:
        raise typer.Exit(code)
