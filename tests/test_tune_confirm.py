"""What the last round makes of times that vary: what is surely faster is used, what only looks so is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lacli.bench.plan import Speed
from lacli.bench.rounds import Contender, Exchange, Trial
from lacli.bench.sweep import Point
from lacli.settings import DecodeSettings, ModelSettings
from lacli.tune.confirm import Confirmed, LastRound
from lacli.tune.report import as_lines, conclusion
from lacli.tune.tuning import Setup, Tuning
from tests.bench_field import asker, task

PLAIN, AUTO = DecodeSettings(mode="plain"), DecodeSettings(mode="auto")
FIXED = DecodeSettings(mode="lookup", lookup_draft=4)
FEWER = DecodeSettings(mode="auto", sources=("suffix", "pool"))
SETUP = Setup("toy.gguf", "toy 1M", "A processor", ModelSettings(), "3 prompts", "none")
STEADY = (1.0, 1.0, 1.0)
NOISY = (0.2, 1.0, 0.6)
"""Seconds of an answer to three prompts: much faster on average, and by luck."""


def contender(settings: DecodeSettings, seconds: Sequence[float]) -> Contender:
    def answer(exchange: Exchange) -> Trial:
        return Trial((1,) * 8, None, 8, 8, 8, 0, 0, seconds[exchange.prompt[0]], 0.0, 0.0)

    return Contender(settings.mode, Point(settings), 0, answer)


def confirmed(
    auto: Sequence[float], winner: Sequence[float], tried: DecodeSettings = FIXED, plain: Sequence[float] = STEADY
) -> Confirmed:
    competing = [contender(PLAIN, plain), contender(AUTO, auto), contender(tried, winner)]
    tasks = [task(f"{number} 1") for number in range(len(plain))]
    last = LastRound(competing, tasks, asker(), [Speed(0.0, 0.0, 0.0)] * 3, 1.0, clock=lambda: 0.0)
    assert len(list(last)) == last.rounds.most
    found = last.confirmed()
    assert found
    return found


def said(found: Confirmed) -> str:
    return conclusion(Tuning(SETUP, confirmed=found))


def test_a_setting_that_only_looks_faster_is_not_remembered() -> None:
    found = confirmed(STEADY, NOISY)
    assert found.winner and found.winner.speedup.low is not None
    assert found.winner.speedup.value > 1.5 and found.winner.speedup.low < 1
    assert found.best == AUTO and found.unsure
    assert "lookup match 2 draft 4, ran at" in said(found) and "not sure enough to be remembered" in said(found)
    assert "is best here" not in said(found) and said(found).count("Auto is remembered") == 1


def test_a_setting_is_remembered_where_it_is_surely_faster_than_both() -> None:
    assert confirmed(STEADY, (0.5, 0.6, 0.55)).best == FIXED
    assert confirmed((0.56, 0.6, 0.57), (0.5, 0.53, 0.51)).best == FIXED
    # Surely faster than plain, and by luck faster than auto.
    assert confirmed((0.5, 0.4, 0.9), (0.5, 0.5, 0.5)).best == AUTO
    # Surely faster than auto, and by luck faster than plain.
    assert confirmed((5.0, 5.0, 5.0), (0.4, 1.0, 0.9)).best == PLAIN


def test_two_prompts_say_too_little_of_a_setting() -> None:
    found = confirmed((1.0, 1.0), (0.5, 0.5), plain=(1.0, 1.0))
    assert found.enough and found.best == AUTO


@pytest.mark.parametrize(("seconds", "best"), [(0.98, AUTO), (1.0, AUTO), (1.01, PLAIN)])
def test_auto_is_remembered_unless_it_is_slower_than_plain(seconds: float, best: DecodeSettings) -> None:
    found = confirmed((seconds,) * 3, (2.0,) * 3)
    assert found.best == best and not found.unsure
    assert f"{best.mode.capitalize()} is remembered" in said(found)


def test_only_auto_with_all_sources_is_called_auto() -> None:
    found = confirmed(STEADY, (0.5, 0.5, 0.5), tried=FEWER)
    assert found.best == FEWER
    assert said(found).startswith("Auto suffix,pool is best here: 2.00 times")
    assert "This setting is remembered" in said(found)
    assert as_lines(Tuning(SETUP, confirmed=found)).endswith(
        "  lacli run toy.gguf --preset tuned\n  lacli run toy.gguf --mode auto --sources suffix,pool   (the same)"
    )
