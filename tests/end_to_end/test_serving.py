"""`lacli serve` as a process: it says where it answers, and ends by signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import IncompleteRead
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.loading import STDLIB_7M
from tests.program import ROOT, environment, exit_code

QUICK = ("-c", "256", "-np", "2")


@contextmanager
def started(
    *flags: str, where: str = r"http://127\.0\.0\.1:\d+(?=, )", changes: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], IO[str], str, str]]:
    """A server with its stderr, the place where it says that it answers, and all that it has said by then.

    It does not outlive its test, whatever fails.
    """
    command, told = (sys.executable, "-m", "lacli", "serve", str(STDLIB_7M), "-t", "1", *flags), ""
    with subprocess.Popen(command, cwd=ROOT, env=environment(changes), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            while not (found := re.search(where, told)):
                line = server.stderr.readline()
                assert line, told
                told += line
            yield server, server.stderr, found[0], told
        except BaseException:
            server.kill()
            raise


def test_a_server_measures_says_where_it_answers_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    changes = {"LACLI_MEASURE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    with started("--port", "0", *QUICK, changes=changes) as (server, stderr, address, told):
        assert "measuring what steps cost" in told
        with urlopen(f"{address}/health") as reply:
            assert json.load(reply) == {"status": "ok"}
        server.send_signal(signal.SIGINT)
        rest = stderr.read()
    assert exit_code(server.returncode) == 130
    assert "Traceback" not in rest and re.search(r"GET /health HTTP/1.1\" 200", rest)


def test_a_server_answers_on_a_socket_file_and_ends_by_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    where = re.escape(f"answers at unix:{path}")
    with started("--host", f"unix:{path}", *QUICK, where=where) as (server, stderr, _, told):
        assert "measuring" not in told
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        server.terminate()
        stderr.read()
    assert server.returncode == 0


def test_an_answer_that_runs_when_the_server_ends_has_its_seconds_and_others_are_told() -> None:
    flags = ("--port", "0", "-c", "4096", "-np", "1", "--drain", "0")
    with started(*flags) as (server, stderr, address, _), ThreadPoolExecutor(1) as pool:
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
        rest = stderr.read()
    assert server.returncode == 0 and "Traceback" not in rest
