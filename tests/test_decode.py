"""The loop on the fake engine: every mode gives plain's tokens, for any sizes, prompts and ends."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.decode import Decoder
from lacli.settings import MODES, DecodeSettings
from lacli.stats import Step
from tests.fake_engine import FakeEngine

VOCABULARY = 12

any_settings = st.builds(
    DecodeSettings,
    mode=st.sampled_from(MODES),
    window=st.integers(0, 7),
    ngram=st.integers(2, 6),
    guesses=st.integers(0, 6),
    window_init=st.sampled_from(["prompt", "random", "pool"]),
    window_shift=st.sampled_from(["once", "refill"]),
    pool_prompt=st.booleans(),
    pool_text=st.booleans(),
    pool_keys=st.integers(1, 20),
    jacobi_iterations=st.integers(1, 6),
    lookup_match=st.integers(1, 3),
    lookup_draft=st.integers(1, 6),
)
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)
ends = st.frozensets(st.integers(0, VOCABULARY - 1), max_size=2)


def engine_for(decode_settings: DecodeSettings, cells: int, batch_rows: int, ends: frozenset[int]) -> FakeEngine:
    return FakeEngine(cells, batch_rows, decode_settings.sequences, VOCABULARY, ends)


def tokens_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@given(any_settings, prompts, ends, st.integers(-1, 80), st.integers(41, 130), st.integers(4, 64))
@settings(max_examples=600, deadline=None)
def test_every_mode_equals_plain(
    chosen: DecodeSettings, prompt: list[int], ends: frozenset[int], limit: int, cells: int, batch_rows: int
) -> None:
    plain = Decoder(FakeEngine(cells, batch_rows, 1, VOCABULARY, ends), replace(chosen, mode="plain"))
    expected = tokens_of(list(plain.generate(prompt, limit)))
    engine = engine_for(chosen, cells, batch_rows, ends)
    decoder = Decoder(engine, chosen)
    steps = list(decoder.generate(prompt, limit))
    assert tokens_of(steps) == expected
    assert decoder.text == prompt + expected
    assert engine.held() == decoder.text[:-1]
