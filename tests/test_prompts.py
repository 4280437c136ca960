"""Prompts of a conversation keep the tokens that were generated, and are the tokenizer's everywhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lacli.chat.prompts import Prompts
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.resolve import demo_model
from lacli.session.session import Session
from lacli.settings import DecodeSettings

QUESTION = {"role": "user", "content": "Explain json."}
ANSWER = "the answer is here"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(demo_model(), ModelSettings(threads=1), DecodeSettings(mode="plain"), SamplingSettings()) as opened:
        yield opened


def after(answer: str) -> list[dict[str, str]]:
    return [QUESTION, {"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]


def spelled_otherwise(session: Session, text: str) -> list[int]:
    """A text a character at a time, as no tokenizer cuts it."""
    tokens = [token for char in text for token in session.model.tokenize(char, add_special=False)]
    assert tokens != session.model.tokenize(text, add_special=False)
    assert session.text(tokens) == text
    return tokens


def test_an_answer_keeps_its_tokens(session: Session) -> None:
    prompts = Prompts(session)
    first = prompts.spell([QUESTION])
    tokens = spelled_otherwise(session, ANSWER)
    end = next(iter(session.model.ends()))
    prompts.answered(first, [*tokens, end])
    second = prompts.spell(after(ANSWER))
    assert second.tokens[: len(first.tokens) + len(tokens)] == [*first.tokens, *tokens]
    assert session.text(second.tokens, special=True) == session.prompts.render(after(ANSWER))


def test_without_an_answer_of_ours_the_tokenizer_decides(session: Session) -> None:
    prompts = Prompts(session)
    assert prompts.spell(after(ANSWER)).tokens == session.prompts.conversation(after(ANSWER))


def test_a_conversation_that_was_changed_is_read_anew(session: Session) -> None:
    prompts = Prompts(session)
    prompts.answered(prompts.spell([QUESTION]), spelled_otherwise(session, ANSWER))
    other = after("something else")
    assert prompts.spell(other).tokens == session.prompts.conversation(other)


def test_taking_a_question_back_finds_the_answer_before_it(session: Session) -> None:
    prompts = Prompts(session)
    tokens = spelled_otherwise(session, ANSWER)
    prompts.answered(prompts.spell([QUESTION]), tokens)
    prompts.answered(prompts.spell(after(ANSWER)), tokens)
    changed = [*after(ANSWER)[:2], {"role": "user", "content": "Something else."}]
    spelled = prompts.spell(changed).tokens
    assert spelled != session.prompts.conversation(changed)
    assert session.text(spelled, special=True) == session.prompts.render(changed)


def test_an_answer_followed_by_ordinary_text_is_read_with_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        session.prompts, "render", lambda messages: "".join(f"{each['content']} USER: " for each in messages)
    )
    prompts = Prompts(session)
    prompts.answered(prompts.spell([QUESTION]), spelled_otherwise(session, ANSWER))
    assert prompts.spell(after(ANSWER)).tokens == session.model.tokenize(session.prompts.render(after(ANSWER)))
