"""How good answers are: GSM8K's exact match, ROUGE for summaries, and HumanEval's samples for its own evaluator.

Nothing that a model wrote is executed. Answers are texts; where they come from is not known here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from decimal import Decimal
from statistics import fmean
from typing import TYPE_CHECKING

from lacli.bench.task_rows import (
    CNN_DM,
    GSM8K,
    HUMANEVAL,
    XSUM,
)
from lacli.bench.tasks import Task
from lacli.errors import LacliError

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
        raise LacliError("there are no HumanEval answers to write", "use --suite humaneval, or its file with --prompts")
    try:
        with open(os.path.expanduser(path), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        raise LacliError(f"cannot write {path}: {error.strerror}", "name a file in a folder that exists") from error


def _rouge(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    scorer = _scorer()
    scores = [scorer.score(reference, answer) for reference, answer in pairs]
    return {name: fmean(found[name].fmeasure for found in scores) for name in ROUGE}


def _scorer() -> RougeScorer:
    """The scorer without stemming, as Hugging Face's evaluate has it."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise LacliError("ROUGE needs the package rouge-score", "pip install 'lacli[quality]'") from error
    return RougeScorer(list(ROUGE))
