"""The prompt of a file, a pipe and an option."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from lacli.terminal.input import read_question


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
