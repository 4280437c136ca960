"""The end of a benchmark in words: which mode is faster on which class, how sure that is, and what to type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from re import sub
from typing import Literal, get_args

from lacli.bench.contenders import Judged
from lacli.bench.oracle import Ceilings
from lacli.bench.plan import SHORT
from lacli.bench.results import Result, overall
from lacli.bench.rows import Machine
from lacli.bench.rows import verdict as judgement
from lacli.bench.statistics import Ratio
from lacli.bench.sweep import LETTERS, Point
from lacli.bench.tasks import ALL, OWN
from lacli.terminal.screen import wrapped
from lacli.text.format import counted

Verdict = Literal["faster", "probably faster", "undecided", "probably slower", "slower"]

TOO_FEW = "too few answers"
"""The verdict on a class with one answer, or with two prompts (or repetitions of its only one) that disagree.

`undecided` would read as if 0.15x might be a gain.
"""

MOST_COMPARED = 4
"""Settings up to which the best is said to pay; among more, one may look best by chance."""

MOST_SHOWN = 6
"""Settings of a sweep that the summary names, the fastest."""

MOST_LISTED = 3
"""Classes of one verdict up to which each is named where that is the verdict on all."""

MIN_STEPS = 3
"""Steps of an answer of guesses that all come true from which it says how fast those are: one may be held up."""

MOST_SECONDS = 600
"""Seconds of a benchmark that are advised to somebody who gave it less than half of them."""

UNMEASURED = 4.0
"""Times the answers that are advised where there is no interval: two prompts, which have none, become eight."""


@dataclass(frozen=True)
class Typed:
    """What was typed, for the commands that are advised.

    `model`: MODEL, with the flags that `lacli run` has too. `compared`: the flags that say what is compared. `flags`:
    the others of the benchmark alone. `seconds`: of all of it, None where more of them would change nothing.
    """

    model: str = ""
    compared: str = ""
    flags: str = ""
    seconds: float | None = None

    def run(self, flags: str = "") -> str:
        """`lacli run` with these flags, too."""
        return " ".join(filter(None, ["lacli run", self.model, flags]))

    def measure(self, compared: str, seconds: int | None = None) -> str:
        """`lacli bench` with these flags for what is compared, in `seconds`, the same time where that is None."""
        now = seconds or self.seconds
        time = f"--seconds {now:g}" if now else ""
        return " ".join(filter(None, ["lacli bench", self.model, compared, self.flags, time]))


@dataclass(frozen=True)
class Advice:
    """What to type, and why."""

    command: str
    reason: str


def summary(
    found: Sequence[Result],
    judged: Judged,
    machine: Machine,
    ceilings: Ceilings | None = None,
    *,
    typed: Typed,
    width: int,
    busy: str = "",
) -> str:
    """What was compared, a verdict on each setting by class, whether the texts are plain's, and what to type.

    `width`: columns of all lines but the command. `busy`: a sentence on a machine that was; then there are no
    verdicts, and nothing but another benchmark is advised.
    """
    compared = beside_plain(found)
    measured = f"{machine.model_type} on {machine.where}, {machine.threads_and_copies}"
    if not compared:
        speed = f"Plain decoding: {overall(found)[0].speed:.1f} tokens/s; nothing else was measured"
        return "\n".join(wrapped(line, width) for line in (measured, speed))
    whole = sorted(overall(compared), key=lambda result: result.speedup.value, reverse=True)
    lines = [measured, *([busy] if busy else []), _heading(found), ""]
    for result in whole[:MOST_SHOWN]:
        own = [each for each in compared if each.number == result.number and each.kind != ALL]
        lines += [f"{result.by.label}: {result.speedup.value:.2f}x"] if busy else _setting(result, own)
    if more := whole[MOST_SHOWN:]:
        lines.append(f"and {counted(len(more), 'setting')} below these: --details shows all")
    unsure = [result.speedup for result in compared if not _sure(result.speedup)]
    if unsure and not busy:
        lines += ["", needs_more(unsure, typed.seconds)]
    if typed.seconds is not None and not busy:
        lines += short_answers([trial.tokens for each in overall(found)[0].answered for trial in each.trials])
    texts = _texts(found, judged) if machine.comparable else ""
    for sentence in filter(None, [_ceiling(whole, {} if busy else ceilings or {}), texts]):
        lines += ["", sentence]
    advice = measure_again(machine, typed) if busy else recommendation(compared, typed)
    return with_advice(lines, advice, width)


def with_advice(lines: Sequence[str], advice: Advice, width: int) -> str:
    """Return `lines` for `width` columns, followed by `advice`, its command on one line to be copied."""
    return "\n".join([*(wrapped(line, width) for line in (*lines, "", f"{advice.reason}:")), f"  {advice.command}"])


def measure_again(machine: Machine, typed: Typed) -> Advice:
    """Advise the same benchmark again, with one thread if it had more."""
    calm = "When the machine is calm measure again"
    if machine.n_threads == 1 and machine.n_threads_batch in (0, 1):
        return Advice(typed.measure(typed.compared), calm)
    alone = replace(typed, model=sub(r"(^| )-tb? \d+", "", typed.model).strip())
    return Advice(alone.measure(f"{typed.compared} -t 1".strip()), f"{calm}; beside other work one thread tells more")


def short_answers(tokens: Sequence[int]) -> list[str]:
    """Say that answers were short, if most of plain decoding's were cut at a length below SHORT. `tokens`: of each."""
    if (longest := max(tokens)) >= SHORT or 2 * tokens.count(longest) < len(tokens):
        return []
    return [
        "",
        f"Answers of {longest} tokens have little text to guess from; --modes auto -n {2 * SHORT} has longer ones.",
    ]


def beside_plain(found: Sequence[Result]) -> list[Result]:
    """The results of all contenders but plain decoding."""
    return [result for result in found if result.by.mode != "plain" and result.answered]


def verdict(ratio: Ratio) -> Verdict:
    """How sure it is that a setting is faster or slower than plain decoding.

    Where prompts are too few for an interval it is probable if all of them, or all repetitions of one, agree.
    """
    if ratio.is_of_prompts:
        return "faster" if ratio.surely_faster else "slower" if ratio.surely_slower else "undecided"
    if not ratio.agreed:
        return "undecided"
    return "probably faster" if ratio.value > 1 else "probably slower"


def _class_verdict(ratio: Ratio) -> str:
    """The verdict on a class, or that its answers are too few for one."""
    said = verdict(ratio)
    return TOO_FEW if said == "undecided" and not ratio.is_of_prompts else said


def _sure(ratio: Ratio) -> bool:
    return verdict(ratio) in ("faster", "slower")


def needs_more(unsure: Sequence[Ratio], seconds: float | None) -> str:
    """What would make these sure, after a benchmark of `seconds`; None where more of them would change nothing."""
    longer = "" if seconds is None else f" or more time: --seconds {more_seconds(unsure, seconds)}"
    return f"What is undecided or not certain needs more prompts{longer}."


def more_seconds(unsure: Sequence[Ratio], seconds: float) -> int:
    """Seconds after which these may be sure, in tens: an interval shrinks with the root of the answers.

    At most MOST_SECONDS, but always twice as many as before.
    """
    times = [
        UNMEASURED if ratio.low is None or not ratio.is_of_prompts else (log(ratio.value / ratio.low) / distance) ** 2
        for ratio in unsure
        if (distance := abs(log(ratio.value)))
    ]
    needed = min(max(times, default=0.0) * seconds, MOST_SECONDS)
    return 10 * ceil(max(needed, 2 * seconds) / 10)


def recommendation(compared: Sequence[Result], typed: Typed) -> Advice:
    """What to type here, from results beside plain decoding."""
    ours = [result for result in overall(compared) if result.by.point and result.by.mode != "plain"]
    auto = next((result for result in ours if result.by.mode == "auto"), None)
    sure = [result for result in ours if verdict(result.speedup) == "faster"]
    if sure:
        best = max(sure, key=lambda result: result.speedup.value)
        if auto in sure and auto and verdict(best.measured_by(auto).speedup) != "faster":
            best = auto
        if best is auto:
            return Advice(
                typed.run(), f"Mode auto, the default, is {_times(best)} as fast as plain decoding here, so type"
            )
        flags = _flags(best.by.point)
        if len(ours) > MOST_COMPARED:
            luck = f"{best.by.label} is the best of {len(ours)} settings, which is partly luck; measure it alone"
            return Advice(typed.measure(flags.replace("--mode ", "--modes ")), luck)
        return Advice(typed.run(flags), f"{best.by.label} is {_times(best)} as fast as plain decoding here, so type")
    if auto and auto.speedup.value >= 1:
        why = "mode auto, the default, guesses only where that pays, so nothing need be set"
        return Advice(typed.run(), f"Nothing is surely faster than plain decoding here; {why}")
    if by_class := _sure_classes(compared):
        best, kinds = by_class
        reason = f"{best.by.label} is faster on {kinds} alone, and --mode plain is the choice for the rest; for {kinds}"
        return Advice(typed.run(_flags(best.by.point)), reason)
    if any(not verdict(result.speedup).endswith("slower") for result in ours):
        if typed.seconds is None:
            return Advice(typed.run(), "Nothing is sure here, and more prompts may tell; mode auto is the default")
        longer = more_seconds([result.speedup for result in compared if not _sure(result.speedup)], typed.seconds)
        return Advice(typed.measure(typed.compared, longer), "Nothing is surely faster here yet; more time may tell")
    return Advice(typed.run("--mode plain"), "Nothing is faster than plain decoding here, so type")


def _sure_classes(compared: Sequence[Result]) -> tuple[Result, str] | None:
    """The setting that is surely faster on most classes, with their names."""
    sure = [each for each in compared if each.kind != ALL and each.by.point and verdict(each.speedup) == "faster"]
    if not sure:
        return None
    numbers = [result.number for result in sure]
    most = max(numbers, key=numbers.count)
    own = [result for result in sure if result.number == most]
    return own[0], ", ".join(result.kind for result in own)


def _heading(found: Sequence[Result]) -> str:
    classes = {result.kind for result in found} - {ALL}
    trials = overall(found)[0].answered
    most = max(len(each.trials) for each in trials)
    times = "once" if most == 1 else f"{most} times"
    of = f" in {len(classes)} classes" if len(classes) > 1 else ""
    limit = f"up to {counted(max(trial.tokens for trial in overall(found)[0].trials), 'token')}"
    return f"Times plain decoding's speed ({counted(len(trials), 'prompt')}{of}, each answered {times} with {limit}):"


def _setting(whole: Result, by_class: Sequence[Result]) -> list[str]:
    """A line on a setting over all classes, and one on each of several classes."""
    said = verdict(whole.speedup)
    kinds = list(dict.fromkeys(result.kind for result in by_class))
    first = f"{whole.by.label}: {whole.speedup.value:.2f}x, {said}"
    if len(kinds) < 2:
        return [(first if kinds == [OWN] else f"{first} on {kinds[0]}") + _unsure(said)]
    parts = []
    for each in (*get_args(Verdict), TOO_FEW):
        own = [result for result in by_class if _class_verdict(result.speedup) == each]
        own.sort(key=lambda result: result.speedup.value, reverse=True)
        unsure = _unsure(each)
        if len(own) == len(kinds) > MOST_LISTED:
            values = f"{own[-1].speedup.value:.2f}x to {own[0].speedup.value:.2f}x"
            parts.append(f"{each} on all {len(own)} classes ({values}){unsure}")
        elif own:
            parts.append(f"{each} on " + ", ".join(f"{r.kind} ({r.speedup.value:.2f}x)" for r in own) + unsure)
    return [first, f"    {'; '.join(parts)}"]


def _unsure(said: Verdict) -> str:
    return ", not certain" if said.startswith("probably") else ""


def _ceiling(whole: Sequence[Result], ceilings: Ceilings) -> str:
    """What there was to win, and how much of it mode auto has.

    Not where the oracle's answers take fewer than MIN_STEPS steps: that only says how long they are.
    """
    said = ""
    for result in whole:
        ceiling = ceilings.get((result.number, result.kind))
        share = ceiling.share(result.speedup.value) if ceiling else None
        if not ceiling or share is None:
            continue
        if result.tokens >= MIN_STEPS * ceiling.rows * len(result.trials):
            gain = f"{result.by.label} has {share:.0%} of that gain" if share else f"{result.by.label} gains none of it"
            return f"Guesses that all come true would reach {ceiling.ratio.value:.2f}x in these answers; {gain}."
        said = "These answers are too short to tell how fast guesses that all come true would be."
    return said


def _texts(found: Sequence[Result], judged: Judged) -> str:
    """Whether the texts are plain's, and what the judge says of those that are not."""
    known = [each for each in found if each.kind != ALL and each.by.mode != "plain" and each.identical is not None]
    answers, parted = sum(each.prompts for each in known), sum(len(each.parted) for each in known)
    if not answers:
        return ""
    if not parted:
        return "All texts are plain decoding's."
    bugs = sum(run.bug for run in judged.values())
    if bugs:
        return f"BUG: {counted(bugs, 'text')} not explained by rounding. Please report this with the output of --json."
    words = ", ".join(f"{count} {word}" for word, count in Counter(map(judgement, judged.values())).items())
    looked = f"; judged of the others: {words}" if judged else ""
    return f"{answers - parted} of {answers} texts are plain decoding's{looked}."


def _times(result: Result) -> str:
    return f"{result.speedup.value:.2f} times"


def _flags(point: Point | None) -> str:
    """A point's flags as `lacli run` takes them."""
    assert point, "another program has no flags here"
    settings = point.settings
    letters = LETTERS if settings.mode == "lookahead" else ["window"] if settings.mode == "jacobi" else []
    flags = ["--mode", settings.mode] + [f"-{LETTERS[name]} {getattr(settings, name)}" for name in letters]
    return " ".join(flags)
