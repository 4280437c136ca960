"""The public data sets that papers measure with, asked as the lookahead paper asks them, and scored.

    python -m benchmarks.suites gsm8k --model FILE --seconds 3600
    python -m benchmarks.suites cnn-dm --model FILE -r 1 --modes lookahead --temp 1 --verify rejection

The second is a row of the paper's Table 2. A suite is fetched once through huggingface_hub; --file reads one that was
downloaded by hand: JSON lines, also packed with gzip, a JSON list, or Parquet. Modes answer in turns as in `lacli
bench`. Nothing that a model wrote is executed: HumanEval's own evaluator runs what --samples has written.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scores import HUMANEVAL, score_table, write_samples
from lacli.bench.plan import Axes, Task, parse_names
from lacli.bench.run import BenchRequest, compared, finish
from lacli.engine.load import open_engine
from lacli.errors import Interrupted, LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import MODES, DecodeSettings
from lacli.terminal.screen import Screen

Row = Mapping[str, Any]

SUMMARY_SYSTEM = """\
You are an intelligent chatbot. Answer the questions only using the following context:
{}
Here are some rules you always follow:
- Generate human readable output, avoid creating output with gibberish text.
- Generate only the requested output, don't include any other language before or after the requested output.
- Never say thank you, that you are happy to help, that you are an AI agent, etc. Just answer directly.
- Generate professional language typically used in business documents in North America.
- Never generate offensive or foul language."""
SUMMARY_USER = "Briefly summarize the given context.\nSummary:"
"""The prompt of the lookahead paper's Appendix D, where the last word is the beginning of the answer."""

CODE_LIMIT, CLASS_LIMIT = 512, 2048
"""Tokens an answer may have on HumanEval and ClassEval, in the lookahead paper's section 5."""


@dataclass(frozen=True)
class Source:
    """One file on the hub. `kind`: the class of its rows if they name none."""

    repository: str
    file: str
    kind: str = ""
    revision: str = "main"
    space: bool = False


def _mt_bench() -> Source:
    return Source("lmsys/mt-bench", "data/mt_bench/question.jsonl", space=True)


SUITES = {
    # Spec-Bench is MT-Bench's questions and five more classes; this repository has those with a class a file.
    "spec-bench": (
        _mt_bench(),
        *(
            Source("RedHatAI/speculator_benchmarks", f"{kind}.jsonl", kind)
            for kind in ("translation", "summarization", "qa", "math_reasoning", "rag")
        ),
    ),
    "mt-bench": (_mt_bench(),),
    HUMANEVAL: (Source("openai/openai_humaneval", "openai_humaneval/test-00000-of-00001.parquet"),),
    "gsm8k": (Source("openai/gsm8k", "main/test-00000-of-00001.parquet"),),
    "mbpp": (Source("google-research-datasets/mbpp", "full/test-00000-of-00001.parquet"),),
    # Later revisions hold Parquet only.
    "classeval": (
        Source("FudanSELab/ClassEval", "ClassEval_data.json", revision="772c9977fb5dca16ab54370b50354ba37066b180"),
    ),
    "xsum": (Source("EdinburghNLP/xsum", "data/test-00000-of-00001.parquet"),),
    "cnn-dm": (Source("abisee/cnn_dailymail", "3.0.0/test-00000-of-00001.parquet"),),
}
FIRST = {"gsm8k": 1000, "xsum": 1000, "cnn-dm": 1000}
"""Tasks that are taken from the beginning: the paper says so of GSM8K, of the articles it does not."""


def load_suite(name: str) -> list[Task]:
    """The tasks of a public suite, fetched once. Raises LacliError where it cannot be fetched."""
    from huggingface_hub import hf_hub_download

    tasks: list[Task] = []
    for source in SUITES[name]:
        kind = "space" if source.space else "dataset"
        try:
            path = hf_hub_download(source.repository, source.file, repo_type=kind, revision=source.revision)
        except Exception as error:  # the hub, its transport and the disk raise many kinds
            reason = str(error).partition("\n")[0]
            raise LacliError(f"cannot fetch suite {name}: {reason}", "give its file with --file") from error
        tasks += read_suite(Path(path), source.kind or name)
    return tasks[: FIRST.get(name)]


def read_suite(path: Path, kind: str = "own") -> list[Task]:
    """The tasks of a suite's file. `kind`: the class of rows that name none. Raises LacliError for another file."""
    try:
        return [task_of(row, kind) for row in rows_of(path)]
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LacliError(f"{path} cannot be read as a suite: {error!r}", "fetch the file again") from error


def rows_of(path: Path) -> list[Row]:
    """The rows of JSON lines, also packed with gzip, of one JSON list, or of Parquet."""
    raw = path.read_bytes()
    if raw.startswith(b"PAR1"):
        from pyarrow.parquet import read_table

        rows: list[Row] = read_table(path).to_pylist()
        return rows
    text = (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode("utf-8-sig")
    if text.startswith("["):
        rows = json.loads(text)
        return rows
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def task_of(row: Row, kind: str = "own") -> Task:
    """The task of a row of any suite, known by its fields."""
    name = str(row.get("task_id") or row.get("question_id") or row.get("id") or "")
    match row:
        case {"turns": [*turns]}:
            return Task(tuple(turns), row.get("category", kind), name)
        case {"task_id": _, "prompt": str(prompt), "entry_point": _}:
            solution = row["canonical_solution"]
            return Task((prompt,), HUMANEVAL, name, raw=True, max_tokens=CODE_LIMIT, reference=solution)
        case {"skeleton": str(skeleton), "class_name": cls}:
            code = f"```python\n{skeleton.strip()}\n```"
            question = f"Complete the class {cls} in the following code. Answer with the whole code.\n{code}"
            return Task((question,), "classeval", name, max_tokens=CLASS_LIMIT)
        case {"test_list": [*tests], "code": str(code)}:
            # The sanitised half of MBPP calls the text its prompt.
            asked = row.get("text") or row["prompt"]
            lines = (asked, "The code must pass these tests:", "```python", *tests, "```")
            return Task(("\n".join(lines),), "mbpp", name, reference=code)
        case {"question": str(question), "answer": str(answer)}:
            ending = "Think step by step. The last line of the answer is #### and the final number."
            return Task((f"{question}\n\n{ending}",), "gsm8k", name, reference=answer)
        case {"document": str(article), "summary": str(summary)}:
            return Task((SUMMARY_USER,), "xsum", name, SUMMARY_SYSTEM.replace("{}", article), reference=summary)
        case {"article": str(article), "highlights": str(summary)}:
            return Task((SUMMARY_USER,), "cnn-dm", name, SUMMARY_SYSTEM.replace("{}", article), reference=summary)
        case {"prompt": str(prompt)}:
            return Task((prompt,), row.get("class") or row.get("category", kind), name)
    raise ValueError(f"a row with {', '.join(row)} is of no known suite")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SUITES)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--file", type=Path, help="the suite's file, downloaded by hand")
    parser.add_argument("--samples", type=Path, help="write HumanEval's completions for its evaluator, a file a mode")
    parser.add_argument("--modes", default="lookup,lookahead,auto", help="compared with plain decoding")
    parser.add_argument("--seconds", type=float, default=3600, help="of all of it")
    parser.add_argument("--each", type=int, help="tasks of a class")
    parser.add_argument("-r", "--repetitions", type=int, help="answers to each task")
    parser.add_argument("-n", "--predict", type=int, help="tokens of an answer; 128 where the paper sets no limit")
    parser.add_argument("-t", "--threads", type=int, default=0, help="0: one for each physical core")
    parser.add_argument("--temp", type=float, default=0.0, help="the whole distribution is sampled above 0")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--verify", choices=("match", "rejection"), default="match")
    given = parser.parse_args(arguments)
    sampling = SamplingSettings(seed=given.seed, temp=given.temp, top_k=0, top_p=1, min_p=0, verify=given.verify)
    screen = Screen()
    try:
        tasks = read_suite(given.file, given.name)[: FIRST.get(given.name)] if given.file else load_suite(given.name)
        if given.samples and given.name != HUMANEVAL:
            raise UsageError("--samples writes HumanEval's completions only", "leave it out")
        request = BenchRequest(
            tuple(tasks),
            given.seconds,
            axes=Axes(tuple(parse_names(given.modes, MODES, "mode"))),
            each=given.each,
            repetitions=given.repetitions,
            max_tokens=given.predict,
            form="md",
        )
        machine_settings = ModelSettings(threads=given.threads, threads_batch=given.threads)
        with open_engine(given.model, machine_settings, DecodeSettings(mode="plain"), sampling) as session:
            rounds, machine = compared(session, request, screen)
        finish(rounds, machine, request, screen)
        print(score_table(given.name, rounds))
        if given.samples:
            write_samples(given.samples, rounds)
    except Interrupted as error:
        raise SystemExit(error.exit_code) from None
    except LacliError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
