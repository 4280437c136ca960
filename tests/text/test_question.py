"""Where a question comes from: what standard input adds to it, files, their ends, and those that have none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from lacli.errors import LacliError
from lacli.text.question import read_question, read_text
from tests.program import run


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[BinaryIO]:
    """The other end of standard input."""
    read, write = os.pipe()
    with open(read, encoding="utf-8") as stdin, open(write, "wb") as other:
        monkeypatch.setattr("sys.stdin", stdin)
        yield other


@pytest.mark.parametrize(
    ("piped", "prompt", "stdin", "said"),
    [
        ("one\n\ntwo\n\n", "p", None, ["added 3 lines of standard input to the prompt (--no-stdin adds none)"]),
        ("\n", "p", None, []),
        ("one\n", None, None, []),
        ("one\n", "p", False, []),
    ],
    ids=["three lines", "a blank line", "no other part", "skipped"],
)
def test_what_standard_input_adds_to_a_prompt_is_said(
    piped: str, prompt: str | None, stdin: bool | None, said: list[str], pipe: BinaryIO
) -> None:
    pipe.write(piped.encode())
    pipe.close()
    sentences: list[str] = []
    question = read_question(prompt, None, stdin=stdin, say=sentences.append)
    assert sentences == said
    assert ("one" in question) == (stdin is not False and "one" in piped)


def test_a_pipe_that_brings_nothing_for_a_while_is_said_to_be_waited_for(
    pipe: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.text.question.PATIENCE_S", 0)
    sentences: list[str] = []

    def say(sentence: str) -> None:
        sentences.append(sentence)
        if not pipe.closed:
            pipe.write(b"late")
            pipe.close()

    assert "late" in read_question("p", None, say=say)
    assert sentences[0].startswith("waiting for standard input")


def test_a_mark_in_front_and_the_last_newline_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\ntwo\n\n")
    assert read_text(str(tmp_path / "a")) == "one\n\ntwo\n"


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
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


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs a shell's pipes in /dev")
def test_a_pipe_is_read_to_its_end_and_so_is_what_a_command_of_the_shell_writes() -> None:
    program = "import sys; from lacli.text.question import read_text; print(*map(read_text, sys.argv[1:]), end='')"
    command = f'{sys.executable} -c "{program}" /dev/stdin <(printf "Say yes.")'
    done = run("-c", command, stdin=b"word " * 1_000_000 + b"end\n", program=("bash",))
    assert done.out.endswith("word end Say yes.") and len(done.out) == 5_000_012, done.err
