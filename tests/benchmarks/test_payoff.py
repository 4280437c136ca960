"""The payoff of W, N and G by hand, from the JSON of `lacli cost` to the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import payoff
from benchmarks.insight.law import PAPER
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.bench.cost_report import as_json
from lacli.llamacpp.settings import ModelSettings

STAIRS = StepCost(64, (Point(1, 2.0, 2.0), Point(4, 3.2, 2.6), Point(8, 6.0, 4.0), Point(16, 10.0, 6.4)))


def test_the_table_has_what_settings_must_bring_and_what_the_law_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(as_json(Path("m"), ModelSettings(), Cost((STAIRS,)), is_kept=False)))
    monkeypatch.setattr(sys, "argv", ["payoff", str(path)])
    payoff.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 + len(payoff.WINDOWS) and "Behind 64 tokens" in lines[0]
    rows = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[4:]}
    # W=1 N=3: four rows, all of which are read. W=2: eight rows, the choices of seven of them are read.
    assert rows["1"][1] == "1.6" and rows["1"][6] == f"{PAPER.compression(2, 1) / 1.6:.2f}"
    assert rows["2"][1] == f"{(4.0 + 2.0 * 6 / 7) / 2.0:.1f}" and rows["0"][6] == "-"
    assert rows["5"][1].startswith("~") and rows["15"][3] == "-"
