"""llama-server with one of its kinds of speculation: a process on a free port, asked over HTTP."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from benchmarks.rivals.runs import PATIENCE, Patience, RivalRun, environment, failed, last_words, shared_flags, tied
from lacli.errors import LacliError, reason_of
from lacli.llamacpp.settings import ModelSettings
from lacli.text.files import Closing

NAME = "llama-server"
HOST = "127.0.0.1"
KNOCK_S = 0.05
"""Seconds between two questions whether the model is loaded."""

SHORTEST_S = 1e-3
"""A socket takes no time limit of 0 as one."""

FORGETFUL = ("none", "ngram-simple")
"""Kinds that look at one prompt and its answer alone. The others keep n-grams from one request to the next, so that
the second run of a prompt would be drafted from the first: for those each answer gets a server of its own."""

WARM_UP = [0] * 128
"""A prompt that is as long as the pieces in which lacli reads others, for memory that is used for the first time."""

DRAFT = "draft-simple"
"""The kind that drafts with a small model of the same vocabulary."""

KINDS = re.compile(r"--spec-type\s+\[?([\w,-]+)")


def speculation_kinds(program: Path, patience: Patience = PATIENCE) -> list[str]:
    """The kinds of speculation that a llama-server knows and that work with every model, by its --help.

    `none` is the first, `draft-simple` needs a draft model. Empty for an older server.
    """
    try:
        done = subprocess.run(
            [program, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=patience.start_s,
            env=environment(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LacliError(f"{NAME} --help fails: {error}", "leave it out") from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        raise failed(NAME, done.returncode, text)
    found = KINDS.search(text)
    kinds = found[1].split(",") if found else []
    return [kind for kind in kinds if kind in ("none", DRAFT) or kind.startswith("ngram-")]


class Server(Closing):
    """A llama-server that speculates in one way; it starts with the first answer and ends with `close`."""

    def __init__(
        self,
        program: Path,
        model: Path,
        model_settings: ModelSettings,
        kind: str,
        *,
        offloaded: bool,
        slots: int = 1,
        draft: Path | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        """`slots`: texts that it decodes at once; they share the cells of `model_settings` evenly.

        `draft`: the model that drafts if the `kind` is draft-simple.
        """
        self._patience, self._slots = patience, slots
        self._keeps = kind in FORGETFUL
        flags = ["-b", str(model_settings.batch), "-np", str(slots), "--host", HOST, "--spec-type", kind]
        if draft:
            flags += ["-md", str(draft), *(() if offloaded else ("-ngld", "0", "-devd", "none"))]
        self._command = tied([str(program), *shared_flags(model, model_settings, offloaded=offloaded), *flags])
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = TemporaryDirectory(prefix="lacli-")
        self._log = Path(self._folder.name) / "log"
        self._port = 0

    def answer(self, prompt_text: str, prompt_tokens: Sequence[int], limit: int) -> RivalRun:
        """Decode `limit` tokens after the first unless the answer ends before; the prompt goes as token ids.

        Raises LacliError when the server cannot start, dies, refuses or takes too long.
        """
        assert limit > 0
        if self._process is None:
            self._start()
        request = {
            "prompt": list(prompt_tokens),
            "n_predict": limit + 1,
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
        }
        run = _parsed(self._complete(request))
        if not self._keeps:
            self._stop()
        return run

    def answer_together(self, prompts: Sequence[Sequence[int]], limit: int) -> list[list[float]]:
        """Ask for answers of `limit` tokens, each as soon as a slot is free.

        Return the seconds after which each was asked and those after which its tokens came, as the server's decoding
        thread has had a processor, on Linux. Raises LacliError as `answer` does.
        """
        if self._process is None:
            self._start()
            self._stream(WARM_UP, 1)
        begin = self._thread_s()
        with ThreadPoolExecutor(self._slots) as askers:
            answers = list(askers.map(lambda prompt: self._stream(prompt, limit), prompts))
        if not self._keeps:
            self._stop()
        return [[time - begin for time in times] for times in answers]

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def _stream(self, prompt: Sequence[int], limit: int) -> list[float]:
        """When it was asked, and when each of `limit` tokens came, by the clock of `_thread_s`."""
        request = {
            "prompt": [*prompt],
            "n_predict": limit,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        times, last = [self._thread_s()], b""
        with closing(HTTPConnection(HOST, self._port, timeout=self._patience.answer_s)) as connection:
            try:
                connection.request("POST", "/completion", json.dumps(request), {"Content-Type": "application/json"})
                for line in connection.getresponse():
                    if line.startswith(b"data: "):
                        times.append(self._thread_s())
                        last = line
            except (OSError, HTTPException) as error:
                self._raise_if_dead(self._patience.end_s)
                raise LacliError(f"{NAME} broke the connection: {error}", "leave it out") from error
        # The last event says how it ended and brings no token.
        if len(times) != limit + 2 or b'"stop":true' not in last:
            raise LacliError(f"{NAME} answers in {len(times) - 1} events for {limit} tokens", "leave it out")
        return times[:-1]

    def _thread_s(self) -> float:
        """Seconds that the thread that decodes has had a processor."""
        assert self._process is not None
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1e9

    def _start(self) -> None:
        """Start it and wait until it has loaded the model."""
        self._port = _free_port()
        command = [*self._command, "--port", str(self._port)]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
                )
        except OSError as error:
            raise LacliError(f"{NAME} cannot be started: {reason_of(error)}", "leave it out") from error
        end = monotonic() + self._patience.start_s
        while not self._ready(max(end - monotonic(), SHORTEST_S)):
            if monotonic() > end:
                self._stop()
                words = last_words(self._words())
                limit = f"{self._patience.start_s:g} seconds"
                raise LacliError(f"{NAME} was not ready within {limit}: {words}", "leave it out")
            sleep(KNOCK_S)

    def _ready(self, seconds: float) -> bool:
        try:
            status, _ = self._ask("GET", "/health", None, seconds)
        except OSError:
            status = 0
        # The reply may be of another program on the same port.
        self._raise_if_dead(0)
        return status == HTTPStatus.OK

    def _complete(self, request: dict[str, Any]) -> dict[str, Any]:
        seconds = self._patience.answer_s
        try:
            status, reply = self._ask("POST", "/completion", request, seconds)
        except TimeoutError as error:
            raise LacliError(
                f"{NAME} did not answer within {seconds:g} seconds", "ask for fewer tokens with -n"
            ) from error
        except OSError as error:
            self._raise_if_dead(self._patience.end_s)
            raise LacliError(f"{NAME} broke the connection: {error}", "leave it out") from error
        if status != HTTPStatus.OK:
            raise LacliError(f"{NAME} refuses the prompt: {_message(reply)}", "leave it out")
        return reply

    def _ask(self, method: str, path: str, body: object, seconds: float) -> tuple[int, dict[str, Any]]:
        """One request: the status, and the JSON object of the reply, {} for another reply. Raises OSError for none."""
        with closing(HTTPConnection(HOST, self._port, timeout=seconds)) as connection:
            try:
                connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                reply = json.loads(response.read())
            except HTTPException as error:
                raise ConnectionError(str(error) or type(error).__name__) from error
            except ValueError:
                reply = None
            return response.status, reply if isinstance(reply, dict) else {}

    def _raise_if_dead(self, seconds: float) -> None:
        """Raise LacliError with the server's last words if it has ended, or ends within `seconds`."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        self._process = None
        raise failed(NAME, code, self._words())

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(self._patience.end_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _words(self) -> str:
        return self._log.read_text("utf-8", "replace")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def _parsed(reply: dict[str, Any]) -> RivalRun:
    """A reply of /completion as a record. Raises LacliError for one of another form."""
    try:
        timings, ids = reply["timings"], tuple(map(int, reply["tokens"]))
        # The first token comes out of the prefill, and the clock starts with it.
        tokens = int(timings["predicted_n"]) - 1
        # Both are left out where nothing was drafted.
        drafted = int(timings.get("draft_n", 0))
        # It also counts accepted guesses behind an end token.
        accepted = min(int(timings.get("draft_n_accepted", 0)), max(tokens - 1, 0))
        return RivalRun(
            tokens=tokens,
            seconds=timings["predicted_ms"] / 1e3,
            steps=tokens - accepted,
            accepted=accepted,
            drafted=drafted,
            prompt_tokens=int(timings["prompt_n"]),
            prompt_s=timings["prompt_ms"] / 1e3,
            ids=ids,
            text=str(reply["content"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise LacliError(
            f"{NAME} replies in a form that lacli cannot read ({error})",
            "it may be of another version of llama.cpp; leave it out",
        ) from error


def _message(reply: dict[str, Any]) -> str:
    error = reply.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or "no reason given")
