"""Points as contenders: their contexts on the 7M model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lacli.bench.run import Contexts
from lacli.bench.sweep import Axes, points
from lacli.engine.load import ModelEngine
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.loading import load

LOADING = ModelSettings(context=512, threads=1, threads_batch=1, gpu_layers=0, flash_attention="off")


@pytest.fixture(scope="module")
def session() -> Iterator[ModelEngine]:
    with load(model_settings=LOADING, decode_settings=DecodeSettings(mode="plain")) as session:
        yield session


def test_a_sweep_shares_one_context_for_trees_one_for_chains_and_plain_and_auto_have_their_own(
    session: ModelEngine,
) -> None:
    chosen, _ = points(Axes(windows=(2, 4), ngrams=(3,)), session.settings)
    with Contexts(session, chosen) as contexts:
        engines = [contexts.context(point) for point in chosen]
        modes = [point.settings.mode for point in chosen]
        by_mode = {mode: {id(e) for e, m in zip(engines, modes, strict=True) if m == mode} for mode in set(modes)}
        assert by_mode["jacobi"] == by_mode["lookup"] and len(by_mode["lookahead"]) == 1
        assert len({next(iter(ids)) for ids in by_mode.values()}) == 4
        assert by_mode["plain"] == {id(session.context)} and session.context.sequences == 1
        *_, ahead, auto = chosen
        widest = max(point.settings.sequences for point in chosen if point.settings.mode == "lookahead")
        assert contexts.context(ahead).sequences == widest
        assert contexts.context(auto).sequences == auto.settings.sequences
