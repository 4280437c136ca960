"""huggingface_hub's cache in a temporary folder, models for it, and a hub to fetch from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import hub_cache
from tests.fakes.fake_hub import FakeHub, Here, looking_up, tiny_hub


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return hub_cache.use(tmp_path / "hub", monkeypatch)


@pytest.fixture(scope="session")
def content(tiny: Path) -> bytes:
    return tiny.read_bytes()


@pytest.fixture
def model(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


@pytest.fixture
def hub(content: bytes) -> Iterator[FakeHub]:
    with tiny_hub(content).running() as running:
        yield running


@pytest.fixture
def here(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with looking_up(hub, tmp_path / "hub", monkeypatch) as found:
        yield found
