"""Several replicas on the fake engine: the text is one replica's, whatever they are dealt and whoever fails."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.pretended import PretendingDecoder as Decoder
from lacli.settings import DecodeSettings
from tests.fake_engine import FakeEngine
from tests.test_decode import any_settings, engine_for, ends, plain_tokens, prompts, tokens_of

speeds = st.lists(st.tuples(st.integers(1, 60), st.floats(1e-6, 1e-3)), min_size=3, max_size=3)


def decoder_of(engines: list[FakeEngine], chosen: DecodeSettings) -> Decoder:
    others = {f"{place}": engine for place, engine in enumerate(engines[1:], start=2)}
    return Decoder(engines[0], chosen, others=others)


@given(any_settings, prompts, ends, st.integers(-1, 80), st.integers(41, 130), st.integers(4, 64), st.integers(2, 3),
       speeds)  # fmt: skip
@settings(max_examples=500, deadline=None)
def test_several_replicas_equal_one(
    chosen: DecodeSettings,
    prompt: list[int],
    ends: frozenset[int],
    limit: int,
    cells: int,
    rows: int,
    count: int,
    seen: list[tuple[int, float]],
) -> None:
    engines = [engine_for(chosen, cells, rows, ends) for _ in range(count)]
    decoder = decoder_of(engines, chosen)
    for replica, (size, seconds) in zip(decoder.replicas._replicas, seen, strict=False):
        replica.speed.saw(size, seconds)
    steps = list(decoder.generate(prompt, limit))
    assert tokens_of(steps) == plain_tokens(prompt, limit, cells - chosen.least_outputs + 1, ends)
    assert decoder.text == prompt + tokens_of(steps)
    for engine in engines:
        held = engine.held()
        assert held == decoder.text[: len(held)] and len(held) < len(decoder.text)
