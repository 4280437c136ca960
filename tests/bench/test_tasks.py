"""lacli's own prompts and prompt files: their contents, and errors of one line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lacli.bench.plan import Task, read_tasks, tasks_of
from lacli.errors import LacliError, UsageError

CLASSES = ["code", "edit", "chat", "summary", "extract", "translate", "maths", "story", "docs", "forms"]
GOOD = b'{"prompt": "one"}\n{"prompt": "two"}\n'


def write(folder: Path, raw: bytes) -> str:
    (folder / "prompts.txt").write_bytes(raw)
    return str(folder / "prompts.txt")


def test_every_class_has_eight_prompts_in_the_order_of_the_table_and_none_comes_twice() -> None:
    tasks = tasks_of(None, None)
    kinds = [task.kind for task in tasks]
    assert list(dict.fromkeys(kinds)) == CLASSES and min(Counter(kinds).values()) >= 8
    assert len({task.turns for task in tasks}) == len(tasks)
    assert {len(task.turns) for task in tasks} == {1, 2}
    assert not any(task.raw or task.max_tokens or task.system for task in tasks)


def test_classes_can_be_chosen_and_keep_the_tables_order(tmp_path: Path) -> None:
    assert [*dict.fromkeys(task.kind for task in tasks_of(None, "forms, code"))] == ["code", "forms"]
    with pytest.raises(UsageError, match="there is no prompt class 'poems'") as caught:
        tasks_of(None, "code,poems")
    assert all(name in caught.value.hint for name in CLASSES)
    path = write(tmp_path, b'{"prompt": "one", "class": "a"}\n{"prompt": "two"}\n')
    assert tasks_of(path, "a") == [Task(("one",), "a")]


@pytest.mark.parametrize("raw", [GOOD.rstrip(), b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n"), b"\n \n" + GOOD])
def test_lines_are_read_however_they_end(tmp_path: Path, raw: bytes) -> None:
    assert read_tasks(write(tmp_path, raw)) == [Task(("one",)), Task(("two",))]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "x"', "not JSON"),
        (b'{"prompt": "\xff"}', "not JSON"),
        (b'{"prompt": " "}', "prompt: the text is empty"),
        (b'{"prompt": "\\ud83d"}', "not JSON"),
        (b'{"prompt": "a", "turns": ["b"]}', 'a row needs one of "prompt"'),
        (b'{"turns": []}', "turns: List should have at least 1 item"),
        (b'{"prompt": "a", "id": ["b"]}', "id: Input should be"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, words: str) -> None:
    path = write(tmp_path, b'{"prompt": "one"}\n\n' + line + b"\n")
    with pytest.raises(LacliError) as caught:
        read_tasks(path)
    assert caught.value.hint and "\n" not in str(caught.value)
    assert caught.value.what.startswith(f"{path}:3: ") and words in caught.value.what


def test_a_file_without_lines_ends_in_one_line() -> None:
    with pytest.raises(LacliError, match=r"/dev/zero:1: the line is longer than 67.1 MB"):
        read_tasks("/dev/zero")
