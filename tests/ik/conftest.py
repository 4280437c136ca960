"""The tests of this folder use ik_llama.cpp."""

from __future__ import annotations

import pytest

from lacli.ik.context import version


@pytest.fixture(autouse=True)
def ik_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.engine.libraries.version", version)
