"""A clock that moves only when a test's engine decodes."""

from __future__ import annotations

import pytest

from tests.fakes.clock import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    clock.install(monkeypatch)
    return clock
