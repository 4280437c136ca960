"""`lacli chat`: its flags, turned into settings and one call of `chat`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.groups import setting, typed, with_groups
from lacli.cli.options import Loading, PromptOptions
from lacli.errors import LacliError

FIELDS = {
    "preset": ("window", "ngram", "guesses", "jacobi_iterations"),
    "grammar_file": ("grammar",),
    "json_schema_file": ("json_schema",),
}
"""The settings that an option sets if it is not called like them."""

Load = Annotated[
    str | None,
    typer.Option("--load", metavar="FILE", show_default=False,
                 help="Go on with a chat that /save or --log wrote. With its messages, settings and, without MODEL, "
                 "its model."),
]  # fmt: skip
Log = Annotated[
    str | None,
    setting("--log", metavar="FILE", help="Keep the chat in a file, as /save writes it, after each turn."),
]
History = Annotated[bool, setting("--history/--no-history", help="Keep typed lines for the next chat.")]
Commands = Annotated[
    bool,
    setting("--commands/--no-commands",
            help="Obey lines of a pipe that begin with /. On a terminal they always are commands."),
]  # fmt: skip


@with_groups(asked=options.asked, question=options.prompt_group, loading=options.loading_group)
def chat(
    asked: options.Asked,
    load: Load = None,
    log: Log = None,
    history: History = True,
    commands: Commands = False,
    *,
    question: PromptOptions,
    loading: Loading,
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = "",
    quiet: options.Quiet = False,
    color: options.ColorWhen = "auto",
    called: typer.Context,
) -> None:
    """Talk with a model; PROMPT is the first message. /help lists the commands of a chat.

    A pipe brings a message a line. What was said stays decoded, so every turn costs only what is new.
    """
    from platformdirs import user_state_path

    from lacli.chat.repl import ChatPlan
    from lacli.chat.repl import chat as talk
    from lacli.chat.settings import ChatSettings
    from lacli.chat.transcript import read_chat
    from lacli.terminal.screen import Screen
    from lacli.text.files import check_text, state_file

    given = typed(called)
    saved = read_chat(load) if load is not None else None
    model, model_settings = asked.model, loading.model_settings
    if saved and not given & {"argument", "model_file", "hf_repo"}:
        model = saved.model or model
        if os.path.isabs(saved.model) and not os.path.exists(saved.model):
            raise LacliError(f"the model of {load} is gone: {model}", f"lacli chat MODEL --load {load} takes another")
    # A chat that an earlier version had with a server has neither.
    if saved and (saved.model or saved.context) and "context" not in given:
        model_settings = replace(model_settings, context=saved.context)
    plan = ChatPlan(
        model or "",
        question.system,
        question.chat_template,
        ChatSettings(loading.decode_settings, loading.sampling, question.max_tokens, question.stops),
        variables=question.variables,
        saved=saved,
        given=frozenset().union(*(FIELDS.get(name, (name,)) for name in given)),
        first=check_text(asked.prompt or "", "the first message"),
        log=log,
        history=user_state_path("lacli", appauthor=False) / "history" if history else None,
        known=state_file(),
        color=color,
        stats=stats,
        commands=commands,
        verbose=loading.verbose,
    )
    screen = Screen(color=color, quiet=quiet, show_accepted=show_accepted)
    path = options.model_path(model or None, screen, loading.offline)
    if code := talk(path, plan, model_settings, screen):
        raise typer.Exit(code)
