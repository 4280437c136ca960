"""Builds of llama.cpp that die, hang or compute nonsense, played by children that print a sound one's numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import time
from typing import Any

import pytest

from lacli.errors import ModelLoadError
from lacli.llamacpp import probe
from lacli.llamacpp.probe import KERNELS_OFF
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.text.records import NAME, Records
from tests.loading import STDLIB_7M
from tests.program import MACHINE, call

ON_ONE_THREAD = ModelSettings(gpu_layers=0, threads=1)
AT_TWO_ROWS = "SIGSEGV in a batch of 2 rows with Q8_0 weights"
WITH_REPACK = {"LACLI_NO_REPACK": "0"}
"""Where the tests' other runs go without, because this build fails with repacked weights."""

RUN = ("run", "-n", "4", "-p", "hello")

CHILD = """
import os, signal, sys
place, threads, threads_batch, kernels = sys.argv[1:]
for line in {lines!r}:
    print(line, flush=True)
if kernels in {failing!r}:
    {end}
for line in {rest!r}:
    print(line, flush=True)
"""

Play = Callable[..., None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a trial of the build at hand prints."""
    command = [*probe.COMMAND, str(tmp_path_factory.mktemp("trial")), "1", "1", "plain"]
    return subprocess.check_output(
        command, env={**probe.python_environment(), probe.IN_TRIAL: ""}, text=True
    ).splitlines()


@pytest.fixture
def play(sound: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Let a child with some end take the place of a trial; outcomes are kept in a file of the test's."""

    def child(end: str, after: int = 4, failing: tuple[str, ...] = ("repack",), numbers: list[str] = sound) -> None:
        script = CHILD.format(lines=numbers[:after], rest=numbers[after:], failing=failing, end=end)
        monkeypatch.setattr(probe, "COMMAND", (sys.executable, "-c", script))

    monkeypatch.setattr(probe, "state_file", lambda: tmp_path / NAME)
    monkeypatch.delenv(probe.IN_TRIAL)
    monkeypatch.delitem(MACHINE, probe.IN_TRIAL)
    monkeypatch.setattr("lacli.session.session.proven", probe.proven)
    probe.fault_of.cache_clear()
    yield child
    probe.fault_of.cache_clear()


def outcomes(folder: Path) -> list[tuple[Any, Any]]:
    """What is kept of trials, with its keys."""
    return Records(folder / NAME).all(probe.KIND)


def killed(name: str) -> str:
    return f"os.kill(os.getpid(), signal.{name})"


BOTH = ("repack", "plain")


def test_the_build_at_hand_is_sound_with_and_without_repacked_weights(play: Play) -> None:
    for repack in (True, False):
        fault = probe.fault_of(1, 1, repack)
        assert not fault or "amx_int8" in Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize(
    ("end", "after", "words"),
    [
        (killed("SIGSEGV"), 4, AT_TWO_ROWS),
        (killed("SIGILL"), 0, "SIGILL when it is loaded"),
        (killed("SIGABRT"), 14, "SIGABRT in a batch of 16 rows with Q6_K weights"),
        (killed("SIGSEGV"), 15, "SIGSEGV"),
        ("signal.pause()", 3, "no answer within 0.5 s in a batch of 1 row with Q8_0 weights"),
    ],
)
def test_a_fault_is_named_with_the_batch_it_came_in(
    end: str, after: int, words: str, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "pause" in end:
        monkeypatch.setattr(probe, "PATIENCE_S", 0.5)
    play(end, after)
    assert probe.fault_of(1, 1, repack=True).startswith(words)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGRTMIN + 1"])
def test_a_trial_that_somebody_ends_says_nothing_of_the_build(name: str, play: Play, tmp_path: Path) -> None:
    play(f"signal.signal(signal.SIGINT, signal.SIG_DFL); {killed(name)}", failing=BOTH)
    assert probe.proven(ON_ONE_THREAD)[1] == ""
    assert not outcomes(tmp_path)


def test_a_hang_is_believed_for_a_day(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PATIENCE_S", 0.5)
    play("signal.pause()")
    hung = probe.fault_of(1, 1, repack=True)
    play("pass")
    probe.fault_of.cache_clear()
    assert probe.fault_of(1, 1, repack=True) == hung != ""
    monkeypatch.setattr(probe, "time", lambda: time() + probe.A_DAY_S)
    probe.fault_of.cache_clear()
    assert probe.fault_of(1, 1, repack=True) == ""


@pytest.mark.parametrize("nonsense", [[float("nan")], [float("inf")], [0.0] * 64, None, "missing"])
@pytest.mark.parametrize("row", [0, 1])
def test_wrong_numbers_in_any_row_are_a_fault(
    nonsense: list[float] | str | None, row: int, play: Play, sound: list[str]
) -> None:
    weights, rows, logits = json.loads(sound[7])
    assert (weights, rows) == ("Q4_0", 2)
    wrong = logits[row][::-1] if nonsense is None else nonsense
    if isinstance(wrong, list):
        logits[row][: len(wrong)] = wrong
    line = "" if nonsense == "missing" else json.dumps([weights, rows, logits])
    play("pass", numbers=[*sound[:7], line, *sound[8:]])
    assert probe.fault_of(1, 1, repack=True) == "wrong numbers in a batch of 2 rows with Q4_0 weights"


def test_a_build_that_fails_with_repacked_weights_goes_on_without_them(play: Play) -> None:
    play(killed("SIGSEGV"))
    settings, sentence = probe.proven(ON_ONE_THREAD)
    assert settings == ModelSettings(gpu_layers=0, threads=1, threads_batch=1, repack=False)
    assert sentence.startswith(KERNELS_OFF) and "lacli doctor" in sentence
    assert "\n" not in sentence
    assert probe.proven(ModelSettings(threads=1, repack=False))[1] == ""
    with Session(STDLIB_7M, ON_ONE_THREAD, DecodeSettings(mode="plain"), SamplingSettings()) as session:
        assert not session.model_settings.repack and KERNELS_OFF in session.notes[0]


def test_a_build_in_which_nothing_works_is_refused_with_the_command_that_builds_another(play: Play) -> None:
    play(killed("SIGILL"), after=0, failing=BOTH)
    with pytest.raises(ModelLoadError, match="SIGILL when it is loaded") as caught:
        probe.proven(ON_ONE_THREAD)
    assert "pip install" in caught.value.hint


def test_an_outcome_is_remembered_by_build_processor_and_threads(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(**known: object) -> bool:
        """Whether a trial is made where there are the outcomes so far."""
        probe.fault_of.cache_clear()
        before = len(outcomes(tmp_path))
        assert probe.fault_of(int(str(known.get("threads", 1))), 1, repack=True) == AT_TWO_ROWS
        return len(outcomes(tmp_path)) > before

    play(killed("SIGSEGV"))
    assert tried() and not tried()
    assert tried(threads=2) and not tried(threads=2)
    monkeypatch.setattr(probe, "processor", lambda: "another processor")
    assert tried() and not tried()
    (tmp_path / "libllama.so").write_bytes(b"another build")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert tried() and not tried()
    probe.forget()
    assert tried()
    probe.forget()
    assert probe.trial(1, 1, repack=True) == AT_TWO_ROWS
    assert not tried()


@pytest.mark.parametrize("damage", ["", [], {"fault": ""}, {"fault": None, "at": 0.0}, None])
def test_a_damaged_record_is_as_good_as_none(damage: object, play: Play, tmp_path: Path) -> None:
    play(killed("SIGSEGV"))
    probe.fault_of(1, 1, repack=True)
    ((key, _),) = outcomes(tmp_path)
    Records(tmp_path / NAME).save(probe.KIND, key, damage)
    probe.fault_of.cache_clear()
    assert probe.fault_of(1, 1, repack=True) == AT_TWO_ROWS


@pytest.mark.parametrize("command", [("sys.exit(1)",), ("raise ImportError('no libllama')",), ()])
def test_a_trial_that_cannot_be_made_says_nothing_of_the_build_and_is_not_remembered(
    command: tuple[str, ...], play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command:
        play(*command)
    else:
        monkeypatch.setattr(probe, "COMMAND", ("/nowhere/python",))
    assert probe.fault_of(1, 1, repack=True) == ""
    assert not outcomes(tmp_path)
    with pytest.raises(OSError, match="no trial could be made" if command else "/nowhere/python"):
        probe.trial(1, 1, repack=True)


def test_a_trial_makes_no_trial_of_its_own(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(f"print(os.environ[{probe.IN_TRIAL!r}]); {killed('SIGSEGV')}", after=0)
    assert probe.fault_of(1, 1, repack=True) == "SIGSEGV when it is loaded"
    monkeypatch.setenv(probe.IN_TRIAL, "")
    assert probe.fault_of(2, 1, repack=True) == ""


def test_run_answers_with_a_build_that_dies_and_says_so_in_a_line_a_day(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(killed("SIGSEGV"))
    done = call(*RUN, env=WITH_REPACK)
    said = [line for line in done.err.splitlines() if KERNELS_OFF in line]
    assert (done.code, bool(done.out), len(said)) == (0, True, 1)
    assert "lacli doctor" in said[0]
    assert KERNELS_OFF not in call(*RUN, env=WITH_REPACK).err, "once a day"
    monkeypatch.setattr(probe, "A_DAY_S", 0)
    assert KERNELS_OFF in call(*RUN, env=WITH_REPACK).err
    assert KERNELS_OFF not in call(*RUN, "-q", env=WITH_REPACK).err
    assert KERNELS_OFF not in call(*RUN, "--no-repack", env=WITH_REPACK).err


@pytest.mark.parametrize("command", [RUN, ("check",), ("cost", "--fresh"), ("bench",)])
def test_no_command_begins_with_a_build_in_which_nothing_works(command: tuple[str, ...], play: Play) -> None:
    play(killed("SIGILL"), failing=BOTH)
    done = call(*command)
    assert (done.code, done.out) == (1, "")
    assert "SIGILL" in done.err and done.err.strip().splitlines()[-1].startswith("lacli: this build")
