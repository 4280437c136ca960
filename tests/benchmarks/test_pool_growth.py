"""Pool growth and the prediction from hits: steps counted by hand, and real runs against their own tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.insight.pool_growth import Matches, PoolGrowth, merged
from lacli.decode import Decoder
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.stats import Step
from lacli.tree import Origin
from tests.fakes.engine import FakeEngine

PROMPT = [1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 4, 5]


def step(tokens: int, drafted: int = 0) -> Step:
    origins = (*[Origin.POOL] * (tokens - 1), Origin.MODEL)
    return Step(tuple(range(tokens)), origins, 1 + drafted, drafted, 0.0, 0.0, 0.0, 0.0)


def of_run(settings: DecodeSettings, limit: int, surprise: int = 5) -> tuple[PoolGrowth, list[Step], NgramPool]:
    decoder = Decoder(FakeEngine(cells=400, sequences=settings.sequences, surprise=surprise), settings)
    growth, steps = PoolGrowth((8, 16, 32, 64)), []
    for one in decoder.generate(PROMPT, limit):
        growth.observe(one, decoder.pool)
        steps.append(one)
    return growth, steps, decoder.pool


def test_h_and_l_are_over_the_steps_whose_lookup_found_something() -> None:
    pool, growth = NgramPool(3, 4), PoolGrowth()
    pool.insert(1, (2, 3))
    for key, tokens in [(1, 3), (9, 1), (1, 1), (9, 1), (1, 2)]:
        pool.lookup(key)
        growth.observe(step(tokens), pool)
    assert growth.matches == Matches(steps=5, tokens=8, matched_steps=3, matched_tokens=6)
    assert growth.matches.hit_rate == 3 / 5
    assert growth.matches.match_length == 2.0
    assert growth.matches.predicted == growth.matches.tokens_per_step == 8 / 5


def test_without_steps_nothing_is_divided() -> None:
    assert (Matches().hit_rate, Matches().match_length, Matches().predicted, Matches().tokens_per_step) == (0, 1, 1, 0)


def test_where_no_pool_is_asked_a_draft_is_a_match() -> None:
    pool, growth = NgramPool(3, 4), PoolGrowth()
    for one in [step(3, drafted=10), step(1), step(1, drafted=10)]:
        growth.observe(one, pool)
    assert growth.matches == Matches(steps=3, tokens=5, matched_steps=2, matched_tokens=4)


def test_a_step_that_passes_two_checkpoints_is_looked_at_for_both() -> None:
    growth = PoolGrowth((2, 4, 9))
    for tokens in (1, 5, 1):
        growth.observe(step(tokens), NgramPool(3, 4))
    assert [(row.checkpoint, row.so_far.tokens, row.recent.steps) for row in growth.rows()] == [(2, 6, 2), (4, 6, 0)]


@given(st.integers(0, 6), st.integers(2, 6), st.integers(0, 6), st.integers(1, 80), st.sampled_from([2, 5, 50]))
def test_the_prediction_is_s_from_four_token_ngrams_on(
    window: int, ngram: int, guesses: int, limit: int, surprise: int
) -> None:
    growth, steps, _ = of_run(
        DecodeSettings(mode="lookahead", window=window, ngram=ngram, guesses=guesses), limit, surprise
    )
    measured = sum(len(one.tokens) for one in steps) / len(steps)
    assert growth.matches.tokens_per_step == measured
    if ngram >= 4:
        assert growth.matches.predicted == pytest.approx(measured)
    assert growth.matches.predicted <= measured + 1e-9


def test_a_runs_matches_are_the_pools_own_hits() -> None:
    growth, steps, pool = of_run(DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4), 80)
    assert 0 < growth.matches.hit_rate == pool.statistics().hit_rate < 1
    assert pool.statistics().lookups == len(steps)


def test_rows_hold_what_the_pool_held_when_the_text_got_there() -> None:
    growth, steps, _ = of_run(DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4), 40)
    assert [row.checkpoint for row in growth.rows()] == [8, 16, 32]
    for row in growth.rows():
        made = 0
        until = next(index for index, one in enumerate(steps, 1) if (made := made + len(one.tokens)) >= row.checkpoint)
        decoder = Decoder(
            FakeEngine(cells=400, sequences=9), DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4)
        )
        run = decoder.generate(PROMPT, 40)
        for _ in range(until):
            next(run)
        held = decoder.pool.statistics()
        assert (row.keys, row.ngrams, row.so_far.steps) == (held.keys, held.ngrams, until)
        assert row.so_far.hit_rate == held.hit_rate
        run.close()


def test_recent_steps_add_up_to_all_so_far() -> None:
    growth, *_ = of_run(DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4), 70)
    total = Matches()
    for row in growth.rows():
        total += row.recent
        assert total == row.so_far
    assert len(growth.rows()) == 4


def test_rows_of_runs_merge_by_checkpoint_over_those_that_got_there() -> None:
    settings = DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4)
    short, long = of_run(settings, 10)[0], of_run(settings, 40, surprise=3)[0]
    rows = merged([short, long])
    assert [(row.checkpoint, row.runs) for row in rows] == [(8, 2), (16, 1), (32, 1)]
    one, two = short.rows()[0], long.rows()[0]
    assert rows[0].mean_ngrams == (one.ngrams + two.ngrams) / 2
    assert rows[0].mean_keys == (one.keys + two.keys) / 2
    assert rows[0].so_far.steps == one.so_far.steps + two.so_far.steps
    assert rows[1:] == long.rows()[1:]
