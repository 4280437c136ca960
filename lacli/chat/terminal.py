"""Line editing on a terminal: history, messages of several lines, completion, an editor, and a status line.

This is the only file that imports prompt_toolkit. It is imported only for a chat on a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from lacli.chat.commands import BY_NAME, COMMANDS, QUOTES, is_open, without_quotes
from lacli.chat.settings import BY_KEY, KEYS, choices_of
from lacli.interrupts import without_ctrl_c
from lacli.settings import Switch
from lacli.terminal.screen import abandon_stdout, console
from lacli.text.files import check_text


class TerminalLines:
    """Reads lines with line editing. stdin and stdout are the terminal. `status`: makes a status line for a width."""

    def __init__(self, status: Callable[[int], str], history: Path | None, color: Switch) -> None:
        self._status_line = status
        self._offered = ""
        colored = console(sys.stdout, color).color_system is not None
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation=lambda width, number, wraps: " " * width if wraps else ". ",
            input=create_input(sys.stdin),
            output=_output(),
            color_depth=None if colored else ColorDepth.DEPTH_1_BIT,
            style=Style.from_dict({"bottom-toolbar": "noreverse dim", "auto-suggestion": "fg:default dim"}),
            history=kept_history(history),
            # Without colours a suggestion looks like typed text.
            auto_suggest=AutoSuggestFromHistory() if colored else None,
            completer=Completions(),
            # While this is true, prompt_toolkit reserves rows for the menu, which moves the status line down.
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            key_bindings=_keys(),
            bottom_toolbar=self._status,
            tempfile_suffix=".md",
            enable_open_in_editor=True,
            enable_suspend=True,
        )

    def read(self) -> str:
        while True:
            default, self._offered = self._offered, ""
            message = without_quotes(self._prompt(default))
            if message.strip():
                return check_text(message, "the line")

    def edit(self, text: str) -> None:
        self._offered = text

    def _prompt(self, default: str) -> str:
        try:
            # The running prompt handles Ctrl-C as a key. Raised during its setup, it would leave the setup half done.
            with without_ctrl_c():
                return self._session.prompt(default=default)
        except (EOFError, OSError) as error:
            if not sys.stdout.isatty():
                # The terminal is closed, so the text still buffered has nowhere to go.
                abandon_stdout()
            raise EOFError from error

    def _status(self) -> str:
        width = self._session.output.get_size().columns
        if is_open(self._session.default_buffer.text):
            return f"{QUOTES} sends, Ctrl-C drops it"[:width]
        return self._status_line(width)


def _keys() -> KeyBindings:
    """Return the key bindings that differ from prompt_toolkit's emacs keys: Enter, Alt-Enter and Ctrl-C."""
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c", filter=typing)
    @keys.add("<sigint>")
    def clear_or_interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        elif event.app.future and not event.app.is_done:
            # Right after Enter the prompt has ended, and `exit` would fail.
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


class Completions(Completer):
    """Completes slash commands, settings of /set and names of files; messages are not completed."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        name, space, argument = document.text_before_cursor.partition(" ")
        usage = BY_NAME[name].usage if name in BY_NAME else ""
        key, behind_key, value = argument.partition(" ")
        completer: Completer
        if not name.startswith("/") or "\n" in document.text_before_cursor:
            return []
        if not space:
            helps = {each.names[0]: each.help for each in COMMANDS}
            completer = WordCompleter([*helps], meta_dict=helps, sentence=True)
        elif "FILE" in usage:
            completer = PathCompleter(expanduser=True, file_filter=str.isprintable)
        elif "KEY" in usage:
            values = choices_of(BY_KEY[key]) if key in BY_KEY else ()
            completer = WordCompleter([*(values if behind_key else KEYS)], meta_dict=KEYS, sentence=True)
            argument = value if behind_key else key
        else:
            return []
        return completer.get_completions(Document(argument if space else name), complete_event)


class KeptHistory(FileHistory):
    """A history in a file. A line that cannot be written, for example on a full disk, is left out without an error."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def kept_history(path: Path | None) -> History:
    """Return the history in the file `path`, which only its owner can read; without a usable file, one in memory."""
    if path:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            return KeptHistory(path)
    return InMemoryHistory()


def _output() -> Output:
    """Return prompt_toolkit's output to stdout, with the status line right below the typed line.

    The terminal is never asked for its cursor position: some do not answer, and a late answer would count as input.
    """
    output = create_output(sys.stdout)
    if isinstance(output, Vt100_Output):
        output.get_rows_below_cursor_position = lambda: 1  # type: ignore[method-assign]
    return output
