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
from lacli.bench.summary import Typed, measure_again, needs_more, short_answers, verdict, with_advice
from lacli.bench.tasks import ALL
from lacli.check.judge import Difference, largest_difference, plain_logits
from lacli.engine import Engine
from lacli.errors import Interrupted
from lacli.llamacpp.model import offloads
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, shared_settings
from lacli.modes import common_prefix
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen, wrapped
from lacli.text.files import PAGE, columns
from lacli.text.format import counted, markdown

LEGEND = (
    "x alone: tokens/s of all texts over those of plain decoding of one text at a time; x plain: over those of plain "
    "decoding of as many texts; 95%: their intervals. slower: times as long as a text takes alone in the same mode. "
    "S: tokens a step. identical: texts that plain decoding of one text gives too."
)


class Parted(NamedTuple):
    """Where a text leaves the one of plain decoding alone; texts that leave it alike are equal.

    `place`: in its block. `before`: the tokens that both have. `plain`, `other`: the next ones, None at an end.
    """

    exchange: Exchange
    place: int
    before: tuple[int, ...]
    plain: int | None
    other: int | None


Judged = dict[Parted, Difference]


@dataclass(frozen=True)
class Together:
    """What a contender did in one class, beside plain decoding of one text, `alone`, and beside its `own` of one text.

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
        pairs = self.result.measured_by(self.own).answered if self.own else ()
        ratios = [
            ours / alone
            for each in pairs
            for trials in zip(each.trials, each.plain, strict=True)
            for ours, alone in zip(*(_of_block(trial).paces for trial in trials), strict=True)
        ]
        return geometric_mean(ratios) if ratios else None

    @cached_property
    def texts(self) -> int:
        """Texts, each counted once."""
        return sum(len(_of_block(each.trials[0]).answers) for each in self.result.answered)

    @cached_property
    def parted(self) -> list[Parted]:
        """The texts with an answer that is not the one of plain decoding alone."""
        found = []
        for each in self.result.measured_by(self.alone).answered:
            for place, plain in enumerate(_of_block(each.plain[0]).answers):
                answers = (_of_block(trial).answers[place] for trial in each.trials)
                if other := next((answer for answer in answers if answer != plain), None):
                    at = common_prefix(plain, other)
                    # One of them may have ended.
                    tokens = ((*plain, None)[at], (*other, None)[at])
                    found.append(Parted(each.exchange, place, plain[:at], *tokens))
        return found

    @property
    def mode(self) -> str:
        """The mode and its sizes in words."""
        assert self.result.by.point, "only points decode texts together"
        return self.result.by.point.label

    @property
    def number(self) -> int:
        """Texts at a time."""
        return self.result.by.texts

    @property
    def is_plain(self) -> bool:
        return self.result.by.mode == "plain"


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
    model_settings = shared_settings(model_settings, max(request.parallel), on_gpu=offloads(model_settings))
    with opened(path, model_settings, decode_settings, sampling, request, screen) as session:
        blocks = blocks_of(session, request, screen)
        asked = replace(request, tasks=blocks.tasks, wish=blocks.wish)
        with companies(session, blocks, request, screen) as (engine, competing):
            outcome = measured(session, competing, asked, screen, (blocks.asker, blocks.prompts))
            found = beside_alone(results(outcome.rounds))
            judged = {} if outcome.interrupted else judge(found, blocks, engine, screen)
    _show(found, judged, replace(outcome.machine, n_ctx=blocks.context), request, screen, outcome.held_up)
    if outcome.interrupted:
        raise Interrupted("")
    return 0


def beside_alone(found: Sequence[Result]) -> list[Together]:
    """Each result beside plain decoding of one text, and beside the same mode with one text."""
    own = {(each.kind, each.by.point): each for each in found if each.by.texts == 1}
    plain = {each.kind: each for each in found if each.number == 0}
    return [Together(each, plain[each.kind], own.get((each.kind, each.by.point))) for each in found]


def judge(found: Sequence[Together], blocks: Blocks, engine: Engine, screen: Screen) -> Judged:
    """Of each contender's first text that parted: how near the two tokens are, and how far rounding moves logits.

    Rounding is what parts logits behind the same tokens decoded one by one and read as a prompt. `engine`: its logits
    can be read. Ctrl-C leaves the rest out.
    """
    judged: Judged = {}
    firsts = dict.fromkeys(each.parted[0] for each in _overall(found) if each.parted)
    if firsts:
        screen.note("judging texts that are not those of plain decoding alone")
    with suppress(KeyboardInterrupt):
        for first in firsts:
            prompt = blocks.texts[first.exchange.task.name][first.place]
            margin, rounding = inf, 0.0
            if first.plain is not None and first.other is not None:
                logits = plain_logits(engine, prompt, first.before)
                margin = float(logits[first.plain] - logits[first.other])
                rounding = largest_difference(logits, plain_logits(engine, prompt + first.before, ()))
            judged[first] = Difference(len(first.before), first.plain, first.other, margin, rounding)
    return judged


def rows_of(found: Sequence[Together], judged: Judged, machine: Machine) -> list[ResultRow]:
    """The rows of `lacli bench`, with what is otherwise or only known of texts at a time."""
    rows = as_rows([each.result for each in found], machine, {})
    for row, each in zip(rows, found, strict=True):
        first = each.parted[0] if each.parted else None
        difference = judged.get(first) if first else None
        near = difference and difference.margin < inf
        row |= {
            "parallel": each.number,
            "setting": each.mode,
            "prompts": each.texts,
            "first_token_ms": None,
            "total_speedup": round(each.total.value, 4),
            "total_speedup_low": each.total.low and round(each.total.low, 4),
            "total_speedup_high": each.total.high and round(each.total.high, 4),
            "text_slowdown": each.slower and round(each.slower, 4),
            "identical": not each.parted,
            "identical_n": each.texts - len(each.parted),
            "first_diff": len(first.before) if first else None,
            "first_diff_prompt": f"{first.exchange.name}/{first.place}" if first else None,
            "first_diff_margin": round(difference.margin, 4) if difference and near else None,
            "first_diff_rounding": round(difference.rounding, 4) if difference and near else None,
            "verdict": _verdict(difference) if first else "identical",
        }
    return rows


def as_lines(found: Sequence[Together], machine: Machine, write: Write, width: int) -> str:
    """What was measured on, and a table by class. `write`: makes it. `width`: columns of the words around it."""
    table: list[Sequence[str]] = [
        ("class", "texts, mode", "tokens/s", "x alone", "95%", "x plain", "95%", "slower", "S", "identical")
    ]
    for before, each in zip(["", *(each.result.kind for each in found)], found, strict=False):
        result = each.result
        table.append((
            result.kind if result.kind != before else "",
            f"{each.number}, {each.mode}",
            f"{result.speed:.{0 if result.speed >= 100 else 1}f}",
            f"{each.total.value:.2f}",
            interval(each.total) if result.number else "",
            "1" if each.is_plain else f"{result.speedup.value:.2f}",
            "" if each.is_plain else interval(result.speedup),
            "" if each.slower is None else f"{each.slower:.2f}",
            f"{result.compression:.2f}",
            f"{each.texts - len(each.parted)} of {each.texts}",
        ))  # fmt: skip
    # Few prompts have no intervals.
    header, *rows = zip(*(column for column in zip(*table, strict=True) if any(column[1:])), strict=True)
    return "\n\n".join((wrapped(heading(machine), width), write(header, rows, 2), wrapped(LEGEND, width)))


def summary(
    found: Sequence[Together],
    judged: Judged,
    machine: Machine,
    width: int,
    typed: Typed,
    busy: str = "",
) -> str:
    """What each number of texts brings, how long one text takes in company, and whether the texts are the same.

    `typed`: what the user typed, for the commands that are advised. `busy`: a sentence on a machine that was busy; then
    the same benchmark is advised again.
    """
    whole = _overall(found)
    alone, kinds = whole[0].result, {each.result.kind for each in found} - {ALL}
    repeats = len(alone.speeds)
    times = "once" if repeats == 1 else f"{repeats} times"
    of = f" in {len(kinds)} classes" if kinds - {alone.kind} else f" of class {alone.kind}"
    asked = f"{counted(whole[0].texts, 'prompt')}{of}, each answered {times}"
    lines = [
        f"{machine.model_type} on {machine.where}, {machine.thread_words}",
        *([busy] if busy else []),
        f"Tokens/s of all texts together; 1x is plain decoding of one, {alone.speed:.0f} tokens/s ({asked}):",
        "",
    ]
    # Plain decoding of as many texts comes first, then the fastest.
    others = sorted(whole[1:], key=lambda each: (each.number, not each.is_plain, -each.total.value))
    for number in dict.fromkeys(each.number for each in others):
        said = [_one(each, judges=not busy) for each in others if each.number == number]
        lines.append(f"{number} at a time:  {', '.join(said)}")
    unsure = [ratio for each in others if verdict(ratio := _judged(each)) not in ("faster", "slower")]
    if unsure and not busy:
        lines += ["", needs_more(unsure, typed.seconds)]
    if typed.seconds is not None and not busy:
        trials = (_of_block(trial) for each in alone.answered for trial in each.trials)
        lines += short_answers([len(answer) for trial in trials for answer in trial.answers])
    best = max(whole, key=lambda each: each.total.value)
    # On a busy machine one held-up group can make another look 80 times as fast.
    most = "" if busy else f"Most tokens/s: {best.mode}, {best.number} at a time ({best.total.value:.2f}x)."
    for sentence in filter(None, [_slower(others), _texts(others, judged), most]):
        lines += ["", sentence]
    if busy:
        return with_advice(lines, measure_again(machine, typed), width)
    return "\n".join(wrapped(line, width) for line in lines)


def _one(each: Together, *, judges: bool) -> str:
    """A contender's part of a line: times one text alone, and times plain decoding of as many texts.

    `judges`: say where that is not certain.
    """
    said = verdict(_judged(each)) if judges else ""
    plain = f"{each.result.speedup.value:.2f}x plain" if each.number > 1 and not each.is_plain else ""
    unsure = "not certain" if said.startswith("probably") else said if said == "undecided" else ""
    words = ", ".join(filter(None, (plain, unsure)))
    return f"{each.mode} {each.total.value:.2f}x" + (f" ({words})" if words else "")


def _judged(each: Together) -> Ratio:
    """What a verdict is about: plain decoding of one text, or of as many."""
    return each.total if each.is_plain else each.result.speedup


def _slower(others: Sequence[Together]) -> str:
    """How many times as long a text takes among others, by mode."""
    times = {(each.mode, each.number): f"{each.slower:.1f}" for each in others if each.number > 1 and each.slower}
    if not times:
        return ""
    numbers = dict.fromkeys(number for _, number in times)
    modes = dict.fromkeys(mode for mode, _ in sorted(times, key=lambda key: key[0] != "plain"))
    parts = [f"{mode} {', '.join(times.get((mode, number), '-') for number in numbers)}" for mode in modes]
    among = ", ".join(map(str, numbers))
    return f"How many times as long as alone one text among {among} takes: {'; '.join(parts)}."


def _texts(others: Sequence[Together], judged: Judged) -> str:
    """Whether the texts are those of plain decoding alone, and what explains the others."""
    texts, parted = sum(each.texts for each in others), [text for each in others for text in each.parted]
    if not parted:
        return "All texts are those of plain decoding alone."
    counts = Counter(_verdict(judged.get(text)) for text in parted)
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{texts - len(parted)} of {texts} texts are those of plain decoding alone; the others: {words}."


def _show(
    found: Sequence[Together], judged: Judged, machine: Machine, request: Request, screen: Screen, busy: str
) -> None:
    """Print a summary, behind a table where that is wanted, or rows for programs. `busy`: as `summary` takes it."""
    if not found:
        screen.note("nothing was finished")
        return
    if request.form not in ("text", "md"):
        if busy:
            screen.note(busy)
        screen.line(as_text(rows_of(found, judged, machine), request.form))
        return
    width = columns()
    parts = [summary(found, judged, machine, width or PAGE, request.typed, busy)]
    if request.form == "md" or request.details:
        write = markdown if request.form == "md" else lined_up(width)
        parts.insert(0, as_lines(found, machine, write, width or PAGE))
    screen.line("\n\n".join(parts), drawn=True)


def _verdict(difference: Difference | None) -> str:
    return "not judged" if difference is None else "unclear" if difference.bug else "rounding"


def _overall(found: Sequence[Together]) -> list[Together]:
    """Those over all classes, or of the only one."""
    return [each for each in found if each.result.kind == ALL] or [*found]


def _of_block(trial: Trial) -> BlockTrial:
    assert isinstance(trial, BlockTrial), "these contenders answer blocks"
    return trial
