"""Conversations: messages that can be taken back, the tokens of prompts, and turns on real models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock, patch

import pytest

from lacli.chat.conversation import Chat, Conversation
from lacli.chat.settings import ChatSettings
from lacli.check.judge import PLAIN
from lacli.engine.libraries import open_context
from lacli.engine.load import open_engine
from lacli.errors import ModelLoadError, PromptError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ContextSize
from lacli.verify import SampleAndMatch
from tests.fakes.decoding import Decoding
from tests.fakes.fake_chat import talked
from tests.fakes.talking import LOADING, QUESTION, SMALL, TURNS, Watched, chat_on, opened, said
from tests.fakes.tiny_models import write_gemma_swa, write_lfm2, write_mamba
from tests.loading import last_tokens

NEXT = "Explain json.dumps."


def adjust(chat: Chat, **changes: Any) -> None:
    chat.change(chat.settings.with_values(changes))


def contents(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def test_the_last_question_and_its_answer_can_be_taken_back() -> None:
    conversation = talked([("a", "b"), ("c", "d")])
    conversation.take_back_answer()
    conversation.take_back_answer()
    assert conversation.undo() == "c" and contents(conversation) == ["a", "b"]
    conversation.ask("open")
    assert conversation.undo() == "open"
    assert conversation.undo() == "a"
    assert conversation.undo() is None


def test_prompts_leave_the_oldest_exchanges_out_and_never_the_last_question() -> None:
    conversation = talked([("a", "b"), ("c", "d")], system="s")
    conversation.ask("e")
    assert conversation.drop_oldest() and conversation.drop_oldest() and not conversation.drop_oldest()
    assert [each["content"] for each in conversation.as_messages()] == ["s", "e"]
    assert contents(conversation) == ["a", "b", "c", "d", "e"], "the conversation keeps all turns"
    conversation.undo()
    assert [each["content"] for each in conversation.as_messages()] == ["s", "c", "d"]


@pytest.fixture
def chat() -> Iterator[Chat]:
    with opened() as session:
        yield chat_on(session)


def test_a_question_answered_anew_is_decoded_from_its_end(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    first = chat.conversation.messages[-1].content
    asked = chat.turns[0].statistics.prompt_tokens
    assert said(chat.again()) == first
    assert chat.turns[1].statistics.reused_tokens == asked - 1 and chat.conversation.questions == 1
    assert "came out the same" in chat.notes[0]


def test_another_answer_has_another_seed_unless_the_user_has_fixed_one() -> None:
    # The temperature is so high that two seeds never give the same answer.
    sampling = SamplingSettings(temp=9, top_k=0, top_p=1, min_p=0, seed=7)
    with opened(PLAIN, sampling) as session:
        chat = chat_on(session, 20, sampling)
        first = said(chat.ask(QUESTION))
        assert said(chat.again()) == first
        assert "the answer came out the same" in chat.notes[0]
        chat.change(ChatSettings(20, (), PLAIN, replace(sampling, seed=-1)))
        others = {said(chat.again()) for _ in range(4)}
        assert len(others - {first}) > 1 and chat.notes == []


def test_a_question_that_cannot_be_answered_anew_keeps_its_answer() -> None:
    with opened(PLAIN, context=256) as session:
        chat = chat_on(session)
        said(chat.ask(QUESTION))
        before = chat.conversation.messages.copy()
        chat.conversation.system = "Be brief. " * 200
        with pytest.raises(PromptError):
            said(chat.again())
        assert chat.conversation.messages == before
        chat.conversation.system = ""
        adjust(chat, max_tokens=0)
        said(chat.again())
        assert chat.conversation.messages == before, "without a new answer the old one stays"


def test_an_answer_may_be_empty_and_a_question_without_one_is_taken_back(chat: Chat) -> None:
    first = said(chat.ask(QUESTION))
    chat.resume(Conversation())
    adjust(chat, stops=(first[:1],))
    assert said(chat.ask(QUESTION)) == ""
    assert chat.conversation.messages[-1].content == "" and len(chat.turns) == 2
    adjust(chat, stops=(), max_tokens=0)
    said(chat.ask(NEXT))
    assert chat.conversation.questions == 1


def test_stopping_keeps_what_came(chat: Chat) -> None:
    adjust(chat, max_tokens=40)
    with closing(chat.ask(QUESTION)) as pieces:
        came = "".join(piece.text for piece in islice(pieces, 6))
    assert chat.conversation.messages[-1].content.startswith(came)
    assert 0 < len(chat.turns[-1].tokens) < 40
    said(chat.ask(NEXT))
    assert chat.turns[1].statistics.reused_tokens >= chat.turns[0].statistics.prompt_tokens


def test_more_sequences_take_a_new_context_and_give_the_same_text(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    more = replace(SMALL, window=12, guesses=9)
    chat.change(ChatSettings(12, decode_settings=more))
    assert chat.engine.context.ids == 22 and not last_tokens(chat.engine)
    answer = said(chat.ask(NEXT))
    assert chat.turns[1].statistics.reused_tokens == 0
    messages = chat.conversation.as_messages()[:-1]
    with opened(more) as session:
        generation = session.generate(session.prompts.conversation(messages), 12)
        assert "".join(piece.text for piece in generation.pieces) == answer


def test_a_context_that_does_not_fit_leaves_the_old_one(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    full = ModelLoadError("cannot make a context: not enough memory")
    with patch("lacli.engine.replicas.open_context", Mock(wraps=open_context, side_effect=[full, DEFAULT])):
        with pytest.raises(ModelLoadError):
            chat.change(ChatSettings(decode_settings=replace(SMALL, window=30)))
        assert chat.settings.decode_settings == SMALL
        assert said(chat.ask(NEXT))


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_with_strict_turns_are_fresh_runs_to_the_last_bit(temp: float) -> None:
    sampling = SamplingSettings(temp=temp, seed=7)
    with opened(replace(SMALL, strict=True), sampling) as session, LlamaSampler(session.model, sampling) as sampler:
        watched, chat = Watched(session), chat_on(session, sampling=sampling)
        plain = replace(session.settings, mode="plain")
        with LlamaContext(session.model, session.model_settings, ContextSize.of(plain)) as engine:
            fresh = Decoding(engine, plain, SampleAndMatch(sampler) if temp else None)
            for question in TURNS[::2]:
                said(chat.ask(question))
                prompt = watched.prompt
                assert watched.tokens == [token for step in fresh.generate(prompt, 12) for token in step.tokens]
        assert watched.reused > 200


@pytest.mark.parametrize("write", [write_mamba, write_lfm2, write_gemma_swa], ids=lambda write: write.__name__)
def test_turns_on_other_kinds_of_models_are_fresh_runs(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    with open_engine(tmp_path / "model.gguf", LOADING, SMALL, SamplingSettings()) as session:
        watched, chat = Watched(session), chat_on(session, 10)
        with LlamaContext(session.model, LOADING, ContextSize.of(PLAIN)) as engine:
            for question in ("one two", "three", "", "four", "five"):
                if question:
                    said(chat.ask(question))
                    fresh = Decoding(engine, PLAIN).generate(watched.prompt, 10)
                    assert watched.tokens == [token for step in fresh for token in step.tokens]
                else:
                    chat.conversation.undo()


def test_a_prompt_without_room_for_an_answer_drops_the_oldest_turns_and_the_chat_keeps_them() -> None:
    with opened(PLAIN, context=512) as session:
        chat = Chat(session, ChatSettings(8, decode_settings=PLAIN), Conversation("Be careful."))
        notes, sizes = [], []
        for question in TURNS:
            said(chat.ask(question))
            notes += [(len(chat.turns), note) for note in chat.notes if "the context was full" in note]
            sizes.append(chat.turns[-1].statistics.prompt_tokens)
        (at, note), *_ = notes
        assert note.startswith("the context was full: the model no longer sees the oldest ")
        assert sizes[at - 2] + 8 <= 512 and sizes[at - 1] <= 256, "half of the context must be free"
        assert max(sizes) <= 512 - 512 // 8 and len(notes) < len(TURNS) // 3
        assert chat.conversation.questions == len(TURNS), "the transcript has all turns"
        assert session.text(last_tokens(session), special=True).count("Be careful.") == 1
        said(chat.again())
        assert chat.turns[-1].tokens == chat.turns[-2].tokens


def test_a_full_context_ends_an_answer_with_a_sentence() -> None:
    endless = SamplingSettings(ignore_eos=True)
    with opened(PLAIN, endless, context=256) as session:
        chat = chat_on(session, -1, endless)
        said(chat.ask(QUESTION))
        assert chat.notes[0].startswith("the context of 256 tokens is full and the answer ends here: a larger context")
