"""The benchmark of fresh processes on stand-ins for them: turns, cache folders, what counts, and the table."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import fresh
from benchmarks.fresh import EARLIER, PROMPTS, Model, Question, in_turns, learn, measured, rounds, split
from benchmarks.fresh_table import SHORTEST, Answer, Row, read_rows, tables
from lacli.bench.tasks import Task, built_in, read_tasks
from lacli.errors import LacliError
from lacli.llamacpp.settings import ModelSettings

NAMES = ("plain", "auto, first", "auto, tenth", "llama-lookup")
TASKS = [Task((f"{kind} {number}",), kind) for kind in ("edit", "write") for number in range(4)]
QUESTIONS = tuple(Question(task, "", ()) for task in TASKS)


def row(contender: str, prompt: str, seconds: float, *, tokens: int = 64, text: str = "abc", turn: int = 0) -> Row:
    return Row("m.gguf", 64, prompt.split()[0], prompt, turn, contender, Answer(tokens, seconds, 0.02, text, 0.5))


def cells(text: str) -> dict[str, dict[str, str]]:
    """The cells of the one table in a text, by row and column."""
    header, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


ROWS = [
    *(row("auto, first", prompt, 0.5, text="ab") for prompt in ("edit 0", "edit 1", "write 0")),
    *(row("plain", prompt, 1.0) for prompt in ("edit 0", "edit 1", "write 0")),
    row("llama-lookup", "edit 0", 0.25, text="abcde"),
    row("llama-lookup", "edit 1", 1.0, text="ax"),
    row("llama-lookup", "write 1", 1.0),
]


def test_the_table_has_times_as_fast_as_plain_by_class_and_over_all() -> None:
    found = cells(tables(ROWS))
    assert [*found] == ["plain", "auto, first", "llama-lookup"]
    assert found["plain"]["all"] == "1"
    assert (found["auto, first"]["edit"], found["auto, first"]["all"]) == ("2.00", "2.00 (2.00-2.00)")
    assert (found["llama-lookup"]["edit"], found["llama-lookup"]["write"]) == ("2.00", ""), "4 and 1, and no pair"
    assert found["llama-lookup"]["auto, first / it"] == "1.00", "0.5 and 2"
    assert found["auto, first"]["start-up s"] == "0.50"


def test_a_text_is_plains_as_far_as_both_go() -> None:
    found = cells(tables(ROWS))
    assert found["auto, first"]["plain's texts"] == "3 of 3", "they end earlier"
    assert found["llama-lookup"]["plain's texts"] == "1 of 2", "one goes on longer, one is another"


def test_short_answers_are_left_out_and_the_table_says_so() -> None:
    short = [row(name, "write 2", 9.0, tokens=SHORTEST - 1) for name in ("plain", "auto, first")]
    assert cells(tables([*ROWS, *short])) == cells(tables(ROWS))
    assert f"Left out: 2 of {len(ROWS) + 2} answers" in tables([*ROWS, *short])
    assert "Left out" not in tables(ROWS)


def test_each_prompt_counts_by_the_median_of_its_repetitions() -> None:
    times = {"plain": (1.0, 1.0, 9.0), "auto, first": (0.5, 0.5, 9.0)}
    rows = [
        row(name, "edit 0", seconds, turn=turn) for name, each in times.items() for turn, seconds in enumerate(each)
    ]
    assert cells(tables(rows))["auto, first"]["all"] == "2.00"


def test_every_model_and_length_has_a_table_even_without_an_answer_of_plain_decoding() -> None:
    first, second = tables([*ROWS, replace(ROWS[0], limit=256)]).split("m.gguf, answers of 256 tokens")
    assert cells(first) == cells(tables(ROWS))
    assert cells(second)["auto, first"]["all"] == ""


def test_rows_are_read_back_without_the_line_that_an_interrupt_cut(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    whole = "".join(json.dumps(asdict(each)) + "\n" for each in ROWS)
    file.write_text(whole + '{"model": "m.gguf", "lim')
    assert read_rows(file) == ROWS
    monkeypatch.setattr(sys, "argv", ["fresh", "--table", str(file)])
    fresh.main()
    assert capfd.readouterr().out == tables(ROWS) + "\n"


def test_all_contenders_answer_in_a_round_and_each_begins_as_many_rounds_of_a_class() -> None:
    asked = list(rounds(NAMES, [Question(task, "", ()) for task in in_turns([TASKS[:4], TASKS[4:]])], 2, math.inf))
    size = len(NAMES)
    for place in range(0, len(asked), size):
        assert len({asked[place + each][:2] for each in range(size)}) == 1
        assert {asked[place + each][2] for each in range(size)} == set(NAMES)
    first = Counter((question.task.kind, name) for _, question, name in asked[::size])
    assert set(first.values()) == {2} and len(first) == 2 * size


def test_no_round_begins_too_late() -> None:
    assert not list(rounds(NAMES, QUESTIONS, 1, -math.inf))


def test_what_the_tenth_run_has_answered_is_not_measured() -> None:
    tasks = read_tasks(str(PROMPTS))
    for each in (1, 3, 6):
        chosen, earlier = split(tasks, each, lambda task: True)
        assert set(Counter(task.kind for task in chosen).values()) == {each}
        assert len(earlier) == EARLIER and not set(earlier) & set(chosen)
    assert set(earlier) <= set(built_in()), "all of the file are measured"
    assert {task.kind for task in split(tasks, 3, lambda task: True)[1]} == {task.kind for task in tasks}


def test_prompts_with_short_answers_are_passed_over() -> None:
    chosen, earlier = split(TASKS, 2, lambda task: task.turns[0] not in ("edit 0", "write 1", "write 2"))
    assert [task.turns[0] for task in chosen] == ["edit 1", "write 0", "edit 2", "write 3"]
    assert [task.turns[0] for task in earlier[:3]] == ["edit 0", "write 1", "edit 3"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model whose lacli answers with its mode and the prompts that were asked before in the same cache folder."""

    def lacli(arguments: Sequence[str], cache: Path) -> str:
        seen = cache / "seen"
        text = seen.read_text() if seen.exists() else ""
        seen.write_text(text + ".")
        mode = arguments[arguments.index("--mode") + 1]
        times = {"predicted_ms": 200.0, "prompt_ms": 10.0, "first_token_ms": 12.0}
        return json.dumps({"text": f"{mode}{text}", "predicted_n": 64, **times})

    monkeypatch.setattr(fresh, "lacli", lacli)
    (tmp_path / "first").mkdir()
    return Model(Path("m.gguf"), tmp_path, (), ModelSettings(), False, QUESTIONS, tuple(TASKS[:3]))


def test_each_answer_finds_the_cache_folder_of_its_run(model: Model) -> None:
    learn(model, 64)
    for _ in range(2):
        assert model.ask("x", 64, "plain", "first").text == "plain"
        assert model.ask("x", 64, "auto", "tenth").text == "auto..."
    assert {place.name for place in model.folder.iterdir()} == {"first", "tenth"}, "copies are thrown away"


def test_an_answer_that_fails_is_told_and_the_others_count(model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(question: Question, limit: int) -> Answer:
        raise LacliError("it broke")

    answer = Answer(64, 0.5, 0.1, "abc")
    rows = list(measured(model, {"plain": lambda question, limit: answer, "rival": fails}, 64, 1, math.inf))
    assert [(row.contender, row.prompt) for row in rows] == [("plain", task.turns[0]) for task in TASKS]
    assert "rival, edit: left out: it broke" in capfd.readouterr().err
