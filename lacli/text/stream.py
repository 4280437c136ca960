"""From accepted tokens to text: UTF-8 across tokens, stop strings across tokens, which tokens a stop leaves.

Bytes in, strings out. Templates, colours and terminals are elsewhere.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lacli.tree import Origin


@dataclass(frozen=True)
class Piece:
    """Text of one token.

    origin: where the token was guessed. thought: it is no part of the answer proper.
    """

    text: str
    origin: Origin = Origin.MODEL
    thought: bool = False

    @property
    def guessed(self) -> bool:
        """Whether the token was accepted in parallel, not chosen one at a time."""
        return self.origin is not Origin.MODEL


FIRST_MARK = 0xD800
"""The first of Unicode's surrogates, which no decoded text holds."""


class TextStream:
    """Turns tokens into text that is safe to print, and finds the first stop string.

    Text that may be the beginning of a stop string is held back until it is known not to be. `kept` counts the
    tokens that lie wholly before the stop (all read ones without it), `read` those up to the one that completes it.
    """

    def __init__(
        self, bytes_of: Callable[[int], bytes], stops: Sequence[str] = (), controls: Mapping[int, str] | None = None
    ) -> None:
        """controls: tokens without a text of their own, by the names that stops may have for them."""
        self._bytes_of = bytes_of
        # In what is searched one character stands for each, so no stop begins or ends within a name.
        controls = controls or {}
        marks = {name: chr(FIRST_MARK + number) for number, name in enumerate(controls.values())}
        self._marks = {token: marks[name] for token, name in controls.items()}
        self._stops = [form for stop in stops if stop for form in {stop, _with_marks(stop, marks)}]
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held: list[Piece] = []
        self._ends: list[int] = []
        self._released = 0
        self._length = 0
        self.kept = 0
        self.read = 0
        self.stopped = False

    def feed(self, tokens: Sequence[int], origins: Sequence[Origin]) -> list[Piece]:
        """Read tokens up to the first stop string, and give what can be printed now.

        origins: where each was guessed.
        """
        pieces: list[Piece] = []
        for token, origin in zip(tokens, origins, strict=True):
            if self.stopped:
                break
            text = self._marks.get(token) or self._decoder.decode(self._bytes_of(token))
            self._length += len(text)
            half, _ = self._decoder.getstate()
            # A half character already belongs to whatever it will complete.
            self._ends.append(self._length + bool(half))
            self.read = self.kept = len(self._ends)
            if text:
                self._held.append(Piece(text, origin))
                pieces += self._release()
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back, once no more tokens come; a half character at the end is dropped."""
        return [] if self.stopped else self._take(self._length - self._released)

    def _release(self) -> list[Piece]:
        held = "".join(piece.text for piece in self._held)
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if not found:
            return self._take(len(held) - self._beginning_of_stop(held))
        self.stopped = True
        cut = self._released + min(found)
        self.kept = next(index for index, end in enumerate(self._ends) if end > cut)
        return self._take(min(found))

    def _beginning_of_stop(self, held: str) -> int:
        """Characters at the end of the held text that a stop string may begin with."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(held)), longest, -1):
                if held.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _take(self, characters: int) -> list[Piece]:
        self._released += characters
        taken: list[Piece] = []
        while characters and self._held:
            piece = self._held.pop(0)
            if len(piece.text) > characters:
                self._held.insert(0, replace(piece, text=piece.text[characters:]))
                piece = replace(piece, text=piece.text[:characters])
            characters -= len(piece.text)
            if piece.text not in self._marks.values():
                taken.append(piece)
        return taken


def _with_marks(stop: str, marks: Mapping[str, str]) -> str:
    """A stop string with marks in the places of names; the longest name first, since it may hold another."""
    for name in sorted(marks, key=len, reverse=True):
        stop = stop.replace(name, marks[name])
    return stop
