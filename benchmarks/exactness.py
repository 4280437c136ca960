"""How many answers part from plain's by weight type, with the default settings and with --strict, and its cost.

    python -m benchmarks.exactness differ                 how many answers are not plain's (CPU, takes a while)
    python -m benchmarks.exactness differ --types q8_0 --tokens 64
    python -m benchmarks.exactness judge                  20,000 greedy tokens of lookahead, every difference judged
    python -m benchmarks.exactness cost                   tokens/s with and without --strict, in turns

The bundled model is written in each type. Every cell is a process of its own, because ggml decides about its kernels
once a process. In the manner of the paper's Appendix E. No test lives here.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.core import PROMPTS
from lacli.check.compare import Comparison
from lacli.check.replay import Recorder
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.gguf import weight_types
from lacli.llamacpp.library import lib
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, strict_settings
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.text.template import as_messages, choose_template
from tests.loading import STDLIB_7M

FORMATS = {
    "f32": lib.LLAMA_FTYPE_ALL_F32,
    "f16": lib.LLAMA_FTYPE_MOSTLY_F16,
    "bf16": 32,
    "q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_k_m": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q6_k": lib.LLAMA_FTYPE_MOSTLY_Q6_K,
}
MODES = {
    "plain": DecodeSettings(mode="plain"),
    "lookup": DecodeSettings(mode="lookup"),
    "jacobi": DecodeSettings(mode="jacobi", window=6),
    "lookahead 5/4/5": DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5),
}
TEMPERATURES = (0.0, 0.8)


def write_model(path: Path, name: str) -> Path:
    """The 7M model of the tests in another format."""
    parameters = lib.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = FORMATS[name], True
    assert lib.llama_model_quantize(str(STDLIB_7M).encode(), str(path).encode(), parameters) == 0
    return path


def answer_of(session: Session, question: str, limit: int) -> tuple[int, ...]:
    generation = session.generate(session.prompt(question), limit, session.prompts.turn_ends)
    for _ in generation:
        pass
    return generation.answer().tokens


def answer_all(arguments: argparse.Namespace) -> None:
    """One process's work: every mode's answers compared with plain's, as JSON."""
    questions = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    # Behind a long text there are more cells to add up.
    questions += ["\n\n".join(questions) + "\n\n" + question for question in questions[: arguments.long]]
    model_settings = ModelSettings(context=4096, gpu_layers=0, threads=arguments.threads)
    found = {}
    for temp in TEMPERATURES:
        plain: list[tuple[int, ...]] = []
        for name, mode in MODES.items():
            decode_settings = DecodeSettings(**{**vars(mode), "strict": arguments.strict})
            with Session(
                arguments.model, model_settings, decode_settings, SamplingSettings(seed=7, temp=temp)
            ) as session:
                answers = [answer_of(session, question, arguments.tokens) for question in questions]
            plain = plain or answers
            found[f"{name} T={temp}"] = sum(one != other for one, other in zip(answers, plain, strict=True))
    json.dump({"answers": len(questions), "tokens": sum(map(len, plain)), **found}, sys.stdout)


def table(arguments: argparse.Namespace) -> None:
    columns = [f"{name} T={temp}" for temp in TEMPERATURES for name in list(MODES)[1:]]
    print("| type | settings | answers | " + " | ".join(columns) + " |\n" + "|---" * (3 + len(columns)) + "|")
    with TemporaryDirectory() as folder:
        for name in arguments.types:
            path = write_model(Path(folder) / f"{name}.gguf", name)
            for strict in (False, True):
                command = [sys.executable, "-m", "benchmarks.exactness", "differ", "--model", str(path)]
                command += ["--tokens", str(arguments.tokens), "--threads", str(arguments.threads)]
                command += ["--long", str(arguments.long), *(["--strict"] if strict else [])]
                found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                cells = [str(found[column]) for column in columns]
                way = "strict" if strict else "default"
                print(f"| {name} | {way} | {found['answers']} | " + " | ".join(cells) + " |", flush=True)


MODULES = (
    "argparse bisect collections configparser csv datetime email heapq json logging os pathlib queue random shutil"
)
MODULES += " socket statistics string subprocess tempfile textwrap threading tokenize typing urllib.parse uuid zipfile"
ASKED = ("Show me the source code of `{}`.", "Explain the function {}.", "What does `{}` do?")


def judge(arguments: argparse.Namespace) -> None:
    """Compare lookahead with plain decoding on questions about the standard library, up to `--most` tokens."""
    names = [
        f"{module}.{name}"
        for module in MODULES.split()
        for name, thing in inspect.getmembers(importlib.import_module(module))
        if callable(thing) and not name.startswith("_")
    ]
    questions = (question.format(name) for name in names for question in ASKED)
    model_settings = ModelSettings(context=1024, gpu_layers=0, threads=arguments.threads)
    lookahead = DecodeSettings(mode="lookahead")
    if arguments.strict:
        types = weight_types(STDLIB_7M)
        model_settings, lookahead = strict_settings(model_settings, lookahead, types, on_gpu=False)
    tokens = answers = 0
    found = []
    with LlamaModel(STDLIB_7M, model_settings) as model:
        open_engine = partial(LlamaEngine, model, model_settings)
        template, _ = choose_template("", model)
        plain = replace(lookahead, mode="plain")
        with Comparison(open_engine, arguments.tokens, plain) as comparison, open_engine(lookahead) as opened:
            engine = Recorder(opened)
            for question in questions:
                prompt = model.tokenize(template.render(as_messages(question)))
                run = comparison.one(comparison.decoder(engine, lookahead), engine, prompt)
                tokens, answers = tokens + len(run.tokens), answers + 1
                found += [run] if not run.identical else []
                if tokens >= arguments.most:
                    break
    print(f"{answers} answers, {tokens} tokens, {len(found)} texts part, {sum(run.bug for run in found)} by a bug")
    print("| token | margin | logits move | verdict |\n|---|---|---|---|")
    for run in found:
        parting = run.difference
        if parting:
            verdict = "bug" if run.bug else "rounding"
            print(f"| {parting.at} | {parting.margin:.4f} | {parting.rounding:.4f} | {verdict} |")


def cost(arguments: argparse.Namespace) -> None:
    """The speed with --strict as a part of the speed without it: medians of runs that take turns."""
    questions = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    prompts = {"short": questions[0], "1,000 tokens": "\n\n".join(questions) + "\n\n" + questions[0]}
    modes = {"plain": ["--mode", "plain"], "lookup": ["--mode", "lookup"], "5/4/5": ["-W", "5", "-N", "4", "-G", "5"]}
    modes["15/5/15"] = ["--mode", "lookahead"]
    print("| type | context | " + " | ".join(modes) + " |\n" + "|---" * (2 + len(modes)) + "|")
    with TemporaryDirectory() as folder:
        for name in arguments.types:
            path = write_model(Path(folder) / f"{name}.gguf", name)
            for length, prompt in prompts.items():
                cells = []
                for flags in modes.values():
                    command = [sys.executable, "-m", "lacli", "run", str(path), "-q", "--json", "-p", prompt, *flags]
                    command += ["-n", str(arguments.tokens), "-t", str(arguments.threads), "-c", "4096"]
                    ratios = [speed([*command, "--strict"]) / speed(command) for _ in range(arguments.repeats)]
                    cells.append(f"{median(ratios):.2f}")
                print(f"| {name} | {length} | " + " | ".join(cells) + " |", flush=True)


def speed(command: list[str]) -> float:
    """Tokens a second of one answer's decoding, the prompt not counted."""
    done = subprocess.run(command, check=True, capture_output=True)
    return float(json.loads(done.stdout)["predicted_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["differ", "judge", "cost"])
    parser.add_argument("--most", type=int, default=20_000, help="tokens that judge compares")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--types", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--long", type=int, default=4, help="how many questions are asked again behind a long text")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--strict", action="store_true", help="judge strict decoding")
    arguments = parser.parse_args()
    if arguments.model:
        answer_all(arguments)
    else:
        {"differ": table, "judge": judge, "cost": cost}[arguments.what](arguments)


if __name__ == "__main__":
    main()
