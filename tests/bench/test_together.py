"""What several texts at a time bring, in words: made-up answers of known speeds, and texts that part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lacli.bench.company import BlockTrial
from lacli.bench.report import lined_up
from lacli.bench.results import results
from lacli.bench.rounds import Contender, Exchange, Rounds, Trial
from lacli.bench.summary import Typed
from lacli.bench.sweep import Point
from lacli.bench.together import Together, as_lines, beside_alone, rows_of, summary
from lacli.check.judge import Difference
from lacli.settings import DecodeSettings
from tests.fakes.bench_field import LOOKUP, MACHINE, PLAIN, asker, played, task

AUTO = DecodeSettings(mode="auto")
TASKS = tuple(task(f"{number}", kind=kind) for kind in ("code", "edit") for number in (1, 2, 3))
SIZE = 4
"""Texts of a block."""

SPEEDS = {PLAIN: {1: 1.0, 2: 1.25, 4: 2.0}, AUTO: {1: 1.5, 2: 1.25, 4: 3.0}, LOOKUP: {1: 0.5, 2: 1.0, 4: 1.0}}
"""Tokens a second of all texts, by mode and number of texts."""


def answering(speed: float, texts: int, *, parts: bool) -> Callable[[Exchange], Trial]:
    """Answers of ten tokens each, a block's number as the first of them; in the first block one `parts` at token 3."""

    def answer(exchange: Exchange) -> Trial:
        number = TASKS.index(exchange.task)
        last = (*range(2), 99, *range(6)) if parts and not number else range(9)
        answers = (*((number, *range(place, place + 9)) for place in range(1, SIZE)), (number, *last))
        # The first two blocks are quicker for all contenders.
        seconds = 10 * SIZE / speed * (1 + number / 10)
        return BlockTrial(
            ids=sum(answers, ()), text=None, tokens=10 * SIZE, step_count=10 * SIZE // texts, rows=10 * SIZE, drafted=0,
            accepted=0, seconds=seconds, prompt_s=1.0, first_token_s=0.0, answers=answers,
            paces=(texts * seconds / (10 * SIZE),) * SIZE,
        )  # fmt: skip

    return answer


def contender(settings: DecodeSettings, texts: int, speed: float, *, parts: bool = False) -> Contender:
    point = Point(settings)
    return Contender(point.label, point, (1, 2, 4).index(texts), answering(speed, texts, parts=parts), texts=texts)


def measured(*modes: DecodeSettings, repetitions: int = 2, most: int = -1, parts: int = 0) -> list[Together]:
    """Plain decoding and these modes with 1, 2 and 4 texts.

    `most`: trials until an interrupt. `parts`: the number of texts at a time with which a text is not the one alone.
    """
    ones = [
        contender(mode, texts, speed, parts=texts == parts)
        for mode in (PLAIN, *modes)
        for texts, speed in SPEEDS[mode].items()
    ]
    return beside_alone(results(played(Rounds(ones, TASKS, repetitions, asker()), most)))


def told(found: list[Together], width: int = 80, busy: str = "") -> str:
    return summary(found, {}, MACHINE, width, Typed("demo", seconds=20.0), busy)


def test_each_number_has_a_line_that_begins_with_plain_decoding_and_goes_on_with_the_fastest() -> None:
    lines = told(measured(LOOKUP, AUTO)).splitlines()
    assert "1 at a time:  auto 1.50x, lookup 0.50x" in lines
    assert "2 at a time:  plain 1.25x, auto 1.25x (1.00x plain, undecided), lookup 1.00x" in lines
    assert "4 at a time:  plain 2.00x, auto 3.00x (1.50x plain), lookup 1.00x (0.50x plain)" in lines
    assert "Most tokens/s: auto, 4 at a time (3.00x)." in lines
    assert "(24 prompts in 2 classes, each answered 2 times)" in " ".join(lines)


def test_one_text_among_others_is_held_against_one_alone_in_the_same_mode() -> None:
    found = measured(LOOKUP, AUTO)
    sentence = "one text among 2, 4 takes: plain 1.6, 2.0; auto 2.4, 2.0; lookup 1.0, 2.0."
    assert sentence in " ".join(told(found).split())
    assert [each.slower for each in found if each.number == 1] == [pytest.approx(1.0)] * 9


def test_few_prompts_are_called_undecided_or_not_certain() -> None:
    """Two blocks of one class have no interval."""
    ones = [contender(PLAIN, 1, 1.0), contender(PLAIN, 2, 2.0)]
    text = told(beside_alone(results(played(Rounds(ones, TASKS[:2], 1, asker())))))
    assert "2 at a time:  plain 2.00x (not certain)\n" in text and "--seconds 80" in text
    assert "of class code, each answered once" in " ".join(text.split())
    assert "--seconds" not in told(measured()) and "Answers of 10 tokens have little text" in text


def test_a_busy_machine_is_named_before_the_numbers_and_only_the_same_is_advised_again() -> None:
    ones = [contender(PLAIN, 1, 1.0), contender(PLAIN, 2, 2.0)]
    text = told(beside_alone(results(played(Rounds(ones, TASKS[:2], 1, asker())))), busy="It was busy.")
    assert text.splitlines()[1] == "It was busy." and "Most tokens/s" not in text
    assert "2 at a time:  plain 2.00x\n" in text and "Answers of" not in text
    assert text.splitlines()[-1].startswith("  lacli bench demo") and text.count("--seconds") == 1


def test_texts_that_part_are_counted_beside_one_alone_and_their_verdict_is_told() -> None:
    """Of plain decoding and of auto with two texts, which part alike."""
    found = measured(AUTO, parts=2)
    assert "All texts are those of plain decoding alone." in told(measured(AUTO))
    (parted,) = {text for each in found for text in each.parted}
    assert (parted.place, parted.before, parted.plain, parted.other) == (3, (0, 0, 1), 2, 99)
    near, far = (Difference(3, 2, 99, margin, 0.1) for margin in (0.1, 3.0))
    for difference, word in ((near, "rounding"), (far, "unclear")):
        judged = {parted: difference}
        sentence = f"118 of 120 texts are those of plain decoding alone; the others: 2 {word}."
        assert sentence in " ".join(summary(found, judged, MACHINE, 80, Typed()).split())
        one, two = (row for row in rows_of(found, judged, MACHINE) if row["class"] == "all" and not row["identical"])
        assert (one["mode"], two["mode"]) == ("plain", "auto") and one["parallel"] == two["parallel"] == 2
        assert (one["identical"], one["identical_n"], one["prompts"]) == (False, 23, 24)
        assert (one["first_diff"], one["verdict"], one["first_diff_margin"]) == (3, word, difference.margin)
    assert "2 not judged" in told(found)


@pytest.mark.parametrize("width", [80, 60, 40])
def test_no_line_is_wider_than_the_terminal_and_no_word_breaks(width: int) -> None:
    found = measured(LOOKUP, AUTO)
    lines = told(found, width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(told(found, 400).split())
    table = as_lines(found, MACHINE, lined_up(width), width)
    assert max(map(len, table.splitlines())) <= width and "2, lookup" in table


def test_columns_without_anything_are_left_out_of_the_table() -> None:
    assert as_lines(measured(AUTO), MACHINE, lined_up(0), 80).count("95%") == 3
    few = beside_alone(results(played(Rounds([contender(PLAIN, 1, 1.0)], TASKS[:2], 1, asker()))))
    assert as_lines(few, MACHINE, lined_up(0), 80).count("95%") == 1


def test_what_an_interrupt_leaves_is_told_after_any_answer() -> None:
    for most in range(1, 10):
        found = measured(AUTO, repetitions=1, most=most)
        assert told(found) and rows_of(found, {}, MACHINE)
