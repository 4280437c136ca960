"""Names of models looked up inside the test's process, against a hub on the loopback.

No test lives here. The library's constants point at that hub while `looking_up` lasts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from lacli.errors import ModelLoadError
from lacli.hub.download import find_model
from tests.fakes.fake_hub import FakeHub, Repository
from tests.fakes.tiny_models import write_llama
from tests.program import HUBS, PROXIES

NAME = "someone/tiny-GGUF"


def tiny_model(folder: Path) -> bytes:
    path = folder / "tiny.gguf"
    write_llama(path)
    return path.read_bytes()


def tiny_hub(tiny: bytes) -> FakeHub:
    """A hub with one repository of several quants."""
    files = {"README.md": b"tiny", "tiny-F16.gguf": b"GGUF", "tiny-Q4_K_M.gguf": tiny, "tiny-Q8_0.gguf": tiny + b"8"}
    return FakeHub({NAME: Repository(files)})


class Here:
    """Names looked up inside this process; `said` is what was told about them."""

    def __init__(self, hub: FakeHub, cache: Path) -> None:
        self.hub, self.cache = hub, cache
        self.said: list[str] = []

    def find(self, name: str, *, offline: bool = False) -> Path:
        return find_model(name, offline=offline, quiet=True, say=self.said.append)

    def refused(self, name: str, *, offline: bool = False) -> str:
        with pytest.raises(ModelLoadError) as caught:
            self.find(name, offline=offline)
        assert caught.value.hint and "\n" not in str(caught.value)
        return str(caught.value)


@contextmanager
def looking_up(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """A process that has this hub and this cache, no token, and none of the developer's own settings of the library."""
    point_at(hub.address, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_SYMLINKS", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.setattr(constants, name, False)
    for name in [name for name in os.environ if name.startswith((*HUBS, *PROXIES))]:
        monkeypatch.delenv(name)
    huggingface_hub.close_session()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache.parent / "token"))
    yield Here(hub, cache)
    huggingface_hub.close_session()


def point_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
