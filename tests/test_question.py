"""Files that are read as text: their ends, and those that have none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lacli.errors import LacliError
from lacli.question import read_text
from tests.program import run


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
def test_ctrl_c_is_heard_while_a_file_is_read() -> None:
    program = """
import resource, signal
from lacli.question import read_text
resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.02)
read_text("/dev/zero")
"""
    done = run("-c", program, program=(sys.executable,))
    assert "KeyboardInterrupt" in done.err and "MemoryError" not in done.err
