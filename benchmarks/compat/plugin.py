"""A pytest plugin for llama.cpp's server tests: the tests use the bundled 7M model, and their results are written.

The environment variable COMPAT_RESULTS names the file. Each test adds a line of JSON: `test`, `outcome` and `why`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.loading import STDLIB_7M

GENERATING = ("tinyllama2", "stories15m_moe", "tinyllama_infill")
"""Presets of models that only write text. The 7M model cannot replace the other models, and there is no network."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Change llama.cpp's test helpers (`utils`) before the tests import them."""
    sys.path.insert(0, os.getcwd())
    # The helpers import wget, which may be missing; nothing is downloaded.
    sys.modules.setdefault("wget", ModuleType("wget"))
    helpers: Any = import_module("utils")
    for name in GENERATING:
        setattr(helpers.ServerPreset, name, staticmethod(_with_7m(getattr(helpers.ServerPreset, name))))
    helpers.ServerPreset.load_all = staticmethod(lambda: None)
    helpers.download_file = lambda url, output_file_path=None: str(STDLIB_7M)


def _with_7m(preset: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        server = preset()
        server.model_hf_repo = server.model_hf_file = None
        server.model_file = str(STDLIB_7M)
        server.n_threads = 1
        return server

    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Write a test's result after its call, and after a setup or teardown that fails or skips the test."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        why = "" if report.passed else str(call.excinfo.value).partition("\n")[0] if call.excinfo else ""
        line = {"test": item.nodeid.removeprefix("unit/"), "outcome": report.outcome, "why": why[:200]}
        with Path(os.environ["COMPAT_RESULTS"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return report
