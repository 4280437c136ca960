"""Whose answers are scored, and what goes into a file for HumanEval's evaluator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from lacli.bench.rounds import Asker, Contender, Rounds, Trial
from lacli.bench.scores import save_samples, scores
from lacli.bench.tasks import Task

RIGHT = Trial((1,), "So it is 42.", 1, 1, 1, 0, 0, 1.0, 1.0, 1.0)
WRONG = replace(RIGHT, text="It is 41.")


def saying(number: int, trial: Trial) -> Contender:
    """One that always answers alike."""
    return Contender(f"mode W={number}", "mode", None, 0, lambda exchange: trial)


def rounds(*answers: Trial, turns: tuple[str, ...] = ("1 2",), kind: str = "gsm8k") -> Rounds:
    """Everyone has answered one task, each in its own words, twice."""
    task = Task(turns, kind, "HumanEval/0", reference="#### 42", limit=9)
    found = Rounds([saying(*each) for each in enumerate(answers)], [task], 2, Asker(lambda task, said: [1], 64))
    for _ in found:
        pass
    return found


def test_everyone_is_scored_by_the_answers_of_the_first_repetition() -> None:
    assert scores("gsm8k", rounds(RIGHT, WRONG)) == {0: {"exact_match": 1.0}, 1: {"exact_match": 0.0}}


def test_a_suite_without_a_score_has_none() -> None:
    assert scores("mt-bench", rounds(RIGHT)) == {}


def test_another_program_whose_text_is_not_known_is_not_scored() -> None:
    assert scores("gsm8k", rounds(RIGHT, replace(RIGHT, text=None))) == {0: {"exact_match": 1.0}}


def test_of_several_turns_the_last_answer_counts() -> None:
    found = rounds(WRONG, turns=("1", "2"))
    found.trials[0, 1] = [RIGHT]
    assert scores("gsm8k", found) == {0: {"exact_match": 1.0}}


def test_each_mode_gets_a_file_of_its_own(tmp_path: Path) -> None:
    written = save_samples(str(tmp_path / "samples.jsonl"), rounds(RIGHT, WRONG, kind="humaneval"))
    assert [Path(name).name for name in written] == ["samples-mode-W0.jsonl", "samples-mode-W1.jsonl"]
    (line,) = Path(written[0]).read_text().splitlines()
    assert json.loads(line) == {"task_id": "HumanEval/0", "completion": "So it is 42."}
