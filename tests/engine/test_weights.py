"""The copies of a model in this process: what is planned, shared and left out, and what a user reads of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lacli.engine import weights as room
from lacli.engine.load import ModelEngine, open_engine
from lacli.engine.replicas import ReplicaContext
from lacli.engine.weights import OpenContext, ReplicaPlan, planned
from lacli.errors import UsageError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.devices import Device
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.fakes.tiny_models import write_lfm2
from tests.loading import STDLIB_7M, generate
from tests.program import call

LOADING = ModelSettings(context=512, gpu_layers=0, threads=2)
PLAIN = DecodeSettings(mode="plain")
LOOKAHEAD = DecodeSettings(mode="lookahead", window=5, ngram=3, guesses=4)
TWO = replace(LOADING, devices=("CPU",), replicas=2)
SERVED = replace(LOADING, rpc=("a:1", "b:2"))
QUESTION = "Write a Python function is_empty: Return true if the queue is empty."
PROCESSOR = Device("CPU", "a processor", False)


def engine_of(decode_settings: DecodeSettings = LOOKAHEAD, wanted: ModelSettings = TWO) -> ModelEngine:
    return open_engine(STDLIB_7M, wanted, decode_settings, SamplingSettings())


def test_copies_on_the_processor_share_its_threads_and_are_numbered() -> None:
    assert planned(LOADING) == [ReplicaPlan("", LOADING)]
    two = planned(replace(TWO, threads=5))
    assert [copy.name for copy in two] == ["CPU (1)", "CPU (2)"]
    assert all(copy.model_settings.threads == 2 and copy.model_settings.devices == ("CPU",) for copy in two)


def contexts_of(opened: OpenContext) -> list[LlamaContext]:
    assert isinstance(opened, ReplicaContext)
    return [each.context for each in opened._replicas]


def test_a_mode_without_branches_opens_one_context_and_another_mode_opens_the_rest() -> None:
    with engine_of(PLAIN) as engine:
        assert isinstance(engine.context, LlamaContext)
        plain = generate(engine, QUESTION, max_tokens=40)
        assert engine.adapt(LOOKAHEAD, SamplingSettings())
        assert generate(engine, QUESTION, max_tokens=40).tokens == plain.tokens
        assert all(context.calls > 10 for context in contexts_of(engine.context))


def test_a_model_that_takes_no_trees_is_decoded_by_one_copy(tmp_path: Path) -> None:
    write_lfm2(tmp_path / "model.gguf")
    with open_engine(tmp_path / "model.gguf", TWO, DecodeSettings(), SamplingSettings()) as engine:
        assert engine.weights.names == ["CPU (1)"]
        assert any("CPU (1) decodes alone" in note for note in engine.notes)
        assert generate(engine, "the cat sat on", max_tokens=10, raw=True).tokens


def test_strict_is_refused_where_other_machines_compute() -> None:
    with pytest.raises(UsageError, match="--rpc computes on others"):
        engine_of(replace(LOOKAHEAD, strict=True), replace(LOADING, rpc=("192.0.2.1:50052",)))


def test_the_programs_answer_is_one_copys_and_names_them() -> None:
    sizes = ("-W", "5", "-N", "3", "-G", "4", "-n", "40", "-q")
    alone = call("run", "-p", QUESTION, *sizes)
    shared = call("run", "-p", QUESTION, *sizes, "--replicas", "2", "--stats", "full")
    assert shared.code == 0 and shared.out == alone.out and "CPU (1), CPU (2)" in shared.err
    answer = json.loads(call("run", "-p", QUESTION, *sizes, "--replicas", "2", "--json").out)
    assert answer["replicas"] == ["CPU (1)", "CPU (2)"]
    assert json.loads(call("run", "-p", QUESTION, *sizes, "--json").out)["replicas"] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--device", "CUDA7"], "there is no device 'CUDA7' (there is CPU"),
        (["--device", "CPU,CPU"], "one copy of the model cannot have CPU+CPU"),
        (["--device", "CPU,CPU", "--replicas", "3"], "--replicas 3 cannot share CPU, CPU evenly"),
        (["--replicas", "0"], "0"),
        (["--device", "RPC0", "--replicas", "2"], "--rpc adds RPC0"),
    ],
)
def test_copies_that_cannot_be_are_refused_in_one_line(flags: list[str], words: str) -> None:
    done = call("run", "-p", "x", "-q", *flags)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1


def servers(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A machine that has a processor, and servers with a device each."""
    remote = [Device(f"RPC{number}", server, True) for number, server in enumerate(names)]
    monkeypatch.setattr(room, "devices", lambda: [PROCESSOR, *remote])
    for name in ("remote_devices", "register"):
        monkeypatch.setattr(f"lacli.llamacpp.rpc.{name}", lambda *_: remote)


def notes(**wanted: Any) -> list[str]:
    return [*room._idle(planned(replace(LOADING, **wanted)))]


def test_devices_that_gain_nothing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    servers(monkeypatch, "a:1")
    assert notes(devices=("CPU",), replicas=2) == ["all copies compute on one processor, which gains nothing"]
    assert notes(devices=("CPU",), rpc=("a:1",), gpu_layers=-1) == ["no copy uses the RPC server at a:1"]
    assert "nothing goes to --rpc's servers" in notes(rpc=("a:1",))[0]
    assert notes(rpc=("a:1",), gpu_layers=-1) == []
    assert notes(devices=("CPU", "RPC0"), replicas=2, rpc=("a:1",), gpu_layers=-1) == []


def test_two_copies_on_one_server_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    servers(monkeypatch, "a:1", "a:1", "b:2")
    with pytest.raises(UsageError, match="a:1, which does one thing at a time"):
        planned(replace(SERVED, devices=("RPC0", "RPC1"), replicas=2))
    (both,) = planned(replace(SERVED, devices=("RPC2", "RPC1")))
    assert (both.name, both.rpc) == ("RPC2+RPC1", ("a:1", "b:2"))
    far, near = planned(replace(SERVED, devices=("RPC2", "CPU"), replicas=2))
    assert (far.name, far.rpc, near.rpc) == ("RPC2", ("b:2",), ())


def test_of_several_devices_the_one_that_computes_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    servers(monkeypatch, "a:1", "b:2")
    assert [copy.name for copy in planned(replace(SERVED, split_mode="none", main_gpu=1))] == ["RPC1"]
    assert [copy.name for copy in planned(SERVED)] == ["RPC0+RPC1"]
