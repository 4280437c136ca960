"""Input of a chat: messages of one or several lines, and the slash commands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from lacli.chat.conversation import Chat, Conversation
from lacli.chat.settings import adjust, all_settings, changes_in_words, find_setting, one_setting, unquoted
from lacli.chat.transcript import Log, SavedChat, absolute, read_chat, write_chat
from lacli.errors import LacliError, UsageError
from lacli.interrupts import without_ctrl_c
from lacli.report import describe, describe_sampling
from lacli.text.files import check_text, read_text
from lacli.text.format import counted, did_you_mean

QUOTES = '"""'


@dataclass(frozen=True)
class Entry:
    """A slash command. `names`: its main name, then its aliases. `usage`: its argument in the help, "" for none."""

    names: tuple[str, ...]
    help: str
    usage: str = ""

    @property
    def shown(self) -> str:
        return f"{', '.join(self.names)} {self.usage}".rstrip()


COMMANDS = (
    Entry(("/help", "/?"), "show the commands"),
    Entry(("/exit", "/bye", "/quit", "/q"), "end the chat; so do 'exit' and Ctrl-D"),
    Entry(("/clear",), "forget all questions and answers"),
    Entry(("/regen",), "answer the last question anew"),
    Entry(("/undo",), "take the last question back, to change it"),
    Entry(("/system",), 'show the system prompt, or set it; "" clears it', "[TEXT]"),
    Entry(("/set",), "show or change settings; 'default' resets one", "[KEY [VALUE]]"),
    Entry(("/show",), "show the model, its mode and the context used"),
    Entry(("/stats",), "show statistics of the last answer: tokens/s, steps"),
    Entry(("/read",), "put a file before the next question", "FILE"),
    Entry(("/save",), "write the chat to a file, by default the last one used", "[FILE]"),
    Entry(("/load",), "continue a chat from a file", "FILE"),
)

BY_NAME = {name: entry for entry in COMMANDS for name in entry.names}

PLAIN_WORDS = {**dict.fromkeys(("exit", "quit", "bye"), "/exit"), "help": "/help"}
"""Lines without a slash that mean a command on a terminal, as in other programs."""

HEADINGS = {"/help": "Conversation:\n", "/system": "Settings:\n", "/read": "Files:\n"}
"""Headings of the help by the command after them."""


def help_text() -> str:
    lines = (f"{HEADINGS.get(each.names[0], '')}  {each.shown:24}{each.help}" for each in COMMANDS)
    return "\n".join([*lines, f"Several lines: {QUOTES} before and after. A space before a command makes it text."])


def parse(line: str) -> tuple[Entry, str] | None:
    """Return a line's command and its argument ("" for none), or None for a message (`message_of` gives its text).

    Raises UsageError for an unknown command, and for a superfluous or missing argument.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    first, *others = line.split(maxsplit=1)
    entry = BY_NAME.get(first.lower())
    argument = others[0].strip() if others else ""
    if entry is None:
        otherwise = "/help lists the commands; begin with a space to send the line as text"
        raise UsageError(f"unknown command {first}", did_you_mean(first, BY_NAME, otherwise))
    if argument and not entry.usage:
        raise UsageError(f"{first} takes no argument", "begin with a space to send the line as text")
    if not argument and entry.usage == "FILE":
        raise UsageError(f"{first} needs a file", f"write {first} FILE")
    return entry, argument


def message_of(line: str) -> str:
    """Return the message in `line`. Spaces before a slash, which make the line a message for `parse`, are removed."""
    return line.lstrip() if line.lstrip().startswith("/") else line


def is_open(text: str) -> bool:
    """Return whether `text` begins with triple quotes that are not closed yet.

    Quotes in the first line or at the end of `text` close them. Other triple quotes come in pairs, as in docstrings.
    """
    if not text.startswith(QUOTES) or text.split("\n")[0].count(QUOTES) % 2 == 0:
        return False
    return text.count(QUOTES) % 2 == 1 or not text.rstrip().endswith(QUOTES)


def without_quotes(text: str) -> str:
    """Return the typed message: the text between triple quotes, or all of `text` if it is not quoted.

    If quoted text begins with a slash, a line break is put before it, so that it is not taken for a command.
    """
    ended = text.rstrip()
    # Quotes that close on the first of several lines belong to a pasted file that begins with a docstring.
    pasted = "\n" in ended and ended.split("\n")[0].count(QUOTES) % 2 == 0
    if not text.startswith(QUOTES) or pasted or not ended.endswith(QUOTES) or is_open(text):
        return text.strip("\n")
    message = ended[len(QUOTES) : -len(QUOTES)].removeprefix("\n").rstrip()
    return f"\n{message}" if message.startswith("/") else message


@dataclass(frozen=True)
class Reply:
    """What a command prints (`text`), and what the chat does after it.

    `again`: answer the last question anew. `edit`: offer this text as the next line. `end`: end the chat.
    """

    text: str = ""
    again: bool = False
    edit: str = ""
    end: bool = False


@dataclass
class Commands:
    """The commands of one chat.

    `model`, `template`: names or absolute paths for /save. `report`: statistics of the last answer. `files`: contents
    of files that /read puts before the next message. `file`: the file last saved or loaded, which /save may replace.
    """

    chat: Chat
    log: Log
    model: str = ""
    template: str = ""
    report: str = ""
    files: list[str] = field(default_factory=list)
    file: str = ""

    def run(self, entry: Entry, argument: str) -> Reply:
        """Run a command with its argument, "" for none. If it raises LacliError, the chat is unchanged."""
        reply: Reply = getattr(self, f"_{entry.names[0][1:]}")(argument)
        return reply

    def message(self, typed: str) -> str:
        """Return the message to send: the contents of the files of /read, then the text `typed`."""
        return "\n\n".join([*(text.strip("\n") for text in self.files), typed])

    @property
    def as_saved(self) -> SavedChat:
        chat, engine = self.chat, self.chat.engine
        cache, context = str(engine.cache.path) if engine.cache else "", engine.model_settings.context
        return SavedChat(self.model, self.template, chat.conversation, chat.settings, context, cache)

    def _help(self, argument: str) -> Reply:
        return Reply(help_text())

    def _exit(self, argument: str) -> Reply:
        return Reply(end=True)

    def _clear(self, argument: str) -> Reply:
        self.log.begin()
        self.chat.resume(Conversation(self.chat.conversation.system))
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
            return Reply("dropped the files of /read")
        conversation = self.chat.conversation
        question = conversation.undo()
        if question is None:
            return Reply("there is nothing to take back")
        self.chat.resume(conversation)
        return Reply("took back the last question: edit it", edit=question)

    def _system(self, argument: str) -> Reply:
        conversation = self.chat.conversation
        if not argument:
            return Reply(conversation.system or "there is no system prompt; /system TEXT sets one")
        conversation.system = check_text(unquoted(argument), "the system prompt")
        self.chat.resume(conversation)
        words = "it applies from the next answer on" if conversation.system else "there is none from the next answer on"
        return Reply(f"system prompt changed: {words}")

    def _set(self, argument: str) -> Reply:
        now = self.chat.settings
        key, *values = re.split(r"\s*=\s*|\s+", argument, maxsplit=1)
        if not key:
            return Reply(all_settings(now))
        if not values:
            return Reply(one_setting(now, find_setting(key)))
        if (after := adjust(now, key, values[0])) == now:
            return Reply("nothing changed")
        return Reply(_lines(changes_in_words(now, after), self.chat.change(after)))

    def _show(self, argument: str) -> Reply:
        chat, engine, sampling = self.chat, self.chat.engine, self.chat.settings.sampling
        # A schema can be long, and /set json-schema shows it.
        drawn = describe_sampling(replace(sampling, json_schema="", seed=engine.sampling.seed))
        lines = {
            "model": f"{self.model}: {engine.model.description}".removeprefix(": "),
            "template": engine.prompts.template.name,
            "system": " ".join(chat.conversation.system.split()) or "none",
            "mode": describe(chat.settings.decode_settings),
            "sampling": f"{drawn}, with a JSON schema" if sampling.json_schema else drawn,
            "context": f"{chat.used:,} of {chat.cells:,} tokens used ({100 * chat.used // chat.cells}%)",
        }
        return Reply("\n".join(f"{name:9} {text}" for name, text in lines.items()))

    def _stats(self, argument: str) -> Reply:
        return Reply(self.report or "nothing was answered yet")

    def _read(self, argument: str) -> Reply:
        name = file_name(argument)
        text = read_text(name)
        if not text.strip():
            raise LacliError(f"{name} is empty", "give a file with text")
        self.files.append(text)
        told, cells = "it goes before the next message", self.chat.cells
        if (tokens := len(self.chat.engine.prompts.tokenize(self.message("")))) >= cells:
            told = f"the next message needs {tokens:,} tokens and the context has {cells:,}: /undo drops the files"
        return Reply(f"{name}: {counted(len(text), 'character')}; {told}")

    def _save(self, argument: str) -> Reply:
        if not (argument or self.file):
            raise UsageError("/save needs a file", "write /save FILE")
        name, saved = file_name(argument) if argument else self.file, self.as_saved
        write_chat(name, saved, replaces=absolute(name) == absolute(self.file))
        self.file = name
        if cache := self.chat.engine.cache:
            cache.save(self.chat.engine)
        return Reply(f"saved {counted(len(saved.conversation.messages), 'message')} to {name}")

    def _load(self, argument: str) -> Reply:
        """Load a chat. The settings are applied first: if that fails, the current chat is unchanged."""
        name = file_name(argument)
        saved, now = read_chat(name), self.chat.settings
        # Ctrl-C may interrupt only the reading of the file: half a chat would be a different chat.
        with without_ctrl_c():
            news = self.chat.change(saved.settings)
            self.log.begin()
            self.chat.resume(saved.conversation)
            self.file = name
            self.files.clear()
        count = counted(len(saved.conversation.messages), "message")
        loaded = f"loaded {count}, the system prompt and the settings from {name}"
        return Reply(_lines(loaded, changes_in_words(now, saved.settings), news, saved.damage))


def _lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def file_name(argument: str) -> str:
    """Return the file's name that `argument` gives: without quotes around it, or without backslashes before spaces."""
    inner = unquoted(argument)
    return inner if inner != argument else argument.replace("\\ ", " ")
