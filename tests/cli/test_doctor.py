"""The doctor: what each check finds on machines that are played, and the program on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lacli.cli import doctor
from lacli.errors import ModelLoadError
from lacli.llamacpp import probe
from lacli.llamacpp.devices import GIB, Device
from lacli.llamacpp.settings import CPU
from tests.program import call, run

PROCESSOR = Device(CPU, "A processor", False, 16 * GIB, 16 * GIB)
CARD = Device("CUDA0", "A card", True, 20 * GIB, 24 * GIB)


@pytest.mark.parametrize(
    ("devices", "gpu", "state", "words"),
    [
        ([PROCESSOR], "", "fine", "CPU: A processor, 16.0 GiB"),
        ([CARD, PROCESSOR], "", "fine", "CUDA0: A card, 20.0 of 24.0 GiB free"),
        ([PROCESSOR], "cuda", "better", "does not use the GPU here"),
    ],
)
def test_the_devices_are_the_ones_that_llama_cpp_uses(
    devices: list[Device], gpu: str, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.llamacpp.devices.devices", lambda: devices)
    monkeypatch.setattr(doctor, "gpu_kind", lambda: gpu)
    found = doctor.check_devices()
    assert found.state == state and words in found.words and ("pip install" in found.todo) == (state == "better")


@pytest.mark.parametrize(("working_settings", "state"), [("", "fine"), ("off", "better"), (None, "broken")])
def test_the_build_is_tried_again(working_settings: str | None, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def played(settings: object) -> tuple[object, str]:
        tried.append("working_settings")
        if working_settings is None:
            raise ModelLoadError("this build of llama.cpp fails on this processor: SIGILL", "build it")
        return settings, working_settings

    monkeypatch.setattr(probe, "forget", lambda: tried.append("forgotten"))
    monkeypatch.setattr(probe, "working_settings", played)
    found = doctor.check_library()
    assert tried == ["forgotten", "working_settings"]
    assert (found.state, "pip install" in found.todo) == (state, state != "fine")


def test_an_installed_model_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.engine.load.open_engine", lambda *_: 1 / 0)
    assert doctor.check_answers().state == "broken"


def test_the_program_reports_on_this_machine(tmp_path: Path) -> None:
    done = call("doctor", env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (done.code, done.err) == (0, "") and done.out.endswith("\nlacli works here.\n")
    assert re.search(r"^fine    self-test +smollm2", done.out, re.MULTILINE)
    assert "fine    llama.cpp     llama-cpp-python 0.3" in done.out


def test_a_library_that_cannot_be_imported_is_reported_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')\n")
    done = run("doctor", env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"})
    assert (done.code, done.err) == (1, "") and "lacli does not work here: see llama.cpp." in done.out
    assert "libcuda.so.1" in done.out and "pip install --force-reinstall" in done.out and "\x1b" not in done.out
