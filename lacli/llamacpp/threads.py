"""How many threads decode: all, or fewer after steps that other programs have made slow (docs/measured.md)."""

from __future__ import annotations

from lacli.stats import MIN_CORE_SHARE

OBSERVED_S = 0.25
"""Seconds of decoding over which the threads' share of the cores is taken.

Steps of the 0.5B that wait for a thread take 36 to 110 ms on two cores: a few, so that none of them decides alone.
"""

RETRY_S, MAX_RETRY_S = 3.0, 60.0
"""Seconds until all threads are tried again; each failed try doubles them, up to the second.

A try beside programs that go on takes OBSERVED_S to twice that: 8 to 16% of the time at first, 0.4 to 0.8% at last.
"""


class ThreadsInUse:
    """The threads of the next decode: as many as had a core while all of them decoded, until all are tried again.

    A step is slow where it takes longer than its threads' processor seconds say. `count`: of the next decode.
    """

    def __init__(self, threads: int) -> None:
        self._all = self.count = threads
        self._pause_s, self._until_s = RETRY_S, 0.0
        self._seconds = self._core_s = 0.0

    def note(self, seconds: float, core_s: float, now_s: float) -> None:
        """Record a decode of `seconds` and `core_s` processor seconds that ended at `now_s`."""
        if self.count < self._all:
            if now_s >= self._until_s:
                self.count = self._all
            return
        self._seconds += seconds
        self._core_s += core_s
        if self._seconds < OBSERVED_S:
            return
        cores = self._core_s / self._seconds
        self._seconds = self._core_s = 0.0
        if cores >= MIN_CORE_SHARE * self._all:
            self._pause_s = RETRY_S
        else:
            self.count = max(int(cores), 1)
            self._until_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_RETRY_S)
