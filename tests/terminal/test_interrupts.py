"""What signals leave of a terminal: its attributes as they were, an exit code that says why."""

from __future__ import annotations

import signal
import sys
import termios
from collections.abc import Mapping
from textwrap import indent
from threading import active_count
from typing import Any

import pexpect
import pytest

from lacli.terminal import interrupts
from tests.program import on_terminal, terminal_code

NATIVE = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
"""Minutes in a C function that lets other threads run, as llama.cpp's do: no handler of Python's is called there."""

LOOP = "any(map(time.sleep, itertools.repeat(0.01)))"
HIDDEN = "interrupts.hidden_keys()"

INTERRUPTED = """
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(True))
print("WAITING", flush=True)
while not heard:
    time.sleep(0.01)
print("HEARD", flush=True)
"""


def program(body: str, context: str = HIDDEN, env: Mapping[str, str] | None = None) -> pexpect.spawn:
    """A program on a terminal, where it says READY inside of a context, and goes on with `body` there."""
    text = f"""
import hashlib, itertools, os, select, signal, sys, time
from lacli.terminal import interrupts, screen
from lacli.terminal.screen import Screen, loading_model
with {context}:
    print("READY", flush=True)
{indent(body, "    ")}
print("OVER", flush=True)
"""
    terminal = on_terminal("-c", text, program=(sys.executable,), env=env)
    terminal.delaybeforesend = None
    return terminal


def ended(terminal: pexpect.spawn) -> tuple[int | None, str, list[Any]]:
    """A program's exit code, what it showed last, and the terminal's attributes that it leaves."""
    shown = terminal.read()
    terminal.wait()
    left = termios.tcgetattr(terminal.child_fd)
    terminal.close()
    return terminal_code(terminal), shown, left


@pytest.fixture(scope="module")
def usual() -> list[Any]:
    """A terminal's attributes before a program has changed any."""
    return ended(program("pass", context="open(os.devnull)"))[2]


def test_signals_are_watched_inside_only_and_are_afterwards_what_they_were() -> None:
    before = active_count()
    with interrupts.without_ctrl_c():
        signal.raise_signal(signal.SIGINT)
    with interrupts.ctrl_c_ends_at_once():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1
    assert active_count() == before


@pytest.mark.parametrize(
    ("body", "number"), [(LOOP, signal.SIGTERM), (NATIVE, signal.SIGTERM), (NATIVE, signal.SIGHUP)]
)
def test_a_signal_that_ends_the_process_finds_the_terminal_put_back(
    body: str, number: signal.Signals, usual: list[Any]
) -> None:
    terminal = program(body)
    terminal.expect_exact("READY")
    assert termios.tcgetattr(terminal.child_fd) != usual
    terminal.kill(number)
    code, shown, left = ended(terminal)
    assert (code, left) == (128 + number, usual) and "\x1b[?25h\r\n" in shown


def test_ctrl_c_puts_the_terminal_back_too(usual: list[Any]) -> None:
    terminal = program(LOOP)
    terminal.expect_exact("READY")
    terminal.sendintr()
    _, shown, left = ended(terminal)
    assert "KeyboardInterrupt" in shown and left == usual


def test_a_signal_that_is_ignored_stays_so() -> None:
    context = f"(signal.signal(signal.SIGHUP, signal.SIG_IGN), {HIDDEN})[1]"
    assert ended(program("os.kill(os.getpid(), signal.SIGHUP)", context))[:2] == (0, "READY\r\nOVER\r\n")


def test_typed_keys_are_not_shown_and_the_next_reader_gets_them(usual: list[Any]) -> None:
    terminal = program("select.select([0], [], [])")
    terminal.expect_exact("READY\r\n")
    terminal.send("typ\x7fed\r")
    terminal.expect_exact("OVER")
    assert terminal.before == ""
    assert termios.tcgetattr(terminal.child_fd) == usual


def test_a_background_job_leaves_the_terminal_to_others() -> None:
    shell = on_terminal("-i", program=("sh",), env={"PS1": "$ ", "ENV": ""})
    body = "from lacli.terminal import interrupts\nwith interrupts.hidden_keys(): print('IN' + 'SIDE')"
    shell.sendline(f'{sys.executable} -c "{body}" &')
    shell.expect_exact("INSIDE")
    shell.close(force=True)


def test_ctrl_c_while_a_model_loads_is_heard_in_the_middle_of_a_call_and_the_line_goes() -> None:
    loading = "(setattr(screen, 'SHOWN_AFTER_S', 0), loading_model(Screen()))[1]"
    terminal = program(NATIVE, loading, env={"TTY_INTERACTIVE": "1"})
    terminal.expect_exact("loading the model")
    terminal.expect_exact("READY")
    terminal.sendintr()
    code, shown, _ = ended(terminal)
    assert code == 130 and shown.endswith("\r\x1b[K")
    assert terminal.signalstatus == signal.SIGINT, "a shell's loop would go on"


def test_the_second_ctrl_c_ends_the_process_where_the_first_one_does_not() -> None:
    terminal = program(INTERRUPTED + NATIVE, "interrupts.second_ctrl_c_ends()")
    terminal.expect_exact("WAITING")
    terminal.sendintr()
    terminal.expect_exact("HEARD")
    terminal.sendintr()
    assert ended(terminal)[0] == 130 and terminal.signalstatus == signal.SIGINT


def test_a_second_ctrl_c_at_once_may_count_as_the_first() -> None:
    terminal = program(INTERRUPTED * 2, "interrupts.second_ctrl_c_ends(1000)")
    for _ in range(2):
        terminal.expect_exact("WAITING")
        terminal.sendintr()
    terminal.expect_exact("OVER")
    assert ended(terminal)[0] == 0
