"""A benchmark's end in words: what can be told, what it takes where nothing can, and that it fits a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lacli.bench.results import Result, results
from lacli.bench.rounds import Rounds
from lacli.bench.summary import MOST_SHOWN, beside_plain, more_seconds, summary, verdict, what_tells
from tests.fakes.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    MACHINE,
    PLAIN,
    asker,
    contender,
    free,
    played,
    task,
    wrong,
)
from tests.fakes.clock import FakeClock

AHEAD = "lookahead W=3 N=3 G=2"
KINDS = ("code", "edit")


def answers(clock: FakeClock, prompts: int, tokens: int, kinds: Sequence[str] = KINDS, lookups: int = 1) -> Rounds:
    """Plain decoding, lookup and lookahead have answered so many prompts of each class with so many tokens."""
    tasks = [
        replace(task(f"{number} 1 2 {number} 1 2 {place}"), kind=kind, max_tokens=tokens)
        for number in range(prompts)
        for place, kind in enumerate(kinds)
    ]
    settings = (PLAIN, *[LOOKUP] * lookups, LOOKAHEAD)
    return played(Rounds([contender(each, clock, free)[0] for each in settings], tasks, 1, asker()))


def lasting(result: Result, *times: float) -> Result:
    """The same with answers that took these times as long as plain decoding's, prompt by prompt."""
    answered = [
        replace(each, trials=tuple(replace(trial, seconds=factor * trial.seconds) for trial in each.plain))
        for each, factor in zip(result.answered, times, strict=True)
    ]
    return replace(result, answered=tuple(answered))


def told(found: list[Result], asked: int = 8, width: int = 80, **more: object) -> str:
    return summary(found, MACHINE, asked=asked, seconds=60.0, width=width, **more)  # type: ignore[arg-type]


def test_what_is_faster_comes_first_with_its_interval_and_its_classes(clock: FakeClock) -> None:
    found = results(answers(clock, 5, 50))
    slow = [lasting(each, *[2.0] * each.prompts) if each.by.mode == "lookup" else each for each in found]
    lines = told(slow, asked=10).splitlines()
    assert lines[1] == "10 prompts of 2 classes, 500 tokens decoded plainly: plain decoding has 1.0"
    ahead, lookup = (next(i for i, line in enumerate(lines) if line.startswith(name)) for name in (AHEAD, "lookup"))
    assert ahead < lookup
    assert re.fullmatch(re.escape(AHEAD) + r": (\d\.\d\d)x, faster \(\d\.\d\dx to \d\.\d\dx\)", lines[ahead])
    assert re.fullmatch(r"    faster on \w+ \(\d\.\d\dx\), \w+ \(\d\.\d\dx\)", lines[ahead + 1])
    assert lines[lookup : lookup + 2] == [
        "lookup: 0.50x, slower (0.50x to 0.50x)", "    slower on code (0.50x), edit (0.50x)"
    ]  # fmt: skip
    assert "It takes" not in told(slow) and lines[-1] == "All texts are plain decoding's."


@pytest.mark.parametrize(
    ("prompts", "tokens", "asked", "wanted"),
    [
        (1, 16, 1, "more prompts and longer answers (-n)."),
        (3, 100, 3, "more prompts."),
        (4, 16, 4, "more prompts and longer answers (-n)."),
        (3, 100, 80, "--seconds 160."),
        (1, 100, 3, "--seconds 480 and more prompts."),
    ],
)
def test_below_four_prompts_or_200_tokens_there_is_no_ratio_and_what_is_missing_is_said(
    clock: FakeClock, prompts: int, tokens: int, asked: int, wanted: str
) -> None:
    text = told(results(answers(clock, prompts, tokens, ["own"])), asked)
    assert not re.search(r"\dx|faster|slower", text) and f"{AHEAD}: cannot tell\n" in text and "lookup: cannot" in text
    assert f"It takes 4 prompts and 200 tokens of each mode to tell: give {wanted}" in " ".join(text.split())


def test_an_interval_that_holds_1_cannot_tell_and_asks_for_more_unless_it_is_narrow(clock: FakeClock) -> None:
    ahead = beside_plain(results(answers(clock, 4, 60, ["own"], lookups=0)))[0]
    for times, ends in (((0.8, 1.3, 0.9, 0.95), "It takes a narrower"), ((0.99, 1.01, 1.0, 1.0), "")):
        unsure = lasting(ahead, *times)
        assert verdict(unsure) == "cannot tell"
        assert what_tells([unsure], 4, 60.0).startswith(ends) and bool(what_tells([unsure], 4, 60.0)) == bool(ends)
        assert re.search(r": cannot tell \(0\.\d\dx to 1\.\d\dx\)\n", told([unsure]) + "\n")
    assert verdict(lasting(ahead, 0.8, 0.81, 0.8, 0.79)) == "faster" and verdict(lasting(ahead, 2, 2, 2, 2)) == "slower"


def test_more_time_is_what_the_interval_needs_at_most_ten_minutes_and_at_least_twice_as_much(clock: FakeClock) -> None:
    ahead = beside_plain(results(answers(clock, 4, 60, ["own"], lookups=0)))[0]
    wide = lasting(ahead, 0.7, 1.3, 0.9, 0.95)
    assert [more_seconds([wide], seconds) for seconds in (6, 180, 900)][1:] == [600, 1800]
    assert 12 < more_seconds([wide], 6) <= 600 and more_seconds([lasting(ahead, 2, 2, 2, 2)], 20) == 40


def test_where_some_classes_can_be_told_the_others_are_the_rest(clock: FakeClock) -> None:
    found = [
        lasting(each, *(0.5 if at % 2 else 1.5 for at in range(each.prompts))) if each.kind == "edit" else each
        for each in results(answers(clock, 4, 60, lookups=0))
    ]
    assert re.search(r"\n    faster on code \(\d\.\d\dx\); cannot tell on the rest\n", told(found))


def test_settings_without_an_answer_are_named(clock: FakeClock) -> None:
    text = told(results(answers(clock, 5, 50)), asked=80, unfinished=["lookahead W=9"], busy="Beside other work.")
    assert "lookahead W=9: cannot tell, no answer was finished\n" in text and "Beside other work.\n" in text
    assert "give --seconds 120." in text


def test_the_best_of_many_settings_is_partly_luck_and_the_last_are_counted(clock: FakeClock) -> None:
    found = results(answers(clock, 5, 50, ["own"], lookups=MOST_SHOWN + 1))
    text = " ".join(told(found).split())
    assert f"is the best of {MOST_SHOWN + 2} settings, which is partly luck" in text
    assert "and 2 settings below these: --details" in text


@pytest.mark.parametrize("width", [80, 60, 40])
def test_no_line_is_wider_than_the_terminal_and_no_word_breaks(width: int, clock: FakeClock) -> None:
    found = results(answers(clock, 2, 20))
    lines = told(found, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(told(found, width=400).split())


def test_texts_that_are_not_plains_are_counted(clock: FakeClock) -> None:
    rounds = answers(clock, 2, 20, lookups=0)
    rounds.trials[1, 0] = [wrong(trial) for trial in rounds.trials[1, 0]]
    found = results(rounds)
    assert "3 of 4 texts are plain decoding's; lacli check judges" in told(found)
    alone = summary(found, replace(MACHINE, comparable=False), asked=4, seconds=60.0, width=80)
    assert "texts" not in alone


def test_a_class_that_only_plain_decoding_has_answered_yet_is_no_traceback(clock: FakeClock) -> None:
    ones = [contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)]
    for trials in range(1, 4):
        assert told(results(played(Rounds(ones, [task("1 2 3 1 2"), task("4 5 6")], 1, asker()), trials)))
