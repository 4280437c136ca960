"""Files are read up to a size, written whole or not at all, and private."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lacli.text import files
from lacli.text.files import for_owner, read_file, replace_file


def test_a_file_of_exactly_the_most_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    monkeypatch.setattr(files, "MAX_TEXT", 3)
    assert read_file(tmp_path / "a") == b"abc"
    monkeypatch.setattr(files, "MAX_TEXT", 2)
    for path in (tmp_path / "a", Path("/dev/zero")):
        with pytest.raises(OSError, match="larger than"):
            read_file(path)


def test_a_private_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb", opener=for_owner):
        assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_replaced_stays_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def lines() -> Iterator[bytes]:
        yield b"half"
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        replace_file(path, lines())
    assert path.read_bytes() == b"before" and [*tmp_path.iterdir()] == [path]
    path.chmod(0o640)
    replace_file(path, [b"all", b" of it"])
    assert path.read_bytes() == b"all of it" and path.stat().st_mode & 0o777 == 0o640
