"""`lacli serve` as a process: it says where it answers, and ends by signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.program import ROOT, environment, run

QUICK = ("-t", "1", "-c", "256", "-np", "2")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_server_says_where_it_answers_and_ends_by_a_signal(number: signal.Signals, code: int, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "lacli", "serve", "demo", "--port", "0", *QUICK)
    # One of the two has never run here.
    new = {"LACLI_LEARN": "1", "XDG_CACHE_HOME": str(tmp_path)} if code else {}
    with subprocess.Popen(command, cwd=ROOT, env=environment(new), stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        told = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", told)):
            line = server.stderr.readline()
            assert line, told
            told += line
        assert ("measuring what steps cost" in told) is bool(code)
        with urlopen(f"{found[0]}/health") as reply:
            assert json.load(reply) == {"status": "ok"}
        server.send_signal(number)
        rest = server.stderr.read()
    assert server.returncode == code
    assert "Traceback" not in rest


def test_an_address_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "demo", "--port", str(taken.getsockname()[1]), *QUICK)
    assert done.code == 1 and "cannot listen on 127.0.0.1" in done.err and done.err.count("\n") == 1
