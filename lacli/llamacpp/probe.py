"""Try this build of llama.cpp on this processor in a child process, which may crash.

Some builds end by a signal at their first batch of two rows, others as soon as they are loaded (docs/builds.md). Each
build is tried before its first use on a processor, and the records keep the outcome.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lacli.errors import ModelLoadError
from lacli.llamacpp.build import PYTHON, build_files, rebuild_command, sound_kind
from lacli.llamacpp.machine import processor, with_threads
from lacli.llamacpp.settings import ModelSettings
from lacli.text.format import counted
from lacli.text.records import Records, state_file

COMMAND = (PYTHON, "-P", "-m", "lacli.llamacpp.probe")
"""Command of a trial; the folder for its files and `repack` or `plain` follow."""

IN_TRIAL = "_LACLI_TRIAL"
"""The variable of a process that must use the build untried: its known fault, "" in a trial."""

ROWS = (1, 2, 16)
"""Rows of the tried batches: one row, a few rows and a whole AMX tile have kernels of their own."""

TRIAL_S = 60.0
"""Seconds for a trial: a hundred times its time on two cores."""

CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals of failed computing; others come from a user, a supervisor or a system short of memory."""

WINDOWS_CRASHES = {0xC0000005: "ACCESS_VIOLATION", 0xC000001D: "ILLEGAL_INSTRUCTION", 0xC0000409: "FAST_FAIL"}
"""Exit codes of failed computing on Windows (ntstatus.h), the last one of abort(); 0xC000013A is Ctrl-C."""

KERNELS_OFF = "the faster kernels of this build fail here and are off"

KIND = "trial"


def working_settings(settings: ModelSettings) -> tuple[ModelSettings, str]:
    """Return settings under which this build computes here, and a sentence if that took a change.

    Both numbers of threads are decided in the result. Raises ModelLoadError if no settings help.
    """
    settings = with_threads(settings)
    if not (fault := fault_of(repack=settings.repack)):
        return settings, ""
    if settings.repack and not fault_of(repack=False):
        return replace(settings, repack=False), f"{KERNELS_OFF}; lacli doctor has a cure"
    fails = f"this build of llama.cpp fails on this processor: {fault}"
    raise ModelLoadError(fails, f"build it: {rebuild_command(sound_kind())}")


@cache
def fault_of(*, repack: bool) -> str:
    """Return this build's fault here in a few words, "" for none or if no child could tell.

    `repack`: with the kernels for repacked weights and AMX (llama.cpp's use_extra_bufts).
    """
    if IN_TRIAL in os.environ:
        return os.environ[IN_TRIAL] if repack else ""
    records, key = Records(state_file()), {"build": build_files(), "processor": processor(), "repack": repack}
    match records.read(KIND, key):
        case {"fault": str(kept)}:
            return kept
    fault = trial(repack=repack)
    if fault is not None:
        # If it cannot be kept, the next process tries again.
        records.save(KIND, key, {"fault": fault})
    return fault or ""


def forget() -> None:
    """Remove all outcomes, so that the next use tries this build again."""
    fault_of.cache_clear()
    Records(state_file()).forget(KIND)


def trial(*, repack: bool) -> str | None:
    """Try this build now and return its fault, "" for none; None if the child's end does not tell."""
    with TemporaryDirectory(prefix="lacli-", ignore_cleanup_errors=True) as folder:
        try:
            child = run_python([*COMMAND, folder, "repack" if repack else "plain"], TRIAL_S, {IN_TRIAL: ""})
        except (OSError, subprocess.TimeoutExpired):
            return None
    reached = child.stdout.decode("utf-8", "replace").splitlines()[-1:]
    where = f"in a batch of {reached[0]}" if reached else "when it is loaded"
    if name := crash_of(child.returncode):
        return f"{name} {where}"
    return None if child.returncode else ""


def crash_of(code: int) -> str:
    """Return the name of the crash that a child's exit code means on its system, "" for another end."""
    return WINDOWS_CRASHES.get(code) or next((name for name in CRASHES if getattr(signal, name, None) == -code), "")


def run_python(
    command: Sequence[str], timeout_s: float, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run Python with this one's modules, in a process group that a terminal's Ctrl-C does not reach.

    `command` has -P: otherwise a json.py in the user's folder would come first.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(variables or {})}
    # Windows: CREATE_NEW_PROCESS_GROUP, which the module has only there.
    group: dict[str, Any] = {"creationflags": 0x200} if sys.platform == "win32" else {"process_group": 0}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, **group
    )


def decode_batches(folder: Path, *, repack: bool) -> None:
    """Decode every batch with the bundled model (recipes/trial.py), a line for each before it begins."""
    import gzip
    from importlib.resources import files

    from lacli.batch import Batch
    from lacli.llamacpp.context import LlamaContext
    from lacli.llamacpp.model import LlamaModel
    from lacli.llamacpp.settings import CPU, ContextSize
    from lacli.settings import DecodeSettings

    with suppress(ImportError):  # Windows has no core dumps
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    path = folder / "trial.gguf"
    path.write_bytes(gzip.decompress((files("lacli") / "data" / "trial.gguf.gz").read_bytes()))
    settings = ModelSettings(context=256, batch=ROWS[-1], gpu_layers=0, repack=repack, devices=(CPU,))
    chain = DecodeSettings(mode="lookup", lookup_draft=ROWS[-1] - 1)
    with LlamaModel(path, settings) as model, LlamaContext(model, settings, ContextSize.of(chain)) as context:
        for rows in ROWS:
            print(counted(rows, "row"), flush=True)
            context.clear()
            assert context.decode(Batch(rows).set_rows(range(rows), range(rows), [(0,)] * rows, [True] * rows))


if __name__ == "__main__":
    decode_batches(Path(sys.argv[1]), repack=sys.argv[2] == "repack")
