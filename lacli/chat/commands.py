"""What the slash commands of a chat do; their names, their help and how a line becomes one are `input.py`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from lacli.chat.conversation import Chat
from lacli.chat.input import Command, help_text
from lacli.chat.settings import (
    DEFAULT,
    WITH_THE_MODEL,
    adjust,
    all_settings,
    changed_settings,
    changes_in_words,
    find_setting,
    one_setting,
    unquoted,
)
from lacli.chat.talk import Conversation
from lacli.chat.transcript import Log, SavedChat, absolute, read_chat, write_chat
from lacli.engine.answer import Answer
from lacli.errors import LacliError, UsageError
from lacli.report import describe, describe_sampling
from lacli.terminal.interrupts import without_ctrl_c
from lacli.terminal.screen import Screen
from lacli.text.format import columns, counted
from lacli.text.question import check_text, read_text

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

    `model`: as the user typed it; `template`: its name, empty for the model's own. `report`: what the last answer cost,
    as it was then. `files`: names and texts that /read has put before the next message; `sent`: messages that were sent
    with files, with the files and what was typed. `file`: the one that the chat was saved to or loaded from last.
    `may_replace`: files of this chat, and those that /save has refused, by their absolute paths.
    """

    chat: Chat
    screen: Screen
    log: Log
    model: str = ""
    template: str = ""
    report: str = ""
    files: list[tuple[str, str]] = field(default_factory=list)
    sent: dict[str, tuple[list[tuple[str, str]], str]] = field(default_factory=dict)
    file: str = ""
    may_replace: set[str] = field(default_factory=set)

    def run(self, command: Command) -> Reply:
        """Carry out a command. Raises LacliError, in one line, if it cannot be; then nothing has changed."""
        reply: Reply = getattr(self, f"_{command.name}")(command.argument)
        return reply

    def message(self, typed: str) -> str:
        """The message to send for what was typed: the files of /read come before it."""
        if not self.files:
            return typed
        message = "\n\n".join([*(text.strip("\n") for _, text in self.files), typed])
        self.sent[message] = self.files, typed
        self.files = []
        return message

    def take_back(self, message: str) -> str:
        """What was typed for a message that was not sent or is taken back; its files wait for the next one again."""
        files, typed = self.sent.get(message, ([], message))
        self.files = [*files, *self.files]
        return typed

    @property
    def as_saved(self) -> SavedChat:
        """The chat as a file has it."""
        chat, conversation = self.chat, self.chat.conversation
        context = chat.engine.model_settings.context
        messages = tuple(conversation.messages)
        return SavedChat(self.model, self.template, conversation.system, messages, chat.settings, chat.seed, context)

    def differences(self, saved: SavedChat) -> list[str]:
        """Sentences about what a loaded chat had otherwise."""
        strict = saved.settings.decode_settings.strict and not self.chat.settings.decode_settings.strict
        file, cells = os.path.basename(saved.path), self.chat.cells
        found = {
            f"the chat was made with {saved.model}": saved.model not in ("", self.model),
            f"it had another chat template: {saved.template or 'its own'}": saved.template != self.template,
            f"it was made with -c {saved.context}, and this one has {cells:,} tokens": saved.context > cells,
            "it was made with --strict, and this engine has it not": strict,
            f"damaged lines of {file} are left out: {', '.join(map(str, saved.damaged))}": bool(saved.damaged),
            "the last question has no answer: /regen gives one": len(saved.messages) % 2 == 1,
        }
        return [sentence for sentence, is_so in found.items() if is_so]

    def _help(self, argument: str) -> Reply:
        return Reply(help_text(argument))

    def _exit(self, argument: str) -> Reply:
        return Reply(end=True)

    def _clear(self, argument: str) -> Reply:
        self.log.begin()
        self.chat.clear()
        # What comes now is another chat than those in files.
        self.may_replace.clear()
        self.file = ""
        return Reply(f"cleared; the system prompt and the settings stay{self._drop_files()}")

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
        return Reply("took the last question back, to change it", edit=self.take_back(question))

    def _system(self, argument: str) -> Reply:
        conversation = self.chat.conversation
        if not argument:
            return Reply(conversation.system or "there is no system prompt; /system TEXT sets one")
        conversation.system = check_text(unquoted(argument), "the system prompt")
        self.chat.recall()
        words = "it holds from the next answer on" if conversation.system else "there is none from the next answer on"
        return Reply(f"system prompt changed: {words}")

    def _set(self, argument: str) -> Reply:
        now = self.chat.settings
        key, *values = re.split(r"\s*=\s*|\s+", argument, maxsplit=1)
        if not key:
            return Reply(all_settings(now, self.screen.width))
        if not values and key.lower() != DEFAULT:
            return Reply(one_setting(now, find_setting(key)))
        after, sentence = adjust(now, key, "".join(values))
        return Reply(sentence if after == now else _lines(sentence, self.chat.change(after)))

    def _show(self, argument: str) -> Reply:
        chat = self.chat
        engine, sampling, used = chat.engine, chat.settings.sampling, chat.used
        # A schema can be long, and /set json-schema shows it.
        drawn = describe_sampling(replace(sampling, json_schema="", seed=max(sampling.seed, chat.seed)))
        lines = {
            "model": f"{self.model}: {engine.model.description}".removeprefix(": "),
            "template": engine.prompts.template.name,
            "system": " ".join(chat.conversation.system.split()) or "none",
            "mode": describe(chat.settings.decode_settings),
            "sampling": f"{drawn}, with a JSON schema" if sampling.json_schema else drawn,
            "changed": changed_settings(chat.settings),
            "chat": counted(chat.conversation.questions, "question"),
            "context": f"{used:,} of {chat.cells:,} tokens used ({100 * used // chat.cells}%)",
        }
        return Reply("\n".join(f"{name:9} {text}" for name, text in lines.items()))

    def _stats(self, argument: str) -> Reply:
        turns = self.chat.turns
        if not turns:
            return Reply("nothing was answered yet")
        return Reply(f"{self.report}\n\n{_table(turns)}" if len(turns) > 1 else self.report)

    def _read(self, argument: str) -> Reply:
        name, question = file_and_rest(argument)
        text = read_text(name)
        if not text.strip():
            raise LacliError(f"{name} is empty", "there is nothing to put before a question")
        tokens = self.chat.tokens_of(text)
        size = f"{name}: {counted(len(text), 'character')}, {counted(tokens, 'token')}"
        if tokens >= self.chat.cells:
            hint = f"give a part of it; {self.chat.engine.context_hint(tokens)}"
            raise LacliError(f"{size} and the context has {self.chat.cells:,}", hint)
        self.files.append((name, text))
        if question:
            return Reply(size, ask=self.message(question))
        return Reply(f"{size}; it goes before the next message")

    def _save(self, argument: str) -> Reply:
        if not (argument or self.file):
            raise UsageError("/save needs a file", "write /save FILE")
        name, saved = file_name(argument) if argument else self.file, self.as_saved
        known = absolute(name) in self.may_replace
        self.may_replace.add(absolute(name))
        write_chat(name, saved, replaces=known)
        self.file = name
        return Reply(f"saved {counted(len(saved.messages), 'message')} to {name}")

    def _load(self, argument: str) -> Reply:
        """Settings first, for a context may refuse them; the parts of --strict stay as this engine has them."""
        name = file_name(argument)
        saved, now = read_chat(name), self.chat.settings
        settings = saved.settings.with_values({field: now.values[field] for field in WITH_THE_MODEL})
        # Only reading may be stopped: half of a chat would be another one.
        with without_ctrl_c():
            new_context = self.chat.change(settings, saved.seed)
            self.log.begin()
            self.chat.resume(Conversation(saved.system, saved.messages))
            self.file, self.may_replace = name, {saved.path}
            dropped = self._drop_files()
        loaded = f"loaded {counted(len(saved.messages), 'message')}, the system prompt and the settings from {name}"
        changed = changes_in_words(now, settings)
        return Reply(_lines(f"{loaded}{dropped}", changed, new_context, *self.differences(saved)))

    def _drop_files(self) -> str:
        """Forget the files that wait; words on that, empty if there are none."""
        names = " and ".join(name for name, _ in self.files)
        self.files.clear()
        return f"; {names} will not go before the next message" if names else ""


def _table(turns: Sequence[Answer]) -> str:
    """The numbers of the latest answers, and of all together."""
    rows = [(str(number), *_numbers([turn])) for number, turn in enumerate(turns, start=1)]
    header = ("answer", "tokens", "steps", "S", "tokens/s")
    return "\n".join(columns(header, [*rows[-MAX_TURNS:], ("all", *_numbers(turns))], right=range(1, len(header))))


def _numbers(turns: Iterable[Answer]) -> tuple[str, ...]:
    runs = [turn.statistics for turn in turns]
    tokens, steps = sum(run.tokens for run in runs), sum(run.steps for run in runs)
    seconds = sum(run.predicted_s for run in runs)
    return str(tokens), str(steps), f"{tokens / max(steps, 1):.2f}", f"{tokens / seconds if seconds else 0:,.1f}"


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def file_and_rest(argument: str) -> tuple[str, str]:
    """A file's name and the text behind it: the whole argument if it names a file, else its first word.

    The name may be quoted, or have backslashes before its spaces.
    """
    if os.path.isfile(os.path.expanduser(argument)):
        return argument, ""
    found = re.match(r"""("[^"]*"|'[^']*'|(?:\\.|\S)+)\s*""", argument, re.DOTALL)
    assert found, "the argument is not empty"
    return file_name(found[1]), argument[found.end() :].strip()


def file_name(argument: str) -> str:
    """A name without quotes around it and backslashes before its spaces."""
    inner = unquoted(argument)
    return inner if inner != argument else argument.replace("\\ ", " ")
