"""How good answers are: GSM8K's exact match, ROUGE for summaries, and HumanEval's samples for its own evaluator.

Nothing that a model wrote is executed. The answers of the first repetition count.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.suites.rows import CNN_DM, GSM8K, HUMANEVAL, XSUM
from lacli.bench.rounds import Contender, Rounds
from lacli.bench.tasks import Task
from lacli.errors import LacliError, UsageError, reason_of
from lacli.text.format import markdown

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

ROUGE = ("rouge1", "rouge2", "rougeL")
EXACT_MATCH = "exact_match"

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where a completed Python function ends, after HumanEval's paper (Chen et al. 2021, section 2.1)."""

NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212]\$?)?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)
"""A number in running text: a sign that subtracts nothing, thousands with commas, a point only before digits."""


def scores(suite: str, rounds: Rounds) -> dict[int, dict[str, float]]:
    """By contender; empty where the suite has no score that needs no code to run.

    scored_n: answers that were scored; cut_n: those of ours that the limit ended, which may say less than was meant.
    """
    found = {}
    for number in range(len(rounds.contenders)):
        tasks, answers = _answers(rounds, number)
        if answers and (scored := score(suite, tasks, answers)):
            found[number] = {"scored_n": len(answers), "cut_n": _cut(rounds, number), **scored}
    return found


def score_table(scores: Mapping[int, Mapping[str, float]], contenders: Sequence[Contender]) -> str:
    """Scores in percent by contender, and how many answers were cut by the limit; empty without any."""
    names = list(dict.fromkeys(name for score in scores.values() for name in score if not name.endswith("_n")))
    rows = []
    for number, score in scores.items():
        counts = f"{score['scored_n']:.0f}", f"{score['cut_n']:.0f}"
        rows.append((contenders[number].label, *counts, *(f"{score[name]:.2%}" for name in names)))
    return markdown(("quality", "answers", "cut by -n", *names), rows) if names else ""


def score(suite: str, tasks: Sequence[Task], answers: Sequence[str]) -> dict[str, float]:
    """The scores of a suite's answers by name, each between 0 and 1; none where the suite has none.

    answers: one a task, in the same order. gsm8k has exact_match, xsum and cnn-dm the mean F1 of ROUGE-1, ROUGE-2 and
    ROUGE-L (the lookahead paper prints them times 100). Raises LacliError when ROUGE's package is missing.
    """
    assert len(tasks) == len(answers)
    pairs = [(task.reference, answer) for task, answer in zip(tasks, answers, strict=True) if task.reference]
    if suite == GSM8K and pairs:
        return {EXACT_MATCH: fmean(same_number(reference, answer) for reference, answer in pairs)}
    if suite in (XSUM, CNN_DM) and pairs:
        return _rouge(pairs)
    return {}


def check_scorer(suite: str) -> None:
    """Raises LacliError when this suite's scores need a package that is missing: better before the run than after."""
    if suite in (XSUM, CNN_DM):
        _scorer()


def final_number(text: str) -> Decimal | None:
    """The last number of a text, without currency and commas; None where there is none."""
    numbers = NUMBER.findall(text)
    if not numbers:
        return None
    return Decimal(numbers[-1].replace(",", "").replace("$", "").replace("\N{MINUS SIGN}", "-"))


def same_number(reference: str, answer: str) -> bool:
    """Whether an answer ends in the reference's final number, as numbers: 42, 42.0 and $42 are the same."""
    number = final_number(reference)
    return number is not None and number == final_number(answer)


def completion(answer: str) -> str:
    """What belongs to the function of a raw completion: all before the first stop sequence."""
    return answer[: min((at for at in map(answer.find, STOPS) if at >= 0), default=len(answer))]


def write_samples(path: str, tasks: Sequence[Task], answers: Sequence[str]) -> None:
    """Write HumanEval's completions in the format of its evaluator: rows of task_id and completion.

    Tasks of other suites are left out. Raises LacliError when all are, and when the file cannot be written.
    """
    rows = [
        {"task_id": task.name, "completion": completion(answer)}
        for task, answer in zip(tasks, answers, strict=True)
        if task.kind == HUMANEVAL
    ]
    if not rows:
        raise LacliError("there are no HumanEval answers to write", "ask the suite humaneval")
    try:
        with open(os.path.expanduser(path), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        raise LacliError(f"cannot write {path}: {reason_of(error)}", "name a file in a folder that exists") from error


def check_samples(path: str, tasks: Sequence[Task]) -> None:
    """Raise before anything is measured if no samples could be written there: no HumanEval, or no folder."""
    if not any(task.kind == HUMANEVAL for task in tasks):
        raise UsageError("--samples writes HumanEval's completions only", "ask the suite humaneval, or leave it out")
    place = Path(path)
    if not place.stem or not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
        raise LacliError(f"cannot write {path}: its folder is missing or not writable", "check --samples")


def save_samples(path: str, rounds: Rounds) -> list[str]:
    """Write a file for each contender, its mode before the ending of the file's name; their names."""
    written = []
    for number, contender in enumerate(rounds.contenders):
        tasks, answers = _answers(rounds, number)
        if answers:
            place = Path(path)
            name = str(place.with_stem(f"{place.stem}-{'-'.join(contender.label.replace('=', '').split())}"))
            write_samples(name, tasks, answers)
            written.append(name)
    return written


def _answers(rounds: Rounds, contender: int) -> tuple[list[Task], list[str]]:
    """The tasks that a contender has answered, and what it said in their last turns."""
    tasks, texts = [], []
    for number, exchange in enumerate(rounds.exchanges):
        trials = rounds.of(contender, number)
        if trials and trials[0].text is not None and exchange.turn == len(exchange.task.turns) - 1:
            tasks.append(exchange.task)
            texts.append(trials[0].text)
    return tasks, texts


def _cut(rounds: Rounds, contender: int) -> int:
    first = [trials[0] for each in range(len(rounds.exchanges)) if (trials := rounds.of(contender, each))]
    return sum(trial.steps[-1].finish == "length" for trial in first if trial.steps)


def _rouge(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    scorer = _scorer()
    scores = [scorer.score(reference, answer) for reference, answer in pairs]
    return {name: fmean(found[name].fmeasure for found in scores) for name in ROUGE}


def _scorer() -> RougeScorer:
    """The scorer without stemming, as Hugging Face's evaluate has it."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise LacliError("ROUGE needs the package rouge-score", "pip install 'lacli[test]'") from error
    return RougeScorer(list(ROUGE))
