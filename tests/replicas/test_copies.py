"""The copies of a model in this process: what is planned, shared and left out, and what a user reads of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.errors import ModelLoadError, UsageError
from lacli.llamacpp.context import Context, LlamaEngine
from lacli.llamacpp.devices import Device
from lacli.llamacpp.library import lib
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, Placement, ReplicaSettings
from lacli.replicas import copies as room
from lacli.replicas.copies import Copies, ReplicaPlan, planned
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from tests.fakes.tiny_models import write_lfm2
from tests.loading import STDLIB_7M, generate, load
from tests.program import call

LOADING = ModelSettings(context=512, gpu_layers=0, threads=2)
PLAIN = DecodeSettings(mode="plain")
LOOKAHEAD = DecodeSettings(mode="lookahead", window=5, ngram=3, guesses=4)
TWO = ReplicaSettings(groups=(("CPU",), ("CPU",)))
QUESTION = "Write a Python function is_empty: Return true if the queue is empty."
PROCESSOR = Device("CPU", "a processor", False)


def session_of(decode_settings: DecodeSettings = LOOKAHEAD, wanted: ReplicaSettings = TWO) -> Session:
    return Session(STDLIB_7M, LOADING, decode_settings, SamplingSettings(), replicas=wanted)


def test_nothing_asked_is_one_copy_as_llama_cpp_makes_it() -> None:
    assert planned(ReplicaSettings(limit_s=3), LOADING) == [ReplicaPlan("", LOADING)]


def test_copies_on_the_processor_share_its_threads_and_are_numbered() -> None:
    two = planned(TWO, replace(LOADING, threads=5))
    assert [copy.name for copy in two] == ["CPU (1)", "CPU (2)"]
    assert all(copy.model_settings.threads == 2 and copy.model_settings.placement.devices == ("CPU",) for copy in two)
    assert not any(copy.apart for copy in two)


def test_a_child_process_is_told_only_of_the_servers_it_needs_in_the_names_it_will_give_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = [Device(f"RPC{number}", server, True) for number, server in enumerate(["a:1", "a:1", "b:2", "c:3"])]
    monkeypatch.setattr(room, "devices", lambda: [PROCESSOR])
    monkeypatch.setattr("lacli.llamacpp.rpc.remote_devices", lambda endpoints, limit_s: remote)
    with pytest.raises(UsageError, match="a:1, which serves one at a time"):
        planned(ReplicaSettings(groups=(("RPC0",), ("RPC1",)), rpc=("a:1", "b:2")), LOADING)
    groups = (("RPC1",), ("RPC3", "RPC2"), ("CPU",))
    far, split, near = planned(ReplicaSettings(groups=groups, rpc=("a:1", "b:2", "c:3")), LOADING)
    assert (far.name, far.rpc, far.model_settings.placement.devices) == ("RPC1", ("a:1",), ("RPC1",))
    assert (split.name, split.rpc, split.model_settings.placement.devices) == (
        "RPC3+RPC2",
        ("b:2", "c:3"),
        ("RPC1", "RPC0"),
    )
    assert (near.rpc, near.apart, near.model_settings.placement.devices) == ((), False, ("CPU",))
    assert far.apart and split.apart


def test_copies_on_one_device_share_their_weights() -> None:
    with Copies(STDLIB_7M, LOADING, TWO) as copies:
        copies.open(LOOKAHEAD, backend_greedy=None)
        first, second = copies.contexts.values()
        assert isinstance(first, LlamaEngine) and isinstance(second, LlamaEngine)
        assert first._model is second._model is copies.model


def test_a_mode_without_branches_opens_one_context_and_says_so_and_another_mode_opens_the_rest() -> None:
    with session_of(PLAIN) as session:
        assert list(session.copies.contexts) == ["CPU (1)"]
        assert any("mode plain has no branches to share" in note for note in session.notes)
        plain = generate(session, QUESTION, max_tokens=40)
        assert session.adapt(LOOKAHEAD, SamplingSettings())
        assert list(session.copies.contexts) == ["CPU (1)", "CPU (2)"]
        assert generate(session, QUESTION, max_tokens=40).tokens == plain.tokens
        # Which one gets how much of the steps is a matter of their speed.
        work = session.decoder.group.work
        assert list(work) == ["CPU (1)", "CPU (2)"] and any(done.parts for done in work.values())


def test_a_copy_that_decodes_alone_has_all_threads() -> None:
    with session_of(PLAIN) as session:
        first = session.copies.contexts["CPU (1)"]
        assert isinstance(first, LlamaEngine) and lib.llama_n_threads(first._handle) == LOADING.threads == 2
        assert session.model_settings.threads == 2
        session.adapt(LOOKAHEAD, SamplingSettings())
        first = session.copies.contexts["CPU (1)"]
        assert isinstance(first, LlamaEngine) and lib.llama_n_threads(first._handle) == 1
        assert session.model_settings.threads == 1


def full(copy: ReplicaPlan, *_: object) -> Context:
    raise ModelLoadError("cannot make a context: not enough memory", "a smaller one may fit")


def test_a_copy_that_has_no_memory_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Copies._context

    def second_full(self: Copies, copy: ReplicaPlan, decode_settings: DecodeSettings, greedy: bool | None) -> Context:
        return full(copy) if copy.name.endswith("(2)") else whole(self, copy, decode_settings, greedy)

    monkeypatch.setattr(Copies, "_context", second_full)
    with session_of() as session:
        expected = "replica CPU (2) is left out: cannot make a context: not enough memory (a smaller one may fit)"
        assert expected in session.notes
        assert session.copies.names == ["CPU (1)"]
        assert generate(session, QUESTION, max_tokens=10).tokens


def test_with_no_copy_left_the_first_ones_reason_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copies, "_context", lambda self, *arguments: full(*arguments))
    with pytest.raises(ModelLoadError, match="not enough memory"):
        session_of()


def test_a_copy_that_fails_in_an_answer_is_said_once_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of() as session:
        expected = generate(session, QUESTION, max_tokens=40).tokens
        second = session.copies.contexts["CPU (2)"]
        monkeypatch.setattr(second, "decode", full)
        assert generate(session, QUESTION, max_tokens=40).tokens == expected
        (loss,) = session.losses()
        assert loss.startswith("replica CPU (2) has failed, CPU (1) went on: cannot make a context")
        assert session.losses() == [] and list(session.copies.contexts) == ["CPU (1)"]
        assert not second.suits(PLAIN, raw_logits=True)
        assert generate(session, QUESTION, max_tokens=40).tokens == expected


def test_when_the_first_copy_fails_the_others_speak_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of() as session:
        expected = generate(session, QUESTION, max_tokens=40).tokens
        monkeypatch.setattr(session.engine, "decode", full)
        assert generate(session, QUESTION, max_tokens=40).tokens == expected
        assert len(session.losses()) == 1
        assert session.engine is session.copies.contexts["CPU (2)"]
        assert generate(session, QUESTION, max_tokens=40).tokens == expected


def test_a_model_that_takes_no_trees_is_decoded_by_one_copy(tmp_path: Path) -> None:
    write_lfm2(tmp_path / "model.gguf")
    with Session(tmp_path / "model.gguf", LOADING, DecodeSettings(), SamplingSettings(), replicas=TWO) as session:
        assert session.copies.names == ["CPU (1)"]
        assert any("CPU (1) decodes alone" in note for note in session.notes)
        assert generate(session, "the cat sat on", max_tokens=10, raw=True).tokens


def test_strict_is_refused_where_other_machines_compute() -> None:
    with pytest.raises(UsageError, match="--rpc computes on others"):
        session_of(replace(LOOKAHEAD, strict=True), ReplicaSettings(rpc=("192.0.2.1:50052",)))


def test_a_benchmark_is_refused_where_a_server_would_serve_only_one_of_its_contexts() -> None:
    done = call("bench", "-q", "--rpc", "192.0.2.1:50052")
    assert done.code == 2 and "an RPC server serves one" in done.err and done.err.count("\n") == 1
    assert "--rpc" not in call("bench", "--help").out
    assert "(lacli run, chat and others have it)" in call("check", "--rpc", "192.0.2.1:50052").err


def test_what_was_measured_of_one_copy_is_known_of_several() -> None:
    cost = Cost((StepCost(0, (Point(1, 1.0, 1.0), Point(3, 1.5, 1.2))),))
    assert [point.rows for point in cost.among(3).staircases[0].points] == [1, 7]
    assert cost.among(1) == cost


def test_a_program_can_load_copies() -> None:
    settings = {"model_settings": LOADING, "decode_settings": LOOKAHEAD}
    with load(replicas=ReplicaSettings(count=3), **settings) as model:  # type: ignore[arg-type]
        assert len(model.copies.contexts) == 3
        assert generate(model, QUESTION, max_tokens=10).tokens


def test_the_programs_answer_is_one_copys_and_says_who_did_how_much() -> None:
    sizes = ("-W", "5", "-N", "3", "-G", "4", "-n", "40", "-q")
    alone = call("run", "-p", QUESTION, *sizes)
    shared = call("run", "-p", QUESTION, *sizes, "--replicas", "CPU,CPU", "--stats", "full")
    assert shared.code == 0 and shared.out == alone.out
    assert "replicas  CPU (1)" in shared.err and "parts of" in shared.err
    answer = json.loads(call("run", "-p", QUESTION, *sizes, "--replicas", "2", "--json").out)
    assert answer["replicas"] == ["CPU (1)", "CPU (2)"]
    assert json.loads(call("run", "-p", QUESTION, *sizes, "--json").out)["replicas"] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--replicas", "CUDA7"], "there is no device 'CUDA7' (there is CPU"),
        (["--replicas", "CPU+CPU"], "one copy of the model has CPU twice"),
        (["--replicas", "0"], "--replicas must be at least 1"),
        (["--replicas", "RPC0"], "RPC0, RPC1, .. are devices of --rpc"),
    ],
)
def test_copies_that_cannot_be_are_refused_in_one_line(flags: list[str], words: str) -> None:
    done = call("run", "-p", "x", "-q", *flags)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1


def test_one_copy_that_decodes_alone_has_no_block_about_copies() -> None:
    done = call("run", "-p", QUESTION, "-n", "5", "-q", "--mode", "plain", "--replicas", "CPU,CPU", "--stats=full")
    assert "CPU (1)" in done.err and "CPU (2)" not in done.err and "replicas" not in done.err


def test_work_is_that_of_the_last_answer() -> None:
    with session_of() as session:
        generate(session, QUESTION, max_tokens=40)
        statistics = generate(session, QUESTION, max_tokens=5).statistics
        steps = statistics.steps
        assert statistics.threads == 0, "of copies in turns no processor time is expected"
        parts = [work.parts for work in session.decoder.group.work.values()]
        assert 0 < max(parts) <= steps


SIZES = ("--mode", "lookahead", "-W", "5", "-N", "3", "-G", "4", "-n", "40", "-q", "--replicas", "CPU,CPU")


@pytest.fixture
def second_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second copy fails at once; later it might have no part of a step on a busy machine."""
    whole = Copies._context

    def failing(self: Copies, copy: ReplicaPlan, decode_settings: DecodeSettings, greedy: bool | None) -> Context:
        context = whole(self, copy, decode_settings, greedy)
        if copy.name.endswith("(2)"):
            monkeypatch.setattr(context, "decode", full)
        return context

    monkeypatch.setattr(Copies, "_context", failing)


@pytest.mark.usefixtures("second_fails")
def test_the_records_of_an_answer_have_a_copy_that_failed_in_it() -> None:
    answer = json.loads(call("run", "-p", QUESTION, *SIZES, "--json").out)
    assert answer["replicas"] == ["CPU (1)", "CPU (2)"]
    assert any(note.startswith("replica CPU (2) has failed, CPU (1) went on") for note in answer["notes"])
    lines = call("run", "-p", QUESTION, *SIZES, "--stats", "full").err.splitlines()
    assert sum(line.endswith("CPU (2) unused, then failed") for line in lines) == 1


def servers(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A machine that has a processor, and servers with a device each."""
    remote = [Device(f"RPC{number}", server, True) for number, server in enumerate(names)]
    monkeypatch.setattr(room, "devices", lambda: [PROCESSOR])
    monkeypatch.setattr("lacli.llamacpp.rpc.remote_devices", lambda endpoints, limit_s: remote)


def notes(wanted: ReplicaSettings, model_settings: ModelSettings) -> list[str]:
    return [*room._idle(planned(wanted, model_settings), wanted)]


def test_devices_that_gain_nothing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    servers(monkeypatch, "a:1")
    all_layers = replace(LOADING, gpu_layers=-1)
    assert notes(TWO, LOADING) == ["all copies compute on one processor, which gains nothing"]
    assert notes(ReplicaSettings((("CPU",),), rpc=("a:1",)), all_layers) == ["no copy uses the RPC server at a:1"]
    assert "nothing goes to --rpc's servers" in notes(ReplicaSettings(rpc=("a:1",)), LOADING)[0]
    assert notes(ReplicaSettings(rpc=("a:1",)), all_layers) == []
    assert notes(ReplicaSettings((("CPU",), ("RPC0",)), rpc=("a:1",)), all_layers) == []


def test_of_several_devices_the_one_that_computes_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    servers(monkeypatch, "a:1", "b:2")
    alone = replace(LOADING, placement=Placement(split_mode="none", main_gpu=1))
    wanted = ReplicaSettings(rpc=("a:1", "b:2"))
    assert [copy.name for copy in planned(wanted, alone)] == ["RPC1"]
    assert [copy.name for copy in planned(wanted, LOADING)] == ["RPC0+RPC1"]


def test_a_benchmark_names_its_copies_and_says_nothing_of_its_baseline() -> None:
    quick = ("bench", "--modes", "plain", "--classes", "edit", "--each", "1", "-r", "1", "-n", "5")
    done = call(*quick, "--replicas", "2")
    assert "copies on CPU (1), CPU (2)" in " ".join(done.out.split()) and "no branches" not in done.err
    (row,) = json.loads(call(*quick, "--replicas", "2", "-o", "json").out)
    assert row["replicas"] == ["CPU (1)", "CPU (2)"]


def test_placements_are_public() -> None:
    import lacli

    assert lacli.ReplicaSettings is ReplicaSettings and lacli.Placement is Placement
