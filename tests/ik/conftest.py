"""ik_llama.cpp is there in the tests of this folder."""

from __future__ import annotations

import pytest

from lacli.ik.context import version


@pytest.fixture(autouse=True)
def ik_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.engine.libraries.version", version)
