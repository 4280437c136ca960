"""Which devices RPC servers have, asked in a process of its own, and what is wrong where one does not answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from lacli.child_python import python_environment
from lacli.errors import LacliError
from lacli.llamacpp.devices import Device
from lacli.rpc.addresses import BUSY, look
from lacli.rpc.library import need_support

LISTING = (sys.executable, "-P", "-m", "lacli.rpc.listing")

ANSWER_S = 5.0
"""How long servers may take at most to say what they have, which is a moment's work for one that is free."""

SAME_VERSION = "both ends need the same version of llama.cpp"

OTHER_VERSION = re.compile(r"RPC server version mismatch: (\S+)")

NO_SERVER = "Remote RPC server crashed or returned malformed response"
"""What ggml says when an answer breaks off or has another length than it should have."""


class Answer(NamedTuple):
    """What the asking process wrote until it ended, or until its time was over."""

    lines: list[str]
    words: str
    in_time: bool


def found(endpoints: Sequence[str], limit_s: float) -> list[Device]:
    """The devices of these servers, named RPC0, RPC1 and so on in their order; `description` is the server's address.

    limit_s: seconds that an answer may take, though never more than 5. Raises LacliError, in one line, where this
    build has no RPC or a server is not there, does not answer, is none or is of another version.
    """
    need_support()
    look(endpoints, limit_s)
    limit_s = min(limit_s, ANSWER_S)
    answer = _ask(endpoints, limit_s)
    if len(answer.lines) == len(endpoints):
        return [Device(*row) for line in answer.lines for row in json.loads(line)]
    endpoint = endpoints[len(answer.lines)]
    if not answer.in_time:
        raise LacliError(
            f"--rpc: the RPC server at {endpoint} does not answer within {limit_s:g} s",
            f"{BUSY}; or something else listens there",
        )
    raise _refused(endpoint, answer.words)


def _ask(endpoints: Sequence[str], limit_s: float) -> Answer:
    in_time = True
    with subprocess.Popen(
        [*LISTING, *endpoints],
        bufsize=0,  # so that nothing but the first line is taken from what `communicate` reads
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=python_environment(),
    ) as child:
        try:
            assert child.stdout
            # Loading llama.cpp is not the servers' time.
            child.stdout.readline()
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            in_time = False
            child.kill()
            out, err = child.communicate()
        except BaseException:
            child.kill()
            raise
    return Answer(out.decode().splitlines(), err.decode("utf-8", "replace"), in_time)


def _refused(endpoint: str, words: str) -> LacliError:
    """What llama.cpp's last words about a server mean."""
    if other := OTHER_VERSION.search(words):
        what = f"--rpc: the RPC server at {endpoint} speaks version {other[1]} of the protocol, this llama.cpp another"
        return LacliError(what, SAME_VERSION)
    if NO_SERVER in words:
        return LacliError(
            f"--rpc: what listens at {endpoint} does not speak llama.cpp's RPC protocol",
            f"check the port; {SAME_VERSION}",
        )
    last = [line.strip() for line in words.splitlines() if line.strip()][-1:] or ["llama.cpp gives no reason"]
    return LacliError(f"--rpc: the RPC server at {endpoint} cannot be used: {last[0].rsplit('/', 1)[-1]}", SAME_VERSION)
