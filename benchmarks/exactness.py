"""Count answers that equal plain decoding's; measure how a step of 8 rows changes logits, and the cost of --strict.

    python -m benchmarks.exactness --model FILE --questions spec_bench_question.jsonl
    python -m benchmarks.exactness --model FILE ... --modes auto lookup --answers 8

Prints a row for the tables of docs/internals/exactness.md. The questions are Spec-Bench's (JSON lines with `category`
and `turns`): first turns of at most 300 tokens, spread over the categories. One process decodes with --strict and one
without, because ggml chooses its kernels once a process. The two take turns, question by question. The method is the
paper's Appendix E.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from lacli.batch import Batch, from_tokens
from lacli.check.compare import Comparison
from lacli.check.judge import PLAIN, BatchRecorder, largest_difference
from lacli.context import Context, Floats
from lacli.engine.engine import Engine, SequenceOptions
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.gguf import architecture_and_types
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings, strict_settings
from lacli.settings import DecodeSettings
from lacli.text.template import as_messages, choose_template
from lacli.tree import Origin, Tree

MODES = {
    "auto": DecodeSettings(mode="auto"),
    "lookup": DecodeSettings(mode="lookup"),
    "lookahead 5/4/5": DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5),
}
LONGEST = 300
"""The most tokens of a question, so that a large model can be measured."""

ROWS = 8
"""Rows of a step whose logits are compared with plain decoding's: about mode auto's rows on a CPU."""


class Kept:
    """A verifier that takes the most probable token and keeps all logits."""

    def __init__(self) -> None:
        self.logits: list[Floats] = []

    def begin(self, text: Sequence[int]) -> None:
        self.logits = []

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        self.logits.append(logits.copy())
        return int(logits.argmax())


def chosen_questions(path: Path) -> Iterator[str]:
    """Yield the first turns of the questions; the categories take turns."""
    categories: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        categories.setdefault(row["category"], []).append(row["turns"][0])
    for group in zip_longest(*categories.values()):
        yield from filter(None, group)


def moved(engine: Context, prompt: Sequence[int], tokens: Sequence[int], plain: Sequence[Floats]) -> float:
    """Return the largest change of a logit if `tokens` come in steps of ROWS. `plain`: logits of one-row steps."""
    inputs, past, largest = [prompt[-1], *tokens[:-1]], len(prompt) - 1, 0.0
    engine.clear()
    assert engine.decode(from_tokens(prompt[:-1], 0)), "the context has room"
    for start in range(0, len(inputs), ROWS):
        tree = Tree(inputs[start])
        tree.add_path(inputs[start + 1 : start + ROWS], 0, Origin.CHAIN)
        assert engine.decode(Batch(len(tree)).set_tree(tree, past + start)), "the context has room"
        for row in range(len(tree)):
            largest = max(largest, largest_difference(engine.row_logits(row), plain[start + row]))
    return largest


def work(arguments: argparse.Namespace) -> None:
    """Answer each line of standard input (a JSON string) in every mode; print a line of JSON with the results."""
    model_settings = ModelSettings(context=1024, gpu_layers=0, threads=arguments.threads)
    plain, modes = PLAIN, {name: MODES[name] for name in arguments.modes}
    if arguments.strict:
        types = architecture_and_types(arguments.model)[1]
        loose = model_settings
        model_settings, plain = strict_settings(loose, PLAIN, types, on_gpu=False)
        modes = {name: strict_settings(loose, mode, types, on_gpu=False)[1] for name, mode in modes.items()}
    with ExitStack() as stack:
        model = stack.enter_context(LlamaModel(arguments.model, model_settings))

        def open_engine(decode: DecodeSettings) -> LlamaContext:
            return LlamaContext(model, model_settings, ContextSize.of(decode), backend_greedy=False)

        # A base model continues the question.
        template = choose_template("", model)[0] if model.chat_template else None
        # A check forces mode auto to take large steps; here auto chooses its steps as for a user.
        comparison = Comparison(open_engine, arguments.tokens, plain, cost=None)
        stack.enter_context(comparison)
        engines = {name: BatchRecorder(stack.enter_context(open_engine(mode))) for name, mode in modes.items()}
        chain = replace(plain, mode="lookup", lookup_draft=ROWS - 1)
        rows = stack.enter_context(open_engine(chain))
        for line in sys.stdin:
            question = json.loads(line)
            prompt = model.tokenize(template.render(as_messages(question)) if template else question)
            found: dict[str, Any] = {}
            if len(prompt) <= LONGEST:
                kept = Kept()
                options = SequenceOptions(arguments.tokens, kept)
                steps = Engine(comparison.plain_context, plain).steps(prompt, options)
                tokens, begin = list(next(steps).tokens), perf_counter()
                tokens += [token for step in steps for token in step.tokens]
                found = {"tokens": len(tokens), "seconds": perf_counter() - begin}
                found["moved"] = moved(rows, prompt, tokens, kept.logits)
                runs = {name: comparison.one(engines[name], mode, prompt) for name, mode in modes.items()}
                found["verdicts"] = {name: run.verdict for name, run in runs.items()}
            print(json.dumps(found), flush=True)


class Worker:
    """A process that decodes with or without --strict."""

    def __init__(self, arguments: argparse.Namespace, *flags: str) -> None:
        command = [sys.executable, "-m", "benchmarks.exactness", "--model", str(arguments.model), "--work", *flags]
        command += ["--tokens", str(arguments.tokens), "--threads", str(arguments.threads), "--modes", *arguments.modes]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answers: list[dict[str, Any]] = []

    def ask(self, question: str) -> bool:
        """Have a question answered; return False if it has more than LONGEST tokens."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(question), file=self._process.stdin, flush=True)
        if found := json.loads(self._process.stdout.readline()):
            self.answers.append(found)
        return bool(found)

    def equal(self, mode: str) -> str:
        """Return a cell: how many answers of a mode equal plain decoding's, and how many differ by a bug."""
        verdicts = [answer["verdicts"][mode] for answer in self.answers]
        bugs = verdicts.count("bug")
        return f"{verdicts.count('identical')} of {len(verdicts)}" + (f", {bugs} BUGS" if bugs else "")

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=Path, help="Spec-Bench's question.jsonl")
    parser.add_argument("--answers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no question after this time")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--strict", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments)
        return
    assert arguments.questions, "--questions FILE is needed"
    loose, strict = workers = Worker(arguments), Worker(arguments, "--strict")
    end = perf_counter() + arguments.seconds
    for question in chosen_questions(arguments.questions):
        for worker in workers:
            worker.ask(question)
        if len(loose.answers) == arguments.answers or perf_counter() > end:
            break
        print(f"{len(loose.answers)} answered", file=sys.stderr, flush=True)
    for worker in workers:
        worker.close()
    paces = [[answer["seconds"] / max(answer["tokens"] - 1, 1) for answer in worker.answers] for worker in workers]
    speed = median(ours / theirs for ours, theirs in zip(*paces, strict=True))
    tokens = sum(answer["tokens"] for answer in loose.answers)
    print(f"| model | tokens | {' | '.join(arguments.modes)} | logits move | strict: equal | strict: speed |")
    print("|---" * (5 + len(arguments.modes)) + "|")
    cells = [loose.equal(mode) for mode in arguments.modes]
    cells.append(f"{max(answer['moved'] for answer in loose.answers):.2g}")
    strictly = [answer["verdicts"][mode] == "identical" for answer in strict.answers for mode in arguments.modes]
    cells += [f"{sum(strictly)} of {len(strictly)}", f"{speed:.2f}"]
    largest = max(answer["moved"] for answer in strict.answers)
    print(f"| {arguments.model.stem} | {tokens:,} | " + " | ".join(cells) + " |")
    print(f"logits move by {largest:.2g} with --strict", file=sys.stderr)


if __name__ == "__main__":
    main()
