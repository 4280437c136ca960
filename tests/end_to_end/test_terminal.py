"""What signals leave of a terminal: its attributes as they were, no code switched on, an exit code that says why."""

from __future__ import annotations

import signal
import sys
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import pexpect
import pytest

from tests.program import on_terminal, terminal_code

NATIVE = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
"""Minutes in a C function that lets other threads run, as llama.cpp's do: no handler of Python's is called there."""

LOOP = "any(map(time.sleep, itertools.repeat(0.01)))"
DEADLY = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]

UNTIL = """
heard = []
signal.signal(signal.{}, lambda *_: heard.append(True))
print("WAITING", flush=True)
while not heard:
    time.sleep(0.01)
"""
INTERRUPTED, RESUMED = UNTIL.format("SIGINT"), UNTIL.format("SIGCONT")


def text_of(body: str, context: str = "interrupts.hidden_keys()") -> str:
    """A program that says BEGUN, and READY inside of a context, and goes on with `body` there."""
    return f"""
import hashlib, itertools, os, select, signal, sys, time
from lacli.terminal import interrupts, waiting
from lacli.terminal.screen import Screen, loading_model
print("BEGUN", flush=True)
with {context}:
    print("READY", flush=True)
{indent(body, "    ")}
print("OVER", flush=True)
"""


def program(body: str, env: Mapping[str, str] | None = None, **more: str) -> pexpect.spawn:
    """The program on a terminal, where it has begun."""
    terminal = on_terminal("-c", text_of(body, **more), program=(sys.executable,), env=env)
    terminal.delaybeforesend = None
    terminal.expect_exact("BEGUN\r\n")
    return terminal


def attributes(terminal: pexpect.spawn) -> list[Any]:
    return termios.tcgetattr(terminal.child_fd)


def ended(terminal: pexpect.spawn) -> tuple[int | None, str, list[Any]]:
    """A program's exit code, what it showed last, and the attributes that it leaves."""
    shown = terminal.read()
    terminal.wait()
    left = attributes(terminal)
    terminal.close()
    return terminal_code(terminal), shown, left


@pytest.fixture(scope="module")
def usual() -> list[Any]:
    """A terminal's attributes before a program has changed any."""
    return ended(program("pass", context="open(os.devnull)"))[2]


@pytest.mark.parametrize(("body", "number"), [(LOOP, signal.SIGTERM), *((NATIVE, each) for each in DEADLY)])
def test_a_signal_that_ends_the_process_finds_the_terminal_put_back(
    body: str, number: signal.Signals, usual: list[Any]
) -> None:
    terminal = program(body)
    terminal.expect_exact("READY")
    assert attributes(terminal) != usual
    terminal.kill(number)
    assert ended(terminal) == (128 + number, "\r\n", usual)


def test_one_that_hides_the_cursor_shows_it_again() -> None:
    terminal = program(NATIVE, context="Screen().progress(3, 'answers')")
    terminal.expect_exact("\x1b[?25l")
    terminal.kill(signal.SIGTERM)
    code, shown, _ = ended(terminal)
    # The bar's own thread may draw it once more.
    assert code == 128 + signal.SIGTERM and "\x1b[?25h\r\n" in shown


def test_a_signal_that_is_ignored_stays_so() -> None:
    body = "os.kill(os.getpid(), signal.SIGHUP)"
    terminal = program(body, context="(signal.signal(signal.SIGHUP, signal.SIG_IGN), interrupts.hidden_keys())[1]")
    assert ended(terminal)[:2] == (0, "READY\r\nOVER\r\n")


def test_ctrl_c_puts_the_terminal_back_too(usual: list[Any]) -> None:
    terminal = program(LOOP)
    terminal.expect_exact("READY")
    terminal.sendintr()
    _, shown, left = ended(terminal)
    assert "KeyboardInterrupt" in shown and left == usual


LOADING = "(setattr(waiting, 'SHOWN_AFTER_S', 0), loading_model(Screen()))[1]"


def test_ctrl_c_while_a_model_loads_is_heard_in_the_middle_of_a_call_and_the_line_goes() -> None:
    terminal = program(NATIVE, context=LOADING, env={"TTY_INTERACTIVE": "1"})
    terminal.expect_exact("loading the model")
    terminal.expect_exact("READY")
    terminal.sendintr()
    code, shown, _ = ended(terminal)
    assert code == 130 and shown.endswith("\r\x1b[K")
    assert terminal.signalstatus == signal.SIGINT, "a shell's loop would go on"


def test_the_second_ctrl_c_ends_the_process_where_the_first_one_does_not() -> None:
    body = INTERRUPTED + "print('HEARD', flush=True)\n" + NATIVE
    terminal = program(body, context="interrupts.second_ctrl_c_ends()")
    terminal.expect_exact("WAITING")
    terminal.sendintr()
    terminal.expect_exact("HEARD")
    terminal.sendintr()
    assert ended(terminal)[0] == 130 and terminal.signalstatus == signal.SIGINT


def test_a_second_ctrl_c_at_once_may_count_as_the_first() -> None:
    body = INTERRUPTED + "print('HEARD', flush=True)\n" + INTERRUPTED.replace("WAITING", "AGAIN") + "print('ALIVE')\n"
    terminal = program(body, context="interrupts.second_ctrl_c_ends(1000)")
    for seen in ("WAITING", "AGAIN"):
        terminal.expect_exact(seen)
        terminal.sendintr()
    terminal.expect_exact("ALIVE")
    assert ended(terminal)[0] == 0


def test_a_process_that_ends_at_once_can_put_it_back_itself(usual: list[Any]) -> None:
    assert ended(program("interrupts.put_terminal_back()\nos._exit(3)"))[::2] == (3, usual)


def test_typed_keys_are_not_shown_and_the_next_reader_gets_them(usual: list[Any]) -> None:
    terminal = program("select.select([0], [], [])")
    terminal.expect_exact("READY")
    terminal.send("typ\x7fed\r")
    terminal.expect_exact("OVER")
    assert terminal.before == "\r\n"
    assert attributes(terminal) == usual


@pytest.fixture
def shell() -> Iterator[pexpect.spawn]:
    """A shell with job control and without an editor of its own."""
    terminal = on_terminal("-i", program=("sh",), env={"PS1": "$ ", "ENV": ""})
    terminal.delaybeforesend = None
    terminal.sendline("set +o emacs")
    terminal.expect_exact("emacs\r\n")
    terminal.expect_exact("$ ")
    yield terminal
    terminal.close(force=True)


def typed(shell: pexpect.spawn, folder: Path, body: str, end: str = "") -> None:
    (folder / "program.py").write_text(text_of(body))
    shell.sendline(f"{sys.executable} {folder}/program.py{end}")
    shell.expect_exact("READY\r\n")


def test_ctrl_z_leaves_the_shell_a_sound_terminal_and_fg_hides_the_keys_again(
    shell: pexpect.spawn, tmp_path: Path
) -> None:
    usual = attributes(shell)
    typed(shell, tmp_path, RESUMED + "print('RESUMED', flush=True)\nsys.stdin.readline()")
    shell.expect_exact("WAITING\r\n")
    hidden = attributes(shell)
    shell.sendcontrol("z")
    shell.expect_exact("$ ")
    assert attributes(shell) == usual != hidden
    shell.sendline("fg")
    shell.expect_exact("RESUMED\r\n")
    assert attributes(shell) == hidden
    shell.sendline("")
    shell.expect_exact("$ ")
    assert attributes(shell) == usual


def test_a_background_job_leaves_the_terminal_to_others(shell: pexpect.spawn, tmp_path: Path) -> None:
    usual = attributes(shell)
    typed(shell, tmp_path, "pass", end=" &")
    shell.expect_exact("OVER")
    assert attributes(shell) == usual
