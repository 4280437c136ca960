"""The line about work that takes a while: what is drawn of it at which width, and that nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from threading import Event
from types import SimpleNamespace

import pyte
import pytest

from lacli.terminal import waiting
from lacli.terminal.screen import Screen, loading_model
from lacli.terminal.waiting import WaitingLine, counting, waiting_line
from tests.fakes.clock import FakeClock

ROWS = 4
WIDTHS = {
    80: ["reading the prompt 0/1,285 tokens", "reading the prompt 512/1,285 tokens, 2 tokens/s"],
    40: ["reading the prompt 0/1,285 tokens", "reading the prompt 512/1,285 tokens"],
    20: ["reading 0/1,285", "reading 512/1,285"],
    6: ["0%", "40%"],
    2: ["", ""],
    1: ["", ""],
}


class Terminal(StringIO):
    """A terminal of `columns` columns, as a person sees it."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.screen = pyte.Screen(columns, ROWS)
        self._stream = pyte.Stream(self.screen)

    def write(self, text: str) -> int:
        self._stream.feed(text)
        return super().write(text)

    def isatty(self) -> bool:
        return True

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]


@pytest.fixture
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """stderr as a terminal of 80 columns or another number, on which lines are drawn when the work begins."""
    terminal = Terminal(getattr(request, "param", 80))
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(terminal.screen.columns))
    # pytest puts its own stderr back before the test itself.
    monkeypatch.setattr("lacli.terminal.screen.sys", SimpleNamespace(stdout=StringIO(), stderr=terminal))
    monkeypatch.setattr(waiting, "Timer", AtOnce)
    yield terminal


class AtOnce:
    """A timer whose time is over when it starts."""

    def __init__(self, _: float, call: object) -> None:
        self._call = call

    def start(self) -> None:
        assert callable(self._call)
        self._call()

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("terminal", WIDTHS, indirect=True)
def test_what_is_read_of_a_prompt_is_shown_in_one_row_of_any_width_and_erased(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.terminal.screen.perf_counter", iter([0.0, 0.0, 256.0]).__next__)
    shown = []
    with Screen().reading(1285) as read:
        shown.append(terminal.rows)
        read(512)
        shown.append(terminal.rows)
    assert shown == [[text, *[""] * (ROWS - 1)] for text in WIDTHS[terminal.screen.columns]]
    assert terminal.rows == [""] * ROWS and (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 0)


def test_loading_is_shown_with_the_share_that_is_loaded(terminal: Terminal) -> None:
    with loading_model(Screen()) as loading:
        assert terminal.rows[0] == "loading the model"
        loading(0.349)
        assert terminal.rows[0] == "loading the model 35%"
    assert terminal.rows == [""] * ROWS
    loading(0.5)
    assert terminal.rows == [""] * ROWS, "a model that is loaded later has no line"


def test_an_exception_erases_it_too(terminal: Terminal) -> None:
    with pytest.raises(KeyboardInterrupt), Screen().reading(9):
        raise KeyboardInterrupt
    assert "reading" in terminal.getvalue() and terminal.rows == [""] * ROWS


def test_work_that_is_over_soon_is_not_seen(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtOnce, "start", lambda self: None)
    with Screen().reading(9) as read:
        read(9)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_erase_has_no_line(
    term: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    with Screen(color="on").reading(9), loading_model(Screen()) as loading:
        loading(0.5)
    assert terminal.getvalue() == ""


def test_nor_has_one_where_it_is_not_wanted_or_there_is_nothing_to_read(terminal: Terminal) -> None:
    for screen, tokens, shown in ((Screen(quiet=True), 9, True), (Screen(), 0, True), (Screen(), 9, False)):
        with screen.reading(tokens, shown=shown) as read:
            read(tokens)
    with loading_model(Screen(quiet=True)), loading_model(Screen(), verbose=True):
        pass
    assert terminal.getvalue() == ""


def test_a_pipe_gets_nothing_even_with_colours(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    with Screen(color="on").reading(9) as read:
        read(4)
    assert terminal.getvalue() == ""


def test_a_thread_draws_the_first_words_while_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SHOWN_AFTER_S", 0.0)
    drawn = Event()

    class Noting(Terminal):
        def flush(self) -> None:
            drawn.set()

    with waiting_line(Noting(80), lambda: 80) as say:
        say("working")
        assert drawn.wait(20)


def test_a_terminal_that_has_gone_away_ends_no_work() -> None:
    file = Terminal(80)
    line = WaitingLine(file, lambda: 80)
    file.close()
    line.show()
    line.say("working")
    line.erase()


def test_the_tokens_of_an_answer_that_is_not_seen_are_counted_ten_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, said = FakeClock(), list[tuple[str, ...]]()
    monkeypatch.setattr("lacli.terminal.waiting.perf_counter", clock)
    count = counting(lambda *forms: said.append(forms))
    for seconds in (0.0, 0.05, 0.25, 0.02):
        clock.now += seconds
        count(3)
    assert said == [("answering: 3 tokens",), ("answering: 9 tokens, 20 tokens/s", "answering: 9 tokens")]
