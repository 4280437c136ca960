"""Each mutant still finds its fragment in the code."""

from __future__ import annotations

from benchmarks.mutations import MUTANTS, ROOT


def test_each_fragment_stands_once_in_its_file() -> None:
    counts = {each.fragment: (ROOT / each.file).read_text("utf-8").count(each.fragment) for each in MUTANTS}
    assert {fragment: count for fragment, count in counts.items() if count != 1} == {}
    assert all((ROOT / test).exists() for each in MUTANTS for test in each.tests)
