"""Files are read up to a size, written whole or not at all, and private; prompts of several sources; saved records."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from lacli.errors import LacliError
from lacli.text import files
from lacli.text.files import HASHED, NAME, Records, model_identity, read_question, read_text, replace_file

KEY = {"b": 1, "a": [1, 2]}


def test_a_file_of_exactly_the_most_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    monkeypatch.setattr(files, "MAX_TEXT", 3)
    assert read_text(str(tmp_path / "a")) == "abc"
    monkeypatch.setattr(files, "MAX_TEXT", 2)
    with pytest.raises(LacliError, match="larger than"):
        read_text(str(tmp_path / "a"))


def test_a_file_that_cannot_be_replaced_stays_and_nothing_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def full(descriptor: int) -> None:
        raise OSError("full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="full"):
        patched.setattr("os.fsync", full)
        replace_file(path, b"half")
    assert path.read_bytes() == b"before" and [*tmp_path.iterdir()] == [path]
    path.chmod(0o640)
    replace_file(path, b"all")
    assert path.read_bytes() == b"all" and path.stat().st_mode & 0o777 == 0o640


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[BinaryIO]:
    """The other end of standard input."""
    read, write = os.pipe()
    with open(read, encoding="utf-8") as stdin, open(write, "wb") as other:
        monkeypatch.setattr("sys.stdin", stdin)
        yield other


@pytest.mark.parametrize(
    ("piped", "prompt", "stdin", "question", "said"),
    [
        ("one\n\ntwo\n\n", "p", True, "one\n\ntwo\n\np", ["added standard input to the prompt (--no-stdin adds none)"]),
        ("\n", "p", True, "p", []),
        ("one\n", "p", False, "p", []),
    ],
)
def test_what_standard_input_adds_to_a_prompt_is_said(
    piped: str, prompt: str, stdin: bool, question: str, said: list[str], pipe: BinaryIO
) -> None:
    pipe.write(piped.encode())
    pipe.close()
    sentences: list[str] = []
    assert read_question(prompt, (), stdin=stdin, say=sentences.append) == question
    assert sentences == said


def test_a_text_is_read_without_its_mark_and_last_newline_and_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\ntwo\n\n")
    assert read_text(str(tmp_path / "a")) == "one\n\ntwo\n"
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, words in (
        (str(tmp_path), "directory"),
        (str(tmp_path / "none"), "No such file.*check the file's name"),
        (str(tmp_path / "binary"), "is not UTF-8 text: byte 0xff at offset 0"),
        ("/dev/zero", r"it is larger than 67.1 MB"),
    ):
        with pytest.raises(LacliError, match=words) as caught:
            read_text(name)
        assert caught.value.hint and "\n" not in str(caught.value)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "cache" / NAME


def test_a_record_is_read_by_its_kind_and_key_until_it_is_forgotten(state: Path) -> None:
    records = Records(state)
    assert records.read("cost", KEY) is None and not records.kinds() and not state.exists()
    assert records.save("cost", KEY, {"x": 1.5}) == "" and records.save("trial", KEY, 7) == ""
    assert records.save("cost", "other", None) == "" and records.save("cost", KEY, {"x": 2.5}) == ""
    assert records.read("cost", {"a": [1, 2], "b": 1}) == {"x": 2.5}
    assert [*Records(state).kinds()["cost"].values()] == [{"x": 2.5}, None]
    records.forget("cost")
    assert "cost" not in records.kinds() and records.read("trial", KEY) == 7
    assert stat.S_IMODE(state.stat().st_mode) == 0o600 and stat.S_IMODE(state.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b'{"cost": 5}', b'{"cost": {"no key": 1}}', b"[" * 100_000], ids=repr
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(state: Path, content: bytes) -> None:
    state.parent.mkdir()
    state.write_bytes(content)
    records = Records(state)
    assert records.read("cost", KEY) is None
    assert records.save("cost", KEY, 1) == "" and records.read("cost", KEY) == 1
    json.loads(state.read_bytes())


def test_a_model_is_known_by_its_name_size_and_ends(tmp_path: Path) -> None:
    found = []
    for name, change in (("a", None), ("a", 0), ("a", 3 * HASHED - 1), ("b", None)):
        content = bytearray(3 * HASHED)
        if change is not None:
            content[change] = 1
        (tmp_path / name).write_bytes(content)
        found.append(tuple(model_identity(tmp_path / name).values()))
    assert len(set(found)) == 4
