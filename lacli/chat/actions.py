"""What the slash commands of a chat do, and what is shown for it.

No terminal: what only a screen, a clipboard or the loop can do is asked for in the `Outcome`. The commands' names and
their help are `commands.py`, the texts of /set, /show and /stats `shown.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from lacli.chat.adjust import Adjusted, adjust, key_and_value
from lacli.chat.commands import (
    Command,
    file_and_rest,
    file_name,
    help_text,
    switched,
)
from lacli.chat.keys import (
    DEFAULT,
    FILES,
    NO,
    PRESET,
    find_key,
    plain_name,
)
from lacli.chat.saved import (
    SavedChat,
    read_chat,
    settings_json,
    write_chat,
)
from lacli.chat.shown import (
    ChatLike,
    adjusted_of,
    all_settings,
    context_used,
    in_use_of,
    numbers,
    oldest,
    one_setting,
    overview,
)
from lacli.chat.transcript import Transcript
from lacli.chat.values import unquoted
from lacli.errors import LacliError, UsageError
from lacli.session.report import describe
from lacli.settings import MODES
from lacli.terminal.interrupts import without_ctrl_c
from lacli.text.format import counted
from lacli.text.question import check_text, read_text
from lacli.text.reasoning import answer_of


@dataclass(frozen=True)
class Outcome:
    """What is to be shown, and what is left to do for the loop.

    ask: send this message now; again: answer the last question anew; edit: offer this text as the next line; copy:
    put this text on the clipboard; color, status: switch them on or off; end: leave.
    """

    text: str = ""
    ask: str | None = None
    again: bool = False
    edit: str | None = None
    copy: str | None = None
    color: bool | None = None
    status: bool | None = None
    end: bool = False


@dataclass(frozen=True)
class _Sent:
    """A message that files were put before: their names and texts, and what was typed."""

    files: tuple[tuple[str, str], ...]
    typed: str


class Actions:
    """The commands of one chat. model: as the user typed it; template: its name, empty for the model's own."""

    def __init__(self, chat: ChatLike, model: str = "", template: str = "", transcript: Transcript | None = None):
        self._chat = chat
        self._model = model
        self._template = template
        self._transcript = transcript
        self._files: list[tuple[str, str]] = []
        self._sent: dict[str, _Sent] = {}

    def run(self, command: Command, width: int = 80) -> Outcome:
        """Carry out a command. Raises LacliError, in one line, where it cannot be; then nothing has changed."""
        argument = command.argument
        match command.name:
            case "help":
                return Outcome(help_text(width))
            case "exit":
                return Outcome(end=True)
            case "set":
                return self._set(argument, width)
            case "show":
                return Outcome(overview(self._chat, self._model))
            case "stats":
                return Outcome(numbers(self._chat))
            case "color":
                return Outcome(color=switched(argument, "color"))
            case "status":
                return Outcome(status=switched(argument, "status"))
            case "clear" | "regen" | "undo" | "copy" | "compact":
                return {"clear": self._clear, "regen": self._regen, "undo": self._undo, "copy": self._copy,
                        "compact": self._compact}[command.name]()  # fmt: skip
        with_argument = {"system": self._system, "mode": self._mode, "read": self._read, "save": self._save}
        return (with_argument | {"load": self._load})[command.name](argument)

    def message(self, typed: str) -> str:
        """The message to send for what was typed: the files of /read come before it."""
        if not self._files:
            return typed
        message = "\n\n".join([*(text.strip("\n") for _, text in self._files), typed])
        self._sent[message] = _Sent(tuple(self._files), typed)
        self._files.clear()
        return message

    def refused(self, message: str) -> str:
        """What was typed for a message that could not be sent; its files wait for the next one again."""
        return self._take_back(message).typed

    def _take_back(self, message: str) -> _Sent:
        sent = self._sent.get(message, _Sent((), message))
        self._files[:0] = sent.files
        return sent

    def _clear(self) -> Outcome:
        self._chat.clear()
        return self._changed(f"cleared; the system prompt and the settings stay{self._drop_files()}", "clear")

    def _regen(self) -> Outcome:
        if not self._chat.conversation.questions:
            return Outcome("there is no question to answer anew")
        return Outcome(again=True)

    def _undo(self) -> Outcome:
        if self._files:
            return Outcome(self._drop_files().removeprefix("; "))
        question = self._chat.undo()
        if question is None:
            return Outcome("there is nothing to take back")
        sent = self._take_back(question)
        files = f"; {_files_wait(self._files)}" if sent.files else ""
        return replace(self._changed(f"took the last question back, to change it{files}", "undo"), edit=sent.typed)

    def _drop_files(self) -> str:
        """Forget the files that wait; words on that, empty where there are none."""
        names = " and ".join(name for name, _ in self._files)
        self._files.clear()
        return f"; {names} will not go before the next message" if names else ""

    def _system(self, argument: str) -> Outcome:
        conversation = self._chat.conversation
        if not argument:
            return Outcome(conversation.system or "there is no system prompt; /system TEXT sets one")
        conversation.system = check_text(unquoted(argument), "the system prompt")
        self._chat.recall()
        words = "it holds from the next answer on" if conversation.system else "there is none from the next answer on"
        return self._changed(f"system prompt changed: {words}", "system", content=conversation.system)

    def _set(self, argument: str, width: int) -> Outcome:
        if not argument:
            return Outcome(all_settings(adjusted_of(self._chat), width, in_use_of(self._chat)))
        key, value = key_and_value(argument)
        name = plain_name(key).lower()
        resets = name in (DEFAULT, PRESET, *FILES) or name.startswith(NO)
        if not value and not resets:
            return Outcome(one_setting(adjusted_of(self._chat), find_key(key), in_use_of(self._chat)))
        return self._adjust(key, value)

    def _mode(self, argument: str) -> Outcome:
        if not argument:
            return Outcome(f"{describe(self._chat.settings)}; the modes are {', '.join(MODES)}")
        return self._adjust("mode", argument)

    def _adjust(self, key: str, value: str) -> Outcome:
        before = adjusted_of(self._chat)
        after, sentence = adjust(before, key, value)
        if after == before:
            return Outcome(sentence)
        text = _lines(sentence, self._chat.change(after))
        return self._changed(text, "set", changed=sentence, settings=settings_json(after))

    def _read(self, argument: str) -> Outcome:
        name, question = file_and_rest(argument)
        text = _file_text(name)
        tokens = len(self._chat.session.model.tokenize(text, add_special=False, special=False))
        size = f"{name}: {counted(len(text), 'character')}, {counted(tokens, 'token')}"
        if tokens >= self._chat.cells:
            raise LacliError(f"{size}, and the context has {self._chat.cells:,}", "start again with a larger -c")
        room = max(self._chat.cells - self._chat.used, 0)
        note = "" if tokens < room else f"that is more than the context has left: {counted(room, 'token')}"
        self._files.append((name, text))
        if question.strip():
            return Outcome(_lines(size, note), ask=self.message(question))
        return Outcome(_lines(f"{size}; {_files_wait(self._files)}", note))

    def _save(self, argument: str) -> Outcome:
        name, conversation = file_name(argument), self._chat.conversation
        path = Path(os.path.expanduser(name))
        existed = os.path.isfile(path) and path.stat().st_size > 0
        messages = tuple(conversation.messages)
        write_chat(
            name,
            SavedChat(
                self._model, conversation.system, messages, adjusted_of(self._chat), self._template, self._chat.seed
            ),
        )
        instead = ", in place of the chat that was there" if existed else ""
        return Outcome(f"saved {counted(len(messages), 'message')} to {name}{instead}")

    def _load(self, argument: str) -> Outcome:
        """Settings first, for a context may refuse them; the parts of --strict stay as this session has them."""
        name = file_name(argument)
        saved, now = read_chat(name), self._chat.settings
        decoding = replace(
            saved.adjusted.decoding, strict=now.strict, ordered=now.ordered, least_outputs=now.least_outputs
        )
        adjusted = replace(saved.adjusted, decoding=decoding)
        # Only reading may be stopped: half of a chat would be another one.
        with without_ctrl_c():
            return self._go_on(name, saved, adjusted)

    def _go_on(self, name: str, saved: SavedChat, adjusted: Adjusted) -> Outcome:
        anew = self._chat.change(adjusted, saved.seed)
        self._chat.conversation.replace(saved.system, saved.messages)
        self._chat.recall()
        dropped = self._drop_files()
        text = _lines(
            f"loaded {counted(len(saved.messages), 'message')} and the settings from {name}{dropped}",
            anew,
            *self.differences(saved),
        )
        if self._transcript is None:
            return Outcome(text)
        return Outcome(_lines(text, self._transcript.loaded(name, saved.model, self._chat.conversation, adjusted)))

    def differences(self, saved: SavedChat) -> list[str]:
        """Sentences about what a loaded chat had otherwise."""
        own = "the model's own"
        return [
            sentence
            for differs, sentence in (
                (saved.model and saved.model != self._model, f"it was made with {saved.model}, and goes on with "
                 f"{self._model or 'the model of this session'}"),
                (saved.template != self._template, f"it had another chat template: {saved.template or own}"),
                (saved.adjusted.decoding.strict and not self._chat.settings.strict,
                 "it was made with --strict, and this session has it not"),
                (saved.left_out, f"{_left_out(saved.left_out)} and left out"),
                (len(saved.messages) % 2, "its last question has no answer: /regen gives one"),
            )
            if differs
        ]  # fmt: skip

    def _copy(self) -> Outcome:
        answer = self._chat.conversation.last_answer
        text = answer_of(answer) if answer else ""
        return Outcome(copy=text) if text else Outcome("there is no answer to copy")

    def _compact(self) -> Outcome:
        dropped = self._chat.compact()
        if not dropped:
            return Outcome("there is nothing to drop before the last question; /clear forgets all")
        return self._changed(f"dropped {oldest(dropped)}; {context_used(self._chat)}", "compact", dropped=dropped)

    def _changed(self, text: str, event: str, **what: object) -> Outcome:
        """An outcome that the log keeps."""
        note = self._transcript.changed(event, **what) if self._transcript else ""
        return Outcome(_lines(text, note))


def _file_text(name: str) -> str:
    try:
        text = read_text(name, ordinary=True)
    except ValueError as error:
        raise UsageError(f"cannot read {name!r}: {error}", "check the file's name") from error
    if not text.strip():
        raise LacliError(f"{name} is empty", "there is nothing to put before a question")
    return text


def _left_out(lines: tuple[int, ...]) -> str:
    shown = " and ".join(map(str, lines)) if len(lines) < 3 else f"{lines[0]} and {len(lines) - 1} others"
    return f"line{'s' if lines[1:] else ''} {shown} of it {'are' if lines[1:] else 'is'} damaged"


def _files_wait(files: list[tuple[str, str]]) -> str:
    names = " and ".join(name for name, _ in files)
    return f"{names} {'go' if len(files) > 1 else 'goes'} before the next message"


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
