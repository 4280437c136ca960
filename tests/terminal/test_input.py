"""The prompt of a file, a pipe and an option."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from lacli.errors import LacliError
from lacli.terminal.input import read_question


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[BinaryIO]:
    """The other end of standard input."""
    read, write = os.pipe()
    with open(read, encoding="utf-8") as stdin, open(write, "wb") as other:
        monkeypatch.setattr("sys.stdin", stdin)
        yield other


@pytest.mark.parametrize("piped", ["", " \n\t\n"])
@pytest.mark.parametrize("prompt", ["p", None])
def test_an_empty_pipe_with_a_prompt_is_refused_unless_it_is_left_alone(
    piped: str, prompt: str | None, pipe: BinaryIO, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("text")
    files = [] if prompt else [str(tmp_path / "file")]
    pipe.write(piped.encode())
    pipe.close()
    assert read_question(prompt, files, stdin=False) == (prompt or "text")
    with pytest.raises(LacliError, match="^standard input is empty .--no-stdin") as caught:
        read_question(prompt, files)
    assert caught.value.exit_code == 1


def test_an_empty_file_is_refused_as_a_prompt_and_as_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blank").write_text(" \n")
    with pytest.raises(LacliError, match="blank is empty") as caught:
        read_question("p", [str(tmp_path / "blank")], stdin=False)
    assert caught.value.exit_code == 1
    with (tmp_path / "blank").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(LacliError, match="^standard input is empty"):
            read_question("p", ())


def test_a_device_without_input_is_no_empty_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert read_question("p", ()) == "p"
