"""Run lacli as a user does: with pipes, on a terminal, or (more quickly) in the test's own process.

Everything runs on one CPU thread, which a busy machine slows least. The developer's own settings of lacli, llama.cpp,
huggingface_hub, proxies and colours are left out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import pexpect

from lacli.cli.main import main
from lacli.llamacpp.probe import IN_TRIAL, fault_of
from tests.loading import STDLIB_7M

ROOT = Path(__file__).parent.parent
PROGRAM = (sys.executable, "-m", "lacli")
IN_BASH = ("bash", "-c", '"$0" -m lacli "$@"; exit $?', sys.executable)
"""Starts lacli from bash. With `exit` as its last command bash stays the parent process, as in a user's shell."""

SECONDS = 60
"""The most seconds of a run, also on a very busy machine."""

FAULT = fault_of(repack=True)
"""The fault of this build with repacked weights, "" for none.

With a fault, runs do not use repacked weights or mention the fault, unless a test wants it.
"""

MACHINE = {
    "LACLI_MODEL": str(STDLIB_7M),
    "LACLI_THREADS": "1",
    "LACLI_N_GPU_LAYERS": "0",
    "LACLI_ENGINE": "llama",
    "LACLI_MEASURE": "0",
    IN_TRIAL: FAULT,
} | ({"LACLI_REPACK": "0"} if FAULT else {})
"""Variables of every run: the quick model by default, one thread, no GPU, no measured step costs. `IN_TRIAL` prevents a
second trial of the build."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
HUBS = (
    *("HF_DEBUG", "HF_ENDPOINT", "HF_HUB_DISABLE_", "HF_HUB_DOWNLOAD_", "HF_HUB_ENABLE_", "HF_HUB_ETAG_"),
    *("HF_HUB_OFFLINE", "HF_TOKEN", "HF_XET_", "HUGGING_FACE_", "TRANSFORMERS_OFFLINE"),
)
"""Beginnings of huggingface_hub's variables, except its cache's, which tests set."""

FOREIGN = (
    *("LANG", "LC_"),
    *("GGML_", "LACLI_", "LLAMA_ARG_", "NO_COLOR", "FORCE_COLOR", "PYTHON", "COLUMNS", "TERM"),
    *(*HUBS, *PROXIES),
)


@dataclass(frozen=True)
class Done:
    """A finished run: its exit code as from `exit_code`, its stdout and its stderr."""

    code: int
    out: str
    err: str


def exit_code(status: int) -> int:
    """Return Popen's `returncode` (negative: the signal that ended it), but 130 for Ctrl-C, as in a shell."""
    return 130 if status == -signal.SIGINT else status


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without variables that change the outcome, but with `changes`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    # Otherwise the lines about loading and prefill could appear at any time on a busy machine.
    ours = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "TERM": "xterm", "TTY_INTERACTIVE": "0"}
    return {**kept, **MACHINE, **ours, **(changes or {})}


def call(*arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
    """Run lacli inside this process, which is quicker than `run`. `stdin`: the bytes of a pipe."""
    out, err, code = TextIOWrapper(BytesIO(), "utf-8"), TextIOWrapper(BytesIO(), "utf-8"), 0
    with ExitStack() as stack:
        stack.enter_context(patch.object(sys, "argv", ["lacli", *arguments]))
        stack.enter_context(patch.object(sys, "stdin", TextIOWrapper(BytesIO(stdin), "utf-8")))
        stack.enter_context(patch.dict(os.environ, environment(env), clear=True))
        # A failed assertion of ggml's should still be a crash here.
        stack.enter_context(patch("lacli.llamacpp.library.on_abort"))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return Done(code, _text(out), _text(err))


def start(
    *arguments: str | bytes, env: Mapping[str, str] | None = None, program: Sequence[str] = PROGRAM, **options: Any
) -> subprocess.Popen[bytes]:
    """Start lacli as a process. Its stdout and stderr are pipes, its stdin is empty; `options` are Popen's."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*program, *arguments], env=environment(env), **{**streams, **options})


def run(
    *arguments: str | bytes,
    stdin: bytes | int | IO[Any] = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
    stdout: int | IO[Any] = subprocess.PIPE,
) -> Done:
    """Run lacli as a process to its end. `stdin`: bytes for a pipe, or a file; empty by default."""
    piped = stdin if isinstance(stdin, bytes) else None
    source = subprocess.PIPE if isinstance(stdin, bytes) else stdin
    with start(*arguments, env=env, program=program, stdin=source, stdout=stdout) as process:
        out, err = process.communicate(piped, SECONDS)
    return Done(exit_code(process.returncode), (out or b"").decode(), err.decode())


def on_terminal(
    *arguments: str, env: Mapping[str, str] | None = None, columns: int = 400, program: Sequence[str] = PROGRAM
) -> pexpect.spawn:
    """Start lacli on its own terminal of `columns` columns; no line wraps with the default."""
    with warnings.catch_warnings():
        # Python warns about a fork while numpy has threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        return pexpect.spawn(
            program[0],
            [*program[1:], *arguments],
            env=environment(env),
            dimensions=(50, columns),
            timeout=SECONDS,
            encoding="utf-8",
        )


def finish(terminal: pexpect.spawn) -> Done:
    """Wait for the end of a run on a terminal. The result's `out` is the output from now on."""
    out = terminal.read().replace("\r\n", "\n")
    terminal.close()
    return Done(terminal_code(terminal), out, "")


def terminal_code(terminal: pexpect.spawn) -> int:
    """Return the exit code of a program on a closed terminal, as `exit_code` does."""
    return exit_code(terminal.exitstatus if terminal.exitstatus is not None else -terminal.signalstatus)


def _text(stream: TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, BytesIO)
    return raw.getvalue().decode()
