"""A child process that hangs, dies or is refused memory: a sentence says so, and nothing stays behind.

The children are `faulty_child.py`, on the toy engine.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lacli.batch import Batch, from_tokens
from lacli.decode import Decoder
from lacli.errors import LacliError, ModelLoadError, ReplicaLost
from lacli.llamacpp.settings import ModelSettings
from lacli.replicas.isolated import ChildSettings, RemoteEngine
from lacli.replicas.process import Child
from lacli.settings import DecodeSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.faulty_child import COMMAND, NOISES
from tests.loading import STDLIB_7M
from tests.program import SECONDS, environment

LOOKAHEAD = DecodeSettings(mode="lookahead", window=3, ngram=3, guesses=3)
LOADING = ModelSettings(context=256, gpu_layers=0, threads=1)
PROMPT = [1, 2, 3, 4, 1, 2]
LIMIT = 30

KILLED = "killed by SIGKILL, as the system does when memory is short"

WIRE = tuple(str(Path("lacli", "replicas", name)) for name in ("isolated.py", "process.py"))

AN_INSTANT = 0.02
"""A limit for those who never answer."""


def settings(name: str, limit_s: float = 60.0) -> ChildSettings:
    return ChildSettings(STDLIB_7M, LOADING, LOOKAHEAD, False, name=name, limit_s=limit_s)


def child(name: str, limit_s: float = 60.0) -> RemoteEngine:
    return RemoteEngine(settings(name, limit_s), COMMAND)


def hurried(engine: RemoteEngine) -> RemoteEngine:
    """The engine with hardly any patience, now that its child is there."""
    engine._settings = replace(engine._settings, limit_s=AN_INSTANT)
    return engine


def step() -> Batch:
    """One token whose choice is read."""
    return Batch(1).set_rows([1], [0], [(0,)], [True])


def answer(engine: Any) -> list[int]:
    decoder = Decoder(engine, LOOKAHEAD)
    return [token for step in decoder.generate(PROMPT, LIMIT) for token in step.tokens]


def alone() -> list[int]:
    return answer(FakeEngine(sequences=LOOKAHEAD.sequences))


def is_gone(process_id: int) -> bool:
    """Whether nothing is left of a child of this process, not even its exit code."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


FAR = "10.0.0.7:50052"

ENDED = "the process of replica {name} ended: {end}"


@pytest.mark.parametrize(
    ("name", "servers", "sentence"),
    [
        ("is killed", (), f"{ENDED.format(name='is killed', end=KILLED)} (a smaller -c or fewer copies need less"),
        ("warns", (), ENDED.format(name="warns", end=KILLED)),
        ("aborts", (), ENDED.format(name="aborts", end="Remote RPC server crashed")),
        ("stops", (), ENDED.format(name="stops", end="exit code 7")),
        ("is mistaken", (), ENDED.format(name="is mistaken", end="RuntimeError: a mistake of ours")),
        ("dies in a message", (), ENDED.format(name="dies in a message", end="exit code 7")),
        ("stops", (FAR,), f"exit code 7 (see what the RPC server at {FAR} says)"),
        ("aborts", (FAR,), f"the RPC server at {FAR} went away (start it again there, and ask again)"),
        ("aborts", (FAR, "b:1"), f"an RPC server of {FAR}, b:1 went away (see which of them has ended"),
    ],
)
def test_a_child_that_dies_is_a_lost_replica_with_its_last_words_and_what_to_do(
    name: str, servers: tuple[str, ...], sentence: str
) -> None:
    with far(child(name), *servers) as engine:
        with pytest.raises(ReplicaLost) as lost:
            answer(engine)
        assert sentence in str(lost.value)
        assert is_gone(engine.process_id)


@pytest.mark.parametrize("name", NOISES)
def test_a_child_that_sends_what_is_no_answer_is_a_lost_replica(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.replicas.process.MOMENT_S", AN_INSTANT)
    with child(name) as engine:
        with pytest.raises(ReplicaLost, match="it sends no more answers"):
            answer(engine)
        assert is_gone(engine.process_id)


def far(engine: RemoteEngine, *servers: str) -> RemoteEngine:
    """The engine, as if it computed on these servers."""
    engine._settings = replace(engine._settings, rpc=servers)
    return engine


def test_the_child_of_a_dropped_engine_ends() -> None:
    engine = child("")
    process_id = engine.process_id
    assert not is_gone(process_id)
    del engine
    assert is_gone(process_id)


@pytest.mark.parametrize(("servers", "who"), [((), "replica hangs"), ((FAR,), f"the RPC server at {FAR}")])
def test_a_child_that_gives_no_answer_in_time_is_ended(servers: tuple[str, ...], who: str) -> None:
    with far(hurried(child("hangs")), *servers) as engine:
        with pytest.raises(ReplicaLost) as lost:
            engine.decode(step())
        assert str(lost.value) == f"no answer of {who} within 0.02 s (--replica-timeout allows more)"
        assert is_gone(engine.process_id)


def test_a_lost_replica_says_so_at_every_call() -> None:
    with child("stops") as engine:
        with pytest.raises(ReplicaLost) as first:
            engine.decode(step())
        calls: list[Callable[[], object]] = [
            lambda: engine.decode(step()),
            engine.greedy,
            engine.logits,
            lambda: engine.row_logits(0),
            lambda: engine.successors(3),
            lambda: engine.copy(0, 1, 0, 1),
            lambda: engine.remove(0, 0, -1),
            engine.clear,
        ]
        for call in calls:
            with pytest.raises(ReplicaLost) as again:
                call()
            assert str(again.value) == str(first.value)
        assert not engine.suits(LOOKAHEAD, raw_logits=False)


def test_an_error_of_the_childs_context_is_that_error_here_and_the_child_lives_on() -> None:
    with child("refuses") as engine:
        with pytest.raises(LacliError) as error:
            engine.decode(step())
        assert type(error.value) is LacliError
        assert (error.value.what, error.value.hint) == ("llama_decode failed (-3): out of memory", "see more with -v")
        assert engine.decode(from_tokens([1], 1))


def test_memory_that_is_too_short_is_a_model_that_cannot_be_loaded() -> None:
    with pytest.raises(ModelLoadError) as error:
        child("lacks memory")
    assert "not enough memory" in error.value.what and error.value.hint == "a smaller one may fit"


@pytest.mark.parametrize(
    ("name", "limit_s", "sentence"),
    [
        ("is killed while loading", 60.0, "replica is killed while loading ended: killed by SIGKILL"),
        # Ten times the limit of a call.
        ("hangs while loading", AN_INSTANT, r"no answer of replica hangs while loading within 0\.2 s"),
    ],
)
def test_a_child_that_never_opens_its_context_is_lost(name: str, limit_s: float, sentence: str) -> None:
    with pytest.raises(ReplicaLost, match=sentence):
        child(name, limit_s)


def test_a_program_that_cannot_be_started_is_a_lost_replica(tmp_path: Path) -> None:
    with pytest.raises(ReplicaLost, match="the process of replica A cannot be started: .*No such file"):
        RemoteEngine(settings("A"), [str(tmp_path / "python")])


def test_a_child_may_write_more_than_a_pipe_holds_and_nobody_sees_it(capfd: pytest.CaptureFixture[str]) -> None:
    with child("is noisy") as engine:
        assert answer(engine) == alone()
    assert capfd.readouterr() == ("", "")


def test_closing_leaves_no_process() -> None:
    engine = child("")
    engine.close()
    assert is_gone(engine.process_id)
    engine.close()


def test_a_child_that_hangs_is_killed_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.replicas.process.MOMENT_S", AN_INSTANT)
    engine = child("hangs")
    engine._child.wire.post("hang", {})  # type: ignore[union-attr]  # it is open
    engine.close()
    assert is_gone(engine.process_id)


def test_a_closed_engine_decodes_nothing_and_forgets_without_complaint() -> None:
    engine = child("")
    engine.close()
    assert engine.remove(0, 0, -1)
    engine.clear()
    assert not engine.suits(LOOKAHEAD, raw_logits=False)
    with pytest.raises(LacliError, match="there is no context"):
        engine.decode(step())


def test_ctrl_c_of_a_terminal_does_not_reach_the_child() -> None:
    with child("") as engine:
        os.kill(engine.process_id, signal.SIGINT)
        assert os.getpgid(engine.process_id) != os.getpgid(0)
        assert answer(engine) == alone()


def test_ctrl_c_while_a_child_loads_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Child] = []

    def start(command: Sequence[str], *, heard: bool) -> Child:
        started.append(Child(command, heard=heard))
        return started[-1]

    monkeypatch.setattr("lacli.replicas.isolated.Child", start)
    with pytest.raises(KeyboardInterrupt):
        child("interrupts while loading")
    assert is_gone(started[0].process_id)


def test_after_ctrl_c_in_the_middle_of_a_step_the_next_answer_is_its_own() -> None:
    with child("interrupts") as engine:
        decoder = Decoder(engine, LOOKAHEAD)
        with pytest.raises(KeyboardInterrupt):
            for _ in decoder.generate(PROMPT, LIMIT):
                pass
        again = [token for step in decoder.generate(PROMPT, LIMIT, reuse=True) for token in step.tokens]
        assert again == alone()


class Interrupter:
    """Ctrl-C before the n-th instruction that Python carries out in the modules of the wire."""

    def __init__(self, place: int) -> None:
        self.left = place

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(WIRE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return self


@contextmanager
def interrupted(place: int) -> Iterator[Interrupter]:
    before, interrupter = sys.gettrace(), Interrupter(place)
    sys.settrace(interrupter)
    try:
        with suppress(KeyboardInterrupt):
            yield interrupter
    finally:
        sys.settrace(before)


def test_an_interrupt_at_any_instruction_of_a_step_loses_nothing_and_repeats_nothing() -> None:
    def after(token: int, engine: Any) -> list[int]:
        batch = Batch(8).set_rows([token], [3], [(0, 1)], [True])
        assert engine.decode(batch)
        chosen: list[int] = engine.greedy().tolist()
        return chosen

    toy = FakeEngine(sequences=2)
    toy.decode(from_tokens([1, 2, 3], 0))
    toy.copy(0, 1, 0, 3)
    expected = after(5, toy)
    with child("") as engine:
        for place in count(1):
            engine.clear()
            assert engine.decode(from_tokens([1, 2, 3], 0))
            # The toy engine takes no second copy of the same cells, and no row of sequences that have diverged.
            engine.copy(0, 1, 0, 3)
            with interrupted(place) as interrupter:
                after(4, engine)
            engine.remove(-1, 3, -1)
            assert after(5, engine) == expected
            if interrupter.left > 0:
                break
    assert place > 100


def test_a_call_of_another_thread_is_left_while_the_child_goes_on(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with child("") as engine, ThreadPoolExecutor(1) as thread:
        assert engine.decode(from_tokens([1, 2, 3], 0))
        left = thread.submit(engine._ask, "wait_for", pipe=str(pipe))
        while not left.done():
            engine.interrupt()
        assert isinstance(left.exception(), KeyboardInterrupt)
        pipe.write_bytes(b"")
        assert engine.decode(from_tokens([4], 3)), "the late answer is nobody else's"


def test_the_child_of_a_killed_program_ends_in_the_middle_of_a_step() -> None:
    program = (
        "from tests.replicas.test_isolated_faults import child\n"
        "engine = child('')\n"
        "engine._child.wire.post('hang', {})\n"
        "print(engine.process_id, flush=True)\n"
        "input()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        ended = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([ended], [], [], SECONDS)[0]
    os.close(ended)
