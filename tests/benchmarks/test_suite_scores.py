"""Scores against numbers worked out by hand, HumanEval's samples, and the command that measures a suite."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.suites.__main__ import app
from benchmarks.suites.files import read_suite
from benchmarks.suites.scores import (
    check_samples,
    check_scorer,
    completion,
    final_number,
    same_number,
    save_samples,
    score,
    scores,
    write_samples,
)
from lacli.bench.rounds import Asker, Contender, Rounds, Trial
from lacli.bench.tasks import Task
from lacli.errors import LacliError, UsageError
from lacli.stats import Step
from lacli.tree import Origin
from tests.fakes.bench_field import played
from tests.program import MACHINE

SHARED = Path(__file__).parents[3] / "shared" / "data"
RIGHT = Trial((1,), "So it is 42.", 1, 1, 1, 0, 0, 1.0, 1.0, 1.0)
ONE = {"scored_n": 1, "cut_n": 0}
WRONG = replace(RIGHT, text="It is 41.")
HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    pass\n"}


def gsm8k(reference: str) -> Task:
    return Task(("How many?",), "gsm8k", reference=reference)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6*7=<<6*7=42>>42 apples.\n#### 42", "42"),
        ("The answer is 42.", "42"),
        ("He pays $1,234.50.", "1234.50"),
        ("So it costs $18", "18"),
        ("That leaves -3 degrees", "-3"),
        ("That leaves \u22123 degrees", "-3"),
        ("She owes -$20, that is", "-20"),
        ("x = -5", "-5"),
        ("We take 10-3 apples", "3"),
        ("(12)-7", "7"),
        ("It is .5 of it", "0.5"),
        ("It is 1,000,000!", "1000000"),
        ("Either 1,2 or", "2"),
        ("about 50% of it", "50"),
        (r"\boxed{17}", "17"),
        ("From 12 to 5 o'clock, **8** hours", "8"),
        ("2.50 euros.", "2.5"),
    ],
)
def test_the_final_number_is_read_as_people_write_it(text: str, number: str) -> None:
    assert final_number(text) == Decimal(number)


@pytest.mark.parametrize("answer", ["#### 1200", "It is 1,200.", "so $1200.00", "first 5, then 1200"])
def test_the_same_number_counts_in_every_spelling(answer: str) -> None:
    assert same_number("40*30=<<40*30=1200>>1200\n#### 1,200", answer)


@pytest.mark.parametrize("answer", ["", "none", "1200 or 1201", "12,00", "-1200"])
def test_another_number_or_none_does_not_count(answer: str) -> None:
    assert not same_number("#### 1,200", answer)


def test_exact_match_is_the_share_of_equal_numbers() -> None:
    tasks = [gsm8k("#### 1"), gsm8k("#### 2"), gsm8k("#### 3"), gsm8k("#### 4")]
    assert score("gsm8k", tasks, ["1", "it is 2", "so 3.", "5"]) == {"exact_match": 0.75}


@pytest.mark.parametrize("suite", ["humaneval", "mt-bench", "spec-bench", "mbpp", "classeval", "own"])
def test_suites_without_a_score_have_none(suite: str) -> None:
    assert score(suite, [gsm8k("#### 1")], ["1"]) == {}
    check_scorer(suite)


@pytest.mark.parametrize("suite", ["xsum", "cnn-dm"])
def test_rouge_is_the_mean_f1_of_common_words_pairs_and_the_longest_common_order(suite: str) -> None:
    pytest.importorskip("rouge_score")
    tasks = [Task(("Summarise.",), suite, reference=text) for text in ("The cat was under the bed.", "One two.")]
    # First: 6 of 7 words and 6 of 6, 4 of 6 pairs and 4 of 5, an order of 6 in common. Second: one word of each two.
    expected = {"rouge1": (12 / 13 + 1 / 2) / 2, "rouge2": (8 / 11 + 0) / 2, "rougeL": (12 / 13 + 1 / 2) / 2}
    assert score(suite, tasks, ["the cat was found under the bed", "two three"]) == pytest.approx(expected)


def test_rouge_compares_whole_words_and_order_matters_for_l_only() -> None:
    pytest.importorskip("rouge_score")
    task = Task(("Summarise.",), "xsum", reference="dogs run")
    assert score("xsum", [task], ["dog runs"])["rouge1"] == 0
    turned = score("xsum", [task], ["run dogs"])
    assert (turned["rouge1"], turned["rouge2"], turned["rougeL"]) == (1, 0, 0.5)


def test_rouge_without_its_package_says_what_to_install_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(LacliError) as caught:
        check_scorer("cnn-dm")
    assert str(caught.value) == "ROUGE needs the package rouge-score (pip install 'lacli[test]')"


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("    return 1\n", "    return 1\n"),
        ("    return 1\n\ndef g():\n    pass", "    return 1\n"),
        ("    return 1\nclass A:", "    return 1"),
        ("    return 1\n# next", "    return 1"),
        ("    return 1\nif __name__", "    return 1"),
        ("    x = 1\n    if x:\n        return x\nprint(f(1))\ndef g(): ...", "    x = 1\n    if x:\n        return x"),
        ("    # a comment inside\n    return 1", "    # a comment inside\n    return 1"),
        ("", ""),
    ],
)
def test_a_completion_ends_where_the_function_does(answer: str, kept: str) -> None:
    assert completion(answer) == kept


def test_samples_are_rows_of_task_id_and_completion(tmp_path: Path) -> None:
    tasks = [Task(("def f():\n",), "humaneval", f"HumanEval/{number}", raw=True) for number in (0, 1)]
    path = tmp_path / "samples.jsonl"
    write_samples(str(path), [*tasks, Task(("Hello",), "chat")], ["    return 'é'\n\ndef g():", "    pass\n", "Hi"])
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert rows == [
        {"task_id": "HumanEval/0", "completion": "    return 'é'\n"},
        {"task_id": "HumanEval/1", "completion": "    pass\n"},
    ]


def test_samples_without_humaneval_and_an_impossible_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(LacliError, match="no HumanEval answers"):
        write_samples(str(tmp_path / "samples.jsonl"), [Task(("Hello",))], ["Hi"])
    assert not (tmp_path / "samples.jsonl").exists()
    task = Task(("def f():\n",), "humaneval", "HumanEval/0", raw=True)
    with pytest.raises(LacliError, match="cannot write .*: No such file or directory"):
        write_samples(str(tmp_path / "nowhere" / "samples.jsonl"), [task], ["    pass\n"])


def saying(number: int, trial: Trial) -> Contender:
    """One that always answers alike."""
    return Contender(f"mode W={number}", None, 0, lambda exchange: trial)


def rounds(*answers: Trial, turns: tuple[str, ...] = ("1 2",), kind: str = "gsm8k") -> Rounds:
    """Everyone has answered one task, each in its own words, twice."""
    task = Task(turns, kind, "HumanEval/0", reference="#### 42", max_tokens=9)
    return played(Rounds([saying(*each) for each in enumerate(answers)], [task], 2, Asker(lambda task, said: [1], 64)))


def test_everyone_is_scored_by_the_answers_of_the_first_repetition() -> None:
    assert scores("gsm8k", rounds(RIGHT, WRONG)) == {0: {**ONE, "exact_match": 1.0}, 1: {**ONE, "exact_match": 0.0}}


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


@pytest.mark.skipif(not SHARED.exists(), reason="no files of the published suites here")
class TestPublishedAnswers:
    def test_humanevals_own_solutions_are_left_whole(self) -> None:
        tasks = read_suite(str(SHARED / "HumanEval.jsonl.gz"))
        assert [completion(task.reference) for task in tasks] == [task.reference for task in tasks]

    def test_the_final_number_of_spec_benchs_80_gsm8k_answers_stands_after_their_mark(self) -> None:
        tasks = read_suite(str(SHARED / "spec_bench_question.jsonl"))
        answers = [task.reference for task in tasks if task.kind == "math_reasoning"]
        assert len(answers) == 80
        for answer in answers:
            assert final_number(answer) == Decimal(answer.rpartition("####")[2].strip().replace(",", ""))


def measured(arguments: Sequence[str]) -> str:
    """What the command prints on the 7M model, in seconds."""
    quick = ["--modes", "lookup", "-r", "1", "-n", "8", "-q"]
    done = CliRunner().invoke(app, [*arguments, *quick], env=MACHINE)
    if done.exception:
        raise done.exception
    return done.stdout


def test_a_suites_file_is_measured_and_scored(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"question": "6 times 7?", "answer": "#### 42"}) + "\n")
    shown = measured(["gsm8k", "--file", str(file)])
    assert "| exact_match |" in shown and "identical" in shown
    (_, row) = json.loads(measured(["gsm8k", "--file", str(file), "-o", "json"]))
    assert (row["class"], row["scored_n"], row["cut_n"]) == ("gsm8k", 1, 1) and 0 <= row["exact_match"] <= 1


def test_humanevals_completions_are_written_a_file_a_mode(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(HUMANEVAL) + "\n")
    measured(["humaneval", "--file", str(file), "--samples", str(tmp_path / "samples.jsonl")])
    written = sorted(path.name for path in tmp_path.glob("samples-*"))
    assert written == ["samples-lookup.jsonl", "samples-plain.jsonl"]
    assert json.loads((tmp_path / written[0]).read_text())["task_id"] == "HumanEval/0"


def test_an_unknown_suite_is_an_error() -> None:
    with pytest.raises(UsageError, match="there is no suite mmlu"):
        measured(["mmlu"])
