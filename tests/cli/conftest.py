"""A user with a cache of models, and the hub of tests/hub to fetch from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.hub_cache import Home, make_home
from tests.hub.conftest import content, here, hub

__all__ = ["content", "here", "home", "hub"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return make_home(tmp_path, monkeypatch)
