"""The command `lacli chat`: turns its flags, and a chat of --load, into settings, and runs the chat."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.options import IN_FILE, CachedLoading, PromptOptions, loading_group, setting, typed, with_groups
from lacli.errors import LacliError
from lacli.settings import PRESETS

Load = Annotated[str | None, typer.Option("--load", metavar="FILE", help="Continue a chat that /save or --log wrote.")]
LogFile = Annotated[str | None, setting("--log", metavar="FILE", help="Save the chat to a file after each turn.")]
History = Annotated[bool, setting("--history/--no-history", help="Keep typed lines for the next chat.")]
Commands = Annotated[bool, setting("--commands/--no-commands", help="Run the commands (/...) in piped lines.")]


@with_groups(model_and_prompt=options.asked, question=options.prompt_group, loading=loading_group(CachedLoading))
def chat(
    model_and_prompt: tuple[str | None, str | None],
    load: Load = None,
    log: LogFile = None,
    history: History = True,
    commands: Commands = False,
    *,
    question: PromptOptions,
    loading: CachedLoading,
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = "",
    quiet: options.Quiet = False,
    color: options.ColorWhen = "auto",
    called: typer.Context,
) -> None:
    """Chat with a model. PROMPT is the first message; /help lists the commands."""
    from platformdirs import user_state_path

    from lacli.chat.commands import Commands as ChatCommands
    from lacli.chat.conversation import Chat, Conversation
    from lacli.chat.repl import Repl, open_lines
    from lacli.chat.settings import IN_FILES, ChatSettings
    from lacli.chat.transcript import Log, SavedChat, movable, read_chat
    from lacli.terminal.input import is_terminal
    from lacli.terminal.screen import Screen
    from lacli.text.files import check_text
    from lacli.text.template import STOPS

    given, (model, prompt) = typed(called), model_and_prompt
    saved = SavedChat()
    settings = ChatSettings(question.max_tokens, question.stops, loading.decode_settings, loading.sampling)
    if load is not None:
        # The saved settings apply unless the command line changes them.
        saved = read_chat(load)
        fields = {name.removesuffix(IN_FILE) for name in given}
        if "preset" in given:
            fields |= {name for sizes in PRESETS.values() for name in sizes}
        changes = {field: settings.values[field] for field in IN_FILES if field in fields}
        settings = saved.settings.with_values(changes)
        system = question.system if "system" in fields else saved.conversation.system
        template = question.chat_template if "chat_template" in given else saved.template
        question = replace(question, system=system, chat_template=template)
        loading = replace(loading, decode_settings=settings.decode_settings, sampling=settings.sampling)
        loading = replace(loading, prompt_cache=loading.prompt_cache or saved.prompt_cache)
        if "context" not in given:
            loading = replace(loading, model_settings=replace(loading.model_settings, context=saved.context))
        if not given & {"model_file", "hf_repo"} and called.params["argument"] in (None, prompt):
            model = saved.model or model
    template, name = question.chat_template, movable(model or "")
    template = template if template.lower() in STOPS else movable(template)
    first = check_text(prompt or "", "the first message")
    screen, interactive = Screen(color=color, quiet=quiet, show_accepted=show_accepted), is_terminal(sys.stdin)
    with Log(log) as kept, loading.opened(model or None, question, screen) as engine:
        talk = Chat(engine, settings, Conversation(question.system, saved.conversation.messages))
        own = ChatCommands(talk, kept, name, template, file=saved.path)
        repl = Repl(own, screen, stats, obeys=interactive or commands, interactive=interactive)
        kept_lines = user_state_path("lacli", appauthor=False) / "history" if history else None
        lines = open_lines(repl.status, kept_lines, color)
        if saved.damage:
            screen.note(saved.damage)
        if interactive:
            screen.note(f"{engine.model.description}, context {talk.cells:,} tokens; /help for help, Ctrl-D ends")
            repl.show_last()
        elif not (commands or first):
            screen.note("each piped line is a message; with --commands a line that begins with / is a command")
        repl.run(lines, first)
    # A user at a terminal has seen the errors; a script needs the exit code.
    if repl.failed and not interactive:
        raise typer.Exit(LacliError.exit_code)
