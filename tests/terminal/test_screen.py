"""The terminal's side of an answer: which codes stand around which text, and how the chat's own words are wrapped."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lacli.errors import LacliError
from lacli.settings import Switch
from lacli.terminal.screen import Screen, color_code, wrapped
from lacli.text.stream import Piece
from lacli.tree import Origin

CYAN, GREEN, DIM, BOTH, RESET = "\x1b[36m", "\x1b[32m", "\x1b[2m", "\x1b[2;36m", "\x1b[0m"
POOL, SUFFIX = Origin.POOL, Origin.SUFFIX
PIECES = [Piece("a"), Piece("b", POOL), Piece("c", POOL), Piece("d", POOL, True), Piece("e\n", reasoning=True)]


class Streams:
    """What a screen has written to stdout and stderr so far."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self._out = self._err = ""

    def out(self) -> str:
        return self._read()[0]

    def err(self) -> str:
        return self._read()[1]

    def _read(self) -> tuple[str, str]:
        out, err = self._capture.readouterr()
        self._out += out
        self._err += err
        return self._out, self._err


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Streams:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    return Streams(capsys)


@pytest.mark.parametrize(
    ("color", "show_accepted", "text"),
    [
        ("on", True, f"a{CYAN}b{RESET}{CYAN}c{RESET}{BOTH}d{RESET}{DIM}e\n{RESET}"),
        ("on", False, f"abc{DIM}d{RESET}{DIM}e\n{RESET}"),
        ("off", True, "abcde\n"),
        ("auto", True, "abcde\n"),
    ],
)
def test_reasoning_is_dim_and_guesses_are_coloured_where_colours_are_wanted(
    color: Switch, show_accepted: bool, text: str, streams: Streams
) -> None:
    screen = Screen(color=color, show_accepted=show_accepted)
    screen.write(PIECES)
    assert streams.out() == text
    screen.show_accepted = False
    screen.write([Piece("b", POOL)])
    assert streams.out() == text + "b"


def test_every_source_of_guesses_has_a_colour_of_its_own() -> None:
    codes = [color_code(origin) for origin in Origin if origin not in (Origin.MODEL, Origin.PADDING)]
    assert len(set(codes)) == len(codes) and all(codes)
    assert color_code(SUFFIX) == "32" and color_code(Origin.MODEL) == ""


def test_the_legend_names_the_colours_that_occurred_with_their_tokens(streams: Streams) -> None:
    Screen(color="on", show_accepted=True).legend({SUFFIX: 3, POOL: 12, Origin.RECYCLING: 1})
    assert f"{CYAN}12 pool{RESET}" in streams.err() and f"{GREEN}3 suffix{RESET}" in streams.err()
    words = re.sub(r"\x1b\[[0-9;]*m", "", streams.err())
    assert words == "lacli: accepted in parallel: 12 pool, 3 suffix, 1 recycling\n"


@pytest.mark.parametrize(
    "screen", [{"color": "off"}, {"color": "on", "show_accepted": False}, {"color": "on", "quiet": True}], ids=str
)
def test_there_is_no_legend_where_nothing_was_marked(streams: Streams, screen: dict[str, Any]) -> None:
    Screen(**{"show_accepted": True, **screen}).legend({POOL: 1})
    Screen(color="on", show_accepted=True).legend({})
    assert streams.err() == ""


def test_text_is_out_before_the_next_token_comes(streams: Streams) -> None:
    seen = []

    def tokens() -> Iterator[Piece]:
        for piece in PIECES:
            yield piece
            seen.append(streams.out())

    Screen(color="on", show_accepted=True).write(tokens())
    assert [text.removesuffix(RESET)[-1] for text in seen] == ["a", "b", "c", "d", "\n"]


def test_no_colour_is_on_between_two_tokens_whatever_ends_the_program_there(streams: Streams) -> None:
    def tokens() -> Iterator[Piece]:
        for piece in PIECES:
            yield piece
            assert streams.out().endswith(RESET) == (piece != PIECES[0])

    Screen(color="on", show_accepted=True).write(tokens())


CONTROLS = "".join(map(chr, [*range(32), *range(127, 160)]))


@pytest.fixture
def terminal(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> Streams:
    """The streams, where stdout is taken for a terminal."""
    monkeypatch.setattr("lacli.terminal.screen.is_terminal", lambda stream: stream is sys.stdout)
    return streams


def test_control_characters_of_an_answer_are_shown_on_a_terminal_and_not_obeyed(terminal: Streams) -> None:
    Screen(color="off").write(Piece(char) for char in f"a{CONTROLS}b")
    shown = terminal.out()
    assert [char for char in shown if unicodedata.category(char) == "Cc"] == ["\t", "\n"]
    assert len(shown) == len(CONTROLS) + 2 and "\N{SYMBOL FOR ESCAPE}" in shown


@pytest.mark.parametrize("pieces", [["a\r\n", "b\rc\r"], ["a\r", "\nb", "\r", "c", "\r"]], ids=["whole", "split"])
def test_a_line_end_of_two_characters_is_one_and_a_lone_return_overwrites_nothing(
    pieces: list[str], terminal: Streams
) -> None:
    cr = "\N{SYMBOL FOR CARRIAGE RETURN}"
    Screen(color="off").write(map(Piece, pieces))
    assert terminal.out() == f"a\nb{cr}c{cr}"


def test_a_pipe_gets_an_answer_as_it_is(streams: Streams) -> None:
    screen = Screen(color="off")
    screen.write([Piece(CONTROLS)])
    screen.line(CONTROLS)
    assert streams.out() == f"{CONTROLS}{CONTROLS}\n"


def test_whole_lines_are_shown_like_an_answer_and_keep_colours_of_ours(terminal: Streams) -> None:
    screen = Screen(color="off")
    screen.line("a\x1b[31m\nb")
    screen.line(f"{GREEN}c{RESET}", colored=True)
    assert terminal.out() == f"a\N{SYMBOL FOR ESCAPE}[31m\nb\n{GREEN}c{RESET}\n"


@pytest.mark.parametrize("say", [Screen.note, Screen.say, Screen.report])
def test_nothing_that_is_said_on_stderr_has_codes_of_a_model_or_a_hub(
    say: Callable[[Screen, str], None], streams: Streams
) -> None:
    say(Screen(color="off"), "a\x1b]0;b\x9b2J\x7fc")
    assert streams.err().removeprefix("lacli: ").strip() == "a\N{SYMBOL FOR ESCAPE}]0;b\ufffd2J\N{SYMBOL FOR DELETE}c"


def test_an_error_is_one_line_whatever_a_name_in_it_holds(streams: Streams) -> None:
    Screen(color="off").error(LacliError("no a\nb\u202ec\udc80"))
    assert streams.err() == "lacli: no a\N{SYMBOL FOR LINE FEED}b\ufffdc\ufffd\n"


def test_a_terminal_that_says_it_has_no_columns_gets_its_words(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    for color in ("on", "off", "auto"):
        Screen(color=color).error(LacliError("no such file", "check its name"))
    assert streams.err().count("no such file") == 3


@pytest.mark.parametrize(("last", "added"), [("text", "\n"), ("text\n", "")])
def test_a_line_is_ended_once(streams: Streams, last: str, added: str) -> None:
    screen = Screen(color="on", show_accepted=True)
    screen.write([Piece(last, POOL), Piece("")])
    screen.end_line()
    screen.end_line()
    assert streams.out() == f"{CYAN}{last}{RESET}{added}"


def test_the_chats_words_leave_stdout_to_the_answers_and_are_wrapped_on_a_terminal(streams: Streams) -> None:
    Screen(color="off", quiet=True).say("temp: 0 -> 0.8 [red] :smile: and a line that is long")
    assert streams.err() == "temp: 0 -> 0.8 [red] :smile: and a line that is long\n"
    Screen(color="on").say("one two three four five sixseveneightnineteneleven\nc\td")
    assert streams.out() == ""
    assert streams.err().endswith("one two three four\nfive\nsixseveneightnineteneleven\nc       d\n")


def test_a_second_column_stays_one_and_moves_below_where_it_has_no_room() -> None:
    assert wrapped("/help   what there is to see\n  indented words stay\n\nshort", 20) == (
        "/help   what there\n        is to see\n  indented words\n  stay\n\nshort"
    )
    assert wrapped("/set KEY VALUE   change a setting now", 20) == "/set KEY VALUE\n    change a setting\n    now"
