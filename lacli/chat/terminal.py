"""Lines that are edited on a terminal: history, several lines, completion, an editor, and a status line below.

The only file that imports prompt_toolkit; it is imported once a chat has a terminal.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.key_binding.bindings.completion import generate_completions
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_term_environment_variable

from lacli.chat.input import (
    BLOCK,
    BY_NAME,
    COMMANDS,
    CONTINUATION,
    CONTINUED,
    OTHER_WORDS,
    PROMPT,
    QUOTES,
    Editing,
    is_open,
    without_quotes,
)
from lacli.chat.settings import KEYS, MODE_HELP, values_of
from lacli.errors import reason_of
from lacli.terminal.interrupts import wakeup_fd_kept, without_ctrl_c
from lacli.terminal.screen import abandon_stdout, console
from lacli.text.files import read_file
from lacli.text.question import check_text

MENU_ROWS = 6
IN_BLOCK = (f"{QUOTES} sends, Ctrl-C drops it", f"{QUOTES} sends")
"""What the bottom line says while a block is open; the second one on narrow terminals."""

COLORED = Style.from_dict(
    {
        "bottom-toolbar": "noreverse dim",
        "completion-menu": "bg:default fg:default",
        "completion-menu.meta.completion": "bg:default fg:default dim",
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

HISTORY_STARTS = (b"+", b"#", b"")
"""How every line of prompt_toolkit's history begins: typed text, a time, nothing."""

SENDING = (Keys.Enter, Keys.ControlJ)
"""Keys that send a line: Enter, and as a terminal that is not raw gives it."""


class TerminalLines:
    """Lines edited on the process's own terminal: both stdin and stdout are one that can be drawn on."""

    edits = True

    def __init__(self, editing: Editing) -> None:
        self._editing = editing
        self._offered = ""
        self._trouble: list[str] = []
        self._in_editor = False
        # Lines that were typed before an answer was stopped; each stands in the line until Enter sends it.
        self._unsent: list[list[KeyPress]] = []
        colored = console(sys.stdout, editing.color).color_system is not None
        history: History = KeptHistory(editing.history, self._trouble) if editing.history else InMemoryHistory()
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=lambda width, number, wraps: " " * width if wraps else CONTINUATION,
            input=create_input(sys.stdin),
            output=_output(),
            color_depth=None if colored else ColorDepth.DEPTH_1_BIT,
            style=COLORED if colored else PLAIN,
            history=history,
            # Without colours a suggestion looks like typed text.
            auto_suggest=AutoSuggestFromHistory() if colored else None,
            completer=CommandCompleter(),
            # While this is true prompt_toolkit keeps rows free for the menu, which pushes the line of numbers down.
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            key_bindings=self._keys(),
            input_processors=[TabsProcessor(char1=" ", char2=" ")],
            bottom_toolbar=self._status,
            tempfile_suffix=".md",
            enable_suspend=True,
        )
        self._session.default_buffer.on_text_changed += lambda buffer: editing.typed()
        self._tell_trouble()

    def read(self, *, held: bool = False) -> str:
        """The next message or command; see `Lines`."""
        if held or self._unsent:
            self._unsent += _lines_typed(self._session.input)
            store_typeahead(self._session.input, self._unsent.pop(0) if self._unsent else [])
        while True:
            default, self._offered = self._offered, ""
            try:
                message = without_quotes(self._prompt(default))
            finally:
                self._tell_trouble()
            if command := _command_behind(default, message):
                # It may be meant as a command, or as the end of the text: nothing is done unasked.
                self._offered = message
                self._editing.warn(f"{command} stands behind the text: Enter sends all of it, Ctrl-C empties the line")
            elif message.strip():
                return check_text(message, "the line")
            else:
                self._editing.typed()

    def edit(self, text: str) -> None:
        """Offer this text as the beginning of the next line."""
        self._offered = text

    def _prompt(self, default: str) -> str:
        rows = self._session.output.get_size().rows
        self._session.reserve_space_for_menu = max(0, min(MENU_ROWS, rows - 3))
        try:
            # To the running prompt Ctrl-C is a key; raised while it is set up, it would leave that half done.
            with without_ctrl_c(), wakeup_fd_kept():
                line = self._session.prompt(default=default, set_exception_handler=False, pre_run=self._catch_failures)
            if sys.platform != "win32":  # where nothing would turn it off
                # What is pasted while an answer comes is one message too.
                self._session.output.enable_bracketed_paste()
                self._session.output.flush()
            return line
        except (EOFError, OSError) as error:
            if not sys.stdout.isatty():
                # The terminal is gone, and what it has not shown yet has nowhere to go.
                abandon_stdout()
            raise EOFError from error

    def _status(self) -> StyleAndTextTuples | None:
        width = self._session.output.get_size().columns
        if is_open(self._session.default_buffer.text):
            line = next((words for words in IN_BLOCK if len(words) <= width), None)
        else:
            line = self._editing.status(width)
        return [("", line)] if line else None

    def _catch_failures(self) -> None:
        """Keep what fails beside the prompt, such as an editor, for a sentence after it."""

        def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            self._trouble.append(f"the line was not edited: {context.get('exception') or context['message']}")

        asyncio.get_running_loop().set_exception_handler(failed)

    def _tell_trouble(self) -> None:
        """Say what went wrong, now that no prompt is on the screen."""
        while self._trouble:
            self._editing.warn(self._trouble.pop(0))

    def _keys(self) -> KeyBindings:
        """What differs from prompt_toolkit's keys, which are emacs's."""
        keys = KeyBindings()
        typing, completer = has_focus(DEFAULT_BUFFER), CommandCompleter()

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
            if self._in_editor:
                return  # Ctrl-C is the editor's own.
            if event.current_buffer.text:
                event.current_buffer.reset()
                if self._unsent:
                    event.app.key_processor.feed_multiple(self._unsent.pop(0))
            elif event.app.future and not event.app.is_done:
                # Pressed just behind Enter it has no prompt to leave.
                event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

        @keys.add("tab", filter=typing)
        def complete(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            chosen = buffer.complete_state and buffer.complete_state.current_completion
            # The menu's own are found in the background, and Tab may be faster.
            found = [] if chosen else [*completer.get_completions(buffer.document, CompleteEvent())]
            if len(found) == 1:
                # Taken at once, so that what follows it is offered next: the files of a folder, for example.
                buffer.apply_completion(found[0])
            else:
                generate_completions(event)

        @keys.add("c-x", "c-e", filter=typing)
        def open_editor(event: KeyPressEvent) -> None:
            def ended(task: asyncio.Task[None]) -> None:
                self._in_editor = False

            self._in_editor = True
            event.current_buffer.open_in_editor().add_done_callback(ended)

        return keys


class CommandCompleter(Completer):
    """Completes slash commands, their settings, modes and files; ordinary text is left alone."""

    def __init__(self) -> None:
        self._files = Files(expanduser=True, file_filter=str.isprintable)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        name, space, rest = document.text_before_cursor.partition(" ")
        if not name.startswith("/") or "\n" in document.text_before_cursor:
            return []
        typed = rest.lstrip()
        match BY_NAME[name].argument if space and name in BY_NAME else "":
            case "file":
                return self._files.get_completions(Document(typed), complete_event)
            case "key":
                key, gap, value = typed.partition(" ")
                if not gap:
                    return _beginning_with(key, KEYS)
                return _beginning_with(value.lstrip(), values_of(key))
            case "mode":
                return _beginning_with(typed, MODE_HELP)
            case "command":
                return _beginning_with(typed.lstrip("/"), {each.names[0][1:]: each.help for each in COMMANDS})
            case "switch":
                return _beginning_with(typed, {"on": "", "off": ""})
        names = {entry.names[0]: entry for entry in COMMANDS} if name == "/" else BY_NAME
        if space:
            return []
        return _beginning_with(name, {f"{name} " if each.usage else name: each.help for name, each in names.items()})


class Files(PathCompleter):
    """Files whose name begins as typed; spaces have a backslash before them, folders a slash behind."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for found in super().get_completions(Document(document.text.replace("\\ ", " ")), complete_event):
            slash = "/" if found.display_text.endswith("/") else ""
            if text := found.text.replace(" ", "\\ ") + slash:
                yield Completion(text, display=found.display)


class KeptHistory(FileHistory):
    """A history file that is read if it is one, and written for its owner alone; else lines are kept in memory.

    `trouble`: gets a sentence, once. A file that holds something else is never written to.
    """

    def __init__(self, path: Path, trouble: list[str]) -> None:
        super().__init__(path)
        self._path, self._trouble, self._on_disk = path, trouble, True
        # Reading it while the prompt is drawn would be too late for a sentence before it.
        self._loaded_strings, self._loaded = list(self.load_history_strings()), True

    def load_history_strings(self) -> Iterable[str]:
        """Earlier lines, the newest first; none where the file is not what it should be."""
        try:
            # A link to /dev/null is how many people keep no history.
            if self._path.exists() and not self._path.samefile(os.devnull):
                if all(line[:1] in HISTORY_STARTS for line in read_file(self._path).split(b"\n")):
                    return super().load_history_strings()
                self._give_up("it is not a history file")
        except OSError as error:
            self._give_up(reason_of(error))
        return []

    def store_string(self, string: str) -> None:
        """Append a line to the file."""
        if not self._on_disk:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
            super().store_string(string)
        except OSError as error:
            self._give_up(reason_of(error))

    def _give_up(self, reason: str) -> None:
        self._on_disk = False
        self._trouble.append(f"lines are not kept after this chat: {self._path}: {reason}")


class QuietOutput(Vt100_Output):
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
    return QuietOutput.from_pty(sys.stdout, term=get_term_environment_variable())


def _lines_typed(terminal: Input) -> list[list[KeyPress]]:
    """The keys that wait to be read, a list for each line, without those that would send it."""
    keys = get_typeahead(terminal)
    while more := terminal.read_keys():
        keys += more
    lines: list[list[KeyPress]] = [[]]
    for key in keys:
        if key.key in SENDING:
            lines.append([])
        else:
            lines[-1].append(key)
    return [line for line in lines if line]


def _beginning_with(typed: str, words: Mapping[str, str]) -> Iterable[Completion]:
    """The words, with what each means, that go on from `typed`; one that is complete is not offered again."""
    found = (word for word in words if word.startswith(typed) and word.strip() != typed)
    return [Completion(word, -len(typed), display=word.strip(), display_meta=words[word]) for word in found]


def _command_behind(offered: str, message: str) -> str:
    """The name of a command that was typed right behind an `offered` text, which was left as it was; else empty."""
    if not offered or not message.startswith(offered):
        return ""
    word = message.removeprefix(offered).partition(" ")[0].rstrip().lower()
    return word if word in BY_NAME or word in OTHER_WORDS else ""


def _goes_on(document: Document) -> bool:
    """True if a backslash at the end asks for another line; between triple quotes it is text."""
    return document.text.endswith(CONTINUED) and document.is_cursor_at_the_end and not BLOCK.match(document.text)


def _on_empty_last_line() -> bool:
    """True if the cursor is below the lines of a message, where Ctrl-D ends it; on the first line it ends the chat."""
    document = get_app().current_buffer.document
    return document.line_count > 1 and document.is_cursor_at_the_end and not document.current_line
