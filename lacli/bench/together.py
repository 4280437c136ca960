"""`lacli bench --parallel`: what several texts at a time bring in each mode, from the request to the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from lacli.bench.company import Blocks, BlockTrial, blocks_of, companies
from lacli.bench.report import Write, heading, interval, lined_up
from lacli.bench.results import Result, results
from lacli.bench.rounds import Exchange, Trial
from lacli.bench.rows import Machine, ResultRow, as_rows, as_text
from lacli.bench.run import Request, measured, opened
from lacli.bench.statistics import Ratio
from lacli.bench.summary import verdict
from lacli.bench.tasks import ALL
from lacli.check.judge import Difference, largest_difference, plain_logits
from lacli.engine import Engine
from lacli.errors import Interrupted
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.modes import common_prefix
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen, wrapped
from lacli.text.files import PAGE, columns
from lacli.text.format import counted, markdown

LEGEND = (
    "x alone: tokens/s of all texts over those of plain decoding of one text at a time; x plain: over those of plain "
    "decoding of as many texts; 95%: their intervals. slower: times as long as a text takes alone in the same mode. "
    "identical: texts that plain decoding of one text gives too."
)


class Parted(NamedTuple):
    """A text that is not plain decoding's alone. `place`: in its block. `plain`, `other`: the tokens of both."""

    exchange: Exchange
    place: int
    plain: tuple[int, ...]
    other: tuple[int, ...]

    @property
    def at(self) -> int:
        """The first token that differs."""
        return common_prefix(self.plain, self.other)

    @property
    def name(self) -> str:
        """Its block and its place there, from 1."""
        return f"{self.exchange.name}/{self.place + 1}"


@dataclass(frozen=True)
class Together:
    """What a contender did in one class, beside plain decoding of one text, `alone`, and beside itself with one text.

    `own`: None where an interrupt came before that.
    """

    result: Result
    alone: Result
    own: Result | None

    @cached_property
    def total(self) -> Ratio:
        """Times the speed of plain decoding of one text at a time."""
        return self.result.measured_by(self.alone).speedup

    @cached_property
    def slower(self) -> float | None:
        """Times as long as one text takes alone in the same mode, the geometric mean over the texts."""
        if self.own is None:
            return None
        pairs = self.result.measured_by(self.own).answered
        ratios = [
            ours / alone
            for each in pairs
            for trials in zip(each.trials, each.plain, strict=True)
            for ours, alone in zip(*map(_paces, trials), strict=True)
        ]
        return geometric_mean(ratios) if ratios else None

    @cached_property
    def texts(self) -> int:
        """Texts, each counted once."""
        return sum(len(_answers(each.trials[0])) for each in self.result.answered)

    @cached_property
    def parted(self) -> list[Parted]:
        """The texts with an answer that is not plain decoding's alone."""
        found = []
        for each in self.result.measured_by(self.alone).answered:
            for place, plain in enumerate(_answers(each.plain[0])):
                said = (_answers(trial)[place] for trial in each.trials)
                if other := next((answer for answer in said if answer != plain), None):
                    found.append(Parted(each.exchange, place, plain, other))
        return found


Judged = dict[Parted, Difference]


def benchmark_together(
    path: Path,
    model_settings: ModelSettings,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    request: Request,
    screen: Screen,
) -> int:
    """Measure `request.parallel` texts at a time and print what that brings; returns the exit code.

    Raises Interrupted after Ctrl-C, when what was finished is printed.
    """
    with opened(path, model_settings, decode_settings, sampling, request, screen) as session:
        blocks = blocks_of(session, request, screen)
        asked = replace(request, tasks=blocks.tasks, wish=blocks.wish)
        with companies(session, blocks, request, screen) as (engine, competing):
            outcome = measured(session, competing, asked, screen, (blocks.asker, blocks.asking))
            found = beside_alone(results(outcome.rounds))
            judged = {} if outcome.interrupted else _judged(found, blocks, engine, screen)
            machine = replace(outcome.machine, n_ctx=blocks.context)
    _show(found, judged, machine, request, screen)
    if outcome.interrupted:
        raise Interrupted("")
    return 0


def beside_alone(found: Sequence[Result]) -> list[Together]:
    """Each result beside plain decoding of one text, and beside the same mode with one text."""
    alone = {(each.kind, each.by.point): each for each in found if each.by.texts == 1}
    plain = {each.kind: each for each in found if each.number == 0}
    return [Together(each, plain[each.kind], alone.get((each.kind, each.by.point))) for each in found]


def rows_of(found: Sequence[Together], judged: Judged, machine: Machine) -> list[ResultRow]:
    """The rows of `lacli bench` with those columns changed and added that are about texts at a time."""
    rows = as_rows([each.result for each in found], machine, {})
    for row, each in zip(rows, found, strict=True):
        first = each.parted[0] if each.parted else None
        difference = judged.get(first) if first else None
        row |= {
            "parallel": each.result.by.texts,
            "prompts": each.texts,
            "first_token_ms": None,
            "total_speedup": round(each.total.value, 4),
            "total_speedup_low": each.total.low and round(each.total.low, 4),
            "total_speedup_high": each.total.high and round(each.total.high, 4),
            "text_slowdown": each.slower and round(each.slower, 4),
            "identical": not each.parted,
            "identical_n": each.texts - len(each.parted),
            "first_diff": first and first.at,
            "first_diff_prompt": first and first.name,
            "first_diff_margin": difference and round(difference.margin, 4),
            "first_diff_rounding": difference and round(difference.rounding, 4),
            "verdict": _verdict(difference) if first else "identical",
        }
    return rows


def as_lines(found: Sequence[Together], machine: Machine, write: Write, width: int) -> str:
    """What was measured on, and a table by class. `write`: makes it. `width`: columns of the words around it."""
    header = (
        "class",
        "texts, mode",
        "tokens/s",
        "x alone",
        "95%",
        "x plain",
        "95%",
        "slower",
        "S",
        "ms/step",
        "identical",
    )
    rows, kind = [], ""
    for each in found:
        result = each.result
        is_plain = result.by.mode == "plain"
        rows.append((
            result.kind if result.kind != kind else "",
            f"{result.by.texts}, {_mode(result)}",
            f"{result.speed:.{0 if result.speed >= 100 else 1}f}",
            f"{each.total.value:.2f}",
            interval(each.total) if result.number else "",
            "1" if is_plain else f"{result.speedup.value:.2f}",
            "" if is_plain else interval(result.speedup),
            "" if each.slower is None else f"{each.slower:.2f}",
            f"{result.compression:.2f}",
            f"{result.seconds_per_step * 1e3:.2f}",
            f"{each.texts - len(each.parted)} of {each.texts}",
        ))  # fmt: skip
        kind = result.kind
    return "\n\n".join((wrapped(heading(machine), width), write(header, rows, 2), wrapped(LEGEND, width)))


def summary(found: Sequence[Together], judged: Judged, machine: Machine, width: int) -> str:
    """What each number of texts brings, how long one text takes in company, and whether the texts are the same."""
    whole = _overall(found)
    alone = whole[0].result
    repeats = len(alone.speeds)
    classes = len({each.result.kind for each in found} - {ALL})
    of = f" in {classes} classes" if classes > 1 else f" of class {alone.kind}"
    answered = (
        f"{counted(whole[0].texts, 'prompt')}{of}, each answered {'once' if repeats == 1 else f'{repeats} times'}"
    )
    lines = [
        f"{machine.model_type} on {machine.where}, {machine.thread_words}",
        f"Tokens/s of all texts, times plain decoding's of one text, {alone.speed:.0f} ({answered}):",
        "",
    ]
    numbers = list(dict.fromkeys(each.result.by.texts for each in whole))
    for number in numbers:
        there = [each for each in whole if each.result.by.texts == number and each.result.number]
        # The fastest first, behind plain decoding.
        there.sort(key=lambda each: (each.result.by.mode != "plain", -each.total.value))
        lines += [f"{number} at a time:  {', '.join(map(_one, there))}"] if there else []
    if any("undecided" in line or "probably" in line for line in lines):
        lines += ["", "What is undecided or not certain needs more prompts or more time: --seconds 900."]
    if slower := _slower(whole):
        lines += ["", slower]
    lines += ["", _texts(whole, judged)]
    best = max(whole, key=lambda each: each.total.value)
    if best.result.number:
        lines += [
            "",
            f"Most tokens/s: {_mode(best.result)}, {best.result.by.texts} at a time, {best.total.value:.2f}x.",
        ]
    return "\n".join(wrapped(line, width) for line in lines)


def _one(each: Together) -> str:
    """A contender's part of a line: times one text alone, and times plain decoding of as many texts."""
    result = each.result
    beside = verdict(each.total if result.by.mode == "plain" else result.speedup)
    said: list[str] = [] if beside in ("faster", "slower") else [beside]
    if result.by.mode != "plain" and result.by.texts > 1:
        said.insert(0, f"{result.speedup.value:.2f}x plain")
    return f"{_mode(result)} {each.total.value:.2f}x" + (f" ({', '.join(said)})" if said else "")


def _slower(whole: Sequence[Together]) -> str:
    """How many times as long a text takes among others, by mode."""
    by_mode: dict[str, list[str]] = {}
    numbers = []
    for each in whole:
        if each.result.by.texts > 1 and each.slower is not None:
            numbers.append(each.result.by.texts)
            by_mode.setdefault(_mode(each.result), []).append(f"{each.slower:.2f}")
    if not by_mode:
        return ""
    among = ", ".join(map(str, dict.fromkeys(numbers)))
    modes = "; ".join(f"{mode} {', '.join(times)}" for mode, times in by_mode.items())
    return f"Among {among} a text takes times as long as alone: {modes}."


def _texts(whole: Sequence[Together], judged: Judged) -> str:
    """Whether the texts are those of plain decoding alone, and what explains the others."""
    compared = [each for each in whole if each.result.number]
    texts, parted = sum(each.texts for each in compared), sum(len(each.parted) for each in compared)
    if not parted:
        return "All texts are those of plain decoding alone."
    counts = Counter(map(_verdict, judged.values()))
    looked = (
        f"; judged of the others: {', '.join(f'{count} {word}' for word, count in counts.items())}" if counts else ""
    )
    return f"{texts - parted} of {texts} texts are those of plain decoding alone{looked}."


def _judged(found: Sequence[Together], blocks: Blocks, engine: Engine, screen: Screen) -> Judged:
    """Of each contender's first text that differs: how near the two tokens are, and how far rounding moves logits.

    Rounding is what parts logits behind the same tokens decoded one by one and read as a prompt. `engine`: its logits
    can be read. Ctrl-C leaves the rest out.
    """
    judged: Judged = {}
    firsts = [each.parted[0] for each in _overall(found) if each.parted]
    if firsts:
        screen.note("judging texts that are not plain decoding's alone")
    with suppress(KeyboardInterrupt):
        for first in firsts:
            at, prompt = first.at, blocks.prompts[first.exchange.task.name][first.place]
            plain, other = (answer[at] if at < len(answer) else None for answer in (first.plain, first.other))
            margin, rounding = inf, 0.0
            if plain is not None and other is not None:
                logits = plain_logits(engine, prompt, first.plain[:at])
                margin = float(logits[plain] - logits[other])
                rounding = largest_difference(logits, plain_logits(engine, prompt + first.plain[:at], ()))
            judged[first] = Difference(at, plain, other, margin, rounding)
    return judged


def _show(found: Sequence[Together], judged: Judged, machine: Machine, request: Request, screen: Screen) -> None:
    """Print a summary, behind a table where that is wanted, or rows for programs."""
    if not found:
        screen.note("nothing was finished")
        return
    if request.form not in ("text", "md"):
        screen.line(as_text(rows_of(found, judged, machine), request.form))
        return
    width = columns()
    parts = [summary(found, judged, machine, width or PAGE)]
    if request.form == "md":
        parts.insert(0, as_lines(found, machine, markdown, PAGE))
    elif request.details:
        parts.insert(0, as_lines(found, machine, lined_up(width), width or PAGE))
    screen.line("\n\n".join(parts), drawn=True)


def _verdict(difference: Difference | None) -> str:
    return "not judged" if difference is None else "unclear" if difference.bug else "rounding"


def _mode(result: Result) -> str:
    assert result.by.point, "only points decode texts together"
    return result.by.point.label


def _overall(found: Sequence[Together]) -> list[Together]:
    """Those over all classes, or of the only one."""
    return [each for each in found if each.result.kind == ALL] or [*found]


def _answers(trial: Trial) -> tuple[tuple[int, ...], ...]:
    assert isinstance(trial, BlockTrial)
    return trial.answers


def _paces(trial: Trial) -> tuple[float, ...]:
    assert isinstance(trial, BlockTrial)
    return trial.paces
