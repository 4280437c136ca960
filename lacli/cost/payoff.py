"""What a staircase says about W, N and G: the S that they must bring, and what the paper's law expects of them.

Numbers only; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lacli.law import PAPER, Law
from lacli.settings import DecodeSettings
from lacli.staircase import Staircase

WINDOWS = (0, 1, 2, 3, 5, 7, 10, 15, 20, 30)
NGRAMS = (3, 4, 5, 6, 7)


@dataclass(frozen=True)
class Payoff:
    """One W, N and G behind one context, each step as large as it can be.

    rows, outputs: of such a step. break_even: the S that makes it as fast as plain decoding, None where the step is
    too large for what was measured. most_tokens: what a step can bring. expected: the S of the law, None without a
    window, of which the law says nothing. extrapolated: the step is larger than any that was measured.
    """

    window: int
    ngram: int
    guesses: int
    rows: int
    outputs: int
    break_even: float | None
    most_tokens: int
    expected: float | None
    extrapolated: bool

    @property
    def speedup(self) -> float | None:
        """The speed against plain decoding's that the law expects; None where it or the measurement says nothing."""
        return self.expected / self.break_even if self.expected and self.break_even else None

    @property
    def most_speedup(self) -> float | None:
        """The speed against plain decoding's if every step brought all that it can."""
        return self.most_tokens / self.break_even if self.break_even else None

    @property
    def name(self) -> str:
        return f"W={self.window} N={self.ngram} G={self.guesses}"


def grid(windows: Iterable[int] = WINDOWS, ngrams: Iterable[int] = NGRAMS) -> list[DecodeSettings]:
    """Lookahead with G = W, as the law needs it; without a window a single n-gram is verified."""
    ngrams = tuple(ngrams)
    return [
        DecodeSettings(mode="lookahead", window=window, ngram=ngram, guesses=max(window, 1))
        for window in windows
        for ngram in ngrams
    ]


def payoff(staircase: Staircase, settings: DecodeSettings, law: Law = PAPER) -> Payoff:
    """What these settings must bring, can bring and are expected to bring."""
    rows = settings.most_rows
    return Payoff(
        window=settings.window,
        ngram=settings.ngram,
        guesses=settings.guesses,
        rows=rows,
        outputs=min(settings.most_outputs, rows),
        break_even=staircase.break_even(settings),
        most_tokens=settings.most_tokens,
        expected=law.compression(settings.ngram - 1, settings.guesses) if settings.window else None,
        extrapolated=rows > staircase.most_rows,
    )


def payoffs(staircase: Staircase, choices: Sequence[DecodeSettings] | None = None, law: Law = PAPER) -> list[Payoff]:
    """The same for several settings, by default those of the grid."""
    return [payoff(staircase, settings, law) for settings in (grid() if choices is None else choices)]


def best(found: Sequence[Payoff]) -> Payoff | None:
    """The one that the law expects to be the fastest, of those whose steps are as small as measured ones."""
    known = [each for each in found if each.speedup and not each.extrapolated]
    return max(known, key=lambda each: each.speedup or 0.0, default=None)
