"""The hub's library: no secret of its addresses is told, and none of a developer's own settings reaches a test."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils.logging import get_verbosity, set_verbosity

from lacli.hub.library import careful_library, reason, without_secrets
from tests.here import NAME, looking_up, tiny_hub
from tests.program import environment


@pytest.mark.parametrize(
    "text", ["user:s3cret@a.b", "https://user:s3cret@a.b/", "https://user:s3/c?r#et@a.b", "u@s3cret:p@a.b"]
)
def test_no_password_is_left_in_an_address(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert without_secrets(text).removeprefix("https://").removesuffix("/") == "a.b"
    if "//" in text:
        assert "s3cret" not in without_secrets(f"cannot ask {text}, which is no address")
    monkeypatch.setattr(constants, "ENDPOINT", text)
    assert "s3cret" not in reason(ValueError(f"cannot ask {text} for it"), NAME).why


@pytest.mark.parametrize("name", ["HF_HUB_DISABLE_SYMLINKS", "HF_HUB_OFFLINE"])
def test_the_developers_own_settings_of_the_library_change_no_test(
    name: str, tiny: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, name, True)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with tiny_hub(tiny).running() as hub, looking_up(hub, tmp_path / "hub", monkeypatch) as here:
        assert here.find(NAME).is_symlink()
    for each in ("HUGGING_FACE_HUB_TOKEN", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_SYMLINKS", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(each, "1")
        assert each not in environment()


def test_the_library_is_as_loud_afterwards_as_before() -> None:
    before = get_verbosity()
    try:
        set_verbosity(logging.INFO)
        with careful_library():
            assert get_verbosity() == logging.CRITICAL
        assert get_verbosity() == logging.INFO
    finally:
        set_verbosity(before)
