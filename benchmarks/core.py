"""Time the core: against a bare loop, and each part of a step.

- `python -m benchmarks.core plain`: plain mode against a bare llama_decode + argmax loop
- `python -m benchmarks.core overhead`: Python and cache bookkeeping a step, at 200 to 4,000 tokens of context
- `python -m benchmarks.core choose`: one vectorised argmax against the backend's greedy sampler
- `python -m benchmarks.core company`: the cost of other sequences in the cache, with -fa on and off

Each command prints a Markdown table. The compared runs take turns, so that a noisy machine slows both; quote the
ratios.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter, thread_time

import llama_cpp as lib
import numpy as np

from lacli import batch
from lacli.batch import BatchPart
from lacli.engine.engine import Engine, SequenceOptions
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.machine import physical_cores
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.stats import RunStatistics
from lacli.tree import Origin, Tree

PROMPTS = Path(__file__).with_name("prompts.jsonl")
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


class Bench:
    """One model with the settings that all measurements share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        threads = arguments.threads or physical_cores()
        self.settings = ModelSettings(context=arguments.context, threads=threads, threads_batch=threads)
        self.model = LlamaModel(arguments.model, self.settings)
        self.limit: int = arguments.tokens
        self.repeats: int = arguments.repeats
        self.questions: dict[str, list[str]] = {}
        for line in arguments.prompts.read_text().splitlines():
            row = json.loads(line)
            self.questions.setdefault(row["class"], []).append(row["prompt"])
        self.questions = {name: texts[: arguments.each] for name, texts in self.questions.items()}

    def engine(self, decode: DecodeSettings) -> LlamaContext:
        return LlamaContext(self.model, self.settings, ContextSize.of(decode))

    def prompt(self, question: str) -> list[int]:
        return self.model.tokenize(TURN.format(question))

    def long_question(self, tokens: int, first: int = 0) -> str:
        """Return a text of about `tokens` tokens: the questions of the longest class, from number `first` on."""
        longest = max(self.questions.values(), key=lambda texts: sum(map(len, texts)))
        begin = first % len(longest)
        text = "\n\n".join([*longest[begin:], *longest[:begin]])
        ids = self.model.tokenize(text * (tokens // max(len(self.model.tokenize(text)), 1) + 1))
        return b"".join(map(self.model.piece, ids[:tokens])).decode("utf-8", "ignore")


def run(engine: LlamaContext, settings: DecodeSettings, prompt: list[int], limit: int) -> RunStatistics:
    """Decode one answer of at most `limit` tokens, and return the statistics of its steps."""
    statistics = RunStatistics(prompt_tokens=len(prompt))
    for step in Engine(engine, settings).steps(prompt, SequenceOptions(limit)):
        statistics.add(step)
    return statistics


def bare_loop(engine: LlamaContext, prompt: list[int], limit: int) -> list[float]:
    """Decode with llama_decode and argmax only; return the time of each token, in seconds of perf_counter."""
    context = engine._handle
    row = lib.llama_batch_init(1, 0, 1)
    row.n_tokens, row.n_seq_id[0], row.seq_id[0][0], row.logits[0] = 1, 1, 0, 1
    engine.clear()
    engine.decode(batch.from_tokens(prompt[:-1], 0))
    token, came = prompt[-1], []
    for position in range(len(prompt) - 1, len(prompt) - 1 + limit):
        row.token[0], row.pos[0] = token, position
        lib.llama_decode(context, row)
        logits = np.ctypeslib.as_array(lib.llama_get_logits(context), (engine.vocabulary,))
        token = int(logits.argmax())
        came.append(perf_counter())
        if engine.is_end(token):
            break
    lib.llama_batch_free(row)
    return came


def plain(bench: Bench) -> Iterator[list[str]]:
    """Compare the median time between two tokens of plain mode and of the bare loop, which take turns."""
    yield ["class", "bare ms a token", "plain ms a token", "bare / plain"]
    settings = DecodeSettings(mode="plain")
    ratios = []
    with bench.engine(settings) as engine:
        for name, texts in bench.questions.items():
            bare: list[float] = []
            ours: list[float] = []
            for question, _ in product(texts, range(bench.repeats)):
                prompt = bench.prompt(question)
                bare += intervals(bare_loop(engine, prompt, bench.limit))
                decoder = Engine(engine, settings)
                ours += intervals([perf_counter() for _ in decoder.steps(prompt, SequenceOptions(bench.limit))])
            ratios.append(median(bare) / median(ours))
            yield [name, f"{ms(median(bare)):.3f}", f"{ms(median(ours)):.3f}", f"{ratios[-1]:.3f}"]
    yield ["all", "", "", f"{geometric_mean(ratios):.3f}"]


def intervals(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def overhead(bench: Bench) -> Iterator[list[str]]:
    """Split the time of a lookahead step (W=15 N=5 G=15) into its parts, at three lengths of the prompt."""
    yield ["context", "rows", "decode ms", "choose ms", "cache ms", "Python ms", "cache + Python ms"]
    settings = DecodeSettings(mode="lookahead")
    with bench.engine(settings) as engine:
        for tokens in (200, 1000, 4000):
            prompt = bench.prompt(bench.long_question(tokens - 20))
            runs = [run(engine, settings, prompt, bench.limit) for _ in range(bench.repeats)]
            fields = ("decode_s", "choose_s", "cache_s", "python_s")
            times = [[ms(getattr(one, field) / one.steps) for one in runs] for field in fields]
            both = median(cache + python for cache, python in zip(times[2], times[3], strict=True))
            rows = median(one.rows_mean for one in runs)
            yield [str(len(prompt)), f"{rows:.0f}", *(f"{median(column):.2f}" for column in times), f"{both:.2f}"]


def choose(bench: Bench) -> Iterator[list[str]]:
    """Time two ways to read the choices of 76 rows, argmax and the backend's greedy sampler, in turns."""
    yield ["way", "decode ms", "choose ms", "sum ms"]
    settings = DecodeSettings(mode="lookahead")
    tree = Tree(5)
    for path, sequence in enumerate(range(settings.window + 1, settings.ids)):
        tree.add_path([path * 4 + depth + 10 for depth in range(settings.ngram - 1)], sequence, Origin.POOL)
    for sequence in range(1, settings.window + 1):
        tree.add_path([1000 + sequence], sequence, Origin.WINDOW)
    assert len(tree) == settings.max_outputs
    ways = {"argmax": False, "backend": True}
    engines = {
        way: LlamaContext(bench.model, bench.settings, ContextSize.of(settings), backend_greedy=on)
        for way, on in ways.items()
    }
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(bench.repeats * 3):
        for way, engine in engines.items():
            engine.clear()
            begin = perf_counter()
            engine.decode(batch.Batch(len(tree)).set_tree(tree, 0))
            decoded = perf_counter()
            engine.greedy()
            times[way].append((decoded - begin, perf_counter() - decoded))
    for way, pairs in times.items():
        decode_s, choose_s = (median(column) for column in zip(*pairs, strict=True))
        yield [way, f"{ms(decode_s):.2f}", f"{ms(choose_s):.2f}", f"{ms(median(map(sum, pairs))):.2f}"]
        engines[way].close()


def company(bench: Bench) -> Iterator[list[str]]:
    """Time steps of several sequences, and 128 rows of a prompt while the sequences are in the cache.

    The cells are milliseconds of processor time with -fa on / off. One thread decodes.
    """
    yield ["texts", "tokens each", "a row each", "four rows each", "128 of a prompt", "those and a row each"]
    for count, tokens in product((1, 2, 4, 8), (100, 400, 1200)):
        text = bench.prompt(bench.long_question(tokens + 128))
        one, four = Tree(text[0]), Tree(text[0])
        four.add_path(text[1:4], 0, Origin.POOL)
        read = BatchPart(None, 0, text[:128], count)
        ones, fours = ([BatchPart(tree, tokens, first_id=place) for place in range(count)] for tree in (one, four))
        columns = []
        for attention in ("on", "off"):
            settings = replace(
                bench.settings,
                threads=1,
                threads_batch=1,
                flash_attention=attention,
                context=(tokens + 4) * count + 128,
            )
            with LlamaContext(bench.model, settings, ContextSize(count + 1, 4 * count, ordered=False)) as engine:
                for place in range(count):
                    engine.decode(batch.from_tokens(text[:tokens], 0, place))
                columns.append([_took(bench, engine, parts) for parts in (ones, fours, [read], [read, *ones])])
        yield [str(count), str(tokens), *(f"{ms(on):.0f} / {ms(off):.0f}" for on, off in zip(*columns, strict=True))]


def _took(bench: Bench, engine: LlamaContext, parts: Sequence[BatchPart]) -> float:
    """Return the median processor seconds of a step with these parts. Their rows leave the cache again."""
    rows = sum(len(part.uncached) + (len(part.tree.tokens) if part.tree else 0) for part in parts)
    times = []
    for _ in range(bench.repeats):
        begin = thread_time()
        engine.decode(batch.Batch(rows).set_parts(parts))
        times.append(thread_time() - begin)
        for part in parts:
            engine.remove(part.first_id, part.past, -1)
    return median(times)


def ms(seconds: float) -> float:
    return seconds * 1e3


def print_table(rows: Iterator[list[str]]) -> None:
    for index, row in enumerate(rows):
        print("| " + " | ".join(row) + " |", flush=True)
        if not index:
            print("|" + "---|" * len(row))


TABLES = {each.__name__: each for each in (plain, overhead, choose, company)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*TABLES])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file with a ChatML template")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help='JSONL rows {"class": ..., "prompt": ...}')
    parser.add_argument("--each", type=int, default=12, help="prompts a class")
    parser.add_argument("--tokens", type=int, default=128, help="the most tokens of an answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--context", type=int, default=4864)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    print_table(TABLES[arguments.what](Bench(arguments)))


if __name__ == "__main__":
    main()
