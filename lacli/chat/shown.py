"""What /set, /show and /stats show: settings, the session and the numbers of its answers, as lines.

Formats; changes nothing. The numbers of one answer are `report.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Protocol

from lacli.chat.adjust import Adjusted, settings_by_name, value_of
from lacli.chat.conversation import Conversation
from lacli.chat.keys import Key
from lacli.chat.values import show_value, usage
from lacli.llamacpp.sampling import SamplingSettings
from lacli.session.generation import Answer
from lacli.session.report import as_lines, describe, describe_sampling
from lacli.settings import DecodeSettings
from lacli.text.format import counted

if TYPE_CHECKING:
    from lacli.session.session import Session

CELL = 26
"""Columns of a setting in the list; a longer one takes several."""

MOST_CELLS = 4
"""In a row; more would have to be looked for."""

MOST_TURNS = 10


class ChatLike(Protocol):
    """What commands need of a chat. used, cells: tokens in the context, and those that it has room for."""

    @property
    def session(self) -> Session: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def settings(self) -> DecodeSettings: ...
    @property
    def sampling(self) -> SamplingSettings: ...
    @property
    def limit(self) -> int: ...
    @property
    def stops(self) -> tuple[str, ...]: ...
    @property
    def seed(self) -> int:
        """The seed in use where the user has set none."""
        ...

    @property
    def last(self) -> Answer | None: ...
    @property
    def turns(self) -> Sequence[Answer]: ...
    @property
    def used(self) -> int: ...
    @property
    def cells(self) -> int: ...
    def undo(self) -> str | None:
        """Take the last question back."""
        ...

    def clear(self) -> None:
        """Forget what was said."""
        ...

    def compact(self) -> int:
        """Drop the oldest questions with their answers; how many."""
        ...

    def recall(self) -> None:
        """Take in a conversation that was replaced."""
        ...

    def change(self, adjusted: Adjusted, seed: int = -1) -> str:
        """Take new settings; a sentence when the context had to be made anew."""
        ...


def adjusted_of(chat: ChatLike) -> Adjusted:
    """A chat's settings, as /set changes them and /save writes them."""
    return Adjusted(chat.settings, chat.sampling, chat.limit, chat.stops)


def in_use_of(chat: ChatLike) -> Adjusted:
    """The same, with those sources alone that can guess anything."""
    now = adjusted_of(chat)
    return replace(now, decoding=replace(now.decoding, sources=chat.session.sources))


def all_settings(now: Adjusted, width: int = 80, in_use: Adjusted | None = None) -> str:
    """Every setting under its group, those that are changed with a star. in_use: as `settings_by_name` takes it."""
    lines = []
    for group, settings in groupby(settings_by_name(now, in_use), key=lambda setting: setting[0]):
        lines.append(group)
        lines += _grid([f"{name} {value}{'' if default else ' *'}" for _, name, value, default in settings], width)
    return "\n".join([*lines, "* is not lacli's default; /set KEY VALUE changes, /set KEY default resets"])


def one_setting(now: Adjusted, key: Key, in_use: Adjusted | None = None) -> str:
    """A setting's value, its default and what it may be. in_use: as `settings_by_name` takes it."""
    value = value_of(now, key)
    default = "the default" if value == key.default else f"{show_value(key, key.default)} is the default"
    return f"{key.name} is {show_value(key, value_of(in_use or now, key))} ({default}); write {usage(key)}"


def overview(chat: ChatLike, model: str) -> str:
    """The session in a few lines: model, template, mode, sampling, what was changed, context."""
    now = adjusted_of(chat)
    changed = [f"{name} {value}" for _, name, value, default in settings_by_name(now) if not default]
    description = chat.session.model.description
    lines = [
        ("model", f"{model}: {description}" if model else description),
        ("template", chat.session.prompts.template.name if chat.session.prompts.template else "none"),
        ("system", " ".join(chat.conversation.system.split()) or "none"),
        ("mode", describe(chat.settings)),
        ("sampling", _sampling(chat.sampling)),
        ("changed", ", ".join(changed) or "nothing"),
        ("chat", counted(chat.conversation.questions, "question")),
        ("context", context_used(chat)),
    ]
    return "\n".join(f"{name:9} {text}" for name, text in lines)


def numbers(chat: ChatLike) -> str:
    """What the last answer cost, and the numbers of all answers below each other."""
    if chat.last is None:
        return "nothing was answered yet"
    lines = as_lines(chat.session, chat.last)
    return "\n".join([lines, "", *_turns(chat.turns)]) if len(chat.turns) > 1 else lines


def context_used(chat: ChatLike) -> str:
    return f"{chat.used} of {chat.cells} tokens used ({100 * chat.used // max(chat.cells, 1)}%)"


def oldest(count: int) -> str:
    """The first so many questions of a conversation with their answers, in words."""
    return "the oldest question and its answer" if count == 1 else f"the oldest {count} questions and answers"


def _turns(turns: Sequence[Answer]) -> list[str]:
    first = max(len(turns) - MOST_TURNS, 0)
    shown = [_row(str(first + index), [turn]) for index, turn in enumerate(turns[first:], start=1)]
    return [f"{'answer':9} {'tokens':>7} {'steps':>7} {'S':>6} {'tokens/s':>9}", *shown, _row("all", turns)]


def _row(name: str, turns: Iterable[Answer]) -> str:
    runs = [turn.statistics for turn in turns]
    tokens, steps = sum(run.tokens for run in runs), sum(run.steps for run in runs)
    seconds = sum(run.predicted_s for run in runs)
    return f"{name:9} {tokens:7} {steps:7} {tokens / max(steps, 1):6.2f} {tokens / seconds if seconds else 0:9.1f}"


def _sampling(sampling: SamplingSettings) -> str:
    """A schema can be long, and is shown by /set json-schema."""
    words = describe_sampling(replace(sampling, json_schema=""))
    return f"{words}, with a JSON schema" if sampling.json_schema else words


def _grid(items: Sequence[str], width: int) -> list[str]:
    """Items in columns, as many as fit and can be overlooked; one longer than a row is broken between words."""
    width = min(width, MOST_CELLS * CELL)
    indent = "  " if width > CELL else ""
    lines, line = [], indent
    for item in items:
        if line.strip() and len(line) + len(item) > width:
            lines.append(line)
            line = indent
        line += item.ljust(-(-(len(item) + 2) // CELL) * CELL)
    rows = [each.rstrip() for each in [*lines, line]]
    return [part for row in rows for part in wrap(row, width, subsequent_indent=f"{indent} ", break_long_words=False)]
