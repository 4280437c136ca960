"""Builds of llama.cpp that crash or hang, simulated by child processes that end in the same ways."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lacli.errors import ModelLoadError
from lacli.llamacpp import probe
from lacli.llamacpp.probe import KERNELS_OFF
from lacli.llamacpp.settings import ModelSettings
from lacli.text.records import NAME, Records
from tests.program import MACHINE, call

ON_ONE_THREAD = ModelSettings(gpu_layers=0, threads=1)
WITH_REPACK = {"LACLI_REPACK": "1"}
"""The variable that turns repacked weights on; `MACHINE` turns them off if this build fails with them."""

RUN = ("run", "-n", "4", "-p", "hello")
BATCH = "2 rows"
AT_TWO_ROWS = f"SIGSEGV in a batch of {BATCH}"

CHILD = """
import os, signal, sys
print({printed!r}, end="", flush=True)
if sys.argv[2] in {failing!r}:
    {end}
"""

Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Yield a function that replaces trials by a child process with a chosen end. Outcomes are saved in `tmp_path`."""

    def child(end: str, printed: str = f"1 row\n{BATCH}", failing: tuple[str, ...] = ("repack",)) -> None:
        script = CHILD.format(printed=printed, failing=failing, end=end)
        monkeypatch.setattr(probe, "COMMAND", (sys.executable, "-c", script))

    monkeypatch.setattr(probe, "state_file", lambda: tmp_path / NAME)
    monkeypatch.delenv(probe.IN_TRIAL)
    monkeypatch.delitem(MACHINE, probe.IN_TRIAL)
    monkeypatch.setattr("lacli.engine.load.working_settings", probe.working_settings)
    probe.fault_of.cache_clear()
    yield child
    probe.fault_of.cache_clear()


def outcomes(folder: Path) -> int:
    """Return the number of saved trials."""
    return len(Records(folder / NAME).kinds().get(probe.KIND, {}))


def killed(name: str) -> str:
    return f"os.kill(os.getpid(), signal.{name})"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        *((code, "") for code in (0, 1, 3)),
        (-signal.SIGSEGV, "SIGSEGV"),
        (-signal.SIGKILL, ""),
        # Exit codes of Windows; the last one is Ctrl-C.
        (0xC000001D, "ILLEGAL_INSTRUCTION"),
        (0xC000013A, ""),
    ],
)
def test_an_exit_code_names_a_crash_as_its_system_does(code: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on Windows, which lacks this signal; its missing number must not name code 0 a crash.
    monkeypatch.delattr(signal, "SIGBUS")
    assert probe.crash_of(code) == name


BOTH = ("repack", "plain")


def test_the_build_at_hand_is_sound_with_and_without_repacked_weights(play: Play) -> None:
    for repack in (True, False):
        fault = probe.trial(repack=repack)
        assert fault == "" or (repack and "amx_int8" in Path("/proc/cpuinfo").read_text())


@pytest.mark.parametrize(
    ("end", "printed", "words"),
    [(killed("SIGSEGV"), BATCH, AT_TWO_ROWS), (killed("SIGILL"), "", "SIGILL when it is loaded")],
)
def test_a_fault_is_named_with_the_batch_it_came_in(
    end: str, printed: str, words: str, play: Play, tmp_path: Path
) -> None:
    play(end, printed)
    assert probe.fault_of(repack=True) == words
    assert outcomes(tmp_path) == 1


@pytest.mark.parametrize(
    "end",
    [
        *(f"signal.signal(signal.SIGINT, signal.SIG_DFL); {killed(name)}" for name in ("SIGKILL", "SIGINT")),
        "signal.pause()",
        "raise ImportError('no libllama')",
        None,
    ],
)
def test_a_trial_that_does_not_come_to_its_end_says_nothing_and_is_not_remembered(
    end: str | None, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TRIAL_S", 2.0)
    if end:
        play(end, failing=BOTH)
    else:
        monkeypatch.setattr(probe, "COMMAND", ("/nowhere/python",))
    assert probe.working_settings(ON_ONE_THREAD)[1] == ""
    assert not outcomes(tmp_path)


def test_a_build_that_fails_with_repacked_weights_goes_on_without_them_and_says_so(play: Play) -> None:
    play(killed("SIGSEGV"))
    settings, sentence = probe.working_settings(ON_ONE_THREAD)
    assert settings == ModelSettings(gpu_layers=0, threads=1, threads_batch=1, repack=False)
    assert sentence.startswith(KERNELS_OFF) and "lacli doctor" in sentence
    assert "\n" not in sentence
    assert probe.working_settings(ModelSettings(threads=1, repack=False))[1] == ""
    done = call(*RUN, env=WITH_REPACK)
    assert (done.code, bool(done.out), done.err.count(KERNELS_OFF)) == (0, True, 1)
    assert KERNELS_OFF not in call(*RUN, "--no-repack", env=WITH_REPACK).err


@pytest.mark.parametrize("command", [RUN, ("bench",)])
def test_no_command_begins_with_a_build_in_which_nothing_works(command: tuple[str, ...], play: Play) -> None:
    play(killed("SIGILL"), failing=BOTH)
    with pytest.raises(ModelLoadError, match="SIGILL") as caught:
        probe.working_settings(ON_ONE_THREAD)
    assert "pip install" in caught.value.hint
    done = call(*command)
    assert (done.code, done.out) == (1, "")
    assert "SIGILL" in done.err and done.err.strip().splitlines()[-1].startswith("lacli: this build")


def test_an_outcome_is_remembered_by_build_and_processor(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried() -> bool:
        """Whether `fault_of` makes a trial with the outcomes saved so far."""
        probe.fault_of.cache_clear()
        before = outcomes(tmp_path)
        assert probe.fault_of(repack=True) == AT_TWO_ROWS
        return outcomes(tmp_path) > before

    play(killed("SIGSEGV"))
    assert tried() and not tried()
    monkeypatch.setattr(probe, "processor", lambda: "another processor")
    assert tried() and not tried()
    (tmp_path / "libllama.so").write_bytes(b"another build")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert tried() and not tried()
    probe.forget()
    assert tried()
