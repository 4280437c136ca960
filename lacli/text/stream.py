"""Text from accepted tokens: characters and stop texts may span tokens. Counts the tokens before a stop text."""

from __future__ import annotations

from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lacli.tree import Origin


@dataclass(frozen=True)
class Piece:
    """The text of a token, or a part of it. `origin`: what drafted the token. `reasoning`: inside a reasoning block."""

    text: str
    origin: Origin = Origin.MODEL
    reasoning: bool = False


class HeldPieces:
    """Pieces that are held back until it is certain whether their text is answer, reasoning or a stop text."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def take(self, length: int) -> list[Piece]:
        """Remove and return the pieces of the first `length` characters. A longer last piece is cut in two."""
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
    """Return how many characters at the end of `text` are the beginning, but not all, of one of `markers`."""
    longest = min(len(text), max(map(len, markers), default=1) - 1)
    return next((size for size in range(longest, 0, -1) if any(m.startswith(text[-size:]) for m in markers)), 0)


def until_stop(text: str, stops: Sequence[str]) -> tuple[int, str]:
    """Return how many characters of `text` certainly precede a stop text, and the first stop text in it ("": none)."""
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found, default=(len(text) - begun_length(text, stops), ""))


class TextStream:
    """Turns tokens into text that is safe to print, and finds the first stop text.

    Text that may begin a stop text is held back. `read`: number of tokens read, up to the token that completes the stop
    text. `kept`: number of tokens wholly before the stop text, or `read` without one. `stop`: the stop text, or "".
    """

    def __init__(
        self, bytes_of: Callable[[int], bytes], stops: Sequence[str] = (), controls: Mapping[int, str] | None = None
    ) -> None:
        """`controls`: names of tokens without text, by id. A token whose name is in `stops` ends the text."""
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
        """Number of tokens of which at least a part of the text has been returned.

        A token without text, such as half a character, counts as soon as the tokens before it do.
        """
        whole = bisect_right(self._ends, self._released)
        return whole + (self._released > (self._ends[whole - 1] if whole else 0))

    def feed(self, tokens: Sequence[int], origins: Sequence[Origin]) -> list[Piece]:
        """Read tokens up to a stop text. Return their text but for an end that may begin one. `origins`: one each."""
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
            # The first half of a character counts as part of the text that it will complete.
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
        """Return the held text after the last token; [] after a stop text. Half a character at the end is dropped."""
        return [] if self.stop else self._take(self._length - self._released)

    def _take(self, length: int) -> list[Piece]:
        self._released += length
        return self._held.take(length)
