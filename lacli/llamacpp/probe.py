"""Try this build of llama.cpp on this processor in a child process, which may crash.

Some builds end by a signal at their first batch of two rows, others as soon as they are loaded (docs/builds.md). Each
build is tried before its first use on a processor, and the outcome is saved.
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
"""The command of a trial, before its two arguments: a folder for its files, and `repack` or `plain`."""

IN_TRIAL = "_LACLI_TRIAL"
"""The environment variable of a process that must not try the build. Its value: the known fault, "" in a trial."""

ROWS = (1, 2, 16)
"""Rows of the tried batches: one row, a few rows and a whole AMX tile have kernels of their own."""

TRIAL_S = 60.0
"""Seconds after which a trial is ended: a hundred times its usual time on two cores."""

CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals of failed computing; others come from a user, a supervisor or a system short of memory."""

WINDOWS_CRASHES = {0xC0000005: "ACCESS_VIOLATION", 0xC000001D: "ILLEGAL_INSTRUCTION", 0xC0000409: "FAST_FAIL"}
"""Exit codes of failed computing on Windows (ntstatus.h), the last one of abort(); 0xC000013A is Ctrl-C."""

KERNELS_OFF = "the faster kernels of this build fail here and are off"

KIND = "trial"


def working_settings(settings: ModelSettings) -> tuple[ModelSettings, str]:
    """Return `settings`, changed if this build would fail with them here, and a sentence about the change, or "".

    `threads` and `threads_batch` are set in the result. Raises ModelLoadError if the build fails with any settings.
    """
    settings = with_threads(settings)
    if not (fault := fault_of(repack=settings.repack)):
        return settings, ""
    if settings.repack and not fault_of(repack=False):
        return replace(settings, repack=False), f"{KERNELS_OFF}; lacli doctor has a cure"
    fails = f"this build of llama.cpp fails on this processor: {fault}"
    raise ModelLoadError(fails, f"build it for this machine: {rebuild_command(sound_kind())}")


@cache
def fault_of(*, repack: bool) -> str:
    """Return how this build fails on this processor, in a few words; "" if it works or the trial had no result.

    `repack`: whether to use the kernels for repacked weights and AMX (llama.cpp's use_extra_bufts).
    """
    if IN_TRIAL in os.environ:
        return os.environ[IN_TRIAL] if repack else ""
    records, key = Records(state_file()), {"build": build_files(), "processor": processor(), "repack": repack}
    match records.read(KIND, key):
        case {"fault": str(kept)}:
            return kept
    fault = trial(repack=repack)
    if fault is not None:
        # If the fault cannot be saved, the next process tries the build again.
        records.save(KIND, key, {"fault": fault})
    return fault or ""


def forget() -> None:
    """Delete the saved outcomes of all trials, so that the next use tries this build again."""
    fault_of.cache_clear()
    Records(state_file()).forget(KIND)


def trial(*, repack: bool) -> str | None:
    """Try this build, with repacked weights if `repack`. Return its fault in words, "" if it works, None if unknown."""
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
    """Return the name of the crash that the exit `code` of a child process stands for, "" for no crash."""
    return WINDOWS_CRASHES.get(code) or next((name for name in CRASHES if getattr(signal, name, None) == -code), "")


def run_python(
    command: Sequence[str], timeout_s: float, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `command` with this process's import path, and return its status and output. Ctrl-C does not end it.

    `command`: PYTHON, -P (to import nothing from the user's folder), arguments. `variables`: added to the environment.
    Raises TimeoutExpired after `timeout_s`.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(variables or {})}
    # Windows: CREATE_NEW_PROCESS_GROUP, which the module has only there.
    group: dict[str, Any] = {"creationflags": 0x200} if sys.platform == "win32" else {"process_group": 0}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, **group
    )


def decode_batches(folder: Path, *, repack: bool) -> None:
    """Write recipes/trial.py's model to `folder`. Decode a batch of each size in ROWS, after printing the size."""
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
