"""llama.cpp's programs that lacli is compared with. They are found on PATH; a new process gives each answer.

llama-lookahead and llama-lookup print statistics on their log. `llama-server:KIND` speculates in one way and answers
over HTTP. All get lacli's prompt, settings and number of tokens. A failure is a LacliError of one line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from benchmarks.fresh_table import Answer
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.settings import ModelSettings

PROGRAMS = ("llama-lookahead", "llama-lookup", "llama-server")
START_S, ANSWER_S, END_S = 300.0, 900.0, 5.0
"""Seconds that a program may take to load a model, to answer, and to end after SIGTERM."""

MOST_TRIES = 10
"""Runs at most until a log is complete. A thread writes the log, and its last lines are lost if the process ends."""

ENDS_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""Python code that has Linux kill its process when the parent ends (PR_SET_PDEATHSIG), and runs a command there."""

ENCODED = re.compile(r"encoded +(\d+) tokens in +([\d.]+) seconds")
DECODED = re.compile(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +(\d+\.\d+) t/s")
"""The seconds are rounded to milliseconds, so the speed is more exact."""
ACCEPTED = re.compile(r"n_accept += +(\d+)")
COLOUR = re.compile(rb"\x1b\[[\d;]*m")
PREFIX = re.compile(r"^[\d.]+ [A-Z] ")
FAILURE = re.compile(r"error|fail|couldn't|cannot|assert|invalid", re.IGNORECASE)


@dataclass(frozen=True)
class Rival:
    """A program of llama.cpp. `kind`: llama-server's --spec-type. `draft`: the draft model of kind draft-simple."""

    program: Path
    kind: str = ""
    draft: Path | None = None

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.program.stem} {self.kind}".strip()

    def answer(
        self, prompt: str, tokens: Sequence[int], limit: int, model: Path, settings: ModelSettings, *, offloaded: bool
    ) -> Answer:
        """Load `model` and decode `limit` tokens after `prompt`. Raises LacliError if the program fails.

        `tokens`: lacli's token ids of `prompt`; raises LacliError if the program counts another number of tokens.
        `settings`: with the real context and threads, not 0. `offloaded`: whether lacli uses a GPU; the program then
        uses it too.
        """
        command = [str(self.program), *load_flags(model, settings, offloaded=offloaded)]
        if self.kind:
            command += ["-b", str(settings.batch), "-np", "1", "--spec-type", self.kind]
            if self.draft:
                command += ["-md", str(self.draft), *(() if offloaded else ("-ngld", "0", "-devd", "none"))]
            return asked(command, tokens, limit)
        # Both prefill in one batch.
        command += ["-b", str(max(settings.batch, settings.context)), "--temp", "0", "--no-escape"]
        return run(command, prompt, tokens, limit)


def find_rival(name: str) -> Rival:
    """Return the rival of a name, as in PROGRAMS. Raises UsageError for another name, LacliError if not on PATH."""
    program, _, kind = name.partition(":")
    if program not in PROGRAMS or bool(kind) != (program == "llama-server"):
        raise UsageError(f"there is no rival {name!r}", f"{', '.join(PROGRAMS)}:KIND with KIND ngram-mod or none")
    if path := shutil.which(program):
        return Rival(Path(path), kind)
    raise LacliError(f"{program} is not on PATH", "build llama.cpp and put its build/bin on PATH")


def load_flags(model: Path, settings: ModelSettings, *, offloaded: bool) -> list[str]:
    """Return llama.cpp's flags for lacli's settings of a model."""
    layers = 999 if settings.gpu_layers < 0 else settings.gpu_layers
    pairs = {
        "-m": model,
        "-c": settings.context,
        "-t": settings.threads,
        "-tb": settings.threads_batch or settings.threads,
        "-ngl": layers if offloaded else 0,
        "-fa": settings.attention(on_gpu=offloaded),
        "-ctk": settings.cache_type_k,
        "-ctv": settings.cache_type_v,
    }
    flags = [str(part) for pair in pairs.items() for part in pair]
    return [*flags, *(() if offloaded else ("--device", "none")), *(() if settings.repack else ("--no-repack",))]


def run(command: Sequence[str], prompt: str, tokens: Sequence[int], limit: int) -> Answer:
    """Return one answer of llama-lookahead or llama-lookup. `tokens`: lacli's token ids of the prompt."""
    name = Path(command[0]).stem
    # llama-lookup counts the first token, which comes out of the prefill. Both stop after one token more than -n.
    first = int(name == "llama-lookup")
    with TemporaryDirectory(prefix="lacli-") as folder:
        # A file takes prompts of any length, and no shell or escape changes them.
        file = Path(folder) / "prompt"
        file.write_bytes(prompt.encode())
        for _ in range(MOST_TRIES):
            out, log = _finished([*command, "-bf", str(file), "-n", str(limit - 1 + first)])
            encoded, decoded, accepted = ENCODED.search(log), DECODED.search(log), ACCEPTED.search(log)
            if not (encoded and decoded and accepted):
                continue
            _check_prompt(name, int(encoded[1]), tokens)
            count = int(decoded[1]) - first
            # The log also counts drafted tokens that were accepted after the end of the answer.
            steps = max(count - int(accepted[1]), min(count, 1))
            text = COLOUR.sub(b"", out).decode("utf-8", "replace").partition(prompt)[2].rstrip("\n")
            return Answer(count, int(decoded[1]) / float(decoded[2]), text, steps)
    raise LacliError(f"{name} prints no statistics that can be read", "it may be of another version of llama.cpp")


def _finished(command: Sequence[str]) -> tuple[bytes, str]:
    """Run a program to its end; return its standard output and its log. Raises LacliError if it fails."""
    name = Path(command[0]).stem
    try:
        done = subprocess.run(
            tied(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S + ANSWER_S, env=environment()
        )
    except subprocess.TimeoutExpired as error:
        raise LacliError(f"{name} did not finish in time", "ask for fewer tokens with -n") from error
    log = done.stderr.decode("utf-8", "replace")
    if done.returncode:
        raise failed(name, done.returncode, log)
    return done.stdout, log


def asked(command: Sequence[str], tokens: Sequence[int], limit: int) -> Answer:
    """Return one answer of a new llama-server without its first token, which comes from the prefill."""
    request = {"prompt": [*tokens], "n_predict": limit + 1, "temperature": 0, "cache_prompt": False}
    with _server(command) as address:
        reply = _reply(f"{address}/completion", request, ANSWER_S)
    try:
        timings = reply["timings"]
        _check_prompt("llama-server", int(timings["prompt_n"]), tokens)
        count = int(timings["predicted_n"]) - 1
        # Missing if nothing was drafted. It also counts drafted tokens that were accepted after an end token.
        accepted = min(int(timings.get("draft_n_accepted", 0)), max(count - 1, 0))
        return Answer(count, timings["predicted_ms"] / 1e3, str(reply["content"]), count - accepted)
    except (LookupError, TypeError, ValueError) as error:
        raise LacliError(f"llama-server replies in a form that cannot be read: {error!r}", "leave it out") from error


@contextmanager
def _server(command: Sequence[str]) -> Iterator[str]:
    """Start a llama-server on a free port, and yield its address once the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with TemporaryDirectory(prefix="lacli-") as folder:
        path = Path(folder) / "log"
        flags = ["--host", "127.0.0.1", "--port", str(port)]
        with path.open("wb") as log:
            process = subprocess.Popen(
                tied([*command, *flags]), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )
        try:
            end = monotonic() + START_S
            while not _is_ready(f"http://127.0.0.1:{port}/health"):
                if (code := process.poll()) is not None:
                    raise failed("llama-server", code, path.read_text("utf-8", "replace"))
                if monotonic() > end:
                    raise LacliError(f"llama-server was not ready within {START_S:g} s", "leave it out")
                sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(address: str) -> bool:
    try:
        with urlopen(address, timeout=START_S) as reply:
            return bool(reply.status == HTTPStatus.OK)
    except OSError:
        return False


def _reply(address: str, body: object, seconds: float) -> dict[str, Any]:
    """Post `body` as JSON and return the JSON of the reply. Raises LacliError after `seconds` or another failure."""
    try:
        request = Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=seconds) as reply:
            found: dict[str, Any] = json.loads(reply.read())
            return found
    except HTTPError as error:
        words = error.read().decode("utf-8", "replace")
        raise LacliError(f"llama-server refuses the prompt: {words[:200]}", "leave it out") from error
    except (OSError, ValueError) as error:
        raise LacliError(f"llama-server does not answer: {error}", "leave it out") from error


def _check_prompt(name: str, read: int, tokens: Sequence[int]) -> None:
    if read != len(tokens):
        raise LacliError(
            f"{name} reads {read} tokens in a prompt of {len(tokens)}", "it may be of another version of llama.cpp"
        )


def tied(command: Sequence[str]) -> list[str]:
    """Return a command that Linux kills when this process ends, even if it is killed; elsewhere `command`."""
    return [sys.executable, "-IS", "-c", ENDS_WITH_PARENT, *command] if sys.platform == "linux" else [*command]


def environment() -> dict[str, str]:
    """Return this process's environment without LLAMA_ variables, which would change the compared settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}


def failed(program: str, code: int, log: str) -> LacliError:
    """Return the error for a program that failed, with `code` (negative: a signal) and the telling line of `log`."""
    end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    lines = [PREFIX.sub("", line).strip() for line in log.splitlines()]
    telling = [line for line in lines if FAILURE.search(line) and "exiting due to" not in line]
    words = (telling or [line for line in lines if line] or [""])[-1]
    return LacliError(f"{program} {end}{': ' + words if words else ''}", "the same flags by hand show more")
