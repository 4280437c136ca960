"""Compare `lacli serve` with llama-server over HTTP: tokens/s of all clients, and a client's waits for its events.

    python -m benchmarks.serving --model FILE --questions spec_bench_question.jsonl --json rows.jsonl

The servers take turns and have a slot for each client (`-np`). A client is OpenAI's; it asks its next question when its
answer has ended. `in this process` is lacli's Model without HTTP, with a thread for each client. The questions are the
first turns of a file like Spec-Bench's. Each contender gets each question once, and answers greedily. `--spread 0.6`
limits answers to 0.4 to 1.6 times `--limit` tokens, because real answers do not end together. All contenders have the
same limits. One thread decodes; the clients have the other cores. llama-server has to be on PATH
(docs/internals/benchmarks.md). Rows are added to the file `--json`; the tables are of all its rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from urllib.error import URLError
from urllib.request import urlopen

from openai import AsyncOpenAI

import lacli
from lacli.bench.plan import read_tasks
from lacli.text.format import markdown

HERE, SERVER = "in this process", "llama-server"
CONTENDERS = {
    "auto": ("lacli", "serve"),
    "plain": ("lacli", "serve", "--mode", "plain"),
    HERE: (),
    SERVER: ("llama-server",),
    f"{SERVER} ngram-mod": ("llama-server", "--spec-type", "ngram-mod"),
}
ENDLESS = lacli.SamplingSettings(temp=0.0, ignore_eos=True)

PATIENCE_S = 60.0
"""Seconds that a server has to load its model and to measure its step costs."""

MAX_CHARACTERS = 4500
"""The most characters of a question: about 1,200 tokens."""

Asked = tuple[str, int]
"""A prompt, and the number of tokens of its answer."""

Answered = list[float]
"""Times by perf_counter: of sending a prompt, and then of each event of its answer."""


@dataclass(frozen=True)
class Round:
    """One round of a contender with `clients` clients. `tokens`: of all answers. `cpu_s`: the server's CPU seconds."""

    clients: int
    contender: str
    lap: int
    tokens: int
    cpu_s: float
    answers: list[Answered]

    @property
    def speed(self) -> float:
        """Tokens a second of all clients, from the first question to the last token."""
        return self.tokens / (max(times[-1] for times in self.answers) - min(times[0] for times in self.answers))


@contextmanager
def serving(command: Sequence[str], model: Path, clients: int, folder: Path) -> Iterator[tuple[str, int]]:
    """Start a server with `clients` slots; yield its address and process id. `folder`: for its log and cache."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [sys.executable, "-m", "lacli"] if command[0] == "lacli" else [shutil.which(command[0]) or command[0]]
    flags = ["-m", str(model), "--port", str(port), "-np", str(clients), "-t", "1", "-c", str(2048 * clients)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen([*program, *command[1:], *flags], stdout=log, stderr=log, env=environment) as server,
    ):
        try:
            until = monotonic() + PATIENCE_S
            while not _is_up(port):
                if server.poll() is not None or monotonic() > until:
                    raise SystemExit(f"{' '.join(command)} does not start: {(folder / 'log').read_text()[-2000:]}")
                sleep(0.1)
            yield f"http://127.0.0.1:{port}/v1", server.pid
        finally:
            server.terminate()


def _is_up(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health") as reply:
            return bool(reply.status == 200)
    except (URLError, OSError):
        return False


def cpu_s(pid: int) -> float:
    """Return the processor seconds of a process so far, over all its threads (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask_server(address: str, prompts: Sequence[Asked], clients: int) -> tuple[int, list[Answered]]:
    """Ask a server with `clients` clients; return the tokens of all answers, and each answer's times."""
    return asyncio.run(_ask_all(address, prompts, clients))


async def _ask_all(address: str, prompts: Sequence[Asked], clients: int) -> tuple[int, list[Answered]]:
    answers: list[Answered] = []
    waiting, tokens = [*prompts], 0
    async with AsyncOpenAI(api_key="none", base_url=address, max_retries=3, timeout=600) as openai:

        async def ask() -> None:
            nonlocal tokens
            while waiting:
                prompt, limit = waiting.pop(0)
                times = [perf_counter()]
                stream = await openai.chat.completions.create(
                    model="any",
                    messages=[{"role": "user", "content": prompt}],
                    max_tokens=limit,
                    temperature=0,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"ignore_eos": True},
                )
                async for event in stream:
                    if event.choices and event.choices[0].delta.content:
                        times.append(perf_counter())
                    if event.usage:
                        tokens += event.usage.completion_tokens
                answers.append(times)

        await asyncio.gather(*(ask() for _ in range(clients)))
    return tokens, answers


def ask_here(model: lacli.Model, prompts: Sequence[Asked], clients: int) -> tuple[int, list[Answered]]:
    """Ask a model in this process, as `ask_server` asks a server."""

    def ask(asked: Asked) -> tuple[int, Answered]:
        prompt, limit = asked
        times = [perf_counter()]
        stream = model.stream(prompt, max_tokens=limit, sampling=ENDLESS)
        times += [perf_counter() for _ in stream]
        return len(stream.text.answer().tokens), times

    with ThreadPoolExecutor(clients) as askers:
        found = [*askers.map(ask, prompts)]
    return sum(tokens for tokens, _ in found), [times for _, times in found]


def questions(path: Path) -> list[str]:
    """Return the first turns of at most MAX_CHARACTERS in a file, in a random order with a fixed seed."""
    found = [task.turns[0] for task in read_tasks(str(path)) if len(task.turns[0]) <= MAX_CHARACTERS]
    Random(0).shuffle(found)
    return found


def rounds_of(arguments: argparse.Namespace) -> Iterator[Round]:
    """Ask all contenders in turns, with new questions in each round. A first, shorter round is not yielded."""
    asked = questions(arguments.questions)
    for clients in map(int, arguments.clients.split(",")):
        with ExitStack() as stack:
            ask: dict[str, tuple[int, Callable[[Sequence[Asked]], tuple[int, list[Answered]]]]] = {}
            for name in arguments.contenders.split(","):
                if command := CONTENDERS[name]:
                    folder = Path(stack.enter_context(TemporaryDirectory()))
                    address, pid = stack.enter_context(serving(command, arguments.model, clients, folder))
                    ask[name] = pid, partial(ask_server, address, clients=clients)
                else:
                    model = lacli.load(arguments.model, threads=1, parallel=clients, context=2048 * clients)
                    stack.enter_context(model)
                    ask[name] = os.getpid(), partial(ask_here, model, clients=clients)
            for lap in range(arguments.rounds + 1):
                count = clients * arguments.each
                texts = asked[lap * count : (lap + 1) * count]
                draw = Random(lap)
                # The first round is a warm-up with a quarter of the tokens.
                most = arguments.limit if lap else arguments.limit / 4
                limits = [round(most * (1 + arguments.spread * draw.uniform(-1, 1))) for _ in texts]
                for name in [*ask][lap % len(ask) :] + [*ask][: lap % len(ask)]:
                    pid, answered = ask[name]
                    before = cpu_s(pid)
                    tokens, answers = answered([*zip(texts, limits, strict=True)])
                    if lap:
                        yield Round(clients, name, lap, tokens, cpu_s(pid) - before, answers)


def tables(rounds: Sequence[Round]) -> Iterator[str]:
    """Yield four tables: tokens/s, tokens a CPU second of the server, auto's speed over others, a client's waits."""
    names = [name for name in CONTENDERS if any(each.contender == name for each in rounds)]
    autos = {(each.clients, each.lap): each.speed for each in rounds if each.contender == "auto"}

    def table(title: str, words: Callable[[list[Round]], str]) -> str:
        rows = []
        for clients in sorted({each.clients for each in rounds}):
            groups = ([each for each in rounds if (each.clients, each.contender) == (clients, name)] for name in names)
            rows.append([str(clients), *(words(group) if group else "" for group in groups)])
        return f"{title}:\n\n{markdown(['clients', *names], rows)}"

    def ratios(group: list[Round]) -> str:
        found = [autos[each.clients, each.lap] / each.speed for each in group if (each.clients, each.lap) in autos]
        return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else ""

    def waits(group: list[Round]) -> str:
        answers = [times for each in group for times in each.answers]
        gaps = [1e3 * (after - before) for times in answers for before, after in pairwise(times[1:])]
        first = median(times[1] - times[0] for times in answers)
        return f"{first:.2f}, {median(gaps):.0f}, {quantiles(gaps, n=100)[98]:.0f}"

    yield table("Tokens/s of all clients", lambda group: f"{median(each.speed for each in group):.1f}")
    yield table(
        "Tokens of a second of processor time",
        lambda group: f"{median(each.tokens / each.cpu_s for each in group):.1f}",
    )
    yield table("How many times as fast auto is", ratios)
    yield table("Seconds to the first token; milliseconds between two, median and 99th percentile", waits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--clients", default="1,2,4,8", help="numbers of clients, with commas")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="contenders, with commas")
    parser.add_argument("--each", type=int, default=2, help="prompts of each client in a round")
    parser.add_argument("--limit", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--spread", type=float, default=0.0, help="change answers' lengths by up to this share")
    parser.add_argument("--rounds", type=int, default=2, help="rounds")
    parser.add_argument("--json", type=Path, default=Path("serving.jsonl"), help="add rows to this file")
    arguments = parser.parse_args()
    with arguments.json.open("a") as file, suppress(KeyboardInterrupt):
        for each in rounds_of(arguments):
            print(json.dumps(asdict(each)), file=file, flush=True)
            words = f"{each.clients} clients, {each.contender}: {each.speed:.1f} tokens/s"
            print(words, file=sys.stderr, flush=True)
    print("\n\n".join(tables([Round(**json.loads(row)) for row in arguments.json.read_text().splitlines()])))


if __name__ == "__main__":
    main()
