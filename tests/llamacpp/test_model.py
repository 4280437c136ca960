"""A model on real llama.cpp: tokens and bytes, its template and BOS, refusals and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from lacli.errors import ModelLoadError
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from tests.fakes import tiny_models

SETTINGS = ModelSettings(context=256, gpu_layers=0, threads=1)


@pytest.fixture(scope="module")
def path(tiny_path: Path) -> Path:
    return tiny_path


@pytest.fixture(scope="module")
def model(tiny: LlamaModel) -> LlamaModel:
    return tiny


@pytest.mark.parametrize("text", ["the thing", "def f(x):\n    return x\n", "naïve € 漢字 🦙", "\x00\t tab", " ", ""])
def test_a_text_survives_tokens_and_back(text: str, model: LlamaModel) -> None:
    tokens = model.tokenize(text)
    assert b"".join(map(model.piece, tokens)).decode() == text
    assert all(0 <= token < model.vocabulary for token in tokens)
    assert len(model.tokenize(" the and the")) < len(" the and the"), "merges make a text shorter than its bytes"


def test_a_truncated_file_is_refused_and_to_be_fetched_again(path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelLoadError, match="cannot load damaged.gguf: .*fetch it again"):
        LlamaModel(damaged, SETTINGS)


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny_models.write_llama(tmp_path / "bare.gguf", "none")
    with pytest.raises(ModelLoadError, match="bare.gguf has no vocabulary"):
        LlamaModel(tmp_path / "bare.gguf", SETTINGS)


def test_the_log_stays_silent_unless_verbose(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    LlamaModel(path, SETTINGS).close()
    assert capfd.readouterr() == ("", "")
    LlamaModel(path, SETTINGS, verbose=True).close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny llama" in err
    LlamaModel(path, SETTINGS).close()
    assert capfd.readouterr() == ("", "")
