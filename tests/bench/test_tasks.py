"""The prompts that ship with lacli, and prompt files: what is read, and one line for what cannot be."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from threading import Thread

import pytest

from lacli.bench import tasks as bench_tasks
from lacli.bench.tasks import CLASSES, OWN, Task, built_in, read_tasks, task_from_row, tasks_of
from lacli.errors import LacliError, UsageError
from tests.fakes.prompt_files import GOOD, TWO, complaint, write

BAD_LINES: list[tuple[bytes, str]] = [
    (b'{"prompt": "x"', "not JSON, Expecting ',' delimiter at column 15"),
    (b"hello", "not JSON, Expecting value at column 1"),
    (b'"hello"', "not a JSON object"),
    (b"[1]", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"text": "x"}', "no prompt"),
    (b'{"prompt": 5}', "prompt is not a text"),
    (b'{"turns": []}', "turns is not a list of questions"),
    (b'{"prompt": "\xff"}', "not UTF-8 text, byte 0xff"),
    (b'{"prompt": ' + b"[" * 200000, "JSON too deep, or with too long a number, to be read"),
    (b'{"limit": ' + b"9" * 5000 + b"}", "JSON too deep, or with too long a number, to be read"),
]


def test_every_class_has_eight_prompts_in_the_order_of_the_table_and_none_comes_twice() -> None:
    tasks = built_in()
    kinds = [task.kind for task in tasks]
    assert list(dict.fromkeys(kinds)) == list(CLASSES) and min(Counter(kinds).values()) >= 8
    assert len({task.turns for task in tasks}) == len({task.name for task in tasks}) == len(tasks)
    assert {len(task.turns) for task in tasks} == {1, 2}
    assert not any(task.raw or task.max_tokens or task.system for task in tasks)


def test_classes_can_be_chosen_and_keep_the_tables_order(tmp_path: Path) -> None:
    assert [*dict.fromkeys(task.kind for task in tasks_of(None, "forms, code"))] == ["code", "forms"]
    with pytest.raises(UsageError, match="there is no prompt class poems") as caught:
        tasks_of(None, "code,poems")
    assert all(name in caught.value.hint for name in CLASSES)
    path = write(tmp_path, b'{"prompt": "one", "class": "a"}\n{"prompt": "two", "class": "all"}\n')
    assert [task.kind for task in tasks_of(path, None)] == ["a", "class all"], "none is taken for the total"
    assert tasks_of(path, "a") == [Task(("one",), "a")]


@pytest.mark.parametrize(
    "raw",
    [
        GOOD,
        GOOD.rstrip(),
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        b"\n \n" + GOOD.replace(b"\n", b"\n\n"),
    ],
    ids=["lines", "no-last-newline", "crlf", "bom", "blank-lines"],
)
def test_lines_are_read_however_they_end_and_whatever_the_files_name(tmp_path: Path, raw: bytes) -> None:
    assert read_tasks(write(tmp_path, raw, "prompts.txt")) == TWO


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_prompts_can_come_through_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = Thread(target=path.write_bytes, args=(GOOD,))
    writer.start()
    assert read_tasks(str(path)) == TWO
    writer.join()


def test_the_form_can_change_from_row_to_row(tmp_path: Path) -> None:
    rows = [{"prompt": "one", "raw": True}, {"question_id": 1, "category": "qa", "turns": ["two", "three"]}]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)).encode())
    assert read_tasks(path) == [Task(("one",), raw=True), Task(("two", "three"), "qa", "1", id=1)]


@pytest.mark.parametrize(("line", "what"), BAD_LINES)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, what: str) -> None:
    path = write(tmp_path, b'{"prompt": "one"}\n\n' + line + b"\n")
    assert complaint(read_tasks, path) == f"{path}:3: {what}"


def test_what_cannot_be_read_or_holds_nothing_is_said(tmp_path: Path) -> None:
    assert complaint(read_tasks, f"{tmp_path}/nothing") == f"cannot read {tmp_path}/nothing: No such file or directory"
    assert complaint(read_tasks, str(tmp_path)) == f"cannot read {tmp_path}: Is a directory"
    for raw in (b"", b"\n\n"):
        path = write(tmp_path, raw)
        assert complaint(read_tasks, path) == f"{path} holds no prompts"


def test_a_line_without_an_end_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_tasks, "MAX_TEXT", 1 << 20)
    path = write(tmp_path, b'{"prompt": "one"}\n' + bytes(2 << 20))
    assert complaint(read_tasks, path) == f"{path}:2: a line of more than 1 MiB"


def test_a_plain_row_may_name_its_class_a_system_text_and_a_limit() -> None:
    row = {"prompt": "Why?", "class": "chat", "system": "Be short.", "limit": 64}
    assert task_from_row(row) == Task(("Why?",), "chat", system="Be short.", max_tokens=64)
    assert task_from_row({"prompt": "Why?", "limit": None, "max_tokens": 32, "other": 1}).max_tokens == 32
    empty = {"prompt": "Why?", "turns": None, "class": None, "system": "", "limit": None}
    assert task_from_row(empty) == Task(("Why?",), OWN)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({}, "no prompt"),
        ({"prompt": None}, "no prompt"),
        ({"messages": [{"role": "user", "content": "a"}]}, "only lacli run --prompts takes messages"),
        ({"prompt": ["a"]}, "prompt is not a text"),
        ({"prompt": " \n"}, "prompt is empty"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "half \ud83d"}, "prompt holds half a surrogate pair"),
        ({"prompt": "a", "class": 3}, "class is not a text"),
        ({"prompt": "a", "system": ["b"]}, "system is not a text"),
        ({"prompt": "a", "temperature": 0.5}, "temperature is no field of a row"),
        ({"prompt": "a", "json_schema": {}}, "json_schema is no field of a row"),
        ({"prompt": "a", "response_format": {}}, "response_format is no field of a row"),
        ({"prompt": "a", "n_predict": 5}, "n_predict is no field of a row"),
        ({"prompt": "a", "limit": "64"}, "limit is not a number of tokens"),
        ({"prompt": "a", "limit": -1}, "limit is not a number of tokens"),
        ({"prompt": "a", "limit": True}, "limit is not a number of tokens"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens is not a number of tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is not a number of tokens"),
        ({"prompt": "a", "turns": ["b"]}, "a row has prompt and turns"),
        ({"prompt": "a", "raw": "no"}, "raw is neither true nor false"),
        ({"prompt": "a", "id": ["b"]}, "id is neither a text nor a number"),
        ({"prompt": "a", "id": True}, "id is neither a text nor a number"),
        ({"prompt": "a", "id": float("nan")}, "id is neither a text nor a number"),
        ({"prompt": "a", "task_id": {}}, "task_id is neither a text nor a number"),
        ({"prompt": "a", "id": "\ud800"}, "id holds half a surrogate pair"),
        ({"turns": "a"}, "turns is not a list of questions"),
        ({"turns": ["a", 5]}, "turns is not a list of questions"),
        ({"turns": ["a", ""]}, "turns is empty"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_what_to_do(row: dict[str, object], what: str) -> None:
    with pytest.raises(LacliError) as caught:
        task_from_row(row)
    assert caught.value.what == what and caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_hyphen_stands_for_stdin(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('{"prompt": "a"}\n')
    before = os.dup(0)
    try:
        with open(tmp_path / "rows", "rb") as rows:
            os.dup2(rows.fileno(), 0)
        assert [task.turns for task in read_tasks("-")] == [("a",)]
        assert os.fstat(0), "it stays open"
    finally:
        os.dup2(before, 0)
        os.close(before)
