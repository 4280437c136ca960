"""The fuzzer: a few runs of each kind are clean, and what is not clean is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks.fuzz import Run, problem

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it bounds memory as Linux does")


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_a_run_of_each_kind_is_clean(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--runs", "1", "--seed", "1", kind]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ValueError('no')", "a traceback: ValueError: no"),
        ("import os; os.abort()", "SIGABRT"),
        ("import sys; sys.exit(9)", "exit code 9"),
        ("bytearray(5 << 30)", "a traceback: MemoryError"),
        ("import sys; sys.exit(3)", ""),
    ],
)
def test_an_unclean_end_is_told(program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacli.py").write_text(program)
    monkeypatch.setattr(fuzz, "ROOT", tmp_path)
    assert problem(Run(()), tmp_path) == said
