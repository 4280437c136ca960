"""Ctrl-C in the middle of a call, twice, and ignored by the parent."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from textwrap import indent
from threading import enumerate as threads

import pexpect

from lacli import interrupts
from tests.program import on_terminal, terminal_code

NATIVE = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
"""Minutes in a C function that releases the GIL, as llama.cpp's do. Python calls no signal handler meanwhile."""

INTERRUPTED = """
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(True))
print("WAITING", flush=True)
while not heard:
    time.sleep(0.01)
print("HEARD", flush=True)
"""


def program(body: str, context: str, env: Mapping[str, str] | None = None) -> pexpect.spawn:
    """Start Python on a terminal. It enters `context`, prints READY, runs `body`, and prints OVER after the context."""
    text = f"""
import hashlib, signal, time
from lacli import interrupts
from lacli.terminal.screen import Screen, loading_model
with {context}:
    print("READY", flush=True)
{indent(body, "    ")}
print("OVER", flush=True)
"""
    terminal = on_terminal("-c", text, program=(sys.executable,), env=env)
    terminal.delaybeforesend = None
    return terminal


def ended(terminal: pexpect.spawn) -> tuple[int | None, str]:
    """Wait for a program's end; return its exit code and its last output."""
    shown = terminal.read()
    terminal.close()
    return terminal_code(terminal), shown


def test_signals_are_watched_inside_only_and_are_afterwards_what_they_were() -> None:
    before = {*threads()}
    with interrupts.without_ctrl_c():
        signal.raise_signal(signal.SIGINT)
    with interrupts.ctrl_c_ends_at_once():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1
    assert {*threads()} <= before


def test_ctrl_c_while_a_model_loads_is_heard_in_the_middle_of_a_call_and_the_line_goes() -> None:
    terminal = program(NATIVE, "loading_model(Screen())", env={"TTY_INTERACTIVE": "1"})
    terminal.expect_exact("loading the model")
    terminal.expect_exact("READY")
    terminal.sendintr()
    code, shown = ended(terminal)
    assert code == 130 and shown.endswith("\r\x1b[K")
    assert terminal.signalstatus == signal.SIGINT, "a shell's loop would continue"


def test_the_second_ctrl_c_ends_the_process_if_the_first_does_not() -> None:
    terminal = program(INTERRUPTED + NATIVE, "interrupts.second_ctrl_c_ends()")
    terminal.expect_exact("WAITING")
    terminal.sendintr()
    terminal.expect_exact("HEARD")
    terminal.sendintr()
    assert ended(terminal)[0] == 130 and terminal.signalstatus == signal.SIGINT
