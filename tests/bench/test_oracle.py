"""The oracle and the ceiling on toy engines: plain's text in as few steps as there can be, and what that is worth."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto.step_cost import Cost, StepCost
from lacli.auto.step_cost import Point as Measured
from lacli.bench.oracle import Ceiling, Oracles, best_rows, chain, oracle_in, oracles
from lacli.bench.report import ceiling_table
from lacli.bench.results import results
from lacli.bench.rounds import Rounds
from lacli.bench.rows import as_rows
from lacli.bench.statistics import Ratio
from lacli.bench.summary import Typed, summary
from lacli.bench.sweep import Point
from lacli.bench.tasks import ALL
from lacli.decode import Decoder
from lacli.engine import Engine, Floats
from lacli.settings import DecodeSettings
from lacli.verify import SampleAndMatch
from tests.fakes.bench_field import LOOKUP, MACHINE, PLAIN, Otherwise, asker, contender, played, task, words
from tests.fakes.clock import ClockedEngine, FakeClock
from tests.fakes.engine import FakeEngine
from tests.fakes.sampler import FakeSampler

TASKS = (task("1 2 3 1 2", kind="code"), task("4 5 6 4 5 6 4", kind="edit"), task("7 8 7 8", kind="edit"))
prompts = st.lists(st.integers(0, 11), min_size=1, max_size=20)


class Counting(FakeSampler):
    """Counts its draws."""

    draws = 0

    def draw(self, logits: Floats) -> int:
        self.draws += 1
        return super().draw(logits)


def plain_answer(
    prompt: list[int], limit: int, sampler: FakeSampler | None = None, ends: frozenset[int] = frozenset()
) -> list[int]:
    verifier = SampleAndMatch(sampler) if sampler else None
    steps = Decoder(FakeEngine(ends=ends), PLAIN, verifier).generate(prompt, limit)
    return [token for step in steps for token in step.tokens]


@given(prompts, st.integers(1, 60), st.integers(1, 20), st.frozensets(st.integers(0, 11), max_size=1))
def test_an_oracle_gives_plains_text_in_full_steps(
    prompt: list[int], limit: int, rows: int, ends: frozenset[int]
) -> None:
    answer = plain_answer(prompt, limit, ends=ends)
    steps = list(oracle_in(FakeEngine(ends=ends), chain(PLAIN, rows), prompt, answer, rows).generate(prompt, limit))
    assert [token for step in steps for token in step.tokens] == answer
    assert len(steps) == -(-len(answer) // rows)
    assert all(step.rows == len(step.tokens) for step in steps), "every guess comes true"


@given(prompts, st.integers(1, 40), st.integers(1, 9))
def test_where_rounding_would_choose_otherwise_plains_text_is_decoded_to_its_end(
    prompt: list[int], limit: int, rows: int
) -> None:
    answer = plain_answer(prompt, limit)
    steps = oracle_in(Otherwise(), chain(PLAIN, rows), prompt, answer, rows).generate(prompt, limit)
    assert [token for step in steps for token in step.tokens] == answer


@given(prompts, st.integers(1, 40), st.integers(1, 9), st.integers(0, 99), st.sampled_from([FakeEngine, Otherwise]))
def test_a_sampled_text_is_drawn_at_the_same_cost(
    prompt: list[int], limit: int, rows: int, seed: int, kind: type[FakeEngine]
) -> None:
    answer = plain_answer(prompt, limit, FakeSampler(seed))
    sampler = Counting(seed)
    decoder = oracle_in(kind(), chain(PLAIN, rows), prompt, answer, rows, sampler)
    assert [token for step in decoder.generate(prompt, limit) for token in step.tokens] == answer
    if kind is FakeEngine:
        assert sampler.draws == len(answer)


def test_in_a_strict_context_a_step_is_padded() -> None:
    strict = DecodeSettings(mode="plain", ordered=True, min_outputs=2)
    answer = plain_answer([1, 2, 3], 9)
    for rows in (1, 2, 4):
        engine = FakeEngine(ordered=True, min_outputs=2)
        steps = oracle_in(engine, chain(strict, rows), [1, 2, 3], answer, rows).generate([1, 2, 3], 9)
        assert [token for step in steps for token in step.tokens] == answer


def stairs(context: int, *points: tuple[int, float]) -> StepCost:
    return StepCost(context, tuple(Measured(rows, seconds, seconds) for rows, seconds in points))


def test_the_best_rows_bring_most_tokens_a_second_and_no_more_than_can_be_taken_back() -> None:
    measured = stairs(64, (1, 1.0), (2, 1.9), (4, 2.7), (8, 4.9), (16, 7.1), (32, 15.0))
    assert best_rows(measured) == 16
    assert (
        best_rows(measured, max_rollback=7) == 8
        and best_rows(measured, max_rollback=2) == 2
        and best_rows(measured, max_rollback=0) == 1
    )


def test_the_share_of_a_ceiling_counts_from_plain_decoding() -> None:
    ceiling = Ceiling(16, Ratio(3.0))
    assert [ceiling.share(speedup) for speedup in (1.0, 2.0, 3.0, 0.5)] == [0.0, 0.5, 1.0, 0.0]
    assert Ceiling(1, Ratio(1.0)).share(1.2) is None


def dear(rows: int, outputs: int) -> float:
    """A step costs 2 seconds, and half a second a row."""
    return 2 + rows / 2


def reached(
    clock: FakeClock,
    repetitions: int = 1,
    sampler: FakeSampler | None = None,
    costs: Callable[[int, int], float] = dear,
    rows: int = 5,
) -> tuple[Rounds, Oracles]:
    """A benchmark of plain and lookup, and the oracle of lookup. costs: seconds of its steps and outputs.

    rows: of the oracle's steps.
    """
    rounds = played(Rounds([contender(each, clock, costs)[0] for each in (PLAIN, LOOKUP)], TASKS, repetitions, asker()))

    def open_engine(point: Point) -> AbstractContextManager[Engine]:
        engine = ClockedEngine(clock=clock, cost=costs, max_outputs=point.settings.max_outputs)
        return nullcontext(engine)

    cost = Cost((stairs(4, (1, 2.5), (rows, dear(rows, rows)), (12, 12.0)),))
    with oracles(rounds, 1, cost, open_engine, sampler, words) as found:
        played(found.rounds)
    return rounds, found


def test_the_ceiling_is_the_clocks_and_by_class(clock: FakeClock) -> None:
    _, found = reached(clock)
    for each in found.ceilings.values():
        # 20 tokens of 2.5 seconds each, against four steps of 5 rows.
        assert each.rows == 5 and each.ratio.value == pytest.approx(20 * 2.5 / (4 * 4.5))
    assert list(found.ceilings) == [(1, "code"), (1, "edit"), (1, ALL)]


def test_of_answers_that_take_two_steps_no_ceiling_is_told(clock: FakeClock) -> None:
    rounds, found = reached(clock, rows=10)
    said = summary(results(rounds), {}, MACHINE, found.ceilings, typed=Typed(), width=200)
    assert found.ceilings[1, "edit"].ratio.value > 3 and "answers are too short" in said


def test_the_oracle_answers_beside_plain_and_twice_where_there_is_time(clock: FakeClock) -> None:
    _, once = reached(clock)
    assert [len(each) for each in once.rounds.trials.values()] == [1] * 6
    _, twice = reached(clock, repetitions=4)
    assert [len(each) for each in twice.rounds.trials.values()] == [2] * 6
    assert all(trial.ids == twice.rounds.of(0, exchange)[0].ids
               for (_, exchange), each in twice.rounds.trials.items() for trial in each)  # fmt: skip


def test_tables_and_rows_say_the_ceiling_and_the_share(clock: FakeClock) -> None:
    rounds, found = reached(clock)
    shown, ceilings = results(rounds), found.ceilings
    ceiling = 20 * 2.5 / (4 * 4.5)
    table = ceiling_table(shown, ceilings)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:5]]
    rows = [row for row in as_rows(shown, MACHINE, {}, ceilings) if row["mode"] == "lookup"]
    for line, row, result in zip(lines, rows, shown[1::2], strict=True):
        share = max(result.speedup.value - 1, 0.0) / (ceiling - 1)
        named = f"{share:.0%}" if share else "none"
        assert (line[0], line[2], line[4], line[6]) == (result.kind, f"{ceiling:.2f}", "5", named)
        assert (row["ceiling"], row["ceiling_rows"]) == (round(ceiling, 4), 5)
        assert row["ceiling_share"] == pytest.approx(share, abs=1e-4)
    said = summary(shown, {}, MACHINE, ceilings, typed=Typed(), width=200)
    assert f"would reach {ceiling:.2f}x in these answers; lookup gains none of it." in said
    assert "would reach" not in summary(shown, {}, MACHINE, typed=Typed(), width=200)


def test_an_oracle_slower_than_plain_leaves_the_ceiling_at_plains_speed(clock: FakeClock) -> None:
    # Five rows look cheap in what was measured, and cost twenty plain steps.
    rounds, found = reached(clock, costs=lambda rows, outputs: 2.5 if rows == 1 else 50.0)
    assert set(found.ceilings.values()) == {Ceiling(1, Ratio(1.0))}


def test_what_was_answered_before_an_interrupt_is_shown(clock: FakeClock) -> None:
    rounds, _ = reached(clock)
    cost = Cost((stairs(4, (1, 2.5), (4, 4.0)),))
    engine = ClockedEngine(clock=clock, cost=dear)
    with oracles(rounds, 1, cost, lambda point: nullcontext(engine), None, words) as found:
        played(found.rounds, 3)
    assert list(found.ceilings) == [(1, "code"), (1, ALL)] and found.ceilings[1, "code"].rows == 4
