"""One line on stderr's terminal about work that takes a while, which leaves no trace when the work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from time import perf_counter
from typing import TextIO

from lacli.terminal.interrupts import undone
from lacli.text.format import counted

SHOWN_AFTER_S = 0.3
"""Seconds of work without a line: the bundled model is loaded in 0.03 s, and would only make one flash."""

COUNTED_S = 0.1
"""Seconds between two counts of an answer's tokens: a small model takes a thousand steps a second."""

ERASE = "\r\x1b[K"

Say = Callable[..., None]
"""Gets the same words at several lengths, the longest first; the longest that fits is shown."""


class WaitingLine:
    """A line of `width()` columns on the terminal `file`, not drawn before `show` is called."""

    def __init__(self, file: TextIO, width: Callable[[], int]) -> None:
        self._file, self._width = file, width
        self._forms: tuple[str, ...] = ()
        self._shown = self._over = False
        self._drawn = ""
        self._lock = Lock()

    def say(self, *forms: str) -> None:
        """Let the line have these words, at the longest of these lengths that fits; none where none does."""
        with self._lock:
            self._forms = forms
            if self._shown:
                self._draw()

    def show(self) -> None:
        """Draw the line from now on; called by a thread of its own."""
        with self._lock:
            self._shown = not self._over
            if self._shown:
                self._draw()

    def erase(self) -> None:
        """Erase the line for good."""
        with self._lock:
            self._shown, self._over, self._forms = False, True, ()
            self._draw()

    def _draw(self) -> None:
        # In the last column some terminals begin a new line.
        text = next((form for form in self._forms if len(form) < self._width()), "")
        if text != self._drawn:
            self._drawn = text
            with suppress(OSError, ValueError):  # the terminal is gone, or the stream is closed
                self._file.write(ERASE + text)
                self._file.flush()


@contextmanager
def waiting_line(file: TextIO, width: Callable[[], int]) -> Iterator[Say]:
    """Show a line while what is inside takes longer than `SHOWN_AFTER_S`; yields the function that sets its words.

    The work itself may be one long call of llama.cpp, so a thread draws the line for the first time.
    """
    line = WaitingLine(file, width)
    timer = Timer(SHOWN_AFTER_S, line.show)
    timer.daemon = True
    with undone(line.erase):
        timer.start()
        try:
            yield line.say
        finally:
            timer.cancel()
            line.erase()


def reading_words(done: int, tokens: int, speed: float) -> list[str]:
    """Forms of a line that tells how far a prompt of `tokens` is read, at `speed` tokens/s; 0 where none is known."""
    count = f"{done:,}/{tokens:,}"
    words = f"reading the prompt {count} tokens"
    rate = [f"{words}, {speed:,.0f} tokens/s"] if done and speed else []
    return [*rate, words, f"reading {count}", count, f"{done / max(tokens, 1):.0%}"]


def counting(say: Say) -> Callable[[int], None]:
    """A function that takes the number of each step's tokens, and has `say` tell how many there are.

    It tells how fast those behind the first step's come, too.
    """
    tokens, first, begin, last = 0, 0, 0.0, 0.0

    def count(more: int) -> None:
        nonlocal tokens, first, begin, last
        tokens, now = tokens + more, perf_counter()
        first, begin = first or more, begin or now
        if now - last >= COUNTED_S:
            last, words = now, f"answering: {counted(tokens, 'token')}"
            say(*([f"{words}, {(tokens - first) / (now - begin):,.0f} tokens/s"] if now > begin else ()), words)

    return count
