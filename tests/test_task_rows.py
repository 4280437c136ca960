"""What a row of a prompt file means: which form it has, and which task it becomes."""

from __future__ import annotations

import pytest

from lacli.bench.task_rows import task_from_row
from lacli.bench.tasks import OWN, Task
from lacli.errors import LacliError


def test_a_plain_row_is_one_question_of_its_own_class() -> None:
    assert task_from_row({"prompt": "Why?"}) == Task(("Why?",), OWN)


def test_a_plain_row_may_name_its_class_a_system_text_and_a_limit() -> None:
    row = {"prompt": "Why?", "class": "chat", "system": "Be short.", "limit": 64}
    assert task_from_row(row) == Task(("Why?",), "chat", system="Be short.", limit=64)


def test_max_tokens_is_another_name_of_the_limit() -> None:
    assert task_from_row({"prompt": "Why?", "limit": None, "max_tokens": 32}).limit == 32


def test_optional_fields_may_be_null_or_empty() -> None:
    row = {"prompt": "Why?", "turns": None, "class": None, "system": "", "limit": None, "reference": None}
    assert task_from_row(row) == Task(("Why?",), OWN)


def test_a_row_without_a_class_gets_the_one_that_the_caller_names() -> None:
    assert task_from_row({"prompt": "Why?"}, "rag").kind == "rag"
    assert task_from_row({"prompt": "Why?", "category": "qa"}, "rag").kind == "qa"


def test_a_conversation_keeps_its_turns_its_category_and_its_number() -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]}
    assert task_from_row(row) == Task(("First.", "Second."), "writing", "81")


def test_the_reference_of_a_conversation_is_a_text_or_a_text_a_turn() -> None:
    assert task_from_row({"turns": ["a"], "reference": "x"}).reference == "x"
    assert task_from_row({"turns": ["a", "b"], "reference": ["x", "y"]}).reference == "x\n\ny"
    assert task_from_row({"turns": ["a"], "reference": [["x"]]}).reference == ""


def test_humaneval_is_completed_raw_in_at_most_512_tokens() -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    pass\n"}
    expected = Task(("def f():\n",), "humaneval", "HumanEval/0", raw=True, limit=512, reference="    pass\n")
    assert task_from_row({**row, "test": "def check(f): pass"}) == expected


def test_classeval_shows_the_skeleton_and_allows_2048_tokens() -> None:
    task = task_from_row({"task_id": "ClassEval_0", "class_name": "Filter", "skeleton": "class Filter:\n    pass\n"})
    assert (task.kind, task.name, task.limit, task.raw) == ("classeval", "ClassEval_0", 2048, False)
    assert "Filter" in task.turns[0] and "```python\nclass Filter:\n    pass\n```" in task.turns[0]


def test_gsm8k_asks_for_a_last_line_with_the_number_and_keeps_the_answer_to_itself() -> None:
    task = task_from_row({"question": "How much is 6 times 7?", "answer": "6*7=42\n#### 42"})
    assert (task.kind, task.reference, task.limit) == ("gsm8k", "6*7=42\n#### 42", 0)
    assert task.turns[0].startswith("How much is 6 times 7?\n\n") and "42" not in task.turns[0]


@pytest.mark.parametrize("field", ["text", "prompt"])
def test_mbpp_shows_the_tests_that_the_code_has_to_pass(field: str) -> None:
    row = {"task_id": 11, field: "Write a function.", "code": "def f(): ...", "test_list": ["assert f() == 1"]}
    task = task_from_row(row)
    assert (task.kind, task.name, task.reference) == ("mbpp", "11", "def f(): ...")
    assert task.turns[0].startswith("Write a function.\n") and "\nassert f() == 1\n" in task.turns[0]


@pytest.mark.parametrize(
    ("kind", "source", "summary"), [("xsum", "document", "summary"), ("cnn-dm", "article", "highlights")]
)
def test_an_article_stands_in_the_system_text_of_the_papers_prompt(kind: str, source: str, summary: str) -> None:
    task = task_from_row({"id": "7", source: "An {} article.", summary: "Short."})
    assert (task.kind, task.name, task.reference) == (kind, "7", "Short.")
    assert "only using the following context:\nAn {} article.\nHere are some rules" in task.system
    assert task.turns == ("Briefly summarize the given context.\nSummary:",)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({}, "no prompt"),
        ({"text": "hello"}, "no prompt"),
        ({"prompt": None}, "no prompt"),
        ({"prompt": 5}, "prompt is not a text"),
        ({"prompt": ["a"]}, "prompt is not a text"),
        ({"prompt": " \n"}, "prompt is empty"),
        ({"prompt": "half \ud83d"}, "prompt holds half a surrogate pair"),
        ({"prompt": "a", "class": 3}, "class is not a text"),
        ({"prompt": "a", "system": ["b"]}, "system is not a text"),
        ({"prompt": "a", "limit": "64"}, "limit is not a number of tokens"),
        ({"prompt": "a", "limit": -1}, "limit is not a number of tokens"),
        ({"prompt": "a", "limit": True}, "limit is not a number of tokens"),
        ({"prompt": "a", "max_tokens": 1.5}, "limit is not a number of tokens"),
        ({"turns": []}, "turns is not a list of messages"),
        ({"turns": "a"}, "turns is not a list of messages"),
        ({"turns": ["a", 5]}, "turns is not a list of messages"),
        ({"turns": ["a", ""]}, "turns is empty"),
        ({"question": "a", "answer": "42"}, "the answer has no number after ####"),
        ({"text": "a", "code": "b", "test_list": "c"}, "test_list is not a list of strings"),
        ({"document": 1, "summary": "b"}, "document is not a text"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_what_to_do(row: dict[str, object], what: str) -> None:
    with pytest.raises(LacliError) as caught:
        task_from_row(row)
    assert caught.value.what == what and caught.value.hint
    assert "\n" not in str(caught.value)
