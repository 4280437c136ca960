"""An answer beside as many plain steps that were taken in the same conditions, or why there is no comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import median, quantiles
from typing import NamedTuple

from lacli.llamacpp.devices import beyond_cores
from lacli.stats import MIN_CORE_SHARE, RunStatistics, StepTimes
from lacli.text.format import counted

MIN_STEPS = 3
"""Steps of an answer, and plain steps to compare it with, at least: one alone may be the first, or be held up."""

MIN_TOKENS = 32
"""Tokens of an answer from which a verdict is said: eight steps of the demo model spend 0 to 10% in Python."""

MAX_ERROR = 0.1
"""Error up to which a comparison says something.

The standard error of the median plain step, as a part of it, and the steps that were held up, as a part of the time of
all others: 0.6% and 4% in 1,900 tokens of the demo model beside four programs that computed for 40 of 640 ms each.
"""

ERROR_OF_QUARTILES = 0.93
"""Standard error of a median, in distances between the quartiles over the root of the number (normal distribution)."""

MAX_RATIO = 1.5
"""Ratio of plain steps in the answer and behind it up to which they are taken for one speed."""

HELD_UP = 2.0
"""Times the plain steps that a step has rows, one more counted, from which something else held it up.

The dearest rows known, two of a mixture of experts, cost 3 plain steps; the bound for two rows is 6.
"""

MIN_CORE_S = 0.1
"""Processor seconds of a thread from which its share is known: Linux counts running ones by ticks of 1 to 10 ms."""


class Comparison(NamedTuple):
    """What the guesses of an answer cost and brought, in the time of plain steps.

    `tokens`: of the answer. `plain_s`: seconds of a plain step, the median of `plain_steps`. `is_own`: True if those
    are steps of the answer; else they were taken behind it. `extra_s`: seconds that guesses took beyond plain steps,
    with looking for them in plain ones. `saved_s`: those of the plain steps that accepted guesses made unnecessary.
    `held_up_s`: what the answer's plain steps took beyond their median, which is left out on both sides. `guessed`:
    False where all steps were plain.
    """

    tokens: int
    plain_s: float
    plain_steps: int
    is_own: bool
    extra_s: float
    saved_s: float
    held_up_s: float
    guessed: bool = True

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


class NotCompared(NamedTuple):
    """Why an answer is not compared, what to do about it ("" for nothing), and the numbers behind that."""

    why: str
    todo: str
    numbers: str


def compare(run: RunStatistics, timed: Callable[[], Sequence[float]] = tuple) -> Comparison | NotCompared:
    """Compare an answer with its own plain steps, or say why that would say nothing.

    `timed`: gives the seconds of plain steps behind the answer, asked where its own are too few or too uneven.
    """
    times = run.times
    if run.steps < MIN_STEPS:
        return NotCompared("too short to compare", "", f"{counted(run.steps, 'step')}, {MIN_STEPS} are needed")
    is_own = len(times.plain) >= MIN_STEPS and not _uneven(times.plain, times.plain)
    plain = times.plain if is_own else timed() or times.plain
    if len(plain) < MIN_STEPS:
        numbers = f"{counted(len(times.plain), 'plain step')} in the answer, {MIN_STEPS} are needed"
        return NotCompared("no plain steps to compare with", "lacli bench tells more", numbers)
    plain_s = median(plain)
    if numbers := _uneven(plain, times.plain or plain):
        return NotCompared("its steps were too uneven to compare", "lacli bench tells more", numbers)
    if numbers := _held_up(times, plain_s):
        return NotCompared("another program got in the way", "ask again", numbers)
    extra_s = max(times.others_s - len(times.others) * plain_s + times.mode_s, 0.0)
    held_up_s = sum(times.plain) - len(times.plain) * plain_s
    saved_s, guessed = times.saved * plain_s, bool(times.others)
    return Comparison(run.tokens, plain_s, len(plain), is_own, extra_s, saved_s, held_up_s, guessed)


def assess(
    run: RunStatistics, mode: str, timed: Callable[[], Sequence[float]] = tuple
) -> Comparison | NotCompared | None:
    """What there is to say of an answer in `mode`: the comparison, or of plain decoding only that others held it up."""
    found = busy(run)
    if found or mode == "plain":
        return found
    if run.tokens < MIN_TOKENS:
        return NotCompared("too short to compare", "", f"{counted(run.tokens, 'token')}, {MIN_TOKENS} are needed")
    return compare(run, timed)


def busy(run: RunStatistics) -> NotCompared | None:
    """What to do about other programs that kept the answer's threads waiting; None on a calm machine."""
    if run.core_wanted_s < MIN_CORE_S * run.threads or run.core_share >= MIN_CORE_SHARE:
        return None
    if told := beyond_cores(run.threads):
        return NotCompared(told, "leave it out", f"{counted(run.threads, 'thread')} wait for each other")
    free = max(int(run.core_share * run.threads), 1)
    todo = f"try -t {free}" if free < run.threads and not run.gives_way else "slower than on a calm one"
    numbers = f"{counted(run.threads, 'thread')} had a core {run.core_share:.0%} of the time"
    return NotCompared("the machine was busy", todo, numbers)


def _uneven(plain: Sequence[float], own: Sequence[float]) -> str:
    """Say that plain steps took too different times, or those behind the answer others than its `own`; "" if not."""
    low, plain_s, high = quantiles(plain, method="inclusive")
    own_s = median(own)
    error = ERROR_OF_QUARTILES * (high - low) / sqrt(len(plain))
    if error <= MAX_ERROR * plain_s and 0 < plain_s / MAX_RATIO <= own_s <= plain_s * MAX_RATIO:
        return ""
    return f"plain steps took {min(low, own_s) * 1e3:.2f} to {max(high, own_s) * 1e3:.2f} ms"


def _held_up(times: StepTimes, plain_s: float) -> str:
    """Say that steps took much longer than their rows can, or the larger ones less than plain ones; "" if not.

    Held up for a smaller part of the answer they count as they are: guesses look worse for it, never better.
    """
    late = [(seconds, rows) for rows, seconds in times.others if seconds > HELD_UP * plain_s * (rows + 1)]
    late_s = sum(seconds for seconds, _ in late)
    if late_s > MAX_ERROR * (times.others_s - late_s + len(times.plain) * plain_s):
        slowest_s, rows = max(late)
        return f"a step of {counted(rows, 'row')} took as long as {slowest_s / plain_s:.0f} plain ones"
    if times.others_s < (1 - MAX_ERROR) * len(times.others) * plain_s:
        return "steps of several rows took less time than plain ones"
    return ""


def verdict(compared: Comparison | NotCompared, mode: str, *, in_short: bool = False) -> str:
    """Say in one line how fast an answer was beside plain decoding, or why that is not said; `in_short`: no advice."""
    if isinstance(compared, NotCompared):
        return compared.why if in_short or not compared.todo else f"{compared.why}: {compared.todo}"
    if not compared.guessed:
        return f"{mode}: nothing was guessed"
    if abs(compared.ratio - 1) < MAX_ERROR:
        return f"{mode}: as fast as plain here"
    factor = f"{mode}: {compared.ratio:.{1 if compared.ratio >= 0.1 else 2}f}x plain here"
    if in_short or mode == "auto" or compared.ratio > 1:
        return factor
    return f"{factor}, try --mode plain{'' if mode == 'lookup' else ' or a smaller -W'}"


def account(compared: Comparison | NotCompared, mode: str) -> list[tuple[str, str]]:
    """The numbers behind a verdict: lines of a report, with their subjects."""
    if isinstance(compared, NotCompared):
        return [("why", compared.numbers)]
    where = "in the answer" if compared.is_own else "behind it"
    plain_ms, total_ms = compared.plain_s * 1e3, compared.plain_total_s * 1e3
    steps = f"{counted(compared.tokens, 'step')} of {plain_ms:.2f} ms (median of {compared.plain_steps} {where})"
    lines = [("plain", f"{steps} take {total_ms:.1f} ms")]
    if compared.held_up_s > MAX_ERROR * compared.plain_total_s:
        lines.append(("", f"(without {compared.held_up_s * 1e3:.1f} ms that held up plain steps in the answer)"))
    if mode != "auto":
        return lines
    if not compared.guessed:
        looking = f"looking for guesses took {compared.extra_s * 1e3:.2f} ms, and none was expected to pay"
        return [("gain", looking), *lines]
    took = f"guesses took {compared.extra_s * 1e3:.2f} ms beyond plain steps"
    gained = f"{abs(compared.gained_s) * 1e3:.2f} ms {'gained' if compared.gained_s >= 0 else 'lost'}"
    return [("gain", f"{took} and saved {compared.saved_s * 1e3:.2f} ms: {gained}"), *lines]
