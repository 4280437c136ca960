"""The pace that a benchmark's first answers show, and who cannot win with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lacli.bench.plan import Pace
from lacli.bench.rounds import Exchange
from lacli.bench.warm_up import TOKENS, hopeless, pace
from lacli.settings import DecodeSettings
from tests.bench_field import LOOKAHEAD, LOOKUP, PLAIN, contender, task
from tests.fake_clock import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    clock.install(monkeypatch)
    return clock


def exchange() -> Exchange:
    return Exchange(task("1 2 3 1 2 3"), 0, (1, 2, 3, 1, 2, 3), 100)


def test_a_slow_machine_is_asked_for_one_step_only(clock: FakeClock) -> None:
    one, engine = contender(PLAIN, clock, cost=lambda rows, outputs: 2.0 if outputs else 0.5)
    seen = pace([one], exchange())
    assert seen.token_s == (2.0,)
    assert seen.prompt_s == pytest.approx(0.5 / 6)
    assert engine.steps == 1


def test_a_quick_machine_shows_seconds_a_token_over_several_steps(clock: FakeClock) -> None:
    one, engine = contender(LOOKUP, clock, cost=lambda rows, outputs: 0.01)
    seen = pace([one], exchange())
    assert seen.token_s[0] == pytest.approx(0.01 * (engine.steps - 1) / TOKENS)


def test_who_loses_even_if_every_guess_comes_true_is_hopeless_and_the_dearest_comes_first(clock: FakeClock) -> None:
    settings = (PLAIN, LOOKUP, LOOKAHEAD, replace(LOOKAHEAD, window=0))
    ones = [contender(each, clock)[0] for each in settings]
    most = [each.most_tokens for each in settings]
    bearable = Pace(tuple(0.1 * count * 0.99 for count in most), 0.1)
    assert hopeless(ones, replace(bearable, token_s=(0.1, *bearable.token_s[1:]))) == []
    dear = Pace((0.1, *(0.1 * count * 1.01 for count in most[1:])), 0.1)
    assert hopeless(ones, dear) == sorted((1, 2, 3), key=lambda number: -most[number])


def test_the_most_tokens_of_a_step_are_its_deepest_guesses_and_the_models_own() -> None:
    assert DecodeSettings(mode="plain").most_tokens == 1
    assert DecodeSettings(mode="lookup", lookup_draft=10).most_tokens == 11
    assert DecodeSettings(mode="jacobi", window=7).most_tokens == 8
    assert DecodeSettings(window=0, ngram=5).most_tokens == 5
