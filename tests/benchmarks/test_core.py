"""`python -m benchmarks.core`: what it says where it cannot begin."""

from __future__ import annotations

import sys

import pytest

from benchmarks.core import main


def test_a_missing_reference_program_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["core", "reference", "--model", "x.gguf", "--binary", "no-such-lookahead"])
    with pytest.raises(SystemExit) as end:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 1 and line.startswith("no-such-lookahead is not on PATH")
