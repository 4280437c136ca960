"""Lines that are edited on a terminal: history, several lines, completion, an editor, and a status line below.

The only file, with `history.py`, that imports prompt_toolkit; it is imported once a chat has a terminal.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory, Suggestion
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, Filter, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.bindings.completion import generate_completions
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth, get_term_environment_variable

from lacli.chat.completion import Vocabulary, is_command, offers
from lacli.chat.history import CarefulHistory
from lacli.chat.lines import (
    CONTINUATION,
    CONTINUED,
    PROMPT,
    QUOTES,
    Editing,
    is_open,
    without_quotes,
)
from lacli.errors import LacliError, reason_of
from lacli.terminal.interrupts import TypedKeys, wakeup_fd_kept, without_ctrl_c
from lacli.terminal.screen import abandon_stdout, console
from lacli.text.question import check_text

MENU_ROWS = 6
EDITORS = ("editor", "nano", "vi", "emacs")
"""Looked for where the user names none."""

COLORED = Style.from_dict(
    {
        "bottom-toolbar": "noreverse dim",
        "completion-menu": "bg:default fg:default",
        "completion-menu.completion.current": "bg:default fg:default reverse",
        "auto-suggestion": "fg:default dim",
    }
)
PLAIN = Style.from_dict(
    {
        "bottom-toolbar": "noreverse",
        "completion-menu.completion.current": "reverse",
    }
)
"""Without colours: the chosen completion still has to be told from the others."""


class TerminalLines:
    """Lines edited on the process's own terminal: both stdin and stdout are one that can be drawn on.

    keys: those typed between two lines.
    """

    def __init__(self, editing: Editing, keys: TypedKeys) -> None:
        self._editing = editing
        self._keys = keys
        self._offered = ""
        colored = console(sys.stdout, editing.color).color_system is not None
        self._history: History = CarefulHistory(editing.history, editing.warn) if editing.history else InMemoryHistory()
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=_continuation,
            input=create_input(sys.stdin),
            output=_output(),
            color_depth=None if colored else ColorDepth.DEPTH_1_BIT,
            style=COLORED if colored else PLAIN,
            history=self._history,
            # Without colours a suggestion looks like typed text.
            auto_suggest=_FittingSuggestion() if colored else None,
            completer=_CommandCompleter(editing.vocabulary),
            complete_while_typing=Condition(self._is_command),
            key_bindings=_keys(),
            input_processors=[TabsProcessor(char1=" ", char2=" ")],
            bottom_toolbar=self._status,
            enable_suspend=True,
        )

    def read(self) -> str:
        """The next message or command; see `Lines`."""
        while True:
            default, self._offered = self._offered, ""
            try:
                message = without_quotes(self._prompt(default))
            except _EditorWanted as wanted:
                self._offered = wanted.text
                self._offered = self._in_editor(wanted.text)
                continue
            finally:
                if isinstance(self._history, CarefulHistory):
                    self._history.say_trouble()
            if message.strip():
                return check_text(message, "the line")

    def edit(self, text: str) -> None:
        """Offer this text as the beginning of the next line."""
        self._offered = text

    def _prompt(self, default: str) -> str:
        rows = self._session.output.get_size().rows
        self._session.reserve_space_for_menu = max(0, min(MENU_ROWS, rows - 3))
        self._session.app.erase_when_done = False
        try:
            # To the running prompt Ctrl-C is a key; raised while it is set up, it would leave that half done.
            with without_ctrl_c(), wakeup_fd_kept():
                return self._session.prompt(default=default)
        except (EOFError, OSError) as error:
            if not sys.stdout.isatty():
                # The terminal is gone, and what it has not shown yet has nowhere to go.
                abandon_stdout()
            raise EOFError from error

    def _is_command(self) -> bool:
        return is_command(self._session.default_buffer.text, self._editing.vocabulary)

    def _status(self) -> StyleAndTextTuples | None:
        line = self._editing.status(self._session.output.get_size().columns)
        return [("", line)] if line else None

    def _in_editor(self, text: str) -> str:
        """The text as it was left in the editor. Raises LacliError where that fails."""
        editor = self._editing.editor or next((name for name in EDITORS if shutil.which(name)), "")
        if not editor:
            raise LacliError("there is no editor", "set EDITOR to one")
        with TemporaryDirectory(prefix="lacli-") as folder:
            path = Path(folder, "message.md")
            try:
                path.write_text(text, encoding="utf-8")
                with self._keys.shown():
                    code = _run(shlex.split(editor), path)
                edited = path.read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, ValueError) as error:
                raise LacliError(
                    f"cannot edit with {editor}: {reason_of(error)}", "set EDITOR to another editor"
                ) from error
        if code:
            raise LacliError(f"{editor} ended with {code}", "the text stays as it was")
        return edited


class _EditorWanted(Exception):
    """The user wants to go on with this text in an editor."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _CommandCompleter(Completer):
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for offer in offers(document.text_before_cursor, self._vocabulary):
            yield Completion(offer.text, -offer.replaces, offer.shown)


class _FittingSuggestion(AutoSuggestFromHistory):
    """The rest of an earlier line, where the row has room for it: more would move what is on the screen."""

    def get_suggestion(self, buffer: Buffer, document: Document) -> Suggestion | None:
        found = super().get_suggestion(buffer, document)
        if found is None:
            return None
        taken = len(PROMPT) + get_cwidth(document.current_line) + get_cwidth(found.text)
        return found if taken < get_app().output.get_size().columns else None


class _QuietOutput(Vt100_Output):
    """A terminal that is never asked where its cursor is.

    Not every terminal answers, and a late answer would be read as typed text. The status line then stands below the
    line instead of at the screen's bottom.
    """

    @property
    def responds_to_cpr(self) -> bool:
        return False

    def get_rows_below_cursor_position(self) -> int:
        return 1


def _output() -> Output:
    """stdout, as prompt_toolkit writes to it."""
    output = create_output(sys.stdout)
    if not isinstance(output, Vt100_Output):
        return output
    return _QuietOutput.from_pty(sys.stdout, term=get_term_environment_variable())


def _continuation(width: int, line_number: int, wrap_count: int) -> str:
    return " " * width if wrap_count else CONTINUATION


def _run(command: list[str], path: Path) -> int:
    """The exit code of a program that has the terminal; Ctrl-C is its own meanwhile."""
    with without_ctrl_c():
        return subprocess.call([*command, str(path)])


def _goes_on(document: Document) -> bool:
    """Whether a backslash at the end asks for another line; between triple quotes it is text."""
    return document.text.endswith(CONTINUED) and document.is_cursor_at_the_end and not document.text.startswith(QUOTES)


def _on_empty_last_line() -> bool:
    """Whether the cursor is below the lines of a message, where Ctrl-D ends it; on the first line it ends the chat."""
    document = get_app().current_buffer.document
    return document.line_count > 1 and document.is_cursor_at_the_end and not document.current_line


def _keys() -> KeyBindings:
    """What differs from prompt_toolkit's keys, which are emacs's."""
    keys = KeyBindings()
    _add_ends(keys, has_focus(DEFAULT_BUFFER))
    _add_helps(keys, has_focus(DEFAULT_BUFFER))
    return keys


def _add_ends(keys: KeyBindings, typing: Filter) -> None:
    """What ends a line or a message."""

    @keys.add("enter", filter=typing)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if _goes_on(buffer.document):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        elif is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("c-d", filter=typing & Condition(_on_empty_last_line))
    def end_message(event: KeyPressEvent) -> None:
        if is_open(event.current_buffer.text):
            event.current_buffer.insert_text(QUOTES)
        send(event)

    @keys.add("escape", "enter", filter=typing)
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c", filter=typing)
    @keys.add("<sigint>")
    def clear_or_interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        elif event.app.future and not event.app.is_done:
            # Pressed just behind Enter it has no prompt to leave.
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")


def _add_helps(keys: KeyBindings, typing: Filter) -> None:
    """What helps to write one: completion and the editor."""

    @keys.add("tab", filter=typing)
    def complete(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        asked = CompleteEvent(completion_requested=True)
        found = list(buffer.completer.get_completions(buffer.document, asked))
        if len(found) != 1 or (state and state.complete_index is not None):
            generate_completions(event)
            return
        # The only offer is taken at once, and what follows it can be offered then: the files of a folder, for example.
        buffer.complete_state = None
        buffer.apply_completion(found[0])

    @keys.add("c-x", "c-e", filter=typing)
    def open_editor(event: KeyPressEvent) -> None:
        event.app.erase_when_done = True
        event.app.exit(exception=_EditorWanted(event.current_buffer.text))
