"""The screen: codes around texts, wrapped words, and the line about long work."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import pairwise
from types import SimpleNamespace

import pyte
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lacli.errors import LacliError
from lacli.settings import Switch
from lacli.terminal import screen as screens
from lacli.terminal.screen import ORIGIN_COLORS, Screen, loading_model, wrapped
from lacli.text.stream import Piece
from lacli.tree import Origin
from tests.fakes.clock import FakeClock

CYAN, GREEN, DIM, BOTH, RESET = "\x1b[36m", "\x1b[32m", "\x1b[2m", "\x1b[2;36m", "\x1b[0m"
POOL, SUFFIX = Origin.POOL, Origin.SUFFIX
PIECES = [Piece("a"), Piece("b", POOL), Piece("c", POOL), Piece("d", POOL, True), Piece("e\n", reasoning=True)]
CONTROLS = "".join(map(chr, [*range(32), *range(127, 160)]))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("color", "show_accepted", "text"),
    [
        ("on", True, f"a{CYAN}b{RESET}{CYAN}c{RESET}{BOTH}d{RESET}{DIM}e\n{RESET}"),
        ("on", False, f"abc{DIM}d{RESET}{DIM}e\n{RESET}"),
        ("off", True, "abcde\n"),
        ("auto", True, "abcde\n"),
    ],
)
def test_reasoning_is_dim_accepted_drafts_are_coloured_and_each_token_is_written_before_the_next(
    color: Switch, show_accepted: bool, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ""

    def tokens() -> Iterator[Piece]:
        nonlocal out
        for piece in PIECES:
            yield piece
            out += capsys.readouterr().out
            assert out.removesuffix(RESET)[-1] == piece.text[-1], "each token's colour must end with it"

    Screen(color=color, show_accepted=show_accepted).write(tokens())
    assert out == text


@pytest.mark.parametrize("color", ["auto", "off"])
def test_without_colours_a_terminal_has_accepted_tokens_in_brackets(
    color: Switch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(screens, "is_terminal", lambda stream: stream is sys.stdout)
    screen = Screen(color=color, show_accepted=True)
    screen.write(PIECES)
    screen.legend({POOL: 3})
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a[b][c][d]e\n", "lacli: accepted in parallel: 3 pool\n")


def test_the_legend_names_the_colours_that_occurred_with_their_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    drafted = {*Origin} - {Origin.MODEL}
    assert {*ORIGIN_COLORS} == drafted and len({*ORIGIN_COLORS.values()}) == len(drafted)
    Screen(color="on", show_accepted=True).legend({SUFFIX: 3, POOL: 12, Origin.WINDOW: 1})
    shown = capsys.readouterr().err
    assert f"{CYAN}12 pool{RESET}" in shown and f"{GREEN}3 suffix{RESET}" in shown
    words = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert words == "lacli: accepted in parallel: 12 pool, 3 suffix, 1 window\n"
    for screen in (Screen(color="off", show_accepted=True), Screen(color="on"), Screen(color="on", quiet=True)):
        screen.legend({POOL: 1})
    assert capsys.readouterr().err == ""


def test_control_characters_are_shown_on_a_terminal_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screens, "is_terminal", lambda stream: stream is sys.stdout)
    screen = Screen(color="off")
    screen.write(Piece(char) for char in f"a{CONTROLS}b\r\n")
    shown = capsys.readouterr().out
    assert {char for char in shown if unicodedata.category(char) == "Cc"} == {"\t", "\n"}
    assert "\N{SYMBOL FOR ESCAPE}" in shown and shown.endswith("b\n")
    screen.line("a\x1b[31m\nb")
    assert capsys.readouterr().out == "a\N{SYMBOL FOR ESCAPE}[31m\nb\n"


def test_nothing_that_is_said_on_stderr_has_codes_of_a_model_or_a_hub(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(color="off")
    for say in (screen.note, screen.say, screen.warn):
        say("a\x1b]0;b\x9b2J\x7fc")
        shown = capsys.readouterr().err.removeprefix("lacli: ").strip()
        assert shown == "a\N{SYMBOL FOR ESCAPE}]0;b\ufffd2J\N{SYMBOL FOR DELETE}c"
    screen.error(LacliError("no a\nb\u202ec\udc80"))
    assert capsys.readouterr().err == "lacli: no a\N{SYMBOL FOR LINE FEED}b\ufffdc\ufffd\n"


def test_words_are_wrapped_on_a_terminal_and_a_second_column_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(color="off", quiet=True).say("temp: 0 -> 0.8 [red] :smile: and a line that is long")
    assert capsys.readouterr().err == "temp: 0 -> 0.8 [red] :smile: and a line that is long\n"
    Screen(color="on").say("one two three four five sixseveneightnineteneleven\nc\td")
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.endswith("one two three four\nfive\nsixseveneightnineteneleven\nc       d\n")
    assert wrapped("/help   what there is to see\n  indented words stay\n\nshort", 20) == (
        "/help   what there\n        is to see\n  indented words\n  stay\n\nshort"
    )


class Terminal(StringIO):
    """A stream that draws on a terminal of 60 columns; `rows`: the visible text."""

    def __init__(self, lines: int = 2) -> None:
        super().__init__()
        self.screen = pyte.Screen(60, lines)
        self.screen.set_mode(pyte.modes.LNM)
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
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal of 60 columns that replaces stderr."""
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    # pytest restores its own stderr before the test itself, so the module's `sys` is replaced.
    monkeypatch.setattr(screens, "sys", SimpleNamespace(stdout=StringIO(), stderr=terminal))
    return terminal


def test_work_is_shown_in_one_row_and_erased(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(screens, "perf_counter", clock)
    read = Screen().prefill_line()
    for total in (256, 10**30):
        read(0, total)
        assert terminal.rows[0].startswith(f"reading the prompt: 0 of {total:,}"[:59]), "the line is cut to one row"
        assert terminal.rows[1] == ""
        clock.now += 32
        read(64, total)
        left = "reading the prompt: 64 of 256 tokens, 2 tokens/s, 96 s left"
        assert total > 256 or terminal.rows == [left, ""]
        read(total, total)
    assert terminal.rows == ["", ""] and (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 0)
    with pytest.raises(KeyboardInterrupt), loading_model(Screen()) as loading:
        loading(0.349)
        assert terminal.rows[0] == "loading the model 35%"
        raise KeyboardInterrupt
    loading(0.5)
    assert terminal.rows == ["", ""], "a model that is loaded later has no line"


def streamed(text: str, cuts: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write a text to a terminal of 60 columns, cut at these places; return the rows that are not empty."""
    terminal = Terminal(lines=40)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(screens, "sys", SimpleNamespace(stdout=terminal, stderr=StringIO()))
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    Screen().write(Piece(text[at:end], POOL) for at, end in pairwise(edges))
    return [row for row in terminal.rows if row]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["a", "word", "x" * 40, "y" * 59]), min_size=20, max_size=40), st.lists(st.integers(0)))
def test_no_word_is_broken_at_the_edge_wherever_an_answer_is_cut(
    monkeypatch: pytest.MonkeyPatch, words: list[str], cuts: list[int]
) -> None:
    rows = streamed(" ".join(words), cuts, monkeypatch)
    assert [word for row in rows for word in row.split()] == words
    assert all(len(f"{row} {below.split()[0]}") > 59 for row, below in pairwise(rows)), "rows are filled"


def test_text_without_words_to_keep_is_left_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    every, code, chinese = range(0, 400, 3), "call(a, b) " * 8, "\N{CJK UNIFIED IDEOGRAPH-4F60}" * 40
    assert streamed(f"a {'z' * 150} b", every, monkeypatch) == ["a", "z" * 60, "z" * 60, f"{'z' * 30} b"]
    rows = streamed(f"```\n{code}\n```", every, monkeypatch)
    assert rows[1:3] == [code[:60].rstrip(), code[60:].rstrip()], "lines of code are not wrapped"
    assert len(streamed(f"1. {chinese}", every, monkeypatch)[0]) > 28, "a row may end between wide characters"


def test_no_line_is_drawn_if_it_is_not_wanted_or_cannot_be_erased(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for screen, tokens, shown in ((Screen(quiet=True), 900, True), (Screen(), 9, True), (Screen(), 900, False)):
        read = screen.prefill_line(shown=shown)
        read(0, tokens)
        read(tokens, tokens)
    monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    Screen(color="on").prefill_line()(0, 900)
    assert terminal.getvalue() == ""


def test_a_terminal_that_has_gone_away_ends_no_work(terminal: Terminal) -> None:
    with Screen().waiting() as say:
        terminal.close()
        say("working")
