"""A clock that moves only when a test's context decodes, and saved step costs of the 7M model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from lacli.auto.model_cost import KIND, machine_key
from lacli.auto.step_cost import Cost, MeasurePlan, StepCost
from lacli.llamacpp.settings import ModelSettings
from lacli.text.records import NAME, Records
from tests.fakes.clock import FakeClock
from tests.loading import STDLIB_7M


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    clock.install(monkeypatch)
    return clock


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Save step costs of the 7M model, so that mode auto measures nothing."""
    cache = tmp_path_factory.mktemp("cache")
    seconds = {rows: rows**0.9 for rows in (1, 2, 4, 8, 16, 32)}
    key = machine_key(STDLIB_7M, ModelSettings(threads=1, gpu_layers=0, engine="llama"))
    cost = Cost((StepCost(64, seconds),), plan=MeasurePlan(seconds=1e3), measured_at=1e9)
    Records(cache / "lacli" / NAME).save(KIND, key, asdict(cost))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(cache))
        yield
