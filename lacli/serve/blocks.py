"""An answer as blocks of reasoning, text and calls, as OpenAI's responses and Anthropic's messages have it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from time import time
from typing import Any, ClassVar, Literal
from uuid import uuid4

from lacli.serve.replies import Choice, Delta, Reply
from lacli.serve.tools import Call


@dataclass
class Block:
    """A part of an answer. `text`: its text so far, or the arguments of `call`."""

    index: int
    kind: Literal["reasoning", "text", "call"]
    call: Call | None
    text: str = ""


class BlockReply(Reply):
    """A reply with one answer, whose blocks each have events when they begin, grow and end."""

    end: ClassVar[bytes] = b""

    def frame(self, event: Mapping[str, Any]) -> bytes:
        return f"event: {event['type']}\n".encode() + super().frame(event)

    @cached_property
    def _made(self) -> tuple[str, int, Iterator[int]]:
        """The unique part of the reply's ids, the second in which it was made, and the numbers of its events."""
        return uuid4().hex, int(time()), count()

    @cached_property
    def _blocks(self) -> list[Block]:
        """The blocks so far."""
        return []

    def _body(self, answers: Sequence[tuple[Choice, Delta]]) -> dict[str, Any]:
        deque(chain(self._first(), self._events(*answers[0], {}), self._last()), maxlen=0)
        return self._ended

    def _events(self, choice: Choice, delta: Delta, more: dict[str, Any]) -> Iterable[dict[str, Any]]:
        blocks = self._blocks
        parts = [Block(0, "reasoning", None, delta.reasoning), Block(0, "text", None, delta.text)]
        for part in (*parts, *(Block(0, "call", call, call.arguments) for _, call in delta.calls)):
            is_named = part.call is not None and bool(part.call.name)
            if not (part.text or is_named):
                continue
            if is_named or not blocks or blocks[-1].kind != part.kind:
                for block in blocks[-1:]:
                    yield from self._end(block)
                blocks.append(Block(len(blocks), part.kind, part.call))
                yield from self._begin(blocks[-1])
            if part.text:
                blocks[-1].text += part.text
                yield self._grow(blocks[-1], part.text)
        for block in blocks[-1:] if delta.ended else ():
            yield from self._end(block)

    @property
    def _ended(self) -> dict[str, Any]:
        """The body of the answer at its end."""
        raise NotImplementedError

    def _begin(self, block: Block) -> Iterable[dict[str, Any]]:
        raise NotImplementedError

    def _grow(self, block: Block, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _end(self, block: Block) -> Iterable[dict[str, Any]]:
        raise NotImplementedError
