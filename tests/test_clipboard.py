"""/copy's way out: the system's clipboard, else the terminal's, else a sentence."""

from __future__ import annotations

import base64
from io import StringIO

import pyperclip
import pytest

from lacli.chat.clipboard import MOST_BYTES, copy
from lacli.errors import LacliError

TEXT = "grüße\n  你好\n"


class Terminal(StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


class Clipboard:
    """A system's clipboard; deaf: it takes nothing and says nothing about it, like a program without a display."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.text = "before"
        self._deaf = deaf

    def copy(self, text: str) -> None:
        if not self._deaf:
            self.text = text.replace("\n", "\r\n")

    def paste(self) -> str:
        return self.text


def install(clipboard: Clipboard, monkeypatch: pytest.MonkeyPatch) -> Clipboard:
    monkeypatch.setattr(pyperclip, "copy", clipboard.copy)
    monkeypatch.setattr(pyperclip, "paste", clipboard.paste)
    return clipboard


@pytest.fixture
def no_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which pyperclip finds nothing."""
    monkeypatch.setattr(pyperclip, "copy", pyperclip.init_no_clipboard()[0])


def test_the_systems_clipboard_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    system, terminal = install(Clipboard(), monkeypatch), Terminal()
    assert copy(TEXT, terminal) == "copied to the clipboard"
    assert system.text.replace("\r\n", "\n") == TEXT
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("terminal_type", ["xterm", None])
def test_without_one_the_terminal_is_asked(
    no_system: None, monkeypatch: pytest.MonkeyPatch, terminal_type: str | None
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    if terminal_type:
        monkeypatch.setenv("TERM", terminal_type)
    terminal = Terminal()
    assert "terminal must allow" in copy(TEXT, terminal)
    before, middle, after = terminal.getvalue().partition(base64.b64encode(TEXT.encode()).decode())
    assert (before, bool(middle), after) == ("\x1b]52;c;", True, "\a")


def test_a_clipboard_that_keeps_nothing_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(Clipboard(deaf=True), monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    assert "terminal must allow" in copy(TEXT, Terminal())


def test_a_file_or_a_dumb_terminal_gets_no_escape_codes(no_system: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    for stream in (Terminal(), StringIO()):
        with pytest.raises(LacliError, match="install"):
            copy(TEXT, stream)
        assert stream.getvalue() == ""


def test_a_text_that_terminals_would_drop_is_refused_with_the_limit(
    no_system: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    copy("x" * MOST_BYTES, terminal)
    assert len(terminal.getvalue()) <= 100_000
    with pytest.raises(LacliError, match="74,994"):
        copy("x" * MOST_BYTES + "é", Terminal())
