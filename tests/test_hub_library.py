"""The hub's library: no secret of its addresses is told, and none of a developer's own settings reaches a test."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils.logging import get_verbosity, set_verbosity

from lacli.hub.library import careful_library, reason, without_secrets
from tests.here import (
    NAME,
    looking_up,
    tiny_hub,
    tiny_model,
)
from tests.program import environment

CLOSED = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "text", ["user:s3cret@a.b", "https://user:s3cret@a.b/", "https://user:s3/c?r#et@a.b", "u@s3cret:p@a.b"]
)
def test_no_password_is_left_in_an_address(text: str) -> None:
    assert without_secrets(text).removeprefix("https://").removesuffix("/") == "a.b"
    if "//" in text:
        assert "s3cret" not in without_secrets(f"cannot ask {text}, which is no address")


def test_a_library_that_quotes_the_address_tells_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "user:s3cret@a.b")
    why = reason(ValueError("cannot ask user:s3cret@a.b for it"), NAME)
    assert why.why == "cannot ask a.b for it"


@pytest.mark.parametrize("name", ["HF_HUB_DISABLE_SYMLINKS", "HF_HUB_OFFLINE"])
def test_the_developers_own_settings_of_the_library_change_no_test(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, name, True)
    monkeypatch.setenv("HTTP_PROXY", CLOSED)
    hub = tiny_hub(tiny_model(tmp_path))
    with hub.running(), looking_up(hub, tmp_path / "hub", monkeypatch) as here:
        assert here.find(NAME).is_symlink()


@pytest.mark.parametrize(
    "name", ["HUGGING_FACE_HUB_TOKEN", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_SYMLINKS", "ALL_PROXY"]
)
def test_no_program_that_a_test_starts_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (name, name.lower() if "PROXY" in name else name):
        monkeypatch.setenv(each, "1")
        assert each not in environment()


def test_the_library_is_as_loud_afterwards_as_before() -> None:
    before = get_verbosity()
    try:
        set_verbosity(logging.INFO)
        with careful_library():
            assert get_verbosity() == logging.ERROR
        assert get_verbosity() == logging.INFO
    finally:
        set_verbosity(before)
