"""How good answers are: GSM8K's exact match, ROUGE for summaries, and HumanEval's samples for its own evaluator.

The answers of the first repetition count.
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
"""Where a completed Python function ends, after HumanEval's paper (Chen et al. 2021, section 2.1)."""

NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212]\$?)?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)
"""A number in running text: a sign that subtracts nothing, thousands with commas, a point only before digits."""


def score_table(suite: str, rounds: Rounds) -> str:
    """Scores in percent by setting, with the answers that were scored and those that the limit ended; "" for none."""
    rows, names = [], list[str]()
    for number, point in enumerate(rounds.points):
        answered = _answered(rounds, number)
        if scored := score(suite, [(task.reference, text) for task, text, _ in answered if task.reference]):
            names = [*scored]
            counts = str(len(answered)), str(sum(cut for *_, cut in answered))
            rows.append((point.label, *counts, *(f"{value:.2%}" for value in scored.values())))
    return markdown(("quality", "answers", "cut by -n", *names), rows) if rows else ""


def score(suite: str, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """The scores of answers by name, each between 0 and 1; none where the suite has none.

    `pairs`: references and answers. gsm8k has exact_match, xsum and cnn-dm the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L
    without stemming (the lookahead paper prints them times 100).
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
    """The last number of a text, without currency and commas; None where there is none."""
    if not (numbers := NUMBER.findall(text)):
        return None
    return Decimal(numbers[-1].replace(",", "").replace("$", "").replace("\N{MINUS SIGN}", "-"))


def same_number(reference: str, answer: str) -> bool:
    """Whether an answer ends in the reference's final number, as numbers: 42, 42.0 and $42 are the same."""
    number = final_number(reference)
    return number is not None and number == final_number(answer)


def completion(answer: str) -> str:
    """What belongs to the function of a raw completion: all before the first stop sequence."""
    return answer[: min((at for at in map(answer.find, STOPS) if at >= 0), default=len(answer))]


def write_samples(path: Path, rounds: Rounds) -> None:
    """Write a file for each setting in the format of HumanEval's evaluator, with the mode in the file's name."""
    for number, point in enumerate(rounds.points):
        rows = [
            json.dumps({"task_id": task.name, "completion": completion(text)})
            for task, text, _ in _answered(rounds, number)
        ]
        mode = "-".join(point.label.replace("=", "").split())
        path.with_stem(f"{path.stem}-{mode}").write_text("".join(f"{row}\n" for row in rows), "utf-8")


def _answered(rounds: Rounds, point: int) -> list[tuple[Task, str, bool]]:
    """The tasks that a point has answered, what it said in their last turns, and whether the limit ended it."""
    found = []
    for number, exchange in enumerate(rounds.exchanges):
        trials = rounds.of(point, number)
        if trials and exchange.turn == len(exchange.task.turns) - 1:
            found.append((exchange.task, trials[0].text, trials[0].steps[-1].finish == "length"))
    return found
