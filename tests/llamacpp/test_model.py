"""A model on real llama.cpp: tokens and bytes, its template and BOS, refusals and what they say."""

from __future__ import annotations

from collections.abc import Sequence
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


def test_of_a_truncated_file_is_told_how_much_is_there(path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelLoadError, match="damaged.gguf has [0-9,]+ of its [0-9,]+ bytes"):
        LlamaModel(damaged, SETTINGS)


IN_BRACKETS = [f"<0x{byte:02X}>" for byte in range(256)]
"""The bytes as vocabularies of the kind `llama` write them."""


def with_bytes(written: Sequence[str], *words: str) -> list[str]:
    """A vocabulary of these bytes and words, as large as TOKENS."""
    tokens = [*tiny_models.SPECIAL_TOKENS, *written, *words]
    return [*tokens, *(f"<unused{number}>" for number in range(len(tiny_models.TOKENS) - len(tokens)))]


def test_a_vocabulary_without_its_bytes_is_refused_before_a_text_needs_them(tmp_path: Path) -> None:
    whole, foreign, short = (tmp_path / f"{name}.gguf" for name in ("whole", "foreign", "short"))
    tiny_models.write_llama(whole, "llama", with_bytes(IN_BRACKETS))
    with LlamaModel(whole, SETTINGS) as model:
        assert len(model.tokenize("the thing, naïve €\n", add_special=False)) > len("naïve €")
    tiny_models.write_llama(foreign, "llama")
    tiny_models.write_llama(short, "llama", with_bytes([each for each in IN_BRACKETS if each != "<0xC3>"], "ï"))
    for path in (foreign, short):
        with pytest.raises(ModelLoadError, match=rf"{path.name}: its tokenizer is of the kind 'llama', and .* bytes"):
            LlamaModel(path, SETTINGS)


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny_models.write_llama(tmp_path / "bare.gguf", "none")
    with pytest.raises(ModelLoadError, match="bare.gguf: it has no vocabulary"):
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
