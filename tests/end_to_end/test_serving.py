"""`lacli serve` as a process: it prints its address, and signals end it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import IncompleteRead
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.loading import STDLIB_7M
from tests.program import ROOT, environment, exit_code

QUICK = ("-t", "1", "-c", "256", "-np", "2")


def test_a_server_measures_says_where_it_answers_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "lacli", "serve", str(STDLIB_7M), "--port", "0", *QUICK)
    with started(command, {"LACLI_MEASURE": "1", "XDG_CACHE_HOME": str(tmp_path)}) as server:
        assert server.stderr
        address, told = begun(server.stderr)
        assert "measuring what steps cost" in told
        with urlopen(f"{address}/health") as reply:
            assert json.load(reply) == {"status": "ok"}
        server.send_signal(signal.SIGINT)
        rest = server.stderr.read()
    assert exit_code(server.returncode) == 130
    assert "Traceback" not in rest and re.search(r"GET /health HTTP/1.1\" 200", rest)


def test_a_server_answers_on_a_socket_file_and_ends_by_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    command = (sys.executable, "-m", "lacli", "serve", str(STDLIB_7M), "--host", f"unix:{path}", *QUICK)
    with started(command) as server:
        assert server.stderr
        _, told = begun(server.stderr, re.escape(f"answers at unix:{path}"))
        assert "measuring" not in told
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        server.terminate()
        server.stderr.read()
    assert server.returncode == 0


@contextmanager
def started(command: Sequence[str], changes: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Yield a server's process, which is killed if the test fails."""
    with subprocess.Popen(command, cwd=ROOT, env=environment(changes), stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server
        except BaseException:
            server.kill()
            raise


def begun(stderr: IO[str], where: str = r"http://127\.0\.0\.1:\d+(?=, )") -> tuple[str, str]:
    """Read stderr up to a text that matches `where` (an address); return the match and everything read."""
    told = ""
    while not (found := re.search(where, told)):
        line = stderr.readline()
        assert line, told
        told += line
    return found[0], told


def test_an_answer_that_runs_when_the_server_ends_has_its_seconds_and_others_are_told() -> None:
    flags = ("--port", "0", "-t", "1", "-c", "4096", "-np", "1", "--drain", "0")
    command = (sys.executable, "-m", "lacli", "serve", str(STDLIB_7M), *flags)
    with started(command) as server, ThreadPoolExecutor(1) as pool:
        assert server.stderr
        address, _ = begun(server.stderr)
        body = {"prompt": "def f(", "ignore_eos": True}
        streamed, whole = (json.dumps({**body, "stream": stream}).encode() for stream in (True, False))
        with urlopen(Request(f"{address}/v1/completions", streamed)) as reply:
            assert reply.readline().startswith(b"data: ")
            waiting = pool.submit(urlopen, Request(f"{address}/v1/completions", whole))
            while b"requests_deferred 1" not in urlopen(f"{address}/metrics").read():
                pass
            server.terminate()
            with suppress(IncompleteRead):
                reply.read()
        error = waiting.exception()
        assert isinstance(error, HTTPError) and error.code == 503 and b"the server ended" in error.read()
        rest = server.stderr.read()
    assert server.returncode == 0 and "Traceback" not in rest
