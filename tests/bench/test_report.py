"""A benchmark's tables."""

from __future__ import annotations

from lacli.bench.report import as_lines, lined_up, speeds
from lacli.bench.tasks import ALL
from tests.fakes.bench_field import LOOKAHEAD, LOOKUP, MACHINE, PLAIN, free, run
from tests.fakes.clock import FakeClock

LOOKAHEAD_LABEL = "lookahead W=3 N=3 G=2"


def test_the_tables_show_every_class_and_mode_in_a_form_that_markdown_reads(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKUP, LOOKAHEAD)
    text = as_lines(found, MACHINE)
    for words in ("code", "edit", ALL, "plain", "lookup", "lookahead W=3 N=3 G=2", "toy 1M F32", "a processor"):
        assert words in text
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            assert len({line.count("|") for line in lines}) == 1 and set(lines[1]) <= set("|-:")


def test_tables_for_a_terminal_fit_it_and_lose_nothing(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKUP, LOOKAHEAD)
    whole = speeds(found, MACHINE, lined_up(0))
    assert max(map(len, whole.splitlines())) > 80 and len(whole.splitlines()) == 10
    for width in (80, 60, 40):
        text = speeds(found, MACHINE, lined_up(width))
        assert max(map(len, text.splitlines())) <= width and "…" not in text
        assert set(text.split()) == set(whole.split())
        assert text.count(LOOKAHEAD_LABEL) == 3 * (text.strip().count("\n\n") + 1)
