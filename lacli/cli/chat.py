"""`lacli chat`: its flags, turned into settings and one call of `chat`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.environment import setting
from lacli.cli.groups import Group, typed, with_groups
from lacli.cli.options import engine_group, lookahead_group, sampling_group
from lacli.cli.prompt_options import PromptOptions, prompt_group
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings

FIELDS = {
    "preset": ("window", "ngram", "guesses", "jacobi_iterations"),
    "grammar_file": ("grammar",),
    "json_schema_file": ("json_schema",),
}
"""The settings that an option sets if it is not called like them."""

First = Annotated[str, typer.Option("-p", "--prompt", show_default=False, help="The first message.")]
Load = Annotated[
    str | None,
    typer.Option("--load", metavar="FILE", show_default=False,
                 help="Go on with a chat that /save or --log wrote. With its messages, settings and, without MODEL, "
                 "its model."),
]  # fmt: skip
Log = Annotated[
    str | None,
    setting("--log", metavar="FILE", show_default=False,
            help="Keep the chat in a file, as /save writes it, after each turn."),
]  # fmt: skip
History = Annotated[bool, setting("--history/--no-history", help="Keep typed lines for the next chat.")]
Commands = Annotated[
    bool,
    setting("--commands/--no-commands",
            help="Obey lines of a pipe that begin with /. On a terminal they always are commands."),
]  # fmt: skip

ANSWERING: dict[str, Group] = {
    "prompt_options": prompt_group,
    "sampling": sampling_group,
    "decode_settings": lookahead_group,
    "model_settings": engine_group,
}
"""The groups of settings of the commands that answer: this one and `lacli run`."""


@with_groups(asked=options.asked, **ANSWERING)
def chat(
    asked: options.Asked,
    first: First = "",
    load: Load = None,
    log: Log = None,
    history: History = True,
    commands: Commands = False,
    *,
    prompt_options: PromptOptions,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    model_settings: ModelSettings,
    offline: options.Offline = False,
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = "",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
    called: typer.Context,
) -> None:
    """Talk with a model. /help lists the commands of a chat.

    A pipe brings a message a line. What was said stays decoded, so every turn costs only what is new.
    """
    from platformdirs import user_state_path

    from lacli.chat.repl import ChatPlan
    from lacli.chat.repl import chat as talk
    from lacli.chat.settings import ChatSettings
    from lacli.chat.transcript import read_chat
    from lacli.terminal.screen import Screen
    from lacli.text.files import check_text, state_file

    if asked.prompt is not None and first:
        raise UsageError("the first message is given twice, behind MODEL and with -p", "drop one of them")
    given = typed(called)
    saved = read_chat(load) if load is not None else None
    model = asked.model
    if saved and not given & {"argument", "model_file", "hf_repo"}:
        model = saved.model or model
        if os.path.isabs(saved.model) and not os.path.exists(saved.model):
            raise LacliError(f"the model of {load} is gone: {model}", f"lacli chat MODEL --load {load} takes another")
    # A chat that an earlier version had with a server has neither.
    if saved and (saved.model or saved.context) and "context" not in given:
        model_settings = replace(model_settings, context=saved.context)
    plan = ChatPlan(
        model or "",
        prompt_options.system,
        prompt_options.template,
        ChatSettings(decode_settings, sampling, prompt_options.max_tokens, prompt_options.stops),
        variables=prompt_options.variables,
        saved=saved,
        given=frozenset().union(*(FIELDS.get(name, (name,)) for name in given)),
        first=check_text(first or asked.prompt or "", "the first message"),
        log=log,
        history=user_state_path("lacli", appauthor=False) / "history" if history else None,
        known=state_file(),
        color=color,
        stats=stats,
        commands=commands,
        verbose=verbose,
    )
    screen = Screen(color=color, quiet=quiet, show_accepted=show_accepted)
    path = options.model_path(model or None, screen, offline)
    if code := talk(path, plan, model_settings, screen):
        raise typer.Exit(code)
