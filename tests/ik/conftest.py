"""ik_llama.cpp is there in the tests of this folder."""

from __future__ import annotations

import pytest

from lacli.ik import engine
from lacli.ik.engine import version


@pytest.fixture(autouse=True)
def ik_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "version", version)
