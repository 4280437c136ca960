"""Files are read up to a size, and written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from lacli.errors import LacliError
from lacli.text import files
from lacli.text.files import read_text, replace_file


def test_a_file_of_exactly_the_most_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    monkeypatch.setattr(files, "MAX_TEXT", 3)
    assert read_text(str(tmp_path / "a")) == "abc"
    monkeypatch.setattr(files, "MAX_TEXT", 2)
    with pytest.raises(LacliError, match="larger than"):
        read_text(str(tmp_path / "a"))


def test_a_file_that_cannot_be_replaced_stays_and_no_other_file_is_left(
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
