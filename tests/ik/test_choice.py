"""Which engine decodes: what --engine says, and why ik_llama.cpp cannot be had."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from lacli.auto.measure import measure
from lacli.auto.model_cost import known_cost
from lacli.errors import UsageError
from lacli.ik import choice
from lacli.ik.choice import with_engine
from lacli.llamacpp.build import Processor
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.text.records import NAME
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M, load, smollm2
from tests.program import call

AUTO, IK = ModelSettings(engine="auto"), ModelSettings(engine="ik")


def test_auto_takes_ik_where_it_is_installed_and_llama_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_engine(STDLIB_7M, AUTO).engine == "ik"
    assert with_engine(STDLIB_7M, ModelSettings()).engine == "llama"
    monkeypatch.setattr(choice, "version", lambda: "")
    assert with_engine(STDLIB_7M, AUTO).engine == "llama"
    with pytest.raises(UsageError, match=r"--engine ik needs ik-llama-cpp-python.*lacli\[ik\]"):
        with_engine(STDLIB_7M, IK)


def test_a_processor_without_the_instructions_of_the_wheel_keeps_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "processor", lambda: Processor("old", ("avx",)))
    assert with_engine(STDLIB_7M, AUTO).engine == "llama"
    with pytest.raises(UsageError, match="needs a processor with avx2 and f16c and fma"):
        with_engine(STDLIB_7M, IK)


def test_strict_keeps_llama_or_is_refused() -> None:
    assert with_engine(STDLIB_7M, AUTO, strict=True).engine == "llama"
    with pytest.raises(UsageError, match="--strict rules out"):
        with_engine(STDLIB_7M, IK, strict=True)


def test_layers_on_a_gpu_keep_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "offloads", lambda settings: settings.gpu_layers != 0)
    assert with_engine(STDLIB_7M, AUTO).engine == "llama"
    assert with_engine(STDLIB_7M, replace(AUTO, gpu_layers=0)).engine == "ik"
    with pytest.raises(UsageError, match="computes on the processor only"):
        with_engine(STDLIB_7M, IK)


def test_flash_attention_and_quantised_values_keep_llama() -> None:
    for asked in (replace(IK, flash_attention="on"), replace(IK, cache_type_v="q8_0")):
        assert with_engine(STDLIB_7M, replace(asked, engine="auto")).engine == "llama"
        with pytest.raises(UsageError, match="without flash attention"):
            with_engine(STDLIB_7M, asked)


def test_an_architecture_that_was_not_tried_keeps_llama(tmp_path: Path) -> None:
    path = tmp_path / "mamba.gguf"
    tiny_models.write_mamba(path)
    assert with_engine(path, AUTO).engine == "llama"
    with pytest.raises(UsageError, match="was not tried with the architecture mamba"):
        with_engine(path, IK)


def test_weights_of_a_type_that_fails_or_was_not_tried_keep_llama() -> None:
    """Steps of 32 rows and more of Q4_1 give other logits altogether in the wheel."""
    assert with_engine(smollm2(), AUTO).engine == "llama"
    with pytest.raises(UsageError, match="weights of the type q4_1"):
        with_engine(smollm2(), IK)


def test_the_command_line_takes_ik_by_itself_and_says_so() -> None:
    run = ("run", "-p", "import os", "--raw", "-n", "8", "--stats")
    by_itself = call(*run, env={"LACLI_ENGINE": "auto"})
    assert by_itself.code == 0
    assert "CPU with ik_llama.cpp" in by_itself.err
    assert "ik_llama.cpp" not in call(*run, "--engine", "llama").err
    refused = call(*run, "--engine", "ik", "--strict")
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1


def test_several_copies_keep_llama_or_refuse_ik() -> None:
    assert with_engine(STDLIB_7M, AUTO, copies=True).engine == "llama"
    with pytest.raises(UsageError, match="one copy of a model"):
        load(model_settings=IK, replicas=ReplicaSettings(count=2))


def test_what_lacli_cost_measures_is_known_to_a_run_with_the_engine_that_auto_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr("lacli.auto.model_cost.measure", partial(measure, clock=lambda: next(ticks) / 1000))
    sizes = ("--rows", "1,2", "--contexts", "16", "--seconds", "0.2")
    done = call("cost", str(STDLIB_7M), *sizes, env={"LACLI_ENGINE": "auto", "XDG_CACHE_HOME": str(tmp_path)})
    assert done.code == 0, done.err
    settings = replace(AUTO, threads=1, gpu_layers=0)
    state = tmp_path / "lacli" / NAME
    assert known_cost(state, STDLIB_7M, with_engine(STDLIB_7M, settings))
    assert not known_cost(state, STDLIB_7M, replace(settings, engine="llama"))


def test_check_opens_its_contexts_with_the_engine_of_the_model() -> None:
    done = call("check", str(STDLIB_7M), "--engine", "ik", "--each", "1", "-n", "6", "--json")
    assert done.code == 0, done.err
    assert "ik_llama.cpp" in done.out
