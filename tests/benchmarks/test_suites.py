"""Public suites: their names, files and rows, and what a user is told when one cannot be fetched or read."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from benchmarks.suites import files, sets
from benchmarks.suites.files import read_suite
from benchmarks.suites.rows import task_from_suite
from benchmarks.suites.sets import SUITES, FetchError, Source, fetch, load_suite
from lacli.bench.tasks import Task
from lacli.errors import LacliError, UsageError
from tests.fakes.prompt_files import GOOD, TWO, complaint, write

SHARED = Path(__file__).parents[3] / "shared" / "data"
SOURCE = Source("someone/rows", "test.jsonl")
MISSING = errors.LocalEntryNotFoundError("not here")
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
    """Stands for the network: every file has `count` equal rows."""

    def __init__(self, folder: Path, row: Mapping[str, object], count: int) -> None:
        self.asked: list[tuple[str, bool, str | None]] = []
        self.path = folder / "rows.jsonl"
        self.path.write_text(f"{json.dumps(row)}\n" * count)

    def fetch(self, source: Source, *, offline: bool = False, cache: str | None = None) -> str:
        self.asked.append((source.file, offline, cache))
        return str(self.path)


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_reads_its_form_and_stops_where_it_should(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, ROWS[name], 1200)
    monkeypatch.setattr(sets, "fetch", hub.fetch)
    tasks = load_suite(name)
    limits = {"gsm8k": 1000, "xsum": 1000, "cnn-dm": 1000, "spec-bench": 6 * 1200}
    assert len(tasks) == limits.get(name, 1200)
    assert {task.kind for task in tasks} == ({"writing"} if "bench" in name else {name})


def test_spec_bench_is_mt_bench_and_five_classes_whose_rows_do_not_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, {"prompt": "Why?"}, 2)
    monkeypatch.setattr(sets, "fetch", hub.fetch)
    found = load_suite("spec-bench", offline=True, cache="somewhere")
    kinds = list(dict.fromkeys(task.kind for task in found))
    assert kinds == ["spec-bench", "translation", "summarization", "qa", "math_reasoning", "rag"]
    assert hub.asked[0][0] == "data/mt_bench/question.jsonl"
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

    monkeypatch.setattr(sets, "fetch", fail)
    with pytest.raises(LacliError) as caught:
        load_suite(name)
    assert caught.value.what == f"cannot fetch suite {name}: no connection to the hub"
    assert f"download {SUITES[name].address} " in caught.value.hint and "--file" in caught.value.hint
    assert "\n" not in str(caught.value) and caught.value.exit_code == 1


def test_what_is_to_be_downloaded_by_hand_needs_no_further_package_where_such_a_file_exists() -> None:
    by_hand = {name: suite.address.rsplit(".", 1)[-1] for name, suite in SUITES.items()}
    assert {name for name, ending in by_hand.items() if ending == "parquet"} == {"xsum", "cnn-dm"}
    assert all(suite.address.startswith("https://") for suite in SUITES.values())
    assert SOURCE.url == "https://huggingface.co/datasets/someone/rows/resolve/main/test.jsonl"
    assert Source("a/b", "c.json", space=True).url == "https://huggingface.co/spaces/a/b/resolve/main/c.json"


@pytest.mark.parametrize(
    "raw",
    [
        GOOD,
        b'[{"prompt": "one"},\n {"prompt": "two"}]\n',
        gzip.compress(GOOD),
        gzip.compress(b"\xef\xbb\xbf" + GOOD),
        gzip.compress(b'[{"prompt": "one"}, {"prompt": "two"}]'),
    ],
    ids=["lines", "list", "gzip", "gzip-bom", "gzip-list"],
)
def test_every_format_gives_the_same_tasks_whatever_the_files_name(tmp_path: Path, raw: bytes) -> None:
    assert read_suite(write(tmp_path, raw, "prompts.txt")) == TWO


def test_only_the_first_tasks_are_read_when_so_many_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + b"this line is never read\n")
    assert read_suite(path, first=2) == TWO


def test_a_bad_entry_of_a_list_is_named_by_its_row_and_bad_json_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, b'[{"prompt": "one"},\n\n 5]')
    assert complaint(read_suite, path) == f"{path}, row 2: not a JSON object"
    path = write(tmp_path, b'[{"prompt": "one"},\n {"prompt" "two"}]')
    assert complaint(read_suite, path) == f"{path}:2: not JSON, Expecting ':' delimiter at column 12"
    path = write(tmp_path, b'[{"prompt": "one"},\n {"prompt": "\xe9"}]')
    assert complaint(read_suite, path) == f"{path}:2: not UTF-8 text, byte 0xe9"


@pytest.mark.parametrize("harm", ["cut", "flipped", "tail"])
def test_a_damaged_gzip_file_is_said_to_be_damaged(tmp_path: Path, harm: str) -> None:
    raw = gzip.compress(GOOD * 100)
    harmed = {"cut": raw[:-20], "flipped": raw[:20] + bytes(9) + raw[29:], "tail": raw[:-8] + bytes(8)}
    path = write(tmp_path, harmed[harm], "prompts.jsonl.gz")
    assert complaint(read_suite, path) == f"{path} is damaged or cut short"


def test_a_list_that_is_packed_small_is_not_unpacked_without_an_end(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"[" + bytes(80 << 20), 1), "prompts.gz")
    assert "it is larger than 67.1 MB" in complaint(read_suite, path)


def test_a_parquet_file_is_read_row_by_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    count = files.BATCH + 3
    rows = [{"question": f"What is {number}?", "answer": f"#### {number}"} for number in range(count)]
    path = str(tmp_path / "test.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert [task.reference for task in read_suite(path)] == [f"#### {number}" for number in range(count)]
    assert len(read_suite(path, first=2)) == 2
    Path(path).write_bytes(Path(path).read_bytes()[:-30])
    assert complaint(read_suite, path) == f"{path} is damaged or cut short"


def test_a_parquet_file_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, b"PAR1....PAR1")
    with pytest.raises(LacliError) as caught:
        read_suite(path)
    assert str(caught.value) == f"{path} is a Parquet file, which needs pyarrow (pip install 'lacli[test]')"


@pytest.mark.skipif(not SHARED.exists(), reason="no files of the published suites here")
class TestPublishedFiles:
    def test_spec_bench_has_80_conversations_of_two_turns_and_400_questions(self) -> None:
        tasks = read_suite(str(SHARED / "spec_bench_question.jsonl"))
        assert [len(task.turns) for task in tasks] == [2] * 80 + [1] * 400
        assert len({task.kind for task in tasks[:80]}) == 8
        assert {task.kind for task in tasks[80:]} == {"translation", "summarization", "qa", "math_reasoning", "rag"}
        assert not any(task.raw or task.max_tokens for task in tasks)

    def test_humaneval_has_164_raw_functions_with_their_names(self) -> None:
        tasks = read_suite(str(SHARED / "HumanEval.jsonl.gz"))
        assert [task.name for task in tasks] == [f"HumanEval/{number}" for number in range(164)]
        assert all(task.raw and task.max_tokens == 512 and task.reference for task in tasks)
        for task in tasks:
            compile(task.turns[0] + task.reference, task.name, "exec")

    def test_plain_rows_keep_their_classes(self) -> None:
        tasks = read_suite(str(SHARED / "stdlib_prompts.jsonl"))
        assert {task.kind for task in tasks} == {"source", "edit", "explain", "write"}


def test_humaneval_is_completed_raw_in_at_most_512_tokens() -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    pass\n"}
    expected = Task(("def f():\n",), "humaneval", "HumanEval/0", raw=True, max_tokens=512, reference="    pass\n")
    assert task_from_suite({**row, "test": "def check(f): pass"}) == expected


def test_classeval_shows_the_skeleton_and_allows_2048_tokens() -> None:
    task = task_from_suite({"task_id": "ClassEval_0", "class_name": "Filter", "skeleton": "class Filter:\n    pass\n"})
    assert (task.kind, task.name, task.max_tokens, task.raw) == ("classeval", "ClassEval_0", 2048, False)
    assert "Filter" in task.turns[0] and "```python\nclass Filter:\n    pass\n```" in task.turns[0]


def test_gsm8k_asks_for_a_last_line_with_the_number_and_keeps_the_answer_to_itself() -> None:
    task = task_from_suite({"question": "How much is 6 times 7?", "answer": "6*7=42\n#### 42"})
    assert (task.kind, task.reference, task.max_tokens) == ("gsm8k", "6*7=42\n#### 42", 0)
    assert task.turns[0].startswith("How much is 6 times 7?\n\n") and "42" not in task.turns[0]


@pytest.mark.parametrize("field", ["text", "prompt"])
def test_mbpp_shows_the_tests_that_the_code_has_to_pass(field: str) -> None:
    row = {"task_id": 11, field: "Write a function.", "code": "def f(): ...", "test_list": ["assert f() == 1"]}
    task = task_from_suite(row)
    assert (task.kind, task.name, task.reference) == ("mbpp", "11", "def f(): ...")
    assert task.turns[0].startswith("Write a function.\n") and "\nassert f() == 1\n" in task.turns[0]


@pytest.mark.parametrize(
    ("kind", "source", "summary"), [("xsum", "document", "summary"), ("cnn-dm", "article", "highlights")]
)
def test_an_article_stands_in_the_system_text_of_the_papers_prompt(kind: str, source: str, summary: str) -> None:
    task = task_from_suite({"id": "7", source: "An {} article.", summary: "Short."})
    assert (task.kind, task.name, task.reference) == (kind, "7", "Short.")
    assert "only using the following context:\nAn {} article.\nHere are some rules" in task.system
    assert task.turns == ("Briefly summarize the given context.\nSummary:",)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"question": "a", "answer": "42"}, "the answer has no number after ####"),
        ({"text": "a", "code": "b", "test_list": "c"}, "test_list is not a list of strings"),
        ({"document": 1, "summary": "b"}, "document is not a text"),
        ({"text": "hello"}, "no prompt"),
        ({"turns": [], "question": "a", "answer": "#### 1"}, "turns is not a list of questions"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_what_to_do(row: dict[str, object], what: str) -> None:
    with pytest.raises(LacliError) as caught:
        task_from_suite(row)
    assert caught.value.what == what and caught.value.hint


def fail_online(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def download(*_: object, local_files_only: bool = False, **__: object) -> str:
        raise MISSING if local_files_only else error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)


def reason(*, offline: bool = False) -> str:
    with pytest.raises(FetchError) as caught:
        fetch(SOURCE, offline=offline)
    return str(caught.value)


def test_the_cache_is_asked_first_and_the_named_place_and_revision_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def download(repository: str, file: str, *, local_files_only: bool = False, **options: object) -> str:
        asked.append({"repository": repository, "file": file, "cached": local_files_only, **options})
        if local_files_only and file != "here.jsonl":
            raise MISSING
        return f"/cache/{file}"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert fetch(Source("someone/rows", "here.jsonl")) == "/cache/here.jsonl" and len(asked) == 1
    fetch(Source("someone/rows", "test.jsonl", revision="abc"), cache="somewhere")
    fetch(Source("someone/show", "test.jsonl", space=True))
    rows = {"repository": "someone/rows", "repo_type": "dataset", "revision": "abc", "cache_dir": "somewhere"}
    show = {"repository": "someone/show", "repo_type": "space", "revision": "main", "cache_dir": None}
    assert asked[1:] == [
        {**place, "file": "test.jsonl", "cached": cached} for place in (rows, show) for cached in (True, False)
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [(MISSING, "no connection to https://huggingface.co"), (RuntimeError("it broke\nin the middle"), "it broke")],
)
def test_why_a_download_failed_is_a_few_words(monkeypatch: pytest.MonkeyPatch, error: Exception, text: str) -> None:
    fail_online(monkeypatch, error)
    assert reason() == text
    assert reason(offline=True) == "test.jsonl of someone/rows is not in the cache"
