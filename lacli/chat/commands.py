"""What the slash commands of a chat do; their names, their help and how a line becomes one are `input.py`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace

from lacli.chat.conversation import Chat
from lacli.chat.input import Command, help_text
from lacli.chat.settings import (
    DEFAULT,
    WITH_THE_MODEL,
    adjust,
    all_settings,
    changes_in_words,
    find_setting,
    one_setting,
    unquoted,
)
from lacli.chat.talk import Conversation
from lacli.chat.transcript import Log, SavedChat, absolute, read_chat, write_chat
from lacli.errors import LacliError, UsageError
from lacli.report import describe, describe_sampling
from lacli.terminal.interrupts import without_ctrl_c
from lacli.terminal.screen import Screen
from lacli.text.files import check_text, read_text
from lacli.text.format import counted


@dataclass(frozen=True)
class Reply:
    """What a command has to say, and what is left to do for the loop.

    `ask`: send this message now; `again`: answer the last question anew; `edit`: offer this text as the next line;
    `end`: leave.
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
    as it was then. `files`: texts that /read has put before the next message. `file`: the one that the chat was saved
    to or loaded from last, which /save may replace.
    """

    chat: Chat
    screen: Screen
    log: Log
    model: str = ""
    template: str = ""
    report: str = ""
    files: list[str] = field(default_factory=list)
    file: str = ""

    def run(self, command: Command) -> Reply:
        """Carry out a command. Raises LacliError, in one line, if it cannot be; then nothing has changed."""
        reply: Reply = getattr(self, f"_{command.name}")(command.argument)
        return reply

    def message(self, typed: str) -> str:
        """The message to send for what was typed: the files of /read come before it."""
        return "\n\n".join([*(text.strip("\n") for text in self.files), typed])

    @property
    def as_saved(self) -> SavedChat:
        """The chat as a file has it."""
        chat, conversation = self.chat, self.chat.conversation
        context = chat.engine.model_settings.context
        messages = tuple(conversation.messages)
        return SavedChat(self.model, self.template, conversation.system, messages, chat.settings, chat.seed, context)

    def differences(self, saved: SavedChat) -> list[str]:
        """Sentences about what a loaded chat had otherwise."""
        found = []
        if saved.model not in ("", self.model):
            found.append(f"the chat was made with {saved.model}")
        if saved.damaged:
            found.append(f"damaged lines of {saved.path} are left out: {', '.join(map(str, saved.damaged))}")
        if len(saved.messages) % 2:
            found.append("the last question has no answer: /regen gives one")
        return found

    def _help(self, argument: str) -> Reply:
        return Reply(help_text())

    def _exit(self, argument: str) -> Reply:
        return Reply(end=True)

    def _clear(self, argument: str) -> Reply:
        self.log.begin()
        self.chat.clear()
        self.files.clear()
        self.file = ""
        return Reply("cleared; the system prompt and the settings stay")

    def _regen(self, argument: str) -> Reply:
        if not self.chat.conversation.questions:
            return Reply("there is no question to answer anew")
        return Reply(again=True)

    def _undo(self, argument: str) -> Reply:
        if self.files:
            self.files.clear()
            return Reply("took back what /read had put before the next message")
        question = self.chat.undo()
        if question is None:
            return Reply("there is nothing to take back")
        return Reply("took the last question back, to change it", edit=question)

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
            "context": f"{used:,} of {chat.cells:,} tokens used ({100 * used // chat.cells}%)",
        }
        return Reply("\n".join(f"{name:9} {text}" for name, text in lines.items()))

    def _stats(self, argument: str) -> Reply:
        return Reply(self.report or "nothing was answered yet")

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
        self.files.append(text)
        if question:
            return Reply(size, ask=question)
        return Reply(f"{size}; it goes before the next message")

    def _save(self, argument: str) -> Reply:
        if not (argument or self.file):
            raise UsageError("/save needs a file", "write /save FILE")
        name, saved = file_name(argument) if argument else self.file, self.as_saved
        write_chat(name, saved, replaces=absolute(name) == absolute(self.file))
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
            self.file = name
            self.files.clear()
        loaded = f"loaded {counted(len(saved.messages), 'message')}, the system prompt and the settings from {name}"
        return Reply(_lines(loaded, changes_in_words(now, settings), new_context, *self.differences(saved)))


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
