"""Files that something else lies in the place of: no reader waits, takes much memory or ends in a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lacli.chat.transcript import read_chat
from lacli.errors import LacliError
from lacli.hub.cache import newest_snapshot
from lacli.hub.names import read_list
from lacli.text.files import MAX_TEXT, for_owner, read_file, replace_file


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def deep(path: Path) -> None:
    path.write_text('{"event": "saved", "messages": ' + "[" * 100_000)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def aliases(path: Path) -> object:
    found, broken = read_list(path)
    return None if broken and not found else found


def commit(path: Path) -> object:
    (path.parent / "repository" / "refs").mkdir(parents=True)
    (path.parent / "repository" / "refs" / "main").symlink_to(path)
    return newest_snapshot(path.parent / "repository")


def chat(path: Path) -> object:
    with pytest.raises(LacliError) as caught:
        read_chat(path)
    assert "\n" not in str(caught.value)
    return None


@pytest.mark.parametrize("reader", [aliases, commit, chat])
@pytest.mark.parametrize("spoil", [fifo, zeros, deep, endless, Path.mkdir])
def test_what_is_no_file_of_ours_is_set_aside(
    reader: Callable[[Path], object], spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / f"toy-{'0' * 16}.json"
    spoil(path)
    assert reader(path) is None


def test_a_file_of_exactly_the_most_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert read_file(tmp_path / "a", 3) == b"abc" and MAX_TEXT > 3
    with pytest.raises(OSError, match="larger than"):
        read_file(tmp_path / "a", 2)


def test_a_file_of_somebodys_words_is_his_alone_and_no_link(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    with open(path, "wb", opener=for_owner):
        assert path.stat().st_mode & 0o777 == 0o600
    link.symlink_to(path)
    with pytest.raises(OSError, match="it is a symbolic link"), open(link, "ab", opener=for_owner):
        pass


def test_a_pipe_is_written_to_where_somebody_reads_it_and_not_waited_for_elsewhere(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="nobody reads"), open(pipe, "ab", opener=for_owner):
        pass
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with open(pipe, "ab", buffering=0, opener=for_owner) as file:
        assert os.get_blocking(file.fileno())
        file.write(b"a")
        assert os.read(reader, 9) == b"a"
    os.close(reader)


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
