"""Whose answers are scored, and what goes into a file for HumanEval's evaluator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lacli.bench.rounds import (
    Asker,
    Contender,
    Rounds,
    Trial,
)
from lacli.bench.scores import check_samples, save_samples, scores
from lacli.bench.tasks import Task
from lacli.errors import LacliError, UsageError
from lacli.stats import Step
from lacli.tree import Origin

RIGHT = Trial((1,), "So it is 42.", 1, 1, 1, 0, 0, 1.0, 1.0, 1.0)
ONE = {"scored_n": 1, "cut_n": 0}
WRONG = replace(RIGHT, text="It is 41.")


def saying(number: int, trial: Trial) -> Contender:
    """One that always answers alike."""
    return Contender(f"mode W={number}", None, 0, lambda exchange: trial)


def rounds(*answers: Trial, turns: tuple[str, ...] = ("1 2",), kind: str = "gsm8k") -> Rounds:
    """Everyone has answered one task, each in its own words, twice."""
    task = Task(turns, kind, "HumanEval/0", reference="#### 42", limit=9)
    found = Rounds([saying(*each) for each in enumerate(answers)], [task], 2, Asker(lambda task, said: [1], 64))
    for _ in found:
        pass
    return found


def test_everyone_is_scored_by_the_answers_of_the_first_repetition() -> None:
    assert scores("gsm8k", rounds(RIGHT, WRONG)) == {0: {**ONE, "exact_match": 1.0}, 1: {**ONE, "exact_match": 0.0}}


def test_a_suite_without_a_score_has_none() -> None:
    assert scores("mt-bench", rounds(RIGHT)) == {}


def test_another_program_whose_text_is_not_known_is_not_scored() -> None:
    assert scores("gsm8k", rounds(RIGHT, replace(RIGHT, text=None))) == {0: {**ONE, "exact_match": 1.0}}


def test_of_several_turns_the_last_answer_counts() -> None:
    found = rounds(WRONG, turns=("1", "2"))
    found.trials[0, 1] = [RIGHT]
    assert scores("gsm8k", found) == {0: {**ONE, "exact_match": 1.0}}


def test_each_mode_gets_a_file_of_its_own(tmp_path: Path) -> None:
    written = save_samples(str(tmp_path / "samples.jsonl"), rounds(RIGHT, WRONG, kind="humaneval"))
    assert [Path(name).name for name in written] == ["samples-mode-W0.jsonl", "samples-mode-W1.jsonl"]
    (line,) = Path(written[0]).read_text().splitlines()
    assert json.loads(line) == {"task_id": "HumanEval/0", "completion": "So it is 42."}


def test_answers_that_the_limit_ended_are_counted() -> None:
    step = Step((1,), (Origin.MODEL,), 1, 0, 0.0, 0.0, 0.0, 0.0, "length")
    assert scores("gsm8k", rounds(replace(RIGHT, steps=(step,))))[0]["cut_n"] == 1


def test_where_no_samples_could_be_written_is_said_before(tmp_path: Path) -> None:
    humaneval = [Task(("1",), "humaneval")]
    check_samples(str(tmp_path / "samples.jsonl"), humaneval)
    with pytest.raises(UsageError, match="HumanEval"):
        check_samples(str(tmp_path / "samples.jsonl"), [Task(("1",))])
    for path in (str(tmp_path / "missing" / "samples.jsonl"), "."):
        with pytest.raises(LacliError, match="cannot write"):
            check_samples(path, humaneval)
