"""Score answers: GSM8K's exact match, ROUGE for summaries, and files of samples for HumanEval's own evaluator.

Only the answers of the first repetition count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from statistics import fmean

from lacli.bench.plan import Task
from lacli.bench.rounds import Rounds
from lacli.errors import LacliError
from lacli.text.format import markdown

HUMANEVAL = "humaneval"
ROUGE = ("rouge1", "rouge2", "rougeL")

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Strings that end a completed Python function, from HumanEval's paper (Chen et al. 2021, section 2.1)."""

NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212]\$?)?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)
"""A number in running text: a sign that subtracts nothing, thousands with commas, a point only before digits."""


def score_table(suite: str, rounds: Rounds) -> str:
    """Return a table of each setting's scores in percent, its answers, and its answers cut by -n; "" without scores."""
    rows, names = [], list[str]()
    for number, point in enumerate(rounds.points):
        answered = _answered(rounds, number)
        if scored := score(suite, [(task.reference, text) for task, text, _ in answered if task.reference]):
            names = [*scored]
            counts = str(len(answered)), str(sum(cut for *_, cut in answered))
            rows.append((point.label, *counts, *(f"{value:.2%}" for value in scored.values())))
    return markdown(("quality", "answers", "cut by -n", *names), rows) if rows else ""


def score(suite: str, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the mean scores of answers, each from 0 to 1, by name; {} for a suite without a score.

    `pairs`: of a reference and an answer. gsm8k has exact_match. xsum and cnn-dm have the F1 of ROUGE-1, ROUGE-2 and
    ROUGE-L without stemming; the lookahead paper prints it times 100.
    """
    if suite == "gsm8k" and pairs:
        return {"exact_match": fmean(same_number(reference, answer) for reference, answer in pairs)}
    if suite in ("xsum", "cnn-dm") and pairs:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError as error:
            raise LacliError("ROUGE needs the package rouge-score", "pip install 'lacli[test]'") from error
        scorer = RougeScorer(list(ROUGE))
        scores = [scorer.score(reference, answer) for reference, answer in pairs]
        return {name: fmean(found[name].fmeasure for found in scores) for name in ROUGE}
    return {}


def final_number(text: str) -> Decimal | None:
    """Return the last number of a text, without currency and commas, or None."""
    if not (numbers := NUMBER.findall(text)):
        return None
    return Decimal(numbers[-1].replace(",", "").replace("$", "").replace("\N{MINUS SIGN}", "-"))


def same_number(reference: str, answer: str) -> bool:
    """Whether the last numbers of an answer and of its reference are equal; 42, 42.0 and $42 are."""
    number = final_number(reference)
    return number is not None and number == final_number(answer)


def completion(answer: str) -> str:
    """Return the part of a raw completion before the first of STOPS: the rest of one function."""
    return answer[: min((at for at in map(answer.find, STOPS) if at >= 0), default=len(answer))]


def write_samples(path: Path, rounds: Rounds) -> None:
    """Write a file for each setting, in the format of HumanEval's evaluator. Its name is `path` and the mode."""
    for number, point in enumerate(rounds.points):
        rows = [
            json.dumps({"task_id": task.name, "completion": completion(text)})
            for task, text, _ in _answered(rounds, number)
        ]
        mode = "-".join(point.label.replace("=", "").split())
        path.with_stem(f"{path.stem}-{mode}").write_text("".join(f"{row}\n" for row in rows), "utf-8")


def _answered(rounds: Rounds, point: int) -> list[tuple[Task, str, bool]]:
    """Return the tasks that setting number `point` answered, the last answer of each, and whether -n cut it."""
    found = []
    for number, exchange in enumerate(rounds.exchanges):
        trials = rounds.of(point, number)
        if trials and exchange.turn == len(exchange.task.turns) - 1:
            found.append((exchange.task, trials[0].text, trials[0].steps[-1].finish == "length"))
    return found
