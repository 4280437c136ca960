"""What is said of measured step costs, in a table, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lacli.auto.step_cost import Cost, MeasurePlan, StepCost
from lacli.bench.report import cost_json, cost_lines
from lacli.llamacpp.settings import ModelSettings

SETTINGS = ModelSettings(threads=4, threads_batch=4)
CPU = StepCost(64, {1: 0.01, 4: 0.025, 8: 0.05, 128: 0.55})
LONG = StepCost(2000, {1: 0.02, 8: 0.06})
GPU = StepCost(64, {1: 0.02, 64: 0.021, 128: 0.024})


def cost(*step_costs: StepCost, **more: Any) -> Cost:
    return Cost(step_costs, None, MeasurePlan(), "llama 7B Q4_0", "A processor", measured_at=1.75e9, **more)


def of_rows(*times: float) -> Cost:
    return cost(StepCost(64, dict(enumerate(times, start=1))))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (cost(CPU, LONG), f"W=15 N=5 G=15 needs {CPU.relative(120):.1f} tokens a step to break even"),
        (cost(CPU, LONG), "only if it expects more tokens a step than: 1.5 for 2 rows, 2.5 for 4 rows, 5.0 for 8"),
        (cost(CPU, LONG), "Rows are dear here: 8 of them cost 5.00 plain steps."),
        (cost(StepCost(64, {1: 0.01, 8: 0.025})), "Rows are middle here"),
        (cost(GPU), "Rows are cheap here: 8 of them cost 1.01 plain steps."),
        (cost(GPU), "Steps of up to 64 rows cost hardly more than a step of one row."),
        (of_rows(*range(1, 9)), "Whether W=15 N=5 G=15 saves time is not known: steps of its 120 rows were not"),
        (of_rows(*range(1, 9)), "Mode auto, the default, decodes plainly here"),
        (of_rows(1, 0.4), "Steps of at most 2 rows were timed, and a finding needs 8"),
        (cost(chain_only="it keeps one state"), "Not measured: it keeps one state."),
    ],
)
def test_the_conclusion_says_what_follows(found: Cost, words: str) -> None:
    assert words in " ".join(cost_lines(SETTINGS, found).split())
    assert words in cost_json(Path("toy"), SETTINGS, found, is_saved=False)["summary"]


def test_the_json_holds_the_same_numbers() -> None:
    found = json.loads(json.dumps(cost_json(Path("toy.gguf"), SETTINGS, cost(CPU, LONG), is_saved=True)))
    short, _ = found.pop("staircases")
    assert short["rows"] == [1, 4, 8, 128] and short["ms"] == [10, 25, 50, 550]
    assert short["relative"] == [1, 2.5, 5, 55]
    assert (found["cached"], found["threads"], found["chain_only"], found["model"]) == (True, 4, None, "toy.gguf")
    assert found["measured_at"] == "2025-06-15T15:06:40+00:00"
