"""The fuzzer: a run of each kind is clean."""

from __future__ import annotations

import sys

import pytest

from benchmarks import fuzz

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it bounds memory as Linux does")


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_a_run_of_each_kind_is_clean(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--runs", "1", "--seed", "1", kind]) == 0, capsys.readouterr().out
