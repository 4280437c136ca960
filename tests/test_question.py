"""Files that are read as text: their ends, and those that have none."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from lacli.errors import LacliError
from lacli.question import read_text
from tests.program import run

BOUNDED = (sys.executable, "-c", "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, 1 << 31)); "
           "from lacli.__main__ import main; main()")  # fmt: skip


def test_a_mark_in_front_and_the_last_newline_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\ntwo\n\n")
    assert read_text(str(tmp_path / "a")) == read_text(str(tmp_path / "a"), ordinary=True) == "one\n\ntwo\n"


def test_what_may_never_end_is_refused_where_an_ordinary_file_is_wanted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in (str(tmp_path / "pipe"), str(tmp_path / "link"), "/dev/null"):
        with pytest.raises(LacliError, match="no ordinary file") as caught:
            read_text(name, ordinary=True)
        assert "\n" not in str(caught.value)
    for name, words in ((str(tmp_path), "directory"), (str(tmp_path / "none"), "No such file")):
        with pytest.raises(LacliError, match=words):
            read_text(name, ordinary=True)


def test_a_pipe_is_read_to_its_end_elsewhere(tmp_path: Path) -> None:
    program = "import sys; from lacli.question import read_text; print(read_text(sys.argv[1]))"
    done = run("-c", program, "/dev/stdin", stdin=b"word " * 1_000_000 + b"end\n", program=(sys.executable,))
    assert done.out.endswith("word end\n") and len(done.out) == 5_000_004


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device that never ends")
def test_what_never_ends_is_refused_by_its_size_wherever_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(LacliError, match=r"cannot read /dev/zero: it is larger than 67.1 MB"):
        read_text("/dev/zero")
    with open("/dev/zero", "rb") as endless:
        for arguments in (("run", "-n", "1"), ("chat", "-n", "1"), ("run", "-n", "1", "-f", "/dev/stdin")):
            done = run(*arguments, stdin=endless, program=BOUNDED)
            assert done.code == 1 and "is larger than 67.1 MB" in done.err and "Error" not in done.err


def test_a_file_that_is_too_large_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(1 << 34)
    for ordinary in (True, False):
        with pytest.raises(LacliError, match="larger than"):
            read_text(str(tmp_path / "zeros"), ordinary=ordinary)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs a shell's pipes in /dev")
def test_what_a_command_of_the_shell_writes_can_be_a_prompt() -> None:
    command = f"{sys.executable} -m lacli run -q --json -n 1 -f <(printf 'Say yes.')"
    done = run("-c", command, program=("bash",))
    assert done.code == 0 and len(json.loads(done.out)["tokens"]) == 1, done.err
