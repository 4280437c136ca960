"""Load a server with clients that come, go, stall and send rubbish; check every answer and the server's memory.

    python -m benchmarks.soak                        2,000 requests of 64 clients, lacli serve --strict -t 1
    python -m benchmarks.soak --parallel 4           the same with four answers at a time, without --strict

First each question is asked once, alone. With --strict every later answer has to be the same text. Without --strict
answers that share steps may differ by rounding (docs/internals/exactness.md); different answers are only counted.

Requests use five protocols in turn: chats, completions, responses, messages, and infilling if the model can. The kinds:

- whole answers and streams, also with slow readers; broken JSON
- clients that leave before or in an answer, or close their socket in one direction or in the middle of a body
- bodies of 1 MB, some with a prompt that is too long

Times are a client's, with its wait for a slot. Memory is the server's resident memory in `/proc`, which needs Linux.
The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import quantiles
from tempfile import NamedTemporaryFile
from time import perf_counter, sleep
from typing import Any
from urllib.request import urlopen

from lacli.text.format import markdown

MB = 10**6
QUESTIONS = (
    "Write a function that adds two numbers.",
    "What is a list?",
    "How do I read a file line by line?",
    "Explain json.dumps with an example.",
    "Write a class for a stack with push and pop.",
    "What does os.path.join do?",
)
RUBBISH = (
    *(b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"messages": 3}', b"[" * 100_000),
    b'{"messages": [{"role": "user", "content": "a"}], "temperature": "warm"}',
)
"""Invalid bodies, which the server refuses with 400."""

MEMORY_MARGIN = 1.05
"""Resident memory after all requests may be at most this many times the memory after half of the requests."""

KINDS = {
    "whole": 40,
    "stream": 25,
    "leaves in the answer": 8,
    "leaves at once": 5,
    "slow reader": 4,
    "closes its half": 4,
    "half a body": 3,
    "rubbish": 5,
    "1 MB beside a prompt": 3,
    "1 MB of prompt": 3,
}
"""Kinds of requests, and the percentage of each."""

ENDS = ("response.completed", "response.incomplete", "message_stop")
"""The types of the last event of a response's or message's stream."""

CHATS = "/v1/chat/completions"

Asked = tuple[str, dict[str, Any]]
"""A request's path and body."""

LARGE = ("1 MB beside a prompt", "1 MB of prompt")


@dataclass
class Report:
    """Results. `wrong`: a line for each fault. `equal`, `differs`: answers equal to the text alone, and others.

    `stuck`: slots that stay busy. `resident`: bytes after half of the requests and after all. `first_s`, `gap_s`:
    seconds to the first event of a stream, and between two events. `first_large_s`, `gap_large_s`: the seconds that
    ended while a body of 1 MB was being sent.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    equal: int = 0
    differs: int = 0
    stuck: int = 0
    seconds: float = 0.0
    resident: list[int] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    first_large_s: list[float] = field(default_factory=list)
    gap_large_s: list[float] = field(default_factory=list)

    def table(self) -> str:
        rows = [
            [name, str(len(times)), *(f"{1e3 * each:,.1f}" for each in (_quantile(times, 50), _quantile(times, 99)))]
            for name, times in (
                ("first token", self.first_s),
                ("first token, 1 MB on its way", self.first_large_s),
                ("between tokens", self.gap_s),
                ("between tokens, 1 MB on its way", self.gap_large_s),
            )
            if times
        ]
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        memory = " and ".join(f"{each / 2**20:,.1f} MiB" for each in self.resident)
        return "\n".join(
            (
                f"{sum(self.kinds.values()):,} requests in {self.seconds:,.0f} s: {kinds}",
                f"{self.equal:,} texts as alone, {self.differs} others; {len(self.wrong)} wrong; {self.stuck} stuck",
                f"resident after half and after all: {memory}",
                "",
                markdown(["ms", "times", "median", "p99"], rows),
            )
        )


def _quantile(times: Sequence[float], percent: int) -> float:
    return quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else times[0]


def questions(count: int, tokens: int) -> list[Asked]:
    """Return `count` requests of all protocols, greedy and sampled, with at most `tokens` tokens in an answer."""
    found = []
    for number in range(count):
        text, most = QUESTIONS[number % len(QUESTIONS)], 1 + tokens * (number + 1) // count
        chat = [{"role": "user", "content": text}]
        bodies: list[Asked] = [
            (CHATS, {"messages": chat, "max_tokens": most}),
            ("/v1/completions", {"prompt": text, "max_tokens": most}),
            ("/v1/responses", {"input": text, "max_output_tokens": most}),
            ("/v1/messages", {"messages": chat, "max_tokens": most}),
            ("/infill", {"input_prefix": text, "input_suffix": "\n", "n_predict": most}),
        ]
        path, body = bodies[number % len(bodies)]
        found.append((path, {**body, "temperature": 0.8 * (number % 2), "seed": number}))
    return found


class Soak:
    """Clients of one server. `resident`: returns the server's memory in bytes. `asked`: the questions."""

    def __init__(
        self, port: int, asked: Sequence[Asked], resident: Callable[[], int], *, strict: bool, seed: int = 1
    ) -> None:
        """`strict`: an answer that differs from the same question's answer alone is wrong."""
        self._port, self._asked, self._resident, self._strict = port, [*asked], resident, strict
        self._random = Random(seed)
        self._alone: list[str] = []
        self._large = 0
        self.report = Report()

    async def run(self, requests: int, clients: int) -> Report:
        """Ask each question alone, then send `requests` requests with `clients` clients at once."""
        for path, body in [*self._asked]:
            status, answer = await self._whole(path, json.dumps(body).encode())
            if path == "/infill" and b"no tokens for infilling" in answer:
                self._asked.remove((path, body))
                continue
            assert status == 200, answer
            self._alone.append(text_of(json.loads(answer)))
        kinds = self._random.choices([*KINDS], [*KINDS.values()], k=requests)
        coming = iter(kinds)
        begin = perf_counter()

        async def client() -> None:
            for kind in coming:
                await self._one(kind)
                self.report.kinds[kind] += 1
                if sum(self.report.kinds.values()) == requests // 2:
                    self.report.resident.append(self._resident())

        await asyncio.gather(*(client() for _ in range(clients)))
        self.report.seconds = perf_counter() - begin
        self.report.stuck = await self._stuck()
        self.report.resident.append(self._resident())
        return self.report

    async def _one(self, kind: str) -> None:
        number = self._random.randrange(len(self._asked))
        path, body = self._asked[number]
        self._large += kind in LARGE
        try:
            if kind == "rubbish":
                await self._refused(kind, path, self._random.choice(RUBBISH))
            elif kind == "1 MB of prompt":
                long = [{"role": "user", "content": "a b " * (MB // 4)}]
                await self._refused(kind, CHATS, json.dumps({"messages": long}).encode())
            elif kind in ("stream", "slow reader"):
                await self._streamed(kind, number)
            elif kind in ("whole", "1 MB beside a prompt"):
                more = {"user": "a" * MB} if kind in LARGE else {}
                status, answer = await self._whole(path, json.dumps({**body, **more}).encode())
                if status == 200:
                    self._compare(kind, number, text_of(json.loads(answer)))
                else:
                    self.report.wrong.append(f"{kind}, {path}: {status} {answer[:200]!r}")
            else:
                await self._left(kind, path, body)
        except (OSError, ValueError) as error:
            self.report.wrong.append(f"{kind}, {path}: {error!r}")
        finally:
            self._large -= kind in LARGE

    def _compare(self, kind: str, number: int, text: str) -> None:
        same = text == self._alone[number]
        self.report.equal += same
        self.report.differs += not same
        if self._strict and not same:
            path = self._asked[number][0]
            self.report.wrong.append(f"{kind}, {path}: {text!r:.80} is {self._alone[number]!r:.80} alone")

    async def _refused(self, kind: str, path: str, body: bytes) -> None:
        status, answer = await self._whole(path, body)
        if status != 400 or "error" not in json.loads(answer):
            self.report.wrong.append(f"{kind}, {path}: {status} {answer[:200]!r}")

    async def _streamed(self, kind: str, number: int) -> None:
        slow = kind == "slow reader"
        path, body = self._asked[number]
        reader, writer = await self._sent(
            path, json.dumps({**body, "stream": True}).encode(), buffer=4096 if slow else 0
        )
        latest, text, events, ended = perf_counter(), [], 0, False
        try:
            async for line in reader:
                if slow:
                    await asyncio.sleep(0.01)
                if not line.startswith(b"data: "):
                    continue
                is_done = line == b"data: [DONE]\n"
                found = {} if is_done else json.loads(line[6:])
                ended = is_done or found.get("type") in ENDS or found.get("stop") is True
                if found.get("error"):
                    self.report.wrong.append(f"{kind}, {path}: {found}")
                if part := text_of(found):
                    text.append(part)
                    if not slow:
                        self._timed(events == 0, perf_counter() - latest)
                    latest, events = perf_counter(), events + 1
        finally:
            await closed(writer)
        if ended:
            self._compare(kind, number, "".join(text))
        else:
            self.report.wrong.append(f"{kind}, {path}: no end after {events} events")

    def _timed(self, first: bool, seconds: float) -> None:
        report = self.report
        (report.first_s if first else report.gap_s).append(seconds)
        if self._large:
            (report.first_large_s if first else report.gap_large_s).append(seconds)

    async def _left(self, kind: str, path: str, body: dict[str, Any]) -> None:
        """Begin a request and do not finish it; its answer is not checked."""
        data = json.dumps({**body, "stream": self._random.random() < 0.7}).encode()
        half = data[: len(data) // 2] if kind == "half a body" else data
        reader, writer = await self._sent(path, half, length=len(data))
        with suppress(ConnectionError):
            if kind == "closes its half":
                writer.write_eof()
                await reader.read()
            elif kind == "leaves in the answer":
                for _ in range(self._random.randrange(1, 30)):
                    await reader.readline()
        await closed(writer)

    async def _whole(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer."""
        reader, writer = await self._sent(path, body)
        try:
            status = int((await reader.readline()).split()[1])
            while (await reader.readline()).strip():
                pass
            return status, await reader.read()
        finally:
            await closed(writer)

    async def _sent(
        self, path: str, body: bytes, *, length: int | None = None, buffer: int = 0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request on a new connection. `length`: the Content-Length, if not the body's. `buffer`: SO_RCVBUF."""
        own = socket.socket()
        own.setblocking(False)
        if buffer:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", self._port))
        reader, writer = await asyncio.open_connection(sock=own, limit=buffer or MB)
        # With HTTP 1.0 the server closes the connection after its answer.
        head = f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length or len(body)}\r\n\r\n"
        with suppress(ConnectionError):
            writer.write(head.encode() + body)
            await writer.drain()
        return reader, writer

    async def _stuck(self) -> int:
        """Return the slots or requests that the server still counts 5 seconds after the last request."""
        for _ in range(50):
            with await asyncio.to_thread(urlopen, f"http://127.0.0.1:{self._port}/metrics") as reply:
                found = dict(re.findall(r"^llamacpp:(requests_\w+) (\d+)$", reply.read().decode(), re.MULTILINE))
            if not (stuck := sum(map(int, found.values()))):
                break
            await asyncio.sleep(0.1)
        with await asyncio.to_thread(urlopen, f"http://127.0.0.1:{self._port}/slots") as reply:
            taken: list[bool] = [slot["is_processing"] for slot in json.load(reply)]
        return max(stuck, sum(taken))


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, also a broken one."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def text_of(body: dict[str, Any]) -> str:
    """Return the text in a reply or an event of any protocol, or ""."""
    match body:
        case (
            {"choices": [{"message": {"content": str(text)}}]}
            | {"choices": [{"delta": {"content": str(text)}}]}
            | {"choices": [{"text": str(text)}]}
            | {"type": "response.output_text.delta", "delta": str(text)}
            | {"type": "content_block_delta", "delta": {"text": str(text)}}
            | {"output": [{"content": [{"text": str(text)}]}]}
            | {"content": [{"text": str(text)}]}
            | {"content": str(text)}
        ):
            return text
    return ""


def resident(process: int) -> int:
    """Return the resident memory of a process, in bytes. `process`: its id."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) * 2**10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="MODEL of lacli serve")
    parser.add_argument("--requests", type=int, default=2000, help="requests")
    parser.add_argument("--clients", type=int, default=64, help="clients at once")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of the longest answer")
    parser.add_argument("--parallel", type=int, default=1, help="answers at a time; with several, without --strict")
    arguments = parser.parse_args()
    strict = arguments.parallel == 1
    command = [sys.executable, "-m", "lacli", "serve", arguments.model, "--port", "0", "-t", "1", "--no-measure"]
    command += ["-np", str(arguments.parallel)] + ["--strict"] * strict
    with NamedTemporaryFile("r", prefix="lacli-soak-") as log, subprocess.Popen(command, stderr=log.fileno()) as server:
        try:
            while not (found := re.search(r"http://[^ :]+:(\d+)", Path(log.name).read_text())):
                if server.poll() is not None:
                    raise SystemExit(Path(log.name).read_text())
                sleep(0.1)
            port = int(found[1])
            soak = Soak(port, questions(24, arguments.tokens), lambda: resident(server.pid), strict=strict)
            report = asyncio.run(soak.run(arguments.requests, arguments.clients))
        finally:
            server.terminate()
            server.wait()
            print(*Path(log.name).read_text().splitlines()[-30:], sep="\n", file=sys.stderr)
    print(report.table())
    print(*report.wrong[:20], sep="\n", file=sys.stderr)
    grows = report.resident[1] > MEMORY_MARGIN * report.resident[0]
    return int(bool(report.wrong or report.stuck or grows or server.returncode))


if __name__ == "__main__":
    sys.exit(main())
