"""What every test needs: Ctrl-C that reaches the programs tests start, and properties that a slow machine passes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

from lacli.llamacpp.probe import proven

# On CI the same examples each time: a red run there is about the change, and new examples are found here.
settings.register_profile(
    "lacli", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("lacli")


@pytest.fixture(autouse=True, scope="session")
def faults_of_this_build_go_unsaid() -> Iterator[None]:
    """Where this build fails with repacked weights every session would say so; test_probe.py's sessions do."""
    with patch("lacli.session.session.proven", lambda settings: (proven(settings)[0], "")):
        yield


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard() -> None:
    """A shell's background job ignores Ctrl-C and others, and so would whatever it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
