"""The pace that a benchmark's first answers show, and who cannot win with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lacli.bench.plan import Speed
from lacli.bench.rounds import Contender, Exchange, Trial
from lacli.bench.warm_up import TOKENS, hopeless, speed_of
from lacli.settings import DecodeSettings
from tests.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    PLAIN,
    contender,
    task,
)
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    clock.install(monkeypatch)
    return clock


def exchange() -> Exchange:
    return Exchange(task("1 2 3 1 2 3"), 0, (1, 2, 3, 1, 2, 3), 100)


def test_a_slow_machine_is_asked_for_two_steps_and_the_first_is_not_timed(clock: FakeClock) -> None:
    costs = iter([60.0, 2.0])
    one, engine = contender(PLAIN, clock, cost=lambda rows, outputs: next(costs) if outputs else 0.5)
    seen = speed_of(one, exchange())
    assert (seen.token_s, seen.step_s) == (2.0, 2.0)
    assert seen.prompt_s == pytest.approx(0.5 / 6)
    assert engine.steps == 2


def test_a_quick_machine_shows_seconds_a_token_over_several_steps(clock: FakeClock) -> None:
    one, engine = contender(LOOKUP, clock, cost=lambda rows, outputs: 0.01)
    seen = speed_of(one, exchange())
    assert seen.token_s == pytest.approx(0.01 * (engine.steps - 2) / TOKENS)
    assert seen.step_s == pytest.approx(0.01)


def test_a_programs_start_is_what_its_own_clock_does_not_count(clock: FakeClock) -> None:
    def answer(exchange: Exchange) -> Trial:
        clock.now += 3.0
        return Trial(None, None, 10, 5, None, None, 5, seconds=1.0, prompt_s=0.5, first_token_s=0.5)

    seen = speed_of(Contender("rival", None, 0, answer), exchange())
    assert (seen.start_s, seen.token_s, seen.step_s) == (1.5, 0.1, 0.2)


def test_who_loses_even_if_every_guess_comes_true_is_hopeless_and_the_dearest_comes_first(clock: FakeClock) -> None:
    settings = (PLAIN, LOOKUP, LOOKAHEAD, replace(LOOKAHEAD, window=0))
    ones = [contender(each, clock)[0] for each in settings]
    most = [each.most_tokens for each in settings]

    def speeds(share: float) -> list[Speed]:
        """Everyone's steps cost this share of what they could bring at best."""
        return [Speed(0.1, 0.1, 0.1), *(Speed(0.1, 0.1 * count * share, 0.1) for count in most[1:])]

    assert hopeless(ones, speeds(0.99)) == []
    assert hopeless(ones, speeds(1.01)) == sorted((1, 2, 3), key=lambda number: -most[number])


def test_the_most_tokens_of_a_step_are_its_deepest_guesses_and_the_models_own() -> None:
    assert DecodeSettings(mode="plain").most_tokens == 1
    assert DecodeSettings(mode="lookup", lookup_draft=10).most_tokens == 11
    assert DecodeSettings(mode="jacobi", window=7).most_tokens == 8
    assert DecodeSettings(mode="lookahead", window=0, ngram=5).most_tokens == 5
