"""The input of a chat: messages of several lines, damaged lines, and the reader for each kind of stream."""

from __future__ import annotations

import sys
from io import BytesIO, TextIOWrapper

import pytest

from lacli.chat.commands import is_open, without_quotes
from lacli.chat.repl import PipedLines, open_lines
from lacli.errors import LacliError


def all_of(raw: bytes) -> list[str]:
    """Return every message of a pipe with these bytes."""
    lines, messages = PipedLines(BytesIO(raw)), []
    while True:
        try:
            messages.append(lines.read())
        except EOFError:
            return messages


@pytest.mark.parametrize(
    ("raw", "messages"),
    [
        (b"", []),
        (b"one\r\ntwo", ["one", "two"]),
        (b"\n  \n\t\none\n\n", ["one"]),
        ("grüße 你好\n".encode(), ["grüße 你好"]),
        (b"a\\\nb", ["a\\", "b"]),
        (b'"""one"""\ntwo\n', ["one", "two"]),
        (b'"""\none\n\n  two\\\n"""\nthree\n', ["one\n\n  two\\", "three"]),
        (b'"""\n"""\n""""""\n"""\n \n"""\nend\n', ["end"]),
        (b'say """x\n', ['say """x']),
        (b'"""one\ntwo\nthree"""\nfour\n', ["one\ntwo\nthree", "four"]),
    ],
)
def test_a_pipe_gives_its_messages_one_by_one(raw: bytes, messages: list[str]) -> None:
    assert all_of(raw) == messages


ONE_LINE = 'def half(number):\n    """A half."""\n    return number / 2'
SEVERAL = 'def half(number):\n    """A half.\n\n    Of any number.\n    """\n    return number / 2'


@pytest.mark.parametrize("code", [ONE_LINE, SEVERAL])
@pytest.mark.parametrize("question", ["", "what does it do?\n"])
def test_code_with_docstrings_arrives_whole_between_triple_quotes(code: str, question: str) -> None:
    block = f'"""{question.strip()}\n{code}\n"""'
    assert all_of(f"{block}\nnext\n".encode()) == [question + code, "next"]
    assert not is_open(block) and without_quotes(block) == question + code
    lines = block.split("\n")
    assert all(is_open("\n".join(lines[:count])) for count in range(1, len(lines)))


@pytest.mark.parametrize("code", ['"""Halves."""\n\n' + SEVERAL, '"""Half.""" + TEXT'])
def test_a_file_that_begins_with_a_docstring_can_be_pasted_as_it_is(code: str) -> None:
    assert not is_open(code) and without_quotes(code) == code


@pytest.mark.parametrize("raw", [b'"""\n/exit\n"""\n', b'"""/exit"""\n'])
def test_a_quoted_message_is_never_taken_for_a_command(raw: bytes) -> None:
    (message,) = all_of(raw)
    assert not message.startswith("/")
    assert message.lstrip() == "/exit"


@pytest.mark.parametrize("raw", [b"fine\n\xff\xfe\nstill fine\n", b'fine\n"""\n\xff\n/exit\n"""\nstill fine\n'])
def test_a_line_that_is_not_utf_8_is_named_and_costs_its_message_only(raw: bytes) -> None:
    lines = PipedLines(BytesIO(raw))
    assert lines.read() == "fine"
    with pytest.raises(LacliError, match="the message in line 2 of standard input is not UTF-8"):
        lines.read()
    assert lines.read() == "still fine"


def test_quotes_that_never_end_are_named_by_their_line() -> None:
    lines = PipedLines(BytesIO(b'one\n"""two\nthree\n'))
    lines.read()
    with pytest.raises(LacliError, match="line 2 opens.*end it with"):
        lines.read()
    with pytest.raises(EOFError):
        lines.read()


def test_closed_input_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(LacliError, match="standard input is closed"):
        open_lines(lambda width: "", None, "auto")


class Terminal(TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_be_drawn_on_has_a_prompt_sign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdin", Terminal(BytesIO(b'one\n"""two\nthree"""\n')))
    lines = open_lines(lambda width: "", None, "auto")
    assert [lines.read(), capsys.readouterr().err] == ["one", "> "]
    assert [lines.read(), capsys.readouterr().err] == ["two\nthree", "> . "]
