"""What signals are while and after the terminal is watched, inside the test's process."""

from __future__ import annotations

import signal
from threading import active_count

from lacli.terminal import interrupts


def test_signals_are_watched_inside_only_and_are_afterwards_what_they_were() -> None:
    deadly = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
    before = active_count()
    with interrupts.undone_by_signals(lambda: None):
        assert signal.SIG_DFL not in map(signal.getsignal, deadly)
    assert {*map(signal.getsignal, deadly)} == {signal.SIG_DFL}
    assert signal.set_wakeup_fd(-1) == -1
    assert active_count() == before


def test_ctrl_c_is_nothing_inside_and_an_exception_again_behind() -> None:
    with interrupts.without_ctrl_c():
        signal.raise_signal(signal.SIGINT)
    with interrupts.ctrl_c_ends_at_once():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
