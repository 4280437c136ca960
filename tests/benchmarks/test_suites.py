"""Public suites: their files and rows, scores computed by hand, and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import huggingface_hub
import pytest

from benchmarks import suites
from benchmarks.scores import final_number
from benchmarks.suites import SUITES, load_suite, task_of
from lacli.bench.plan import Task
from tests.loading import STDLIB_7M

TURNS = {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]}
HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    pass\n"}
ROWS: Mapping[str, Mapping[str, object]] = {
    "spec-bench": TURNS,
    "humaneval": HUMANEVAL,
    "mt-bench": TURNS,
    "gsm8k": {"question": "6 times 7?", "answer": "#### 42"},
    "mbpp": {"task_id": 11, "text": "Write f.", "code": "f = 1", "test_list": ["assert f"]},
    "classeval": {"task_id": "ClassEval_0", "class_name": "A", "skeleton": "class A: ..."},
    "xsum": {"id": 1, "document": "Long.", "summary": "Short."},
    "cnn-dm": {"id": "a", "article": "Long.", "highlights": "Short."},
}
"""A row in the form of each suite, with our own words."""


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_reads_its_form_and_stops_at_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "rows.jsonl").write_text(f"{json.dumps(ROWS[name])}\n" * 1200)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(file))
    tasks = load_suite(name)
    limits = {"gsm8k": 1000, "xsum": 1000, "cnn-dm": 1000, "spec-bench": 6 * 1200}
    assert len(tasks) == limits.get(name, 1200)
    assert {task.kind for task in tasks} == ({"writing"} if "bench" in name else {name})


def test_rows_become_the_papers_prompts_and_limits() -> None:
    expected = Task(("def f():\n",), "humaneval", "HumanEval/0", raw=True, max_tokens=512, reference="    pass\n")
    assert task_of(HUMANEVAL) == expected
    classeval = task_of(ROWS["classeval"])
    assert classeval.max_tokens == 2048 and "```python\nclass A: ...\n```" in classeval.turns[0]
    gsm8k = task_of(ROWS["gsm8k"])
    assert gsm8k.turns[0].startswith("6 times 7?\n\n") and "42" not in gsm8k.turns[0]
    assert "\nassert f\n" in task_of(ROWS["mbpp"]).turns[0]
    summary = task_of({"id": "7", "document": "An {} article.", "summary": "Short."})
    assert "only using the following context:\nAn {} article.\nHere are some rules" in summary.system


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6*7=<<6*7=42>>42 apples.\n#### 42", "42"),
        ("He pays $1,234.50.", "1234.50"),
        ("That leaves \u22123 degrees", "-3"),
        ("She owes -$20, that is", "-20"),
        ("We take 10-3 apples", "3"),
        ("(12)-7", "7"),
    ],
)
def test_the_final_number_is_read_as_people_write_it(text: str, number: str) -> None:
    assert final_number(text) == Decimal(number)


def test_a_suites_file_is_measured_scored_and_sampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "rows.jsonl").write_text(json.dumps(ROWS["gsm8k"]) + "\n")
    quick = ["--model", str(STDLIB_7M), "--file", str(file), "--modes", "lookup", "-r", "1", "-n", "8", "-t", "1"]
    suites.main(["gsm8k", *quick])
    shown = " ".join(capsys.readouterr().out.split())
    assert "| exact_match |" in shown and "| lookup | 1 |" in shown and "identical" in shown
    file.write_text(json.dumps(HUMANEVAL) + "\n")
    suites.main(["humaneval", *quick, "--samples", str(tmp_path / "samples.jsonl")])
    written = sorted(path.name for path in tmp_path.glob("samples-*"))
    assert written == ["samples-lookup.jsonl", "samples-plain.jsonl"]
    assert json.loads((tmp_path / written[0]).read_text())["task_id"] == "HumanEval/0"
