"""An answer beside as many plain steps that were taken in the same conditions, or why there is no comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import median, quantiles
from typing import NamedTuple

from lacli.stats import RunStatistics, StepTimes
from lacli.text.format import counted

MIN_STEPS = 3
"""Steps of an answer, and plain steps to compare it with, at least: one alone may be the first, or be held up."""

MAX_ERROR = 0.1
"""Standard error of the median plain step, as a part of it, up to which a comparison says something."""

ERROR_OF_QUARTILES = 0.93
"""Standard error of a median, in distances between the quartiles over the root of the number (normal distribution)."""

MAX_RATIO = 1.5
"""Ratio of plain steps in the answer and behind it up to which they are taken for one speed."""

HELD_UP = 2.0
"""Times the plain steps that a step has rows, one more counted, from which something else held it up.

The dearest rows known, two of a mixture of experts, cost 3 plain steps; the bound for two rows is 6.
"""


class Comparison(NamedTuple):
    """What the guesses of an answer cost and brought, in the time of plain steps.

    `tokens`: of the answer. `plain_s`: seconds of a plain step, the median of `plain_steps`. `is_own`: True if those
    are steps of the answer; else they were taken behind it. `extra_s`: seconds that guesses took beyond plain steps,
    with looking for them in plain ones. `saved_s`: those of the plain steps that accepted guesses made unnecessary.
    `held_up_s`: what the answer's plain steps took beyond their median, which is left out on both sides.
    """

    tokens: int
    plain_s: float
    plain_steps: int
    is_own: bool
    extra_s: float
    saved_s: float
    held_up_s: float

    @property
    def gained_s(self) -> float:
        """What the guesses brought, less what they cost; below 0 where they did not pay."""
        return self.saved_s - self.extra_s

    @property
    def plain_total_s(self) -> float:
        """Seconds of the answer in plain steps."""
        return self.tokens * self.plain_s

    @property
    def ratio(self) -> float:
        """How many times as fast the answer was."""
        return self.plain_total_s / (self.plain_total_s - self.gained_s)


def compare(run: RunStatistics, timed: Callable[[], Sequence[float]] = tuple) -> Comparison | str:
    """Compare an answer with its own plain steps, or return in words why that would say nothing.

    `timed`: gives the seconds of plain steps behind the answer, asked where it has too few of its own.
    """
    times = run.times
    if run.steps < MIN_STEPS:
        return f"too short to compare: {counted(run.steps, 'step')}, and the first one is unlike the others"
    is_own = len(times.plain) >= MIN_STEPS
    plain = times.plain if is_own else timed()
    if len(plain) < MIN_STEPS:
        return f"not compared: {counted(len(times.plain), 'plain step')} in this answer, {MIN_STEPS} are needed"
    plain_s = median(plain)
    if trouble := _uneven(plain, times.plain or plain):
        return f"not compared: {trouble}, too unlike each other"
    if trouble := _held_up(times, plain_s):
        return f"not compared: {trouble}, as on a busy machine"
    extra_s = max(times.others_s - times.others * plain_s + times.mode_s, 0.0)
    held_up_s = sum(times.plain) - len(times.plain) * plain_s
    return Comparison(run.tokens, plain_s, len(plain), is_own, extra_s, times.saved * plain_s, held_up_s)


def _uneven(plain: Sequence[float], own: Sequence[float]) -> str:
    """Say that plain steps took too different times, or those behind the answer others than its `own`; "" if not."""
    low, plain_s, high = quantiles(plain, method="inclusive")
    own_s = median(own)
    error = ERROR_OF_QUARTILES * (high - low) / sqrt(len(plain))
    if error <= MAX_ERROR * plain_s and 0 < plain_s / MAX_RATIO <= own_s <= plain_s * MAX_RATIO:
        return ""
    return f"plain steps took {min(low, own_s) * 1e3:.2f} to {max(high, own_s) * 1e3:.2f} ms"


def _held_up(times: StepTimes, plain_s: float) -> str:
    """Say that a step took longer than its rows can, or that the larger ones took less than plain ones; "" if not."""
    if times.slowest > HELD_UP * plain_s:
        count = times.slowest * (times.slowest_rows + 1) / plain_s
        return f"a step of {counted(times.slowest_rows, 'row')} took as long as {count:.0f} plain ones"
    if times.others_s < (1 - MAX_ERROR) * times.others * plain_s:
        return "steps of several rows took less time than plain ones"
    return ""


def as_told(compared: Comparison | str, mode: str) -> list[tuple[str, str]]:
    """Lines of a report, with their subjects: whether the guesses paid, or why that is not said."""
    if isinstance(compared, str):
        return [("plain", compared)]
    where = "in the answer" if compared.is_own else "behind it"
    plain_ms, total_ms = compared.plain_s * 1e3, compared.plain_total_s * 1e3
    steps = f"{counted(compared.tokens, 'step')} of {plain_ms:.2f} ms (median of {compared.plain_steps} {where})"
    lines = [("plain", f"{steps} take {total_ms:.1f} ms:"), ("", _speed(compared.ratio, mode))]
    if compared.held_up_s > MAX_ERROR * compared.plain_total_s:
        lines.append(("", f"(without {compared.held_up_s * 1e3:.1f} ms that held up plain steps in the answer)"))
    if mode != "auto":
        return lines
    took = f"{compared.extra_s * 1e3:.2f} ms beyond plain steps"
    gained = f"{abs(compared.gained_s) * 1e3:.2f} ms {'gained' if compared.gained_s >= 0 else 'lost'}"
    return [("gain", f"guesses took {took} and saved {compared.saved_s * 1e3:.2f} ms:"), ("", gained), *lines]


def _speed(ratio: float, mode: str) -> str:
    if ratio >= 1 or mode == "auto":
        return f"{mode} was {ratio:.2f} times as fast"
    smaller = "" if mode == "lookup" else ", or a smaller -W"
    return f"they would be {1 / ratio:.2f} times as fast as {mode}. Try --mode plain{smaller}."
