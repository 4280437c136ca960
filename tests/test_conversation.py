"""A conversation: turns, what can be taken back, and what a template is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.chat.conversation import Conversation, Message, in_turns
from tests.fake_chat import talked


def contents(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def test_the_system_prompt_comes_first_and_only_where_there_is_one() -> None:
    conversation = talked([("a", "b")])
    assert [each["role"] for each in conversation.as_messages()] == ["user", "assistant"]
    conversation.system = "be brief"
    assert conversation.as_messages()[0] == {"role": "system", "content": "be brief"}
    assert conversation.as_messages()[1:] == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


def test_undo_takes_the_last_question_back_with_its_answer() -> None:
    conversation = talked([("a", "b"), ("c", "d")])
    assert conversation.undo() == "c"
    assert contents(conversation) == ["a", "b"]
    conversation.ask("open")
    assert conversation.undo() == "open"
    assert conversation.undo() == "a"
    assert conversation.undo() is None and not conversation.messages


def test_an_answer_is_taken_back_once_and_its_question_stays() -> None:
    conversation = talked([("a", "b")])
    assert conversation.take_back_answer()
    assert contents(conversation) == ["a"]
    assert not conversation.take_back_answer()
    assert not Conversation().take_back_answer()


def test_the_oldest_exchanges_go_and_never_the_last_question() -> None:
    conversation = talked([("a", "b"), ("c", "d")], system="s")
    conversation.ask("e")
    assert conversation.drop_oldest() and conversation.drop_oldest()
    assert contents(conversation) == ["e"] and conversation.system == "s"
    assert not conversation.drop_oldest()
    answered = talked([("a", "b"), ("c", "d")])
    assert answered.drop_oldest() and not answered.drop_oldest()
    assert contents(answered) == ["c", "d"]


def test_clearing_leaves_the_system_prompt() -> None:
    conversation = talked([("a", "b")], system="s")
    conversation.clear()
    assert conversation.as_messages() == [{"role": "system", "content": "s"}]


def test_a_question_without_an_answer_makes_room_for_the_next_one() -> None:
    conversation = talked([("a", "b")])
    conversation.ask("lost")
    conversation.ask("c")
    assert contents(conversation) == ["a", "b", "c"]


def test_questions_and_the_last_answer_are_known() -> None:
    conversation = Conversation()
    assert (conversation.questions, conversation.last_answer) == (0, None)
    conversation.ask("a")
    assert (conversation.questions, conversation.last_answer) == (1, None)
    conversation.answer("b")
    conversation.ask("c")
    assert (conversation.questions, conversation.last_answer) == (2, "b")


def test_an_answer_needs_a_question_and_messages_need_turns() -> None:
    with pytest.raises(AssertionError):
        Conversation().answer("b")
    with pytest.raises(AssertionError):
        Conversation("", [Message("assistant", "b")])


@given(st.lists(st.sampled_from(["ask", "answer", "undo", "again", "drop", "clear"]), max_size=30))
def test_whatever_is_done_questions_and_answers_take_turns(steps: list[str]) -> None:
    conversation = Conversation()
    for step in steps:
        is_open = bool(conversation.messages) and conversation.messages[-1].role == "user"
        match step:
            case "ask":
                conversation.ask("q")
            case "answer" if is_open:
                conversation.answer("a")
            case "undo":
                conversation.undo()
            case "again":
                conversation.take_back_answer()
            case "drop":
                conversation.drop_oldest()
            case "clear":
                conversation.clear()
        assert in_turns([message.role for message in conversation.messages])
        assert conversation.questions == sum(message.role == "user" for message in conversation.messages)
