"""For every test: one thread, no trials of the build, a working Ctrl-C, long deadlines, and two small models."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.probe import IN_TRIAL, working_settings
from lacli.llamacpp.settings import ModelSettings
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M
from tests.program import FAULT

# CI has the same examples each time, so that a failure there comes from the change; new examples are found here. They
# are 60 and not 100, since CONTRIBUTING.md limits the time of the suite.
settings.register_profile(
    "lacli",
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("lacli")


@pytest.fixture(autouse=True, scope="session")
def this_build_is_not_tried_again() -> Iterator[None]:
    """Keep the outcome of tests.program's trial of the build; only test_probe.py, which tests trials, makes others.

    Without this fixture a later test would try the build again, and save the outcome in its own folders.
    """

    def known(settings: ModelSettings) -> tuple[ModelSettings, str]:
        return working_settings(settings)[0], ""

    with patch.dict(os.environ, {IN_TRIAL: FAULT}), patch("lacli.engine.load.working_settings", known):
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Let settings without a number of threads mean one thread, so that xdist's workers do not slow each other."""
    with patch("lacli.llamacpp.machine.physical_cores", lambda: 1):
        yield


@pytest.fixture(autouse=True, scope="session")
def llama_cpp_decodes() -> Iterator[None]:
    """Let lacli.load choose llama.cpp in every test outside tests/ik, as if ik_llama.cpp were not installed."""
    with patch("lacli.engine.libraries.version", lambda: ""):
        yield


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard() -> None:
    """Restore signals that a shell's background job ignores, since the tests' processes would ignore them too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a tiny random model, which no test changes."""
    tiny_models.write_llama(path := tmp_path_factory.mktemp("llama") / "tiny.gguf")
    return path


@pytest.fixture(scope="session")
def small() -> Iterator[LlamaModel]:
    """Yield the 7M model on one thread."""
    with LlamaModel(STDLIB_7M, ModelSettings(context=512, gpu_layers=0, threads=1)) as model:
        yield model
