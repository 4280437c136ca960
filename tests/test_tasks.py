"""The prompts that ship with lacli: enough of every class, and none of them twice."""

from __future__ import annotations

from collections import Counter

import pytest

from lacli.bench.tasks import CLASSES, built_in
from lacli.errors import UsageError


def test_every_class_has_at_least_eight_prompts_in_the_order_of_the_table() -> None:
    kinds = [task.kind for task in built_in()]
    assert list(dict.fromkeys(kinds)) == list(CLASSES)
    assert min(Counter(kinds).values()) >= 8


def test_no_prompt_and_no_name_comes_twice() -> None:
    tasks = built_in()
    assert len({task.turns for task in tasks}) == len({task.name for task in tasks}) == len(tasks)


def test_some_conversations_have_a_second_turn_and_no_turn_is_blank() -> None:
    tasks = built_in()
    assert {len(task.turns) for task in tasks} == {1, 2}
    assert all(turn.strip() for task in tasks for turn in task.turns)


def test_built_in_prompts_are_questions_to_a_chat_model_with_the_users_own_limit() -> None:
    assert not any(task.raw or task.limit or task.system for task in built_in())


def test_edits_give_code_or_text_of_fifteen_lines_or_more_to_copy() -> None:
    assert min(task.turns[0].count("\n") for task in built_in(["edit"])) >= 15


def test_classes_can_be_chosen_and_keep_the_tables_order() -> None:
    tasks = built_in(["forms", "code"])
    assert list(dict.fromkeys(task.kind for task in tasks)) == ["code", "forms"]
    assert tasks == built_in(["code"]) + built_in(["forms"])


def test_an_unknown_class_is_named_with_those_that_exist() -> None:
    with pytest.raises(UsageError) as caught:
        built_in(["code", "poems"])
    assert caught.value.what == "there is no prompt class poems"
    assert all(name in caught.value.hint for name in CLASSES)
