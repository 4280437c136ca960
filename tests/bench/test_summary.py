"""A benchmark's end in words: how sure a verdict is, what to type, and that it fits a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lacli.bench.results import Result, results
from lacli.bench.rounds import Rounds
from lacli.bench.statistics import Ratio
from lacli.bench.summary import (
    MOST_SHOWN,
    Advice,
    Typed,
    _setting,
    beside_plain,
    more_seconds,
    recommendation,
    summary,
    verdict,
)
from lacli.bench.sweep import Point
from lacli.check.compare import Run
from lacli.settings import DecodeSettings
from tests.fakes.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    MACHINE,
    PLAIN,
    TASKS,
    asker,
    contender,
    dear,
    free,
    played,
    run,
    wrong,
)
from tests.fakes.clock import FakeClock

TOY = Typed("toy -t1", "-W 3,5", "--prompts mine.jsonl", 8.0)
AHEAD = "--mode lookahead -W 3 -N 3 -G 2"


def told(found: list[Result], width: int = 80) -> str:
    return summary(found, {}, MACHINE, typed=TOY, width=width)


def advised(found: list[Result]) -> Advice:
    return recommendation(beside_plain(found), TOY)


def as_auto(found: list[Result], label: str) -> list[Result]:
    """The same results where the setting `label` is mode auto."""
    auto = Point(DecodeSettings(mode="auto"))
    return [
        replace(each, by=replace(each.by, label="auto", point=auto)) if each.by.label == label else each
        for each in found
    ]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(1.3, 1.1, 1.6, 4), "faster"),
        (Ratio(1.3, 0.9, 1.6, 4, True), "undecided"),
        (Ratio(0.5, 0.4, 0.9, 4), "slower"),
        (Ratio(1.3, prompts=2, agreed=True), "probably faster"),
        (Ratio(0.7, prompts=2, agreed=True), "probably slower"),
        (Ratio(1.3, prompts=2), "undecided"),
        (Ratio(1.3, 1.2, 1.4, 1, True), "probably faster"),
    ],
)
def test_a_verdict_is_certain_only_where_an_interval_of_prompts_leaves_out_1(ratio: Ratio, words: str) -> None:
    assert verdict(ratio) == words


def test_the_modes_are_named_from_the_fastest_with_their_classes_and_what_to_type(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKUP, LOOKAHEAD)
    ahead = found[-1]
    text = told(found)
    first = next(line for line in text.splitlines() if line.startswith(ahead.by.label))
    assert first == f"{ahead.by.label}: {ahead.speedup.value:.2f}x, faster"
    assert text.index(ahead.by.label) < text.index("lookup: ")
    assert f"code ({found[2].speedup.value:.2f}x)" in text and "edit (" in text and "class code" not in text
    assert text.endswith(f":\n  lacli run toy -t1 {AHEAD}") and "All texts are plain decoding's." in text


def test_where_every_row_costs_as_much_as_a_step_plain_is_what_to_type(clock: FakeClock) -> None:
    rounds, found = run(clock, dear, PLAIN, LOOKUP, LOOKAHEAD)
    assert told(found).endswith(
        "Nothing is faster than plain decoding here, so type:\n  lacli run toy -t1 --mode plain"
    )


def test_auto_is_what_to_type_unless_another_setting_is_surely_faster_than_it(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKUP, LOOKAHEAD)
    lookup, ahead = (next(each for each in reversed(found) if each.number == number) for number in (1, 2))
    for others, command in (((0.7, 0.79, 0.75), "lacli run toy -t1"), ((0.4, 0.4, 0.4), f"lacli run toy -t1 {AHEAD}")):
        both = [lasting(lookup, 0.7, 0.8, 0.75), lasting(ahead, *others)]
        assert both[0].speedup.surely_faster and both[1].speedup.value > both[0].speedup.value
        assert recommendation(as_auto(both, "lookup"), TOY).command == command


def lasting(result: Result, *times: float) -> Result:
    """The same with answers that took these times as long as plain decoding's, prompt by prompt."""
    answered = [
        replace(each, trials=tuple(replace(trial, seconds=factor * trial.seconds) for trial in each.plain))
        for each, factor in zip(result.answered, times, strict=True)
    ]
    return replace(result, answered=tuple(answered))


def test_where_nothing_is_sure_auto_stays_and_without_it_more_time_is_advised(clock: FakeClock) -> None:
    """Two prompts have no interval."""
    ones = [contender(each, clock, free)[0] for each in (PLAIN, LOOKAHEAD)]
    found = results(played(Rounds(ones, TASKS[:2], 2, asker())))
    assert "probably faster on" in told(found) and "not certain" in told(found) and "--seconds" in told(found)
    assert advised(found).command == "lacli bench toy -t1 -W 3,5 --prompts mine.jsonl --seconds 40"
    auto = as_auto(found, found[-1].by.label)
    assert advised(auto).command == "lacli run toy -t1" and "guesses only where that pays" in advised(auto).reason
    slow = [lasting(each, 1.5, 0.9) for each in beside_plain(auto) if len(each.answered) == 2]
    assert (verdict(slow[-1].speedup), round(slow[-1].speedup.value, 2)) == ("undecided", 0.86)
    assert recommendation(slow, TOY) == advised(found), "what was measured does not show that auto pays"


def test_classes_of_one_answer_each_have_numbers_and_no_verdict(clock: FakeClock) -> None:
    ones = [contender(each, clock, free)[0] for each in (PLAIN, LOOKAHEAD)]
    alone = beside_plain(results(played(Rounds(ones, TASKS[:1], 1, asker()))))[0]
    for kinds, words in (("abcd", "too few answers on all 4 classes ("), ("abc", "too few answers on a (")):
        line = _setting(alone, [replace(alone, kind=kind) for kind in kinds])[1]
        assert line.strip().startswith(words)


def test_more_time_is_what_the_interval_needs_at_most_ten_minutes_and_at_least_twice_as_much() -> None:
    """An interval three times as wide as the ratio is far from 1, in logarithms, needs nine times the answers."""
    wide, narrow = (Ratio(1.1, 1.1 ** (1 - times), 1.1 ** (1 + times), 8) for times in (3, 1.2))
    assert [more_seconds([ratio], 20) for ratio in (wide, narrow, Ratio(1.1))] == [180, 40, 80]
    assert [more_seconds([narrow, wide], seconds) for seconds in (180, 900)] == [600, 1800]


def test_where_more_time_changes_nothing_none_is_advised(clock: FakeClock) -> None:
    ones = [contender(each, clock, free)[0] for each in (PLAIN, LOOKAHEAD)]
    found = results(played(Rounds(ones, TASKS[:2], 2, asker())))
    text = summary(found, {}, MACHINE, typed=Typed("toy"), width=80)
    assert "needs more prompts." in text and "--seconds" not in text


def test_answers_that_a_short_time_has_cut_are_said_to_be_short(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = [contender(each, clock, free)[0] for each in (PLAIN, LOOKAHEAD)]
    found = results(played(Rounds(ones, TASKS[:2], 2, asker())))
    longest = max(trial.tokens for result in found for trial in result.trials)
    words = f"Answers of {longest} tokens have little text to guess from; --modes auto -n 128 has longer ones."
    assert words in " ".join(told(found).split())
    assert words not in " ".join(summary(found, {}, MACHINE, typed=Typed("toy"), width=80).split()), "no time was given"
    monkeypatch.setattr("lacli.bench.summary.SHORT", longest)
    assert "little text" not in told(found)


def test_a_setting_that_pays_on_one_class_alone_is_named_for_it(clock: FakeClock) -> None:
    """Of three prompts of a class each; what it wins on the one it loses on the other."""
    tasks = tuple(replace(TASKS[number], kind=kind) for kind in ("code", "edit") for number in range(3))
    ones = [contender(each, clock, free)[0] for each in (PLAIN, LOOKAHEAD)]
    found = [
        lasting(each, *[10.0] * each.prompts) if each.number and each.kind != "code" else each
        for each in results(played(Rounds(ones, tasks, 2, asker())))
    ]
    advice = advised(found)
    assert advice.command == f"lacli run toy -t1 {AHEAD}" and "is faster on code alone" in advice.reason


def test_only_plain_decoding_leaves_nothing_to_compare(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN)
    assert f"Plain decoding: {found[-1].speed:.1f} tokens/s" in told(found)


def test_the_best_of_many_settings_is_to_be_measured_alone_and_the_last_are_counted(clock: FakeClock) -> None:
    many = [replace(LOOKAHEAD, window=window) for window in range(MOST_SHOWN + 2)]
    rounds, found = run(clock, free, PLAIN, *many)
    advice = advised(found)
    assert advice.command.startswith("lacli bench toy -t1 --modes lookahead -W ") and "partly luck" in advice.reason
    assert "and 2 settings below these: --details" in told(found)


@pytest.mark.parametrize("width", [80, 60, 40])
def test_no_line_is_wider_than_the_terminal_and_no_word_breaks(width: int, clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKUP, LOOKAHEAD)
    *lines, command = told(found, width).splitlines()
    assert max(map(len, lines)) <= width and command.startswith("  lacli run")
    assert " ".join(" ".join(lines).split()) == " ".join(told(found, 400).rpartition("\n")[0].split())


def test_texts_that_are_not_plains_are_counted_and_a_bug_is_called_one(clock: FakeClock) -> None:
    ones = [contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)]
    rounds = played(Rounds(ones, TASKS, 1, asker()))
    rounds.trials[1, 0] = [wrong(trial) for trial in rounds.trials[1, 0]]
    found = results(rounds)
    assert "2 of 3 texts are plain decoding's.\n" in told(found)
    judged = {(1, 0): Run((1,), (), failure="refused")}
    assert "BUG: 1 text not explained by rounding" in summary(found, judged, MACHINE, typed=Typed(), width=80)
    assert "texts" not in summary(found, {}, replace(MACHINE, comparable=False), typed=Typed(), width=80)


def test_a_class_that_only_plain_decoding_has_answered_yet_is_no_traceback(clock: FakeClock) -> None:
    ones = [contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)]
    for trials in range(1, 4):
        found = results(played(Rounds(ones, TASKS, 1, asker()), trials))
        assert told(found)


def test_a_program_without_settings_of_ours_is_never_what_to_type(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD)
    other = [replace(each, by=replace(each.by, point=None)) if each.number else each for each in found]
    assert advised(other).command == "lacli run toy -t1 --mode plain"
