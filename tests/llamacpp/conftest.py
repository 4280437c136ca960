"""Two models for all tests of this folder, each loaded once a process: a tiny random one and the 7M model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    tiny_models.write_llama(path)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(tiny_path, ModelSettings(context=256, gpu_layers=0, threads=1)) as model:
        yield model


@pytest.fixture(scope="session")
def small() -> Iterator[LlamaModel]:
    with LlamaModel(STDLIB_7M, ModelSettings(context=512, gpu_layers=0, threads=1)) as model:
        yield model
