"""Lines edited on a terminal, by a program on a pseudo-terminal; pyte shows its screen as a person sees it."""

from __future__ import annotations

import ast
import os
import re
import signal
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.program import ROOT, SECONDS, environment

PROGRAM = ("-m", "tests.line_reader")
DRAWN = "\x1b[?2004h"
"""Asks for bracketed paste: the prompt has the terminal now."""

READ = re.compile(r"""read ('.*?'|".*?")\r\n""")
ENTER, ALT_ENTER, TAB, UP = "\r", "\x1b\r", "\t", "\x1b[A"
CTRL_C, CTRL_D, EDITOR = "\x03", "\x04", "\x18\x05"
STATUS = "lookahead · context 15%"


class Terminal:
    """The program on a terminal: what is typed is sent once its prompt is there, and what it read comes back."""

    def __init__(self, *arguments: str, env: dict[str, str], rows: int, columns: int, program: str) -> None:
        self._seen = StringIO()
        self._screen = pyte.Screen(columns, rows)
        with warnings.catch_warnings():
            # Python dislikes forks in a process in which numpy has threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = pexpect.spawn(
                program,
                list(arguments),
                cwd=str(ROOT),
                env=environment(env),
                dimensions=(rows, columns),
                timeout=SECONDS,
                encoding="utf-8",
            )
        self.process.logfile_read = self._seen

    def type(self, keys: str) -> None:
        """Send keys to the next prompt."""
        self.process.expect_exact(DRAWN)
        self.process.send(keys)

    def read(self) -> str:
        """What the program has read."""
        self.process.expect(READ)
        text = ast.literal_eval(self.process.match[1])
        assert isinstance(text, str)
        return text

    def says(self, keys: str) -> str:
        """What is read when these keys are typed, and Enter."""
        self.type(keys + ENTER)
        return self.read()

    def end(self) -> None:
        """Ctrl-D at the next prompt."""
        self.type(CTRL_D)
        self.finish()

    def finish(self) -> None:
        self.process.expect_exact("the end")
        self.process.expect(pexpect.EOF)
        self.process.close()
        assert self.process.exitstatus == 0

    @property
    def output(self) -> str:
        """All that it wrote, codes included."""
        return self._seen.getvalue()

    def screen(self) -> list[str]:
        """The rows that are not blank, as they stand on the screen now."""
        self._screen.reset()
        pyte.Stream(self._screen).feed(self.output)
        return [row.rstrip() for row in self._screen.display if row.strip()]

    def shows(self, *rows: str) -> None:
        """These are the rows, once the rest of what is being drawn has come: it may be read in any pieces."""
        with suppress(pexpect.TIMEOUT, pexpect.EOF):
            while self.screen() != [*rows]:
                self.process.expect(".")
        assert self.screen() == [*rows]


Start = Callable[..., Terminal]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the program; one that a test leaves running is ended."""
    started: list[Terminal] = []

    def start_one(
        *arguments: str,
        env: dict[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
        program: str = sys.executable,
    ) -> Terminal:
        arguments = arguments if program != sys.executable else (*PROGRAM, *arguments)
        started.append(Terminal(*arguments, env=env or {}, rows=rows, columns=columns, program=program))
        return started[-1]

    yield start_one
    for terminal in started:
        terminal.process.close(force=True)


def test_enter_sends_a_line_and_ctrl_d_ends(start: Start) -> None:
    terminal = start()
    assert terminal.says("grüße, 你好") == "grüße, 你好"
    assert terminal.says(ENTER + "  " + ENTER + "after blank lines") == "after blank lines"
    terminal.end()
    assert terminal.screen()[2:] == [">", ">", "> after blank lines", "read 'after blank lines'", ">", "the end"]


def test_a_message_may_have_several_lines(start: Start) -> None:
    terminal = start()
    assert terminal.says(f'"""{ENTER}one{ENTER}  two\\{ENTER}"""') == "one\n  two\\"
    assert terminal.says(f"one{ALT_ENTER}two") == "one\ntwo"
    assert terminal.says(f"one\\{ENTER}two") == "one\ntwo"
    assert terminal.says("\x1b[200~one\r\n\ttwo \\\nthree\n\x1b[201~") == "one\n\ttwo \\\nthree"
    assert terminal.says('"""one"""') == "one"
    terminal.end()
    further = [row for row in terminal.screen() if row.startswith(".")]
    assert further[:5] == [". one", ".   two\\", '. """', ". two", ". two"]
    assert further[5:] == [".     two \\", ". three", "."]


def test_code_with_docstrings_is_typed_or_pasted_between_triple_quotes(start: Start) -> None:
    terminal = start()
    code = 'def half(number):\n    """A half.\n    """\n    return number / 2'
    typed = code.replace("\n", ENTER)
    assert terminal.says(f'"""{ENTER}{typed}{ENTER}"""') == code
    assert terminal.says(f'"""{ENTER}\x1b[200~{code}\x1b[201~{ENTER}"""') == code
    assert terminal.says(f'\x1b[200~"""Halves."""\n\n{code}\x1b[201~') == f'"""Halves."""\n\n{code}'
    terminal.end()


def test_ctrl_d_on_an_empty_last_line_ends_the_message(start: Start) -> None:
    terminal = start()
    terminal.type(f'"""{ENTER}one{CTRL_D}{ENTER}two{ENTER}{CTRL_D}')
    assert terminal.read() == "one\ntwo"
    terminal.type(f"one{ALT_ENTER}two{ALT_ENTER}{CTRL_D}")
    assert terminal.read() == "one\ntwo"
    terminal.type(f'"""{ENTER}{CTRL_D}')
    terminal.end()
    assert '. """' in terminal.screen()


def test_ctrl_c_clears_a_line_and_interrupts_at_an_empty_one(start: Start) -> None:
    terminal = start()
    assert terminal.says(f"thrown away{CTRL_C}kept") == "kept"
    terminal.type(CTRL_C + CTRL_C)
    for _ in range(2):
        terminal.process.expect_exact("interrupted")
    assert terminal.says(f'"""{ENTER}thrown away{CTRL_C}kept') == "kept"
    terminal.process.expect_exact(DRAWN)
    terminal.process.kill(signal.SIGINT)
    terminal.process.expect_exact("interrupted")
    terminal.type("thrown away")
    terminal.process.expect_exact("thrown away")
    terminal.process.kill(signal.SIGINT)
    terminal.process.expect_exact("\x1b[K")
    terminal.process.send(f"kept{ENTER}")
    assert terminal.read() == "kept"
    terminal.end()
    assert terminal.output.count("interrupted") == 3


def test_a_line_can_be_offered_for_editing(start: Start) -> None:
    terminal = start("--edit", "two\nlines")
    assert terminal.says("again") == "again"
    assert terminal.says(" more") == "two\nlines more"
    assert terminal.says("fresh") == "fresh"


def test_history_is_kept_from_one_chat_to_the_next_and_for_its_owner_alone(start: Start, tmp_path: Path) -> None:
    history = tmp_path / "new" / "history"
    terminal = start("--history", str(history))
    for line in ("first", "several"):
        assert terminal.says(line) == line
    assert terminal.says(f"one{ALT_ENTER}two") == "one\ntwo"
    terminal.end()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600

    again = start("--history", str(history))
    assert again.says(UP) == "one\ntwo"
    # Up passes both lines of the one before.
    assert again.says(UP * 5) == "first"
    again.end()


def test_without_a_history_file_there_is_history_within_the_chat(start: Start) -> None:
    terminal = start()
    terminal.says("first")
    assert terminal.says(UP) == "first"


TRUNCATED = b"\n# 2026-11-21 10:00:00\n+first\n\n# 2026-11-21 10:01:00\n+sec\xc3"


def test_a_history_file_that_was_cut_off_is_still_used(start: Start, tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.write_bytes(TRUNCATED)
    terminal = start("--history", str(history))
    assert terminal.says(UP + UP) == "first"
    terminal.end()
    assert "lacli:" not in terminal.output
    assert history.read_bytes().startswith(TRUNCATED + b"\n# ")


@pytest.mark.parametrize("kind", ["folder", "binary", "unreadable", "under a file", "device", "pipe"])
def test_a_broken_history_file_is_said_once_and_left_alone(start: Start, tmp_path: Path, kind: str) -> None:
    history, raw = tmp_path / "history", bytes(range(256))
    match kind:
        case "folder":
            history.mkdir()
        case "binary":
            history.write_bytes(raw)
        case "unreadable":
            history.symlink_to(history)
        case "device":
            history.symlink_to("/dev/full")
        case "pipe":
            os.mkfifo(history)
        case "under a file":
            history.write_bytes(raw)
            history /= "inner"
    terminal = start("--history", str(history), columns=400)
    assert terminal.says("first") == "first"
    assert terminal.says(UP) == "first"
    terminal.end()
    assert terminal.output.count("lacli: lines are not kept") == 1
    assert str(history) in terminal.output
    if kind == "binary":
        assert history.read_bytes() == raw


def test_a_history_that_goes_nowhere_is_no_trouble(start: Start, tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.symlink_to(os.devnull)
    terminal = start("--history", str(history))
    assert terminal.says("first") == terminal.says(UP) == "first"
    terminal.end()
    assert "lacli:" not in terminal.output


def test_a_history_that_cannot_be_written_later_is_said_once(start: Start, tmp_path: Path) -> None:
    history = tmp_path / "history"
    terminal = start("--history", str(history), columns=400)
    terminal.process.expect_exact(DRAWN)
    history.mkdir()
    terminal.process.send(f"first{ENTER}")
    terminal.process.expect_exact("lacli: lines are not kept")
    assert terminal.read() == "first"
    assert terminal.says("second") == "second"
    terminal.end()
    assert terminal.output.count("lacli:") == 1


def test_commands_and_their_words_are_completed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "notes.md").touch()
    terminal = start()
    assert terminal.says(f"/reg{TAB}") == "/regen"
    assert terminal.says(f"/set lookup-m{TAB} 3") == "/set lookup-match 3"
    assert terminal.says(f"/mode looka{TAB}") == "/mode lookahead"
    assert terminal.says(f"/read {tmp_path}/a{TAB}n{TAB}") == f"/read {tmp_path}/a\\ folder/notes.md"
    terminal.type("/e")
    terminal.process.expect_exact("/exit")
    terminal.process.send(CTRL_C + CTRL_D)
    terminal.finish()


def test_nothing_pops_up_in_ordinary_text(start: Start) -> None:
    terminal = start()
    assert terminal.says(f"read /e{TAB}x /set{TAB} ") == "read /ex /set "
    terminal.end()
    assert not {"/exit", "temp"} & set(re.findall(r"[\w/]+", terminal.output))


def editor(folder: Path, body: str) -> str:
    """A program that edits the file it is given."""
    program = folder / "my editor"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return f"'{program}' -flag"


def test_an_editor_takes_the_line_and_gives_it_back(start: Start, tmp_path: Path) -> None:
    terminal = start("--editor", editor(tmp_path, 'printf " and\\nmore\\n" >> "$2"'))
    assert terminal.says(f"text{EDITOR} typed") == "text and\nmore typed"


def test_what_is_typed_in_the_editor_is_shown(start: Start, tmp_path: Path) -> None:
    terminal = start("--editor", editor(tmp_path, 'stty -a | grep -wo -e -echo -e echo -e icanon > "$2"'))
    assert sorted(terminal.says(EDITOR).split()) == ["echo", "icanon"]
    assert not terminal.process.getecho()


def test_ctrl_c_in_the_editor_is_the_editors_own(start: Start, tmp_path: Path) -> None:
    terminal = start("--editor", editor(tmp_path, """trap 'printf done > "$2"; exit 0' INT; echo ready; read line"""))
    terminal.type(f"text{EDITOR}")
    terminal.process.expect_exact("ready")
    terminal.process.send(CTRL_C)
    assert terminal.says("") == "done"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (None, "error: cannot edit with nowhere/editor: No such file or directory (set EDITOR to another editor)"),
        ("exit 3", "ended with 3"),
        ("printf '\\377' > \"$2\"", "error: cannot edit with"),
        ('rm "$2"', "No such file or directory"),
    ],
)
def test_an_editor_that_fails_leaves_the_line_and_a_sentence(
    start: Start, tmp_path: Path, body: str | None, sentence: str
) -> None:
    terminal = start("--editor", editor(tmp_path, body) if body else "nowhere/editor", columns=400)
    terminal.type(f"text{EDITOR}")
    terminal.process.expect_exact(sentence)
    assert terminal.says(" stays") == "text stays"


def test_the_status_line_stands_below_the_line_and_is_gone_when_it_is_sent(start: Start) -> None:
    terminal = start("--status", STATUS)
    terminal.type("hello")
    terminal.shows("> hello", STATUS)
    terminal.process.send(ENTER)
    terminal.read()
    terminal.end()
    assert terminal.screen() == ["> hello", "read 'hello'", ">", "the end"]


def test_a_hidden_status_line_takes_no_row(start: Start) -> None:
    terminal = start()
    terminal.type("hello")
    terminal.shows("> hello")


def test_twenty_columns_and_few_rows_are_enough(start: Start) -> None:
    terminal = start("--status", STATUS, rows=4, columns=20)
    terminal.type("a line that needs two")
    terminal.shows("> a line that needs", "  two", STATUS[:20].rstrip())
    terminal.process.send(f"{CTRL_C}/re")
    terminal.process.expect_exact("/regen")
    terminal.process.send(f"{CTRL_C}{CTRL_D}")
    terminal.finish()
    assert terminal.screen() == [">", "the end"]


def test_an_earlier_line_is_suggested_dimly_where_it_fits(start: Start) -> None:
    terminal = start()
    terminal.says("hello there")
    terminal.type("hel")
    terminal.process.expect(r"\x1b\[0;2mlo there")
    terminal.process.send(f"\x1b[C{ENTER}")
    assert terminal.read() == "hello there"


@pytest.mark.parametrize(("env", "color"), [({"NO_COLOR": "1"}, "auto"), ({}, "off")])
def test_without_colours_nothing_is_coloured_or_suggested(start: Start, env: dict[str, str], color: str) -> None:
    terminal = start("--color", color, "--status", STATUS, env=env)
    terminal.says("hello there")
    terminal.type("hel")
    terminal.process.expect_exact("hel")
    terminal.process.send(f"\x1b[Cp{ENTER}")
    assert terminal.read() == "help"
    terminal.type(f"/m{TAB}")
    terminal.process.expect_exact("/mode")
    terminal.process.send(f"{CTRL_C}{CTRL_D}")
    terminal.finish()
    # What is chosen in a list is reversed, which is no colour.
    assert set(re.findall(r"\x1b\[([\d;]*)m", terminal.output)) <= {"0", "0;7"}


def test_the_terminal_is_never_asked_where_its_cursor_is(start: Start) -> None:
    terminal = start("--status", STATUS)
    terminal.says("hello")
    terminal.end()
    assert "\x1b[6n" not in terminal.output


def test_a_dumb_terminal_gets_a_prompt_and_no_codes(start: Start) -> None:
    terminal = start("--status", STATUS, "--history", "/nowhere", env={"TERM": "dumb"})
    for prompt, keys in (("> ", "hello"), ("> ", '"""'), (". ", "one"), (". ", '"""')):
        terminal.process.expect_exact(prompt)
        terminal.process.send(keys + ENTER)
    assert terminal.read() == "one"
    terminal.process.expect_exact("> ")
    terminal.process.send(CTRL_C)
    terminal.process.expect_exact("interrupted\r\n> ")
    terminal.process.send(CTRL_D)
    terminal.finish()
    assert "\x1b" not in terminal.output
    assert ". one" in terminal.screen()


def test_a_file_for_the_answers_gets_nothing_else(start: Start, tmp_path: Path) -> None:
    answers = tmp_path / "answers.txt"
    command = f"exec '{sys.executable}' {' '.join(PROGRAM)} > '{answers}'"
    terminal = start("-c", command, program="/bin/sh")
    terminal.process.expect_exact("> ")
    terminal.process.send("hello\r")
    terminal.process.expect_exact("> ")
    terminal.process.send(CTRL_D)
    terminal.process.expect(pexpect.EOF)
    assert answers.read_text() == "read 'hello'\nthe end\n"
    assert "\x1b" not in terminal.output


def test_a_line_in_another_encoding_is_refused_and_the_chat_goes_on(start: Start) -> None:
    terminal = start()
    terminal.process.expect_exact(DRAWN)
    os.write(terminal.process.child_fd, b"\xff\r")
    terminal.process.expect_exact("error: the line is not UTF-8 text")
    assert terminal.says("fine") == "fine"
