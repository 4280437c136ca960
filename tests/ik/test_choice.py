"""Which library decodes: --engine, and the reasons why ik_llama.cpp cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from lacli.auto.model_cost import measure, saved_cost
from lacli.engine import libraries
from lacli.engine.libraries import choose_library
from lacli.errors import UsageError
from lacli.ik.context import version as ik_version
from lacli.llamacpp.library import version
from lacli.llamacpp.machine import Processor
from lacli.llamacpp.settings import ModelSettings
from lacli.text.records import NAME
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M, smollm2
from tests.program import call

AUTO, IK = ModelSettings(), ModelSettings(engine="ik")


def test_auto_takes_ik_if_it_is_installed_and_llama_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_library(STDLIB_7M, AUTO).engine == "ik"
    assert choose_library(STDLIB_7M, ModelSettings(engine="llama")).engine == "llama"
    monkeypatch.setattr(libraries, "version", lambda: "")
    assert choose_library(STDLIB_7M, AUTO).engine == "llama"
    with pytest.raises(UsageError, match=r"--engine ik needs ik-llama.*in lacli's folder: pip install '\.\[ik\]'"):
        choose_library(STDLIB_7M, IK)


def mamba(folder: Path) -> Path:
    tiny_models.write_mamba(folder / "mamba.gguf")
    return folder / "mamba.gguf"


HINDRANCES: dict[str, tuple[Callable[[Path], Path], ModelSettings, dict[str, object]]] = {
    "--strict rules out": (lambda _: STDLIB_7M, IK, {"strict": True}),
    "one copy of a model": (lambda _: STDLIB_7M, replace(IK, replicas=2), {}),
    "computes on the processor only": (lambda _: STDLIB_7M, replace(IK, gpu_layers=9), {}),
    "without flash attention": (lambda _: STDLIB_7M, replace(IK, flash_attention="on"), {}),
    "and so without quantised values": (lambda _: STDLIB_7M, replace(IK, cache_type_v="q8_0"), {}),
    "was not tried with the architecture mamba": (mamba, IK, {}),
    "weights of the type q4_1": (lambda _: smollm2(), IK, {}),
    "needs a processor with avx2 and f16c and fma": (lambda _: STDLIB_7M, IK, {"flags": ("avx",)}),
}


@pytest.mark.parametrize("words", HINDRANCES)
def test_what_ik_cannot_do_keeps_llama_or_is_refused(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked, how = HINDRANCES[words]
    monkeypatch.setattr(libraries, "offloads", lambda settings: settings.gpu_layers > 0)
    if "flags" in how:
        monkeypatch.setattr(libraries, "processor", lambda: Processor("old", ("avx",)))
        how = {}
    assert choose_library(path(tmp_path), replace(asked, engine="auto"), **how).engine == "llama"  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        choose_library(path(tmp_path), asked, **how)  # type: ignore[arg-type]


def test_the_command_line_takes_ik_by_itself_and_says_so() -> None:
    run = ("run", "-p", "import os", "--raw", "-n", "8", "--stats", "full")
    by_itself = call(*run, env={"LACLI_ENGINE": "auto"})
    assert by_itself.code == 0
    assert f"library   ik_llama.cpp {ik_version()}" in by_itself.err
    assert "ik_llama.cpp" not in call(*run, "--engine", "llama").err
    for name, library, number in (("auto", "ik_llama.cpp", ik_version()), ("llama", "llama.cpp", version())):
        found = json.loads(call(*run, "--json", "--engine", name).out)
        assert (found["engine"], found["engine_version"]) == (library, number)
    refused = call(*run, "--engine", "ik", "--strict")
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1


def test_what_lacli_cost_measures_is_known_to_a_run_with_the_same_engine_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr("lacli.auto.model_cost.measure", partial(measure, clock=lambda: next(ticks) / 1000))
    sizes = ("--rows", "1,2", "--contexts", "16", "--seconds", "0.2")
    env = {"LACLI_ENGINE": "auto", "XDG_CACHE_HOME": str(tmp_path)}
    done = call("cost", str(STDLIB_7M), *sizes, "--json", env=env)
    assert done.code == 0 and json.loads(done.out)["engine"] == "ik_llama.cpp", done.err
    settings = replace(AUTO, threads=1, gpu_layers=0)
    state = tmp_path / "lacli" / NAME
    assert saved_cost(state, STDLIB_7M, choose_library(STDLIB_7M, settings))
    assert not saved_cost(state, STDLIB_7M, replace(settings, engine="llama"))
    monkeypatch.setattr("lacli.ik.context.version", lambda: "0.0.1")
    assert not saved_cost(state, STDLIB_7M, choose_library(STDLIB_7M, settings))
