"""What sampling costs, and what it does to S: run from the project's root.

    python -m benchmarks.sampling share        time of the sampler chain in a step, plain and lookahead
    python -m benchmarks.sampling acceptance   S by temperature for both verifiers, classes of prompts pooled

Each prints a Markdown table. No test lives here, and nothing here is timed by the tests.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev
from time import perf_counter

from benchmarks.core import PROMPTS, Bench
from lacli.auto.mode import AutoModes
from lacli.decode import Decoder
from lacli.engine import Floats
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings, Verify
from lacli.settings import DecodeSettings
from lacli.verify import verifier

PLAIN = DecodeSettings(mode="plain")
JSON = r"""root ::= object
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws (string | number | object) ws
string ::= "\"" [^"\\]* "\""
number ::= [0-9]+
ws ::= [ \n]*"""

CHAINS = {
    "--temp 0.8": SamplingSettings(seed=7, temp=0.8),
    "--temp 0.8 --repeat-penalty 1.1": SamplingSettings(seed=7, temp=0.8, repeat_penalty=1.1),
    "--temp 0.8 --top-k 0 --top-p 1 --min-p 0": SamplingSettings(seed=7, temp=0.8, top_k=0, top_p=1, min_p=0),
    "--temp 0.8 --mirostat 2": SamplingSettings(seed=7, temp=0.8, mirostat=2),
    "--temp 0.8 --dry-multiplier 0.8": SamplingSettings(seed=7, temp=0.8, dry_multiplier=0.8),
    "--temp 0 with a grammar": SamplingSettings(seed=7, grammar=JSON),
    "--temp 0.8 with a grammar": SamplingSettings(seed=7, temp=0.8, grammar=JSON),
}


class TimedSampler(LlamaSampler):
    """A LlamaSampler that notes how long each draw took."""

    def begin(self, text: Sequence[int]) -> None:
        self.seconds: list[float] = []
        super().begin(text)

    def draw(self, logits: Floats) -> int:
        begin = perf_counter()
        token = super().draw(logits)
        self.seconds.append(perf_counter() - begin)
        return token


def share(bench: Bench) -> None:
    """One chain call a token, against the whole of its step."""
    prompt = bench.prompt(next(iter(bench.questions.values()))[0])
    print("| flags | mode | draws a token | ms a draw | ms a step | share |\n|---|---|---|---|---|---|")
    for name, sampling in CHAINS.items():
        for decode in (PLAIN, DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5)):
            with (
                LlamaEngine(bench.model, bench.settings, decode, backend_greedy=False) as engine,
                TimedSampler(bench.model, sampling) as sampler,
            ):
                decoder = Decoder(engine, decode, verifier(sampler, sampling), make_mode=AutoModes())
                steps = list(decoder.generate(prompt, bench.limit))
                tokens = sum(len(step.tokens) for step in steps)
                whole = [step.decode_s + step.choose_s + step.cache_s + step.python_s for step in steps]
                print(
                    f"| {name} | {decode.mode} | {len(sampler.seconds) / tokens:.2f} "
                    f"| {median(sampler.seconds) * 1e3:.3f} | {median(whole) * 1e3:.2f} "
                    f"| {sum(sampler.seconds) / sum(whole):.1%} |"
                )


def acceptance(bench: Bench) -> None:
    """S for temperature and verifier: every prompt is answered with several seeds; 95% intervals over the seeds."""
    decode = DecodeSettings(mode="lookahead")
    ways: list[Verify] = ["match", "rejection"]
    print("| class | " + " | ".join(f"T={temp}, {way}" for temp in (0.0, 0.5, 1.0) for way in ways) + " |")
    print("|---" * (1 + 3 * len(ways)) + "|")
    with LlamaEngine(bench.model, bench.settings, decode, backend_greedy=False) as engine:
        for name, questions in bench.questions.items():
            cells = []
            for temp in (0.0, 0.5, 1.0):
                for way in ways:
                    seeds = range(bench.repeats if temp else 1)
                    found = [step_compression(bench, engine, decode, questions, temp, way, seed) for seed in seeds]
                    spread = 2 * stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
                    cells.append(f"{mean(found):.2f} ± {spread:.2f}" if temp else f"{found[0]:.2f}")
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def step_compression(
    bench: Bench, engine: LlamaEngine, decode: DecodeSettings, questions: list[str], temp: float, way: Verify, seed: int
) -> float:
    sampling = SamplingSettings(seed=seed, temp=temp, verify=way)
    steps = tokens = 0
    with LlamaSampler(bench.model, sampling) as sampler:
        for question in questions:
            decoder = Decoder(
                engine, decode, None if sampling.greedy else verifier(sampler, sampling), make_mode=AutoModes()
            )
            for step in decoder.generate(bench.prompt(question), bench.limit):
                steps += 1
                tokens += len(step.tokens)
    return tokens / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["share", "acceptance"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--each", type=int, default=8, help="prompts of a class")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5, help="seeds")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--context", type=int, default=1024)
    arguments = parser.parse_args()
    {"share": share, "acceptance": acceptance}[arguments.what](Bench(arguments))


if __name__ == "__main__":
    main()
