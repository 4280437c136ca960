"""What the slash commands of a chat do; their names, their help and how a line becomes one are `input.py`."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from subprocess import SubprocessError
from typing import TextIO

from lacli.chat.conversation import Chat
from lacli.chat.input import Command, help_text
from lacli.chat.setting import DEFAULT, FILES, NO, PRESET, WITH_THE_MODEL, find_setting, plain_name, unquoted
from lacli.chat.settings import (
    MODE_HELP,
    adjust,
    all_settings,
    changed_settings,
    changes_in_words,
    key_and_value,
    one_setting,
)
from lacli.chat.talk import Conversation, Message
from lacli.chat.transcript import (
    SavedChat,
    Transcript,
    absolute,
    read_chat,
    write_chat,
)
from lacli.decode import ROOM
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.library import captured_stderr
from lacli.session.generation import Answer
from lacli.session.report import describe_sampling
from lacli.terminal.interrupts import without_ctrl_c
from lacli.terminal.screen import Screen, console
from lacli.text.files import is_terminal
from lacli.text.format import columns, counted
from lacli.text.question import check_text, read_text
from lacli.text.reasoning import answer_of

MAX_CLIPBOARD_BYTES = 74_994
"""UTF-8 bytes for a terminal: many drop an OSC 52 sequence of more than 100,000, which base64 reaches here."""

OWN_TEMPLATE = "the model's own"
INSTALL = "install wl-clipboard (Wayland) or xclip (X11), or keep it with /save"

MAX_TURNS = 10
"""The latest answers that /stats lists, so that they fit a screen."""


@dataclass(frozen=True)
class Reply:
    """What a command has to say, and what is left to do for the loop.

    `ask`: send this message now; `again`: answer the last question anew; `edit`: offer this text as the next line; end:
    leave.
    """

    text: str = ""
    ask: str | None = None
    again: bool = False
    edit: str | None = None
    end: bool = False


@dataclass
class Commands:
    """What the commands do to one chat.

    `model`: as the user typed it; `template`: its name, empty for the model's own. `show_status`: whether the line of
    numbers is wanted. `report`: what the last answer cost, as it was then. `files`: names and texts that /read has put
    before the next message; `sent`: messages that were sent with files, what waited before them and what was typed.
    `file`: the one that the chat was saved to or loaded from last. `may_replace`: files of this chat, and those that
    /save has refused, by their absolute paths. `asks`: True where /load is refused once for a chat that is not saved;
    `kept`: messages that it drops without that.
    """

    chat: Chat
    screen: Screen
    transcript: Transcript
    model: str = ""
    template: str = ""
    show_status: bool = True
    report: str = ""
    files: list[tuple[str, str]] = field(default_factory=list)
    sent: dict[str, tuple[list[tuple[str, str]], str]] = field(default_factory=dict)
    file: str = ""
    may_replace: set[str] = field(default_factory=set)
    asks: bool = False
    kept: Sequence[Message] = ()

    def run(self, command: Command) -> Reply:
        """Carry out a command. Raises LacliError, in one line, where it cannot be; then nothing has changed."""
        reply: Reply = getattr(self, f"_{command.name}")(command.argument)
        return reply

    def message(self, typed: str) -> str:
        """The message to send for what was typed: the files of /read come before it.

        So do those of a question without an answer, whose place it takes.
        """
        files = [each for each in self.files_unanswered if each not in self.files]
        if files:
            self.screen.note(_go_before(files, "this question too"))
            self.files = [*files, *self.files]
        if not self.files:
            return typed
        message = "\n\n".join([*(text.strip("\n") for _, text in self.files), typed])
        self.sent[message] = self.files, typed
        self.files = []
        return message

    @property
    def files_unanswered(self) -> list[tuple[str, str]]:
        """The files of /read before the last question, if it has no answer."""
        conversation = self.chat.conversation
        return self.sent.get(conversation.messages[-1].content, ([], ""))[0] if conversation.is_open else []

    def take_back(self, message: str) -> str:
        """What was typed for a message that was not sent or is taken back; its files wait for the next one again."""
        files, typed = self.sent.get(message, ([], message))
        self.files = [*files, *self.files]
        return typed

    @property
    def files_wait(self) -> str:
        """Words on the files that wait, of which there is one at least."""
        return _go_before(self.files, "the next message")

    def as_saved(self) -> SavedChat:
        """The chat as a file has it."""
        chat = self.chat
        system, messages = chat.conversation.system, tuple(chat.conversation.messages)
        return SavedChat(self.model, self.template, system, messages, chat.settings, chat.seed, chat.asked_cells)

    def differences(self, saved: SavedChat) -> list[str]:
        """Sentences about what a loaded chat had otherwise."""
        sentences = []
        if saved.model and saved.model != self.model:
            own = self.model or "the model of this session"
            sentences.append(f"the chat was made with {saved.model}, and goes on with {own}")
        if saved.template != self.template:
            sentences.append(f"it had another chat template: {saved.template or OWN_TEMPLATE}")
        if saved.context > self.chat.cells:
            sentences.append(f"the chat was made with -c {saved.context}, and this one has {self.chat.cells:,} tokens")
        if saved.settings.decode_settings.strict and not self.chat.settings.decode_settings.strict:
            sentences.append("the chat was made with --strict, and this session has it not")
        if saved.left_out:
            first, *others = saved.left_out
            where = f"line {first}" + (f" and {counted(len(others), 'other')}" if others else "")
            file = os.path.basename(saved.path) or "it"
            sentences.append(f"{where} of {file} {'are' if others else 'is'} damaged and left out")
        if len(saved.messages) % 2:
            sentences.append("the last question has no answer: /regen gives one, another question takes its place")
        return sentences

    def _help(self, argument: str) -> Reply:
        return Reply(help_text(argument))

    def _exit(self, argument: str) -> Reply:
        return Reply(end=True)

    def _clear(self, argument: str) -> Reply:
        self.chat.clear()
        # What comes now is another chat than those in files.
        self.may_replace.clear()
        self.file = ""
        return self._changed(f"cleared; the system prompt and the settings stay{self._drop_files()}", "clear")

    def _regen(self, argument: str) -> Reply:
        if not self.chat.conversation.questions:
            return Reply("there is no question to answer anew")
        return Reply(again=True)

    def _undo(self, argument: str) -> Reply:
        if self.files:
            return Reply(self._drop_files().removeprefix("; "))
        question = self.chat.undo()
        if question is None:
            return Reply("there is nothing to take back")
        typed = self.take_back(question)
        files = f"; {self.files_wait}" if self.files else ""
        return replace(self._changed(f"took the last question back, to change it{files}", "undo"), edit=typed)

    def _system(self, argument: str) -> Reply:
        conversation = self.chat.conversation
        if not argument:
            return Reply(conversation.system or "there is no system prompt; /system TEXT sets one")
        conversation.system = check_text(unquoted(argument), "the system prompt")
        self.chat.recall()
        words = "it holds from the next answer on" if conversation.system else "there is none from the next answer on"
        return self._changed(f"system prompt changed: {words}", "system", content=conversation.system)

    def _set(self, argument: str) -> Reply:
        now = self.chat.settings
        usable = self.chat.in_use
        if not argument:
            return Reply(all_settings(now, self.screen.width, usable))
        key, value = key_and_value(argument)
        name = plain_name(key).lower()
        if value or name in (DEFAULT, PRESET, *FILES) or name.startswith(NO):
            return self._adjust(key, value)
        return Reply(one_setting(now, find_setting(key), usable))

    def _mode(self, argument: str) -> Reply:
        if not argument:
            modes = (f"{mode:10} {meaning}" for mode, meaning in MODE_HELP.items())
            return Reply(_lines(self.chat.guessing, *modes))
        return self._adjust("mode", argument)

    def _show(self, argument: str) -> Reply:
        chat = self.chat
        sampling, description = chat.settings.sampling, chat.description
        # A schema can be long, and /set json-schema shows it.
        drawn = describe_sampling(replace(sampling, json_schema="", seed=max(sampling.seed, chat.seed)))
        lines = {
            "model": f"{self.model}: {description}" if self.model else description,
            "template": chat.template,
            "system": " ".join(chat.conversation.system.split()) or "none",
            "mode": chat.guessing,
            "sampling": f"{drawn}, with a JSON schema" if sampling.json_schema else drawn,
            "changed": changed_settings(chat.settings),
            "chat": counted(chat.conversation.questions, "question"),
            "context": self._context_used(),
        }
        return Reply("\n".join(f"{name:9} {text}" for name, text in lines.items()))

    def _stats(self, argument: str) -> Reply:
        turns = self.chat.turns
        if not turns:
            return Reply("nothing was answered yet")
        return Reply(f"{self.report}\n\n{_table(turns)}" if len(turns) > 1 else self.report)

    def _read(self, argument: str) -> Reply:
        name, question = file_and_rest(argument)
        if os.path.isfile(os.path.expanduser(question.strip())):
            raise UsageError("/read takes one file", "read each by itself; a question may follow the last one")
        text = read_text(name, ordinary=True)
        if not text.strip():
            raise LacliError(f"{name} is empty", "there is nothing to put before a question")
        tokens = self.chat.tokens_of(text)
        size = f"{name}: {counted(len(text), 'character')}, {counted(tokens, 'token')}"
        if tokens >= self.chat.cells:
            longest = self.chat.most_cells
            room = min(-(-(tokens + ROOM) // ROOM) * ROOM, longest)
            larger = f"start again with -c {room}, or" if tokens < longest else f"the model takes {longest:,}:"
            hint = f"{larger} give a part of it"
            raise LacliError(f"{size} and the context has {self.chat.cells:,}", hint)
        waiting = self.files.copy()
        self.files.append((name, text))
        if question.strip():
            message = self.message(question)
            self.sent[message] = waiting, f"/read {argument}"
            return Reply(size, ask=message)
        return Reply(f"{size}; {self.files_wait if waiting else 'it goes before the next message'}")

    def _save(self, argument: str) -> Reply:
        if not (argument or self.file):
            raise UsageError("/save needs a file", "write /save FILE")
        name, saved = file_name(argument) if argument else self.file, self.as_saved()
        path = os.path.expanduser(name)
        existed = os.path.isfile(path) and os.path.getsize(path) > 0
        known = absolute(name) in self.may_replace
        self.may_replace.add(absolute(name))
        write_chat(name, saved, replaces=known)
        self.file = name
        self.kept = saved.messages
        instead = ", in place of the chat that was there" if existed else ""
        what = counted(len(saved.messages), "message") if saved.messages else "the settings and no message"
        return Reply(f"saved {what} to {name}{instead}")

    def _load(self, argument: str) -> Reply:
        """Settings first, for a context may refuse them; the parts of --strict stay as this session has them."""
        name = file_name(argument)
        if not os.path.exists(os.path.expanduser(name)):
            raise LacliError(
                f"there is no file {name}", "give a file of /save or --log; another model is for lacli chat MODEL"
            )
        saved, now, system = read_chat(name), self.chat.settings, self.chat.conversation.system
        if self.asks and (messages := self.as_saved().messages) and messages != self.kept:
            self.kept = messages
            raise LacliError("this chat is not saved", f"/save FILE saves it, /load {name} once more drops it")
        settings = saved.settings.with_values({field: now.values[field] for field in WITH_THE_MODEL})
        # Only reading may be stopped: half of a chat would be another one.
        with without_ctrl_c():
            new_context = self.chat.change(settings, saved.seed)
            self.chat.resume(Conversation(saved.system, saved.messages))
            self.file, self.may_replace = name, {saved.path}
            self.kept = saved.messages
            dropped = self._drop_files()
            self.transcript.begin(self.as_saved())
        loaded = f"loaded {counted(len(saved.messages), 'message')} and the settings from {name}{dropped}"
        holds = "its system prompt holds now: /system shows it" if saved.system else "it has no system prompt"
        other = holds if saved.system != system else ""
        return Reply(_lines(loaded, changes_in_words(now, settings), other, new_context, *self.differences(saved)))

    def _copy(self, argument: str) -> Reply:
        answer = self.chat.conversation.last_answer
        text = answer_of(answer) if answer else ""
        return Reply(copy(text) if text else "there is no answer to copy")

    def _compact(self, argument: str) -> Reply:
        dropped = self.chat.compact()
        if not dropped:
            return Reply("there is nothing to drop before the last question; /clear forgets all")
        return self._changed(f"dropped {oldest(dropped)}; {self._context_used()}", "compact", dropped=dropped)

    def _color(self, argument: str) -> Reply:
        if argument:
            self.screen.show_accepted = _is_on(argument, "color")
        return Reply(f"colours of guessed tokens are {'on' if self.screen.show_accepted else 'off'}")

    def _status(self, argument: str) -> Reply:
        if argument:
            self.show_status = _is_on(argument, "status")
        return Reply(f"the line of numbers is {'on' if self.show_status else 'off'}")

    def _adjust(self, key: str, value: str) -> Reply:
        before = self.chat.settings
        after, sentence = adjust(before, key, value)
        if after == before:
            return Reply(sentence)
        text = _lines(sentence, self.chat.change(after))
        return self._changed(text, "set", changed=sentence, settings=after.json, seed=self.chat.seed)

    def _changed(self, text: str, event: str, **what: object) -> Reply:
        """A reply to what the log keeps."""
        self.transcript.changed(event, **what)
        return Reply(text)

    def _drop_files(self) -> str:
        """Forget the files that wait; words on that, empty where there are none."""
        names = " and ".join(name for name, _ in self.files)
        self.files.clear()
        return f"; {names} will not go before the next message" if names else ""

    def _context_used(self) -> str:
        used, cells = self.chat.used, self.chat.cells
        return f"{used:,} of {cells:,} tokens used ({100 * used // cells}%)"


def _go_before(files: Sequence[tuple[str, str]], what: str) -> str:
    """Say that files, names with their texts, go before a message."""
    names = " and ".join(name for name, _ in files)
    return f"{names} {'go' if len(files) > 1 else 'goes'} before {what}"


def oldest(count: int) -> str:
    """The first `count` questions of a conversation with their answers, in words."""
    return "the oldest question and its answer" if count == 1 else f"the oldest {count} questions and answers"


def _table(turns: list[Answer]) -> str:
    """The numbers of the latest answers, and of all together."""
    rows = [(str(number), *_numbers([turn])) for number, turn in enumerate(turns, start=1)]
    header = ("answer", "tokens", "steps", "S", "tokens/s")
    return "\n".join(columns(header, [*rows[-MAX_TURNS:], ("all", *_numbers(turns))], right=range(1, len(header))))


def _numbers(turns: Iterable[Answer]) -> tuple[str, ...]:
    runs = [turn.statistics for turn in turns]
    tokens, steps = sum(run.tokens for run in runs), sum(run.steps for run in runs)
    seconds = sum(run.predicted_s for run in runs)
    speed = tokens / seconds if seconds else 0
    return str(tokens), str(steps), f"{tokens / max(steps, 1):.2f}", f"{speed:,.1f}"


def _is_on(argument: str, name: str) -> bool:
    if argument.lower() not in ("on", "off"):
        raise UsageError(f"/{name} is on or off, not {argument!r}", f"write /{name} on")
    return argument.lower() == "on"


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def file_and_rest(argument: str) -> tuple[str, str]:
    """A file's name and the text behind it: the whole argument where it names a file, else its first word.

    The name may be quoted, or have backslashes before its spaces.
    """
    if os.path.isfile(os.path.expanduser(argument)):
        return argument, ""
    found = re.match(r"""("[^"]*"|'[^']*'|(?:\\.|\S)+)\s*""", argument, re.DOTALL)
    assert found, "the argument is not empty"
    return file_name(found[1]), argument[found.end() :]


def file_name(argument: str) -> str:
    """A name without quotes around it and backslashes before its spaces."""
    inner = unquoted(argument)
    return inner if inner != argument else argument.replace("\\ ", " ")


def copy(text: str, terminal: TextIO | None = None) -> str:
    """Put text into the clipboard and say in a sentence how. `terminal`: stdout unless given.

    Raises LacliError where there is no way, or where the text is too long for the only one.
    """
    if _copied_by_system(text):
        return "copied to the clipboard"
    terminal = sys.stdout if terminal is None else terminal
    if not is_terminal(terminal) or console(terminal, "auto").is_dumb_terminal:
        raise LacliError("there is no clipboard here", INSTALL)
    raw = text.encode()
    if len(raw) > MAX_CLIPBOARD_BYTES:
        what = f"the text has {len(raw):,} bytes, and terminals take {MAX_CLIPBOARD_BYTES:,} for the clipboard"
        raise LacliError(what, INSTALL)
    terminal.write(f"\x1b]52;c;{base64.b64encode(raw).decode()}\a")
    terminal.flush()
    return "sent to the terminal's clipboard (OSC 52), which the terminal must allow"


def _copied_by_system(text: str) -> bool:
    """True if the system's clipboard holds the text now."""
    import pyperclip

    try:
        # A program that finds no display complains on stderr and fails without pyperclip noticing.
        with captured_stderr():
            pyperclip.copy(text)
            # Clipboards change line ends, and the last one.
            return bool(pyperclip.paste().rstrip().splitlines() == text.rstrip().splitlines())
    except (RuntimeError, OSError, ValueError, AssertionError, SubprocessError):
        return False
