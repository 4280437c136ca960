"""Lines edited with prompt_toolkit, whose keys come from a pipe; completion, and the history's file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from lacli.chat import terminal
from lacli.chat.terminal import Completions, TerminalLines

ENTER, ALT_ENTER, UP = "\r", "\x1b\r", "\x1b[A"
CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeInput]:
    """Yield a pipe; keys sent to it are typed into the chat's terminal."""
    with create_pipe_input() as pipe:
        monkeypatch.setattr(terminal, "create_input", lambda stream: pipe)
        monkeypatch.setattr(terminal, "_output", DummyOutput)
        yield pipe


def lines_of() -> TerminalLines:
    return TerminalLines(lambda width: "", None, "auto")


@pytest.fixture
def says(keys: PipeInput) -> Callable[[str], str]:
    """Return a function that types keys and Enter, and returns the line."""
    lines = lines_of()

    def read(typed: str) -> str:
        keys.send_text(typed + ENTER)
        return lines.read()

    return read


CODE = 'def half(number):\n    """A half.\n    """\n    return number / 2'


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("grüße, 你好", "grüße, 你好"),
        (f"{ENTER}  {ENTER}after blank lines", "after blank lines"),
        (f"one{ALT_ENTER}two", "one\ntwo"),
        ('"""one"""', "one"),
        (f'"""one{ENTER}two{ENTER}three"""', "one\ntwo\nthree"),
        ("\x1b[200~one\r\n\ttwo \\\nthree\n\x1b[201~", "one\n\ttwo \\\nthree"),
        (f'"""{ENTER}{CODE.replace(chr(10), ENTER)}{ENTER}"""', CODE),
        (f'\x1b[200~"""Halves."""\n\n{CODE}\x1b[201~', f'"""Halves."""\n\n{CODE}'),
        (f"thrown away{CTRL_C}kept", "kept"),
        (f'"""{ENTER}thrown away{CTRL_C}kept', "kept"),
    ],
)
def test_a_message_is_what_was_typed_or_pasted(says: Callable[[str], str], typed: str, message: str) -> None:
    assert says(typed) == message


def test_ctrl_c_interrupts_at_an_empty_line_and_ctrl_d_ends(keys: PipeInput) -> None:
    lines = lines_of()
    for typed, error in ((CTRL_C, KeyboardInterrupt), (CTRL_D, EOFError)):
        keys.send_text(typed)
        with pytest.raises(error):
            lines.read()


def test_a_line_can_be_offered_for_editing_and_earlier_ones_come_back(keys: PipeInput) -> None:
    lines = lines_of()
    lines.edit("two\nlines")
    for typed, read in ((" more", "two\nlines more"), ("fresh", "fresh"), (UP, "fresh")):
        keys.send_text(typed + ENTER)
        assert lines.read() == read


def completed(text: str) -> list[str]:
    """Return the whole lines that the completions make of a text."""
    found = Completions().get_completions(Document(text), CompleteEvent())
    return [text[: len(text) + offer.start_position] + offer.text for offer in found]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("/s", ["/system", "/set", "/show", "/stats", "/save"]),
        ("/unknown ", []),
        ("/set lookup-m", ["/set lookup-match"]),
        ("/set mode l", ["/set mode lookup", "/set mode lookahead"]),
        ("/set ignore-eos o", ["/set ignore-eos on", "/set ignore-eos off"]),
        *(
            (text, [])
            for text in ("", "h", "set", " /s", "a /s", "/set\n/s", "/set \nt", "/usr/bin", "/usr/bin ", "//")
        ),
    ],
)
def test_a_command_is_completed_by_its_kind_and_ordinary_text_never(text: str, lines: list[str]) -> None:
    assert completed(text) == lines
