"""`lacli chat`: its flags, turned into settings and one call of `chat`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.environment import setting
from lacli.cli.folders import history_file
from lacli.cli.groups import Group, typed, with_groups
from lacli.cli.lookahead_options import lookahead_group
from lacli.cli.options import model_group
from lacli.cli.placement_options import replica_group
from lacli.cli.prompt_options import TEXT, PromptOptions, prompt_group
from lacli.cli.sampling_options import sampling_group
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.settings import DecodeSettings

if TYPE_CHECKING:
    from lacli.chat.repl import ChatPlan

CHAT = "Chat"

FIELDS = {
    "predict": ("max_tokens",),
    "stop": ("stops",),
    "preset": ("window", "ngram", "guesses", "jacobi_iterations"),
    "grammar_file": ("grammar",),
    "json_schema_file": ("json_schema",),
}
"""The settings that an option sets where it is not called like them."""

First = Annotated[
    str,
    typer.Option("-p", "--prompt", show_default=False, rich_help_panel=TEXT,
                 help="The first message."),
]  # fmt: skip
Load = Annotated[
    str | None,
    typer.Option("--load", metavar="FILE", show_default=False, rich_help_panel=CHAT,
                 help="Go on with a chat that /save or --log wrote. With its messages, settings and, without MODEL, "
                 "its model."),
]  # fmt: skip
Log = Annotated[
    str | None,
    setting("--log", metavar="FILE", show_default=False, rich_help_panel=CHAT,
            help="Write the chat to a file. It grows by a JSON object a line."),
]  # fmt: skip
History = Annotated[
    bool, setting("--history/--no-history", help="Keep typed lines for the next chat.", rich_help_panel=CHAT)
]
Status = Annotated[
    bool,
    setting("--status/--no-status", rich_help_panel=CHAT,
            help="Show speed and context used below the prompt."),
]  # fmt: skip

Commands = Annotated[
    bool,
    setting("--commands/--no-commands", rich_help_panel=CHAT,
            help="Obey lines of a pipe that begin with /. On a terminal they always are commands."),
]  # fmt: skip

ANSWERING: dict[str, Group] = {
    "prompt_options": prompt_group,
    "sampling": sampling_group,
    "decode_settings": lookahead_group,
    "model_settings": model_group,
    "copies": replica_group,
}
"""The groups of settings of the commands that answer: this one and `lacli run`."""


@with_groups(asked=options.asked, **ANSWERING)
def chat(
    asked: options.Asked,
    first: First = "",
    load: Load = None,
    log: Log = None,
    history: History = True,
    status: Status = True,
    commands: Commands = False,
    conversation: options.Conversation = False,
    *,
    prompt_options: PromptOptions,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    model_settings: ModelSettings,
    copies: ReplicaSettings,
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
    from lacli.chat.transcript import read_chat
    from lacli.text.question import check_text

    if error := asked.model_error:
        loaded = "a loaded chat has its model, and -p gives its next message" if load is not None else ""
        raise type(error)(error.what, "; ".join(filter(None, [error.hint, loaded])))
    if asked.prompt is not None and first:
        raise UsageError("the first message is given twice, behind MODEL and with -p", "drop one of them")
    saved = read_chat(load) if load is not None else None
    model = asked.model
    # Where MODEL or -hf is typed nothing is left of a variable's model.
    from_environment = bool(called.params["model_file"]) and "model_file" not in typed(called)
    if saved and (not model or (from_environment and saved.model)):
        model = saved.model
        if os.path.isabs(model) and not os.path.exists(model):
            raise LacliError(f"the model of {load} is gone: {model}", f"lacli chat MODEL --load {load} takes another")
    # A chat that an earlier version had with a server has neither.
    if saved and (saved.model or saved.context) and "context" not in typed(called):
        model_settings = replace(model_settings, context=saved.context)
    plan = replace(
        plan_of(
            model,
            prompt_options,
            decode_settings,
            sampling,
            history=history,
        ),
        saved=saved,
        first=check_text(first or asked.prompt or "", "the first message"),
        given=frozenset().union(*(FIELDS.get(name, (name,)) for name in typed(called))),
        log=log,
        color=color,
        status=status,
        stats=stats,
        commands=commands,
        verbose=verbose,
        replicas=copies,
    )
    start(plan, model_settings, offline=offline, quiet=quiet, show_accepted=show_accepted)


def plan_of(
    model: str | None,
    prompt_options: PromptOptions,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    *,
    history: bool,
) -> ChatPlan:
    """A chat with the user's own history and kept texts."""
    from lacli.chat.repl import ChatPlan
    from lacli.chat.settings import ChatSettings
    from lacli.text.records import state_file

    return ChatPlan(
        model or "",
        prompt_options.system,
        prompt_options.template,
        ChatSettings(decode_settings, sampling, prompt_options.max_tokens, prompt_options.stops),
        variables=prompt_options.variables,
        history=history_file() if history else None,
        known=state_file(),
    )


def start(plan: ChatPlan, model_settings: ModelSettings, *, offline: bool, quiet: bool, show_accepted: bool) -> None:
    """Open the plan's model and talk; `lacli run` without a prompt comes here too."""
    from lacli.chat.repl import chat as talk
    from lacli.terminal.screen import Screen

    screen = Screen(color=plan.color, quiet=quiet, show_accepted=show_accepted)
    path = options.model_path(plan.model or None, screen, offline)
    if code := talk(path, plan, model_settings, screen):
        raise typer.Exit(code)
