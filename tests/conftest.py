"""What every test needs: Ctrl-C that reaches the programs the tests start."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """A shell's background job ignores Ctrl-C, and so would whatever it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
