"""The oracle on toy engines: plain's text in as few steps as there can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.oracle import best_rows, chain, oracle_in
from lacli.auto.step_cost import Point, StepCost
from lacli.decode import Decoder
from lacli.engine import Floats
from lacli.settings import DecodeSettings
from lacli.verify import SampleAndMatch
from tests.fakes.bench_field import PLAIN, Otherwise
from tests.fakes.engine import FakeEngine
from tests.fakes.sampler import FakeSampler

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
    return StepCost(context, tuple(Point(rows, seconds, seconds) for rows, seconds in points))


def test_the_best_rows_bring_most_tokens_a_second_and_no_more_than_can_be_taken_back() -> None:
    measured = stairs(64, (1, 1.0), (2, 1.9), (4, 2.7), (8, 4.9), (16, 7.1), (32, 15.0))
    assert best_rows(measured) == 16
    assert (
        best_rows(measured, max_rollback=7) == 8
        and best_rows(measured, max_rollback=2) == 2
        and best_rows(measured, max_rollback=0) == 1
    )
