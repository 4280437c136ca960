"""Acceptance of steps counted by hand, and of real runs against a count of their tokens and origins."""

from __future__ import annotations

import pytest

from lacli.bench.acceptance import Acceptance
from lacli.decode import Decoder
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.stats import RunStatistics, Step
from lacli.tree import Origin
from tests.fakes.engine import FakeEngine

PROMPT = [1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 4, 5]


def step(tokens: int, drafted: int) -> Step:
    origins = (*[Origin.POOL] * (tokens - 1), Origin.MODEL)
    return Step(tuple(range(tokens)), origins, 1 + drafted, drafted, 0.0, 0.0, 0.0, 0.0)


def run(mode: ModeName) -> list[Step]:
    settings = DecodeSettings(mode=mode, window=4, ngram=4, guesses=4)
    return list(Decoder(FakeEngine(sequences=settings.sequences), settings).generate(PROMPT, 60))


STEPS = [step(1, 0), step(1, 4), step(3, 4), step(1, 0), step(2, 6), step(3, 6)]


def test_the_histogram_counts_all_steps_and_the_rates_those_with_guesses() -> None:
    acceptance = Acceptance.of(STEPS)
    assert acceptance.histogram == (3, 1, 2)
    assert acceptance.guessed == (1, 1, 2)
    assert acceptance.position_rates == [3 / 4, 2 / 4]
    assert acceptance.hit_rate == 3 / 4


def test_accepted_over_drafted_counts_guesses() -> None:
    acceptance = Acceptance.of(STEPS)
    assert (acceptance.accepted, acceptance.drafted) == (5, 20)
    assert acceptance.accepted_share == 0.25


@pytest.mark.parametrize("acceptance", [Acceptance.of([]), Acceptance.of([step(1, 0)])])
def test_without_guesses_the_rates_are_zero(acceptance: Acceptance) -> None:
    assert acceptance.position_rates == []
    assert (acceptance.hit_rate, acceptance.accepted_share) == (0.0, 0.0)


def test_guesses_that_all_failed_have_no_rates() -> None:
    acceptance = Acceptance.of([step(1, 4), step(1, 2)])
    assert acceptance.position_rates == []
    assert acceptance.hit_rate == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_a_real_runs_counts_agree_with_its_tokens_and_origins(mode: ModeName) -> None:
    steps = run(mode)
    acceptance, statistics = Acceptance.of(steps), RunStatistics()
    for one in steps:
        statistics.add(one)
    assert list(acceptance.histogram) == statistics.accept_hist
    assert (acceptance.accepted, acceptance.drafted) == (statistics.accepted, statistics.drafted)
    assert acceptance.accepted == sum(origin is not Origin.MODEL for one in steps for origin in one.origins)
    with_guesses = [len(one.tokens) for one in steps if one.drafted]
    for depth, rate in enumerate(acceptance.position_rates, start=1):
        assert rate == sum(length > depth for length in with_guesses) / len(with_guesses)


def test_a_step_without_guesses_never_brings_more_than_one_token() -> None:
    for mode in MODES:
        acceptance = Acceptance.of(run(mode))
        assert acceptance.histogram[1:] == acceptance.guessed[1:]
