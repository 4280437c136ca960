"""How good everyone's answers to a suite were, and their file for HumanEval's own evaluator.

The scores are `quality.py`; here is only whose answers go to them: those of the first repetition.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lacli.bench.quality import score, write_samples
from lacli.bench.rounds import Rounds
from lacli.bench.task_rows import HUMANEVAL
from lacli.bench.tasks import Task
from lacli.errors import LacliError, UsageError


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


def check_samples(path: str, tasks: Sequence[Task]) -> None:
    """Raise before anything is measured if no samples could be written there: no such tasks, or no such folder."""
    if not any(task.kind == HUMANEVAL for task in tasks):
        raise UsageError("--samples writes HumanEval's completions only", "add --suite humaneval, or leave it out")
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
    answered = []
    for number, exchange in enumerate(rounds.exchanges):
        trials = rounds.of(contender, number)
        if trials and trials[0].text is not None and exchange.turn == len(exchange.task.turns) - 1:
            answered.append((exchange.task, trials[0].text))
    return [task for task, _ in answered], [text for _, text in answered]


def _cut(rounds: Rounds, contender: int) -> int:
    first = [trials[0] for each in range(len(rounds.exchanges)) if (trials := rounds.of(contender, each))]
    return sum(trial.steps[-1].finish == "length" for trial in first if trial.steps)
