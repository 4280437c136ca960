"""Several texts measured at once: every answer has its tokens, and what the tables make of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.many import Group, main, tables
from tests.loading import STDLIB_7M


def group(contender: str, texts: int, seconds: float, lap: int = 1) -> Group:
    """Four tokens for each of `texts`, the first after a quarter of the time."""
    return Group("edit", texts, contender, lap, [[0.0, seconds / 4, seconds / 2, seconds / 2, seconds]] * texts)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_tables_show_speeds_of_all_texts_ratios_waits_and_what_company_costs() -> None:
    groups = [group("plain", 1, 1.0), group("auto", 1, 0.5), group("plain", 4, 2.0), group("auto", 4, 1.0)]
    speeds, decoding, ratios, waits, company = map(cells, tables(groups))
    assert speeds[0] == ["prompts", "texts", "plain", "auto"] and ratios[0] == ["prompts", "texts", "plain"]
    assert speeds[2:] == [["edit", "1", "4.0", "8.0"], ["edit", "4", "8.0", "16.0"]]
    # Three tokens of each come in three quarters of the time.
    assert [row[2:] for row in decoding[2:]] == [row[2:] for row in speeds[2:]]
    assert [row[2] for row in ratios[2:]] == ["2.00 (2.00 to 2.00)"] * 2
    assert waits[2:] == [["edit", "1", "0.25", "0.12"], ["edit", "4", "0.50", "0.25"]]
    assert [row[2:] for row in company[2:]] == [["1.00", "1.00"], ["2.00", "2.00"]]


def test_ratios_are_of_groups_of_the_same_round() -> None:
    slow_round = [group("plain", 1, 10.0, lap=2), group("auto", 1, 5.0, lap=2)]
    groups = [group("plain", 1, 1.0), group("auto", 1, 0.5), *slow_round, group("plain", 1, 1.0, lap=3)]
    ratios = cells(list(tables(groups))[2])
    assert ratios[2][2] == "2.00 (2.00 to 2.00)"


def test_answers_on_this_machine_go_on_behind_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    model, words = (
        str(STDLIB_7M),
        f"many here --texts 2 --each 2 --rounds 1 --classes edit --contenders plain,auto --limit 50 --json {rows}",
    )
    monkeypatch.setattr(sys, "argv", [*words.split(), "--model", model])
    main()
    first, *counted = map(json.loads, rows.read_text().splitlines())
    assert (first["contender"], first["lap"]) == ("auto", 0)
    assert [row["contender"] for row in counted] == ["auto", "plain"]
    # By itself the first answer has 43 tokens.
    assert [len(times) for row in counted for times in row["answers"]] == [1 + 50] * 8
    for row in counted:
        ends = [times[-1] for times in row["answers"]]
        assert [times[0] > 0.5 * min(ends) for times in row["answers"]] == [False, False, True, True]
    assert len(capsys.readouterr().out.split("\n\n")) == 5
