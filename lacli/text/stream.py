"""From accepted tokens to text: UTF-8 across tokens, stop strings across tokens, and which tokens a stop leaves."""

from __future__ import annotations

from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lacli.tree import Origin


@dataclass(frozen=True)
class Piece:
    """The text of one token, which `origin` drafted. `reasoning`: it is of a reasoning block, not of the answer."""

    text: str
    origin: Origin = Origin.MODEL
    reasoning: bool = False


class HeldPieces:
    """Pieces that wait until it is known which part of a text they belong to."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def take(self, length: int) -> list[Piece]:
        """Remove the first `length` characters; a piece that reaches further is cut."""
        taken: list[Piece] = []
        while length and self.pieces:
            piece = self.pieces.pop(0)
            if len(piece.text) > length:
                self.pieces.insert(0, replace(piece, text=piece.text[length:]))
                piece = replace(piece, text=piece.text[:length])
            length -= len(piece.text)
            taken.append(piece)
        return taken


def begun_length(text: str, markers: Sequence[str]) -> int:
    """Characters at the end of `text` that are the beginning of one of the `markers`."""
    longest = min(len(text), max(map(len, markers), default=1) - 1)
    return next((size for size in range(longest, 0, -1) if any(m.startswith(text[-size:]) for m in markers)), 0)


def until_stop(text: str, stops: Sequence[str]) -> tuple[int, str]:
    """Characters of `text` that are certain to stand before a stop text, and the stop text that has come, or ""."""
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found, default=(len(text) - begun_length(text, stops), ""))


class TextStream:
    """Turns tokens into text that is safe to print, and finds the first stop string.

    Text that may be the beginning of a stop is held back. `kept` counts the tokens that lie wholly before the stop
    (without a stop, all that were read), `read` those up to the token that completes it. `stop` is the one that came,
    "" for none.
    """

    def __init__(
        self, bytes_of: Callable[[int], bytes], stops: Sequence[str] = (), controls: Mapping[int, str] | None = None
    ) -> None:
        """`controls`: tokens without a text of their own, by their names; a stop may be such a name."""
        self._bytes_of = bytes_of
        self._stops = [stop for stop in stops if stop]
        self._stop_tokens = {token: name for token, name in (controls or {}).items() if name in stops}
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held = HeldPieces()
        self._ends: list[int] = []
        self._released = self._length = self.kept = self.read = 0
        self.stop = ""

    @property
    def begun(self) -> int:
        """The number of tokens of whose text at least a part was returned.

        A token without a text, such as the first part of a character, counts once those before it do.
        """
        whole = bisect_right(self._ends, self._released)
        return whole + (self._released > (self._ends[whole - 1] if whole else 0))

    def feed(self, tokens: Sequence[int], origins: Sequence[Origin]) -> list[Piece]:
        """Read tokens up to the first stop string and return the certain text. `origins`: what drafted each token."""
        pieces: list[Piece] = []
        for token, origin in zip(tokens, origins, strict=True):
            if self.stop:
                break
            self.read += 1
            if token in self._stop_tokens:
                pieces += self.finish()
                self.stop = self._stop_tokens[token]
                self.kept = bisect_right(self._ends, self._length)
                break
            text = self._decoder.decode(self._bytes_of(token))
            self._length += len(text)
            half, _ = self._decoder.getstate()
            # Half a character already belongs to the text that it will complete.
            self._ends.append(self._length + bool(half))
            self.kept = self.read
            if text:
                self._held.pieces.append(Piece(text, origin))
                length, self.stop = until_stop(self._held.text, self._stops)
                if self.stop:
                    self.kept = bisect_right(self._ends, self._released + length)
                pieces += self._take(length)
        return pieces

    def finish(self) -> list[Piece]:
        """Return the text held back, once no more tokens come; half a character at the end is dropped."""
        return [] if self.stop else self._take(self._length - self._released)

    def _take(self, length: int) -> list[Piece]:
        self._released += length
        return self._held.take(length)
