"""What is said of measured step costs, in a table, in words and as JSON."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.bench.cost_report import as_json, as_lines, conclusion
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.files import PAGE

SETTINGS = ModelSettings(threads=4, threads_batch=4)
CPU = StepCost(64, (Point(1, 0.01, 0.01), Point(4, 0.025, 0.02), Point(8, 0.05, 0.04), Point(128, 0.55, 0.5)))
LONG = StepCost(2000, (Point(1, 0.02, 0.02), Point(8, 0.06, 0.05)))
GPU = StepCost(64, (Point(1, 0.02, 0.02), Point(64, 0.021, 0.0205), Point(128, 0.024, 0.022)))
ROUGH = StepCost(64, (Point(1, 1.0, 1.0, 0.5), Point(2, 1.5, 1.5, 0.4)))
DIPS = StepCost(
    64, (Point(1, 1.0, 1.0), Point(2, 1.9, 1.9), Point(3, 2.8, 2.8), Point(4, 1.85, 1.8), Point(8, 4.0, 4.0))
)
FULL = DecodeSettings(mode="lookahead")


def cost(*step_costs: StepCost, **more: Any) -> Cost:
    return Cost(step_costs, "llama 7B Q4_0", "A processor", measured_at=1.75e9, budget=20.0, **more)


def of_rows(*times: float, rows: tuple[int, ...] = (1, 2, 4, 8)) -> Cost:
    return cost(StepCost(64, tuple(Point(*each) for each in zip(rows, times, times, strict=False))))


def test_every_measured_number_is_in_the_table() -> None:
    lines = as_lines(SETTINGS, cost(CPU, LONG)).split("\n\n")[1].splitlines()
    assert "behind 64 tokens" in lines[1] and "behind 2000 tokens" in lines[1]
    assert [re.split(r" {2,}", line.strip()) for line in lines[2:]] == [
        ["rows", "ms", "times", "a row"] * 2,
        ["1", "10.0", "1.00", "1", "20.0", "1.00"],
        ["4", "25.0", "2.50", "5.00", "8", "60.0", "3.00", "5.71"],
        ["8", "50.0", "5.00", "6.25"],
        ["128", "550.0", "55.00", "4.17"],
    ]


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_nothing_is_wider_than_the_terminal_and_tables_without_room_stand_below_each_other(width: int) -> None:
    found = cost(CPU, LONG, notes=("contexts above 64 tokens take too long",))
    text = as_lines(SETTINGS, found, 7200.0, width=width, chart=True)
    assert max(map(len, text.splitlines())) <= width
    whole = as_lines(SETTINGS, found, 7200.0, width=400)
    assert set(whole.split()) <= set(text.split())
    assert ("behind 64 tokens" in text) and (("behind 64 tokens   " in text) == (width > 40))


most = FULL.max_step_tokens


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (cost(CPU, LONG), "A step of 128 rows costs 55 plain ones, 43% of a plain step for each further row."),
        (
            cost(CPU, LONG),
            f"Do not use W=15 N=5 G=15 here: it needs {CPU.relative(120, 76):.1f} tokens a step to break even and can "
            f"bring {most} at most. No --preset is likely to pay either.",
        ),
        (cost(CPU, LONG), "only where it expects more tokens a step than: 1.5 for 2 rows, 2.5 for 4 rows, 5.0 for 8"),
        (cost(CPU, LONG), "Rows are dear here"),
        (cost(CPU, LONG), "2.7 times as fast at most, with 8 rows, the best of the sizes measured"),
        (cost(GPU), "Steps of up to 64 rows cost hardly more than one of a single row."),
        (cost(GPU), "W=15 N=5 G=15 may pay here: it needs 1.1 tokens a step to break even and can bring 18 at most"),
        (cost(GPU), "Rows are cheap here"),
        (of_rows(1, 1.05, rows=(1, 64)), "it needs about 1.1 tokens"),
        (of_rows(1, 1.7, 2.8, 4, 5, rows=(1, 4, 16, 64, 128)), "W=15 N=5 G=15 may pay"),
        (of_rows(1, 3, 9, rows=(1, 64, 128)), "will hardly pay here: it needs"),
        (of_rows(1, 3, 60, rows=(1, 80, 128)), "These presets may pay: --preset "),
        (of_rows(1, 6, 9, rows=(1, 8, 128)), "No --preset is likely to pay either."),
        (of_rows(1, 0.9), "Up to the 2 rows measured they are nearly free"),
        (of_rows(1, 1.5), "Whether W=15 N=5 G=15 pays is not known: its full steps have 120 rows"),
        (of_rows(1, most - 0.5, rows=(1, 32)), "pays is not known"),
        (of_rows(1, most + 0.5, rows=(1, 32)), "Do not use W=15 N=5 G=15 here: its full steps have 120 rows"),
        (of_rows(1, 2.5), "2.5 plain ones, 1.5 times a plain step for each further row"),
        (of_rows(1, 2.5), "even guesses that all come true would not pay"),
        (of_rows(1, 1.97), "even guesses that all come true would not pay"),
        (of_rows(1, 2.5), "Mode auto, the default, will decode plainly here"),
        (cost(DIPS), "Steps of 4 rows cost less than the next smaller ones measured"),
        (of_rows(1, 9, 4, 9, 5, rows=(1, 2, 4, 6, 8)), "Steps of 4 and 8 rows cost less"),
        (cost(ROUGH), "too rough to say"),
        (cost(CPU, chain_only="one state"), "Lookahead is not for this model, which can go back along a chain"),
        (of_rows(0.5), "Only steps of a single row were measured"),
        (cost(chain_only="it keeps one state"), "There is nothing to choose: it keeps one state."),
    ],
)
def test_the_conclusion_says_what_follows(found: Cost, words: str) -> None:
    said = conclusion(found)
    assert words in said and words in " ".join(as_lines(SETTINGS, found, width=400).split())
    assert as_json(Path("toy"), SETTINGS, found, is_kept=False)["summary"] == said
    assert ("rough" in said) == found.rough and not ("W=" in said and found.chain_only)
    assert ("cost less than" in said) == any(
        after.every < 0.95 * before.every for each in found.staircases for before, after in pairwise(each.points)
    )


def test_the_heading_has_the_age_and_the_notes() -> None:
    note = " ".join(["contexts above 64 tokens take too long"] * 4)
    heading = as_lines(SETTINGS, cost(CPU, notes=(note,)), 7200.0).partition("\n\n")[0]
    assert ", 2 hours ago (--fresh measures again)" in heading and "--fresh" not in as_lines(SETTINGS, cost(CPU))
    assert "\nnote      contexts" in heading and "\n" + " " * 10 in heading
    assert max(map(len, heading.splitlines())) <= PAGE


def test_the_json_holds_the_same_numbers() -> None:
    found = json.loads(json.dumps(as_json(Path("toy.gguf"), SETTINGS, cost(CPU, LONG), is_kept=True)))
    short, long = found.pop("staircases")
    assert short["context"] == 64 and long["context"] == 2000
    assert short["rows"] == [1, 4, 8, 128] and short["ms"] == [10, 25, 50, 550] and short["one_read_ms"][1] == 20
    assert short["relative"] == [1, 2.5, 5, 55] and short["repeats"] == [1] * 4 and short["spread"] == [0] * 4
    assert (long["ceiling_rows"], long["ceiling_speedup"], long["nearly_free_rows"]) == (8, 2.6667, 1)
    assert long["row_cost"] == 0.2857
    assert (found["cached"], found["threads"], found["chain_only"], found["model"]) == (True, 4, None, "toy.gguf")
    assert found["measured_at"] == "2025-06-15T15:06:40+00:00"
    assert as_json(Path("m"), SETTINGS, cost(chain_only="one state"), is_kept=False)["chain_only"] == "one state"
