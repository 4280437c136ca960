"""A toy random model for all tests of this folder, loaded once a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings


@pytest.fixture(scope="session")
def toy(tiny: Path) -> Iterator[LlamaModel]:
    with LlamaModel(tiny, ModelSettings(context=256, gpu_layers=0, threads=1)) as model:
        yield model
