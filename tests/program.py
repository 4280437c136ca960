"""lacli as a person meets it: a process with pipes, a process on a terminal, or quickly, inside the test's process.

No test lives here. Everything runs on the CPU and on one thread, which does not suffer from a busy machine, and
without the developer's own settings of lacli, llama.cpp, the hub's library, proxies and colours.
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
"""lacli as bash starts it; a last command alone would take bash's place, and no shell would be found above lacli."""

SECONDS = 60
"""How long a run may take at most, on a very busy machine."""

FAULT = fault_of(repack=True)
"""What fails with repacked weights in this build, "" where nothing does.

No run uses them then, or says so, unless its test asks for it.
"""

MACHINE = {
    "LACLI_MODEL": str(STDLIB_7M),
    "LACLI_THREADS": "1",
    "LACLI_N_GPU_LAYERS": "0",
    "LACLI_ENGINE": "llama",
    "LACLI_MEASURE": "0",
    IN_TRIAL: FAULT,
} | ({"LACLI_REPACK": "0"} if FAULT else {})
"""What every run gets: the quick model if it names none, one thread, no GPU, nothing learned by others, no trial of the
build except the one above."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
HUBS = (
    *("HF_DEBUG", "HF_ENDPOINT", "HF_HUB_DISABLE_", "HF_HUB_DOWNLOAD_", "HF_HUB_ENABLE_", "HF_HUB_ETAG_"),
    *("HF_HUB_OFFLINE", "HF_TOKEN", "HF_XET_", "HUGGING_FACE_", "TRANSFORMERS_OFFLINE"),
)
"""Of the hub's library, all but the place of its cache, which a test says."""

FOREIGN = (
    *("LANG", "LC_"),
    *("GGML_", "LACLI_", "LLAMA_ARG_", "NO_COLOR", "FORCE_COLOR", "PYTHON", "COLUMNS", "TERM"),
    *(*HUBS, *PROXIES),
)


@dataclass(frozen=True)
class Done:
    """A run that is over: its exit code as `exit_code` has it, and what it wrote."""

    code: int
    out: str
    err: str


def exit_code(status: int) -> int:
    """Popen's `returncode`, negative for a signal that killed the program, but 130 for Ctrl-C, as in a shell."""
    return 130 if status == -signal.SIGINT else status


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The process environment of a run: this one's without settings that change the outcome, and `changes`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    # On a busy machine the lines about loading and reading would appear, at any time.
    ours = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "TERM": "xterm", "TTY_INTERACTIVE": "0"}
    return {**kept, **MACHINE, **ours, **(changes or {})}


def call(*arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
    """Run lacli inside this process: for what no process boundary can change. stdin is a pipe with these bytes."""
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
    """Start lacli as a process; its streams are pipes unless `options` for Popen say otherwise."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*program, *arguments], env=environment(env), **{**streams, **options})


def run(
    *arguments: str | bytes,
    stdin: bytes | int | IO[Any] = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
    stdout: int | IO[Any] = subprocess.PIPE,
) -> Done:
    """Run lacli as a process to its end. stdin: nothing, bytes for a pipe, or a file to read from."""
    piped = stdin if isinstance(stdin, bytes) else None
    source = subprocess.PIPE if isinstance(stdin, bytes) else stdin
    with start(*arguments, env=env, program=program, stdin=source, stdout=stdout) as process:
        out, err = process.communicate(piped, SECONDS)
    return Done(exit_code(process.returncode), (out or b"").decode(), err.decode())


def on_terminal(
    *arguments: str, env: Mapping[str, str] | None = None, columns: int = 400, program: Sequence[str] = PROGRAM
) -> pexpect.spawn:
    """Start lacli on a terminal of its own, wide enough that no line wraps unless `columns` says otherwise."""
    with warnings.catch_warnings():
        # Python dislikes forks in a process in which numpy has threads.
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
    """Wait for the end of a run on a terminal; `out` is all that the terminal showed from here on."""
    out = terminal.read().replace("\r\n", "\n")
    terminal.close()
    return Done(terminal_code(terminal), out, "")


def terminal_code(terminal: pexpect.spawn) -> int:
    """The exit code of a program on a closed terminal, as `exit_code` has it."""
    return exit_code(terminal.exitstatus if terminal.exitstatus is not None else -terminal.signalstatus)


def _text(stream: TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, BytesIO)
    return raw.getvalue().decode()
