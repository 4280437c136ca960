"""The public suites: their names, how many tasks each has, and what a user is told when one cannot be fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from lacli.bench import suites
from lacli.bench.fetch import FetchError, Source
from lacli.bench.suites import SUITES, load_suite
from lacli.errors import LacliError, UsageError

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
"""A row in each suite's form, with words of our own."""


class Hub:
    """Stands for the network: files of so many equal rows."""

    def __init__(self, folder: Path, row: Mapping[str, object], count: int) -> None:
        self.asked: list[tuple[str, bool, str | None]] = []
        self.path = folder / "rows.jsonl"
        self.path.write_text(f"{json.dumps(row)}\n" * count)

    def fetch(self, source: Source, *, offline: bool = False, cache: str | None = None) -> str:
        self.asked.append((source.file, offline, cache))
        return str(self.path)


def test_the_suites_of_the_paper_and_the_two_public_question_files_have_names() -> None:
    assert list(SUITES) == ["spec-bench", "humaneval", "mt-bench", "gsm8k", "mbpp", "classeval", "xsum", "cnn-dm"]


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_reads_its_form_and_stops_where_it_should(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, ROWS[name], 1200)
    monkeypatch.setattr(suites, "fetch", hub.fetch)
    tasks = load_suite(name)
    limits = {"gsm8k": 1000, "xsum": 1000, "cnn-dm": 1000, "spec-bench": 6 * 1200}
    assert len(tasks) == limits.get(name, 1200)
    assert {task.kind for task in tasks} == ({"writing"} if "bench" in name else {name})


def test_spec_bench_is_mt_bench_and_five_classes_whose_rows_do_not_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, {"prompt": "Why?"}, 2)
    monkeypatch.setattr(suites, "fetch", hub.fetch)
    kinds = list(dict.fromkeys(task.kind for task in load_suite("spec-bench")))
    assert kinds == ["spec-bench", "translation", "summarization", "qa", "math_reasoning", "rag"]
    assert hub.asked[0][0] == "data/mt_bench/question.jsonl"


def test_offline_and_the_cache_folder_reach_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tmp_path, TURNS, 1)
    monkeypatch.setattr(suites, "fetch", hub.fetch)
    load_suite("spec-bench", offline=True, cache="somewhere")
    assert {(offline, cache) for _, offline, cache in hub.asked} == {(True, "somewhere")}


def test_an_unknown_suite_is_named_with_those_that_exist() -> None:
    with pytest.raises(UsageError) as caught:
        load_suite("mtbench")
    assert caught.value.what == "there is no suite mtbench"
    assert all(name in caught.value.hint for name in SUITES)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_that_cannot_be_fetched_says_in_one_line_what_to_download_and_how_to_use_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Source, *, offline: bool = False, cache: str | None = None) -> str:
        raise FetchError("no connection to the hub")

    monkeypatch.setattr(suites, "fetch", fail)
    with pytest.raises(LacliError) as caught:
        load_suite(name)
    assert caught.value.what == f"cannot fetch suite {name}: no connection to the hub"
    assert f"download {SUITES[name].address} " in caught.value.hint and "--prompts FILE" in caught.value.hint
    assert "\n" not in str(caught.value) and caught.value.exit_code == 1


def test_what_is_to_be_downloaded_by_hand_needs_no_further_package_where_such_a_file_exists() -> None:
    by_hand = {name: suite.address.rsplit(".", 1)[-1] for name, suite in SUITES.items()}
    assert {name for name, ending in by_hand.items() if ending == "parquet"} == {"xsum", "cnn-dm"}
    assert all(suite.address.startswith("https://") for suite in SUITES.values())
