"""The end of a benchmark in words: which setting is faster on which class, and what it takes to tell."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import Literal

from lacli.bench.results import LEAST_PROMPTS, LEAST_TOKENS, Result, overall
from lacli.bench.rows import Machine
from lacli.bench.tasks import ALL
from lacli.terminal.screen import wrapped
from lacli.text.format import counted, listed

Verdict = Literal["faster", "slower", "cannot tell"]

MOST_COMPARED = 4
"""Settings up to which the best is no matter of luck: of more, one may look best by chance."""

MOST_SHOWN = 6
"""Settings of a sweep that the summary names, the fastest."""

MOST_SECONDS = 600
"""Seconds of a benchmark that are advised to somebody who gave it less than half of them."""

NEAR = 1.05
"""An interval between 1 / NEAR and NEAR is not worth more time: nobody notices the difference."""


def summary(
    found: Sequence[Result],
    machine: Machine,
    *,
    asked: int,
    seconds: float,
    width: int,
    unfinished: Sequence[str] = (),
    busy: str = "",
) -> str:
    """What was compared, a verdict on each setting by class, what would tell more, and whether the texts are plain's.

    `asked`: prompts that there were, a conversation counted once, and `seconds` for them. `width`: columns of all
    lines. `unfinished`: the labels of settings without an answer. `busy`: a sentence on a machine that was.
    """
    plain = overall(found)[0]
    kinds = {result.kind for result in found} - {ALL}
    of = f" of {len(kinds)} classes" if len(kinds) > 1 else ""
    speed = f"plain decoding has {plain.speed:.1f} tokens/s"
    lines = [
        f"{machine.model_type} on {machine.where}, {machine.threads_and_copies}",
        *([busy] if busy else []),
        f"{counted(plain.prompts, 'prompt')}{of}, {counted(plain.tokens, 'token')} decoded plainly: {speed}.",
        "",
    ]
    compared = beside_plain(found)
    # What can be told comes first, the fastest at its head.
    whole = sorted(overall(compared), key=lambda each: -each.speedup.value if verdict(each) != "cannot tell" else 0.0)
    for result in whole[:MOST_SHOWN]:
        lines += _setting(result, [each for each in compared if each.number == result.number and each.kind != ALL])
    lines += [f"{label}: cannot tell, no answer was finished" for label in unfinished]
    if more := whole[MOST_SHOWN:]:
        lines.append(f"and {counted(len(more), 'setting')} below these: --details shows all")
    ends = [_luck(whole), what_tells(whole, asked, seconds, unfinished=bool(unfinished))]
    ends.append(_texts(compared) if machine.comparable else "")
    for sentence in filter(None, ends):
        lines += ["", sentence]
    return "\n".join(wrapped(line, width) for line in lines)


def beside_plain(found: Sequence[Result]) -> list[Result]:
    """The results of all contenders but plain decoding."""
    return [result for result in found if result.by.mode != "plain"]


def verdict(result: Result) -> Verdict:
    """Whether a setting is faster than plain decoding, if its answers are enough and its interval leaves out 1."""
    if result.is_enough and result.speedup.surely_faster:
        return "faster"
    return "slower" if result.is_enough and result.speedup.surely_slower else "cannot tell"


def what_tells(whole: Sequence[Result], asked: int, seconds: float, *, unfinished: bool = False) -> str:
    """A sentence on what would tell more of these settings over all classes; empty if nothing is left to tell.

    `asked`, `seconds`, `unfinished`: as in `summary`.
    """
    unsure = [result for result in whole if verdict(result) == "cannot tell" and not _is_near(result)]
    if not unsure and not unfinished:
        return ""
    few = [result for result in unsure if not result.is_enough]
    prompts = min((result.speedup.prompts for result in unsure), default=0)
    wanted = [f"--seconds {more_seconds(unsure, seconds)}"] if unfinished or prompts < asked else ["more prompts"]
    if asked < LEAST_PROMPTS and wanted != ["more prompts"]:
        wanted.append("more prompts")
    if prompts == asked and any(result.least_tokens < LEAST_TOKENS for result in few):
        wanted.append("longer answers (-n)")
    takes = f"It takes {LEAST_PROMPTS} prompts and {LEAST_TOKENS} tokens of each mode" if few or unfinished else ""
    return f"{takes or 'It takes a narrower interval'} to tell: give {listed(wanted, 'and')}."


def more_seconds(unsure: Sequence[Result], seconds: float) -> int:
    """Seconds after which these may be told, in tens: an interval shrinks with the root of the answers.

    At most MOST_SECONDS, but always twice as many as before.
    """
    times = [2.0]
    for result in unsure:
        if not result.is_enough:
            times.append(2 * max(LEAST_PROMPTS / result.speedup.prompts, LEAST_TOKENS / result.least_tokens))
        elif result.speedup.low and (distance := abs(log(result.speedup.value))):
            times.append((log(result.speedup.value / result.speedup.low) / distance) ** 2)
    needed = min(max(times) * seconds, MOST_SECONDS)
    return 10 * ceil(max(needed, 2 * seconds) / 10)


def _setting(whole: Result, by_class: Sequence[Result]) -> list[str]:
    """A line on a setting over all classes, and one on those of several classes that can be told."""
    ratio, said = whole.speedup, verdict(whole)
    interval = f" ({ratio.low:.2f}x to {ratio.high:.2f}x)" if whole.is_enough else ""
    value = f"{ratio.value:.2f}x, " if said != "cannot tell" else ""
    lines = [f"{whole.by.label}: {value}{said}{interval}"]
    told = sorted((each for each in by_class if verdict(each) != "cannot tell"), key=lambda each: -each.speedup.value)
    if len(by_class) > 1 and told:
        parts = []
        for word in ("faster", "slower"):
            if own := [f"{each.kind} ({each.speedup.value:.2f}x)" for each in told if verdict(each) == word]:
                parts.append(f"{word} on {', '.join(own)}")
        parts += ["cannot tell on the rest"] if len(told) < len(by_class) else []
        lines.append(f"    {'; '.join(parts)}")
    return lines


def _is_near(result: Result) -> bool:
    ratio = result.speedup
    return bool(result.is_enough and ratio.low and ratio.high and ratio.low > 1 / NEAR and ratio.high < NEAR)


def _luck(whole: Sequence[Result]) -> str:
    """That the best of many settings is partly luck."""
    if len(whole) <= MOST_COMPARED or verdict(whole[0]) != "faster":
        return ""
    return f"{whole[0].by.label} is the best of {len(whole)} settings, which is partly luck: measure it alone."


def _texts(compared: Sequence[Result]) -> str:
    """Whether the texts are plain's."""
    known = [each for each in compared if each.kind != ALL and each.identical is not None]
    answers, parted = sum(each.prompts for each in known), sum(len(each.parted) for each in known)
    if not answers:
        return ""
    if not parted:
        return "All texts are plain decoding's."
    return f"{answers - parted} of {answers} texts are plain decoding's; lacli check judges why others are not."
