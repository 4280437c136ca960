"""Prompt files: which formats are read, and that everything unreadable is one line with the file and the place."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lacli.bench import task_files
from lacli.bench.task_files import read_tasks
from lacli.bench.tasks import Task
from lacli.errors import LacliError

SHARED = Path(__file__).parents[2] / "shared" / "data"

GOOD = b'{"prompt": "one"}\n{"prompt": "two"}\n'
TWO = [Task(("one",)), Task(("two",))]


def write(folder: Path, raw: bytes, name: str = "prompts.jsonl") -> str:
    path = folder / name
    path.write_bytes(raw)
    return str(path)


def complaint(path: str) -> str:
    with pytest.raises(LacliError) as caught:
        read_tasks(path)
    assert caught.value.hint and "\n" not in str(caught.value)
    return caught.value.what


@pytest.mark.parametrize(
    "raw",
    [
        GOOD,
        GOOD.rstrip(),
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        b"\n \n" + GOOD.replace(b"\n", b"\n\n"),
        b'[{"prompt": "one"},\n {"prompt": "two"}]\n',
        gzip.compress(GOOD),
        gzip.compress(b"\xef\xbb\xbf" + GOOD),
        gzip.compress(b'[{"prompt": "one"}, {"prompt": "two"}]'),
    ],
    ids=["lines", "no-last-newline", "crlf", "bom", "blank-lines", "list", "gzip", "gzip-bom", "gzip-list"],
)
def test_every_format_gives_the_same_tasks_whatever_the_files_name(tmp_path: Path, raw: bytes) -> None:
    assert read_tasks(write(tmp_path, raw, "prompts.txt")) == TWO


def test_only_the_first_tasks_are_read_when_so_many_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + b"this line is never read\n")
    assert read_tasks(path, first=2) == TWO


def test_rows_without_a_class_get_the_callers(tmp_path: Path) -> None:
    raw = b'{"prompt": "one"}\n{"prompt": "two", "class": "chat"}\n'
    assert [task.kind for task in read_tasks(write(tmp_path, raw), kind="qa")] == ["qa", "chat"]


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, GOOD)
    assert read_tasks("~/prompts.jsonl") == TWO


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_prompts_can_come_through_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = Thread(target=path.write_bytes, args=(GOOD,))
    writer.start()
    assert read_tasks(str(path)) == TWO
    writer.join()


def test_the_form_can_change_from_row_to_row(tmp_path: Path) -> None:
    rows = [{"prompt": "one"}, {"question_id": 1, "category": "qa", "turns": ["two", "three"]}]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)).encode())
    assert read_tasks(path) == [Task(("one",)), Task(("two", "three"), "qa", "1")]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"prompt": "x"', "not JSON, Expecting ',' delimiter at column 15"),
        (b"hello", "not JSON, Expecting value at column 1"),
        (b'"hello"', "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"text": "x"}', "no prompt"),
        (b'{"prompt": 5}', "prompt is not a text"),
        (b'{"turns": []}', "turns is not a list of messages"),
        (b'{"prompt": "\xff"}', "not UTF-8 text, byte 0xff"),
        (b'{"prompt": ' + b"[" * 200000, "JSON too deep, or with too long a number, to be read"),
        (b'{"limit": ' + b"9" * 5000 + b"}", "JSON too deep, or with too long a number, to be read"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, what: str, packed: bool) -> None:
    raw = b'{"prompt": "one"}\n\n' + line + b"\n"
    path = write(tmp_path, gzip.compress(raw) if packed else raw)
    assert complaint(path) == f"{path}:3: {what}"


def test_a_bad_entry_of_a_list_is_named_by_its_row_and_bad_json_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, b'[{"prompt": "one"},\n\n 5]')
    assert complaint(path) == f"{path}, row 2: not a JSON object"
    path = write(tmp_path, b'[{"prompt": "one"},\n {"prompt" "two"}]')
    assert complaint(path) == f"{path}:2: not JSON, Expecting ':' delimiter at column 12"
    path = write(tmp_path, b'[{"prompt": "one"},\n {"prompt": "\xe9"}]')
    assert complaint(path) == f"{path}:2: not UTF-8 text, byte 0xe9"


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"[]", gzip.compress(b"")], ids=["empty", "blank", "list", "gzip"])
def test_a_file_without_rows_is_said_to_hold_none(tmp_path: Path, raw: bytes) -> None:
    path = write(tmp_path, raw)
    assert complaint(path) == f"{path} holds no prompts"


def test_a_file_that_is_not_there_and_a_folder_cannot_be_read(tmp_path: Path) -> None:
    assert complaint(f"{tmp_path}/nothing") == f"cannot read {tmp_path}/nothing: No such file or directory"
    assert complaint(str(tmp_path)) == f"cannot read {tmp_path}: Is a directory"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_said_so(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    os.chmod(path, 0)
    assert complaint(path) == f"cannot read {path}: Permission denied"


@pytest.mark.parametrize("harm", ["cut", "flipped", "tail"])
def test_a_damaged_gzip_file_is_said_to_be_damaged(tmp_path: Path, harm: str) -> None:
    raw = gzip.compress(GOOD * 100)
    harmed = {"cut": raw[:-20], "flipped": raw[:20] + bytes(9) + raw[29:], "tail": raw[:-8] + bytes(8)}
    path = write(tmp_path, harmed[harm], "prompts.jsonl.gz")
    assert complaint(path) == f"{path} is damaged or cut short"


def test_a_line_without_an_end_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "MAX_TEXT", 1 << 20)
    path = write(tmp_path, b'{"prompt": "one"}\n' + bytes(2 << 20))
    assert complaint(path) == f"{path}:2: a line of more than 1 MiB"


def test_lines_without_an_end_are_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "MOST_LINES", 1 << 20)
    path = write(tmp_path, b'{"prompt": "one"}\n' * (1 << 16))
    assert complaint(path).endswith(": more than 1 MiB of prompts")


def test_a_list_that_is_packed_small_is_not_unpacked_without_an_end(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"[" + bytes(80 << 20), 1), "prompts.gz")
    assert "it is larger than 67.1 MB" in complaint(path)


def test_a_parquet_file_is_read_row_by_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    count = task_files.BATCH + 3
    rows = [{"question": f"What is {number}?", "answer": f"#### {number}"} for number in range(count)]
    path = str(tmp_path / "test.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert [task.reference for task in read_tasks(path)] == [f"#### {number}" for number in range(count)]
    assert len(read_tasks(path, first=2)) == 2
    Path(path).write_bytes(Path(path).read_bytes()[:-30])
    assert complaint(path) == f"{path} is damaged or cut short"


def test_a_bad_row_of_a_parquet_file_is_named_by_its_number(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "test.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "one"}, {"prompt": ""}]), path)
    assert complaint(path) == f"{path}, row 2: prompt is empty"


def test_a_parquet_file_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, b"PAR1....PAR1")
    with pytest.raises(LacliError) as caught:
        read_tasks(path)
    assert str(caught.value) == f"{path} is a Parquet file, which needs pyarrow (pip install 'lacli[suites]')"


@pytest.mark.skipif(not SHARED.exists(), reason="no files of the published suites here")
class TestPublishedFiles:
    def test_spec_bench_has_80_conversations_of_two_turns_and_400_questions(self) -> None:
        tasks = read_tasks(str(SHARED / "spec_bench_question.jsonl"))
        assert [len(task.turns) for task in tasks] == [2] * 80 + [1] * 400
        assert len({task.kind for task in tasks[:80]}) == 8
        assert {task.kind for task in tasks[80:]} == {"translation", "summarization", "qa", "math_reasoning", "rag"}
        assert not any(task.raw or task.limit for task in tasks)

    def test_humaneval_has_164_raw_functions_with_their_names(self) -> None:
        tasks = read_tasks(str(SHARED / "HumanEval.jsonl.gz"))
        assert [task.name for task in tasks] == [f"HumanEval/{number}" for number in range(164)]
        assert all(task.raw and task.limit == 512 and task.reference for task in tasks)
        for task in tasks:
            compile(task.turns[0] + task.reference, task.name, "exec")

    def test_plain_rows_keep_their_classes(self) -> None:
        tasks = read_tasks(str(SHARED / "stdlib_prompts.jsonl"))
        assert {task.kind for task in tasks} == {"source", "edit", "explain", "write"}


def test_a_file_is_closed_as_soon_as_one_of_its_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n{"prompt": 7}\n{"prompt": "never read"}\n')
    opened = []

    def noting(*arguments: Any, **options: Any) -> Any:
        opened.append(open(*arguments, **options))  # noqa: SIM115  # closing it is what is tested
        return opened[-1]

    monkeypatch.setattr("lacli.bench.task_files.open", noting, raising=False)
    with pytest.raises(LacliError) as refused:
        read_tasks(str(path))
    # The error still holds on to where it came from.
    assert refused.value and [file.closed for file in opened] == [True]
