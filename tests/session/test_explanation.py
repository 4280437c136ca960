"""--explain: a line a step with what it expected and what came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.session.explanation import Explanation, watching
from lacli.stats import Plan, Step
from lacli.tree import Origin

SUFFIX, POOL, MODEL = Origin.SUFFIX, Origin.POOL, Origin.MODEL
EXPECTED = Plan(tokens=3.14, seconds=0.006, plain=0.004, reason="matches 12 tokens")
NOTHING = Plan(tokens=1, seconds=0.004, plain=0.004, reason="nothing to guess")


def step_of(*accepted: Origin, guesses: Sequence[Origin] = (), plan: Plan | None = None, rows: int = 0) -> Step:
    """A step of 8 ms."""
    origins = (*accepted, MODEL)
    tokens = tuple(range(len(origins)))
    rows = rows or 1 + len(guesses)
    return Step(tokens, origins, rows, len(guesses), 0.004, 0.002, 0.001, 0.001, guesses=tuple(guesses), plan=plan)


def explained(*steps: tuple[Step, str], planned: bool = True) -> list[str]:
    """The lines about these steps, without the head."""
    lines: list[str] = []
    explanation = Explanation(lines.append, planned=planned)
    for each, text in steps:
        explanation.add(each, text)
    explanation.end()
    return lines[1:]


def test_a_line_has_what_was_expected_and_what_came_in_plain_steps_times() -> None:
    guesses = (SUFFIX, SUFFIX, SUFFIX, POOL)
    [line] = explained((step_of(SUFFIX, SUFFIX, guesses=guesses, plan=EXPECTED), "return x\n"))
    assert " ".join(line.split()) == (
        r"1 5 3.1 in 1.50x 3 in 2.00x suffix 2/3, pool 0/1: matches 12 tokens 'return x\n'"
    )


def test_without_a_plan_there_are_milliseconds_and_no_expectation() -> None:
    [line] = explained((step_of(POOL, guesses=(POOL, POOL)), "a b"), planned=False)
    assert " ".join(line.split()) == "1 3 2 in 8.0 ms pool 1/2 'a b'"


def test_plain_steps_of_one_reason_are_one_line_until_another_step_comes() -> None:
    plain, guessed = step_of(plan=NOTHING), step_of(SUFFIX, guesses=(SUFFIX,), plan=EXPECTED)
    lines = explained(*[(plain, "a")] * 3, (guessed, "b"), (plain, "c"), (step_of(), "d"))
    words = [" ".join(line.split()) for line in lines]
    assert words[0] == "1-3 1 3 in 6.00x 3 plain steps: nothing to guess 'aaa'"
    assert [line.split()[0] for line in words[1:]] == ["4", "5", "6"]
    assert words[2].endswith("1 plain step: nothing to guess 'c'") and words[3].endswith("1 plain step 'd'")


def test_a_step_with_guesses_never_shares_a_line_with_one_without() -> None:
    wide = step_of(rows=2, plan=EXPECTED)
    guessed = step_of(POOL, guesses=(POOL,), plan=EXPECTED)
    lines = explained((wide, "a"), (wide, "b"), (guessed, "c"), (guessed, "d"), (wide, "e"))
    assert [line.split()[0] for line in lines] == ["1-2", "3", "4", "5"]
    assert "none: matches" in lines[0]


@pytest.mark.parametrize("wait", [False, True])
def test_lines_come_with_the_steps_or_all_at_the_end(wait: bool) -> None:
    lines: list[str] = []
    explanation = Explanation(lines.append, planned=False, wait=wait)
    explanation.add(step_of(POOL, guesses=(POOL,)), "a")
    assert len(lines) == (0 if wait else 2)
    explanation.add(step_of(), "b")
    explanation.end()
    explanation.end()
    assert len(lines) == 3 and lines[0].split() == ["step", "rows", "came", "accepted/guessed"]


def test_nothing_is_said_of_no_steps() -> None:
    assert explained() == []


def test_the_text_is_short_in_one_line_and_without_control_codes() -> None:
    [line] = explained((step_of(), "\x1b[31mé\r\n" + "x" * 100))
    assert line.isprintable() and "é" in line and "..." in line and len(line) < 130


def test_a_plan_that_knows_no_plain_step_yet_divides_by_nothing() -> None:
    unknown = EXPECTED._replace(plain=0.0)
    [line] = explained((step_of(POOL, guesses=(POOL,), plan=unknown), "a"))
    assert "3.1 " in line and "2 in 8.0 ms" in line


def test_a_step_without_a_plan_is_timed_by_the_last_one_that_was_known() -> None:
    lines = explained((step_of(), "a"), (step_of(POOL, guesses=(POOL,), plan=EXPECTED), "b"), (step_of(), "c"))
    assert ["1 in 8.0 ms" in lines[0], "2 in 2.00x" in lines[1], "1 in 2.00x" in lines[2]] == [True] * 3


SAMPLES = [step_of(), step_of(plan=NOTHING), step_of(POOL, guesses=(POOL, SUFFIX), plan=EXPECTED)]


@given(st.lists(st.sampled_from(SAMPLES)))
def test_every_step_is_in_one_line_with_its_tokens(steps: list[Step]) -> None:
    lines = explained(*((each, "") for each in steps))
    told: Counter[int] = Counter()
    for line in lines:
        first, _, last = line.split()[0].partition("-")
        told.update(range(int(first), int(last or first) + 1))
    assert told == Counter(range(1, len(steps) + 1))
    came = [int(line[29:].split(" in ")[0]) for line in lines]
    assert sum(came) == sum(len(each.tokens) for each in steps)


def test_every_step_goes_to_the_explanation_and_to_the_callback() -> None:
    assert watching(None, None) is None
    lines: list[str] = []
    explanation = Explanation(lines.append, planned=False)
    for explained_too in (explanation, None):
        watch = watching(explained_too, lambda: lines.append("told"))
        assert watch
        watch(step_of(POOL, guesses=(POOL, POOL)), "a b")
    assert lines.count("told") == 2 and sum("pool 1/2" in " ".join(line.split()) for line in lines) == 1
