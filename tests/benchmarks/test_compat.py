"""The lists of llama.cpp's tests in docs/serve.md, and the flags that its tests give."""

from __future__ import annotations

from benchmarks.compat.__main__ import FAILS_TOO, LEFT_OUT, OURS, PASSES, Results, in_lists
from benchmarks.compat.program import own_flags


def results(**outcomes: str) -> Results:
    return {
        f"test_{name.replace('__', '.py::test_', 1)}": {"outcome": outcome, "why": ""}
        for name, outcome in outcomes.items()
    }


def test_every_test_stands_in_one_list() -> None:
    theirs = results(a__one="passed", a__two="failed", a__three="passed", security__cors_options="passed")
    ours = results(a__one="passed", a__two="failed", a__three="failed", security__cors_options="failed")
    lists = in_lists(theirs, ours)
    assert (lists[PASSES], lists[FAILS_TOO], lists[OURS]) == (
        "1 tests:\n\n- test_a.py: one",
        "1 tests.",
        "1 tests:\n\n- test_a.py: three",
    )
    assert "cors_options (CORS by default" in lists[LEFT_OUT]


def test_slots_share_the_context_as_llama_servers_do() -> None:
    flags = own_flags(["--model", "a", "--ctx-size", "512", "--parallel", "2", "--metrics"])
    assert flags[flags.index("--ctx-size") + 1] == "256" and "--no-metrics" not in flags
