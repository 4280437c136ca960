"""A conversation on a real model: what its turns, edits and settings do to the text, the cache and the context."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Conversation, Message
from lacli.chat.talk import Chat
from lacli.check.judge import PLAIN
from lacli.errors import (
    LacliError,
    ModelLoadError,
    PromptError,
    ReplicaLost,
    UsageError,
)
from lacli.llamacpp.context import Context, LlamaEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ReplicaSettings
from lacli.replicas.copies import Copy
from lacli.replicas.isolated import RemoteEngine
from lacli.resolve import demo_model
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.text.reasoning import answer_of
from tests.fakes.tiny_models import write_mamba
from tests.talking import (
    LOADING,
    QUESTION,
    SMALL,
    Watched,
    chat_on,
    opened,
    said,
)


@pytest.fixture
def chat() -> Iterator[Chat]:
    with opened() as session:
        yield chat_on(session)


def test_undo_and_clear_forget_what_was_taken_back(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    one = chat.used
    text = list(chat.session.decoder.text)
    said(chat.ask("Explain json.dumps."))
    assert chat.used > one
    assert chat.undo() == "Explain json.dumps."
    assert one <= chat.used <= one + 12
    assert chat.session.decoder.text[: one - 1] == text[: one - 1]
    chat.clear()
    assert chat.used == 0 and chat.conversation.questions == 0 and len(chat.session.decoder.text) < 5
    assert chat.undo() is None


def test_a_question_answered_anew_is_decoded_from_its_end(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    first = chat.conversation.messages[-1].content
    asked = chat.turns[0].statistics.prompt_tokens
    assert said(chat.again()) == first
    assert chat.turns[1].statistics.reused_tokens == asked - 1
    assert chat.conversation.questions == 1
    assert "temperature 0" in chat.notes[0]


def test_another_answer_has_another_seed_unless_the_user_has_fixed_one() -> None:
    sampling = SamplingSettings(temp=1.5, seed=7)
    with opened(PLAIN, sampling) as session:
        chat = chat_on(session, 20, sampling)
        first = said(chat.ask(QUESTION))
        assert said(chat.again()) == first
        assert "seed" in chat.notes[0]
        chat.change(Adjusted(PLAIN, replace(sampling, seed=-1), 20))
        others = {said(chat.again()) for _ in range(4)}
        assert len(others - {first}) > 1 and chat.notes == []


def test_a_chat_that_goes_on_has_its_seed_and_takes_others_when_asked_again() -> None:
    # Few tokens: the second session decodes the first answer as a prompt, which rounds differently.
    sampling = SamplingSettings(temp=1.5)
    with opened(PLAIN, sampling) as session:
        chat = chat_on(session, 4, sampling)
        said(chat.ask(QUESTION))
        saved, seed = chat.conversation.messages.copy(), chat.seed
        answer = said(chat.ask("Explain json.dumps."))
    with opened(PLAIN, replace(sampling, seed=seed)) as session:
        again = Chat(session, Adjusted(PLAIN, sampling, 4), Conversation("", saved))
        assert said(again.ask("Explain json.dumps.")) == answer
        assert len({said(again.again()) for _ in range(4)} - {answer}) > 1


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
        chat.limit = 0
        said(chat.again())
        assert chat.conversation.messages == before, "nothing came, so the old answer stays"


def test_an_answer_that_fails_before_it_begins_leaves_the_old_one(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    said(chat.ask(QUESTION))
    before = chat.conversation.messages.copy()
    session = chat.session
    for of, name, error in (
        (session.prompts, "render", KeyboardInterrupt),
        (session, "generate", ModelLoadError("no context")),
    ):
        with monkeypatch.context() as patched:

            def failing(*arguments: object, error: BaseException | type[BaseException] = error, **more: object) -> None:
                raise error

            patched.setattr(of, name, failing)
            with pytest.raises((KeyboardInterrupt, ModelLoadError)):
                said(chat.again())
        assert chat.conversation.messages == before and chat.dropped == 0


def test_what_is_said_after_an_edit_keeps_the_tokens_of_the_answers() -> None:
    odd = "the answer is here"
    with opened(PLAIN) as session:
        tokens = [token for char in odd for token in session.model.tokenize(char, add_special=False)]
        turn = [Message("user", QUESTION), Message("assistant", odd, tuple(tokens))]
        chat = Chat(session, Adjusted(PLAIN, limit=4), Conversation("", turn * 3))
        chat.conversation.system = "Be brief."
        chat.recall()
        assert chat.compact() == 1
        said(chat.ask("Explain json.dumps."))
        text = session.decoder.text
        assert sum(text[at : at + len(tokens)] == tokens for at in range(len(text))) == 2


def test_tokens_that_are_special_here_are_no_answers_of_this_model(chat: Chat) -> None:
    start = chat.session.model.tokenize("<|im_start|>", add_special=False)
    saved = [Message("user", QUESTION), Message("assistant", "", tuple(start))]
    chat.conversation.replace("", saved)
    chat.recall()
    said(chat.ask("Explain json.dumps."))
    rendered = chat.session.prompts.render(chat.conversation.as_messages()[:-1])
    assert chat.session.text(chat.session.decoder.text, special=True).startswith(rendered)


def test_an_edit_under_a_template_that_fails_is_an_edit_all_the_same(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    own = chat.session.prompts.template
    assert own
    failing = "{{ raise_exception('not today') }}"
    chat.session.prompts.use(replace(own, source=failing, formatter=chat.session.model.compile_template(failing)))
    assert chat.undo() == QUESTION and not chat.conversation.messages
    chat.clear()


def test_an_answer_that_ends_at_once_is_an_empty_one_and_said_to_be(chat: Chat) -> None:
    first = said(chat.ask(QUESTION))
    chat.clear()
    chat.stops = (first[:1],)
    assert said(chat.ask(QUESTION)) == ""
    assert chat.notes == ["the answer is empty: it ended at once, by a stop text"]
    assert chat.conversation.messages[-1].content == "" and len(chat.turns) == 2
    chat.stops, chat.limit = (), 0
    said(chat.ask("Explain json.dumps."))
    assert "/set n -1" in chat.notes[0] and chat.conversation.is_open
    chat.limit = 12
    assert said(chat.ask("Explain os.path.join."))
    assert "no answer" in chat.notes[0] and chat.conversation.questions == 2


def test_a_mode_that_a_model_cannot_run_is_said_each_time(tmp_path: Path) -> None:
    write_mamba(tmp_path / "model.gguf")
    with Session(tmp_path / "model.gguf", LOADING, SMALL, SamplingSettings()) as session:
        chat = chat_on(session)
        assert "recurrent" in chat.change(Adjusted(SMALL, limit=12))
        assert chat.change(Adjusted(chat.settings, limit=8)) == ""


def test_a_saved_conversation_keeps_the_tokens_of_its_answers(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    text = "the answer is here"
    odd = [token for char in text for token in chat.session.model.tokenize(char, add_special=False)]
    saved = [chat.conversation.messages[0], Message("assistant", text, tuple(odd))]
    with opened() as session:
        again = Chat(session, Adjusted(session.settings, limit=12), Conversation("", saved))
        said(again.ask("Explain json.dumps."))
        place = len(session.prompts.conversation(Conversation("", saved[:1]).as_messages()))
        assert session.decoder.text[place : place + len(odd)] == odd
        foreign = [saved[0], Message("assistant", "of another model", (1, 2, 10**6))]
        again.conversation.replace("", foreign)
        again.recall()
        assert said(again.ask("Explain json.dumps."))


def test_a_context_that_cannot_come_back_is_said_until_it_does(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    said(chat.ask(QUESTION))

    def full(copy: Copy, settings: DecodeSettings, greedy: bool | None) -> Context:
        raise ModelLoadError("cannot make a context: not enough memory")

    with monkeypatch.context() as patched:
        patched.setattr(chat.session.copies, "_context", full)
        with pytest.raises(ModelLoadError):
            chat.change(Adjusted(replace(SMALL, window=30), limit=12))
    with pytest.raises(LacliError, match="no context"):
        said(chat.ask("Explain json.dumps."))
    assert "made anew" in chat.change(Adjusted(SMALL, limit=12))
    assert said(chat.again())


def test_a_session_that_samples_takes_a_context_with_raw_logits(chat: Chat) -> None:
    session = chat.session
    with LlamaEngine(session.model, LOADING, SMALL, backend_greedy=True) as on_backend:
        assert on_backend.suits(SMALL, raw_logits=False) and not on_backend.suits(SMALL, raw_logits=True)


def test_stopping_keeps_what_came(chat: Chat) -> None:
    chat.limit = 40
    with closing(chat.ask(QUESTION)) as pieces:
        came = "".join(piece.text for piece in islice(pieces, 6))
    assert chat.conversation.messages[-1].content.startswith(came)
    assert chat.last and chat.last.tokens and len(chat.last.tokens) < 40
    said(chat.ask("Explain json.dumps."))
    assert chat.turns[1].statistics.reused_tokens >= chat.turns[0].statistics.prompt_tokens


def test_stopping_before_anything_came_leaves_the_question_open(chat: Chat) -> None:
    chat.ask(QUESTION).close()
    assert [message.role for message in chat.conversation.messages] == ["user"]
    assert said(chat.again())
    assert [message.role for message in chat.conversation.messages] == ["user", "assistant"]


def test_more_sequences_take_a_new_context_and_give_the_same_text(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    more = replace(SMALL, window=12, guesses=9)
    assert "22 sequences" in chat.change(Adjusted(more, limit=12))
    assert chat.session.engine.sequences == 22 and not chat.session.decoder.text
    answer = said(chat.ask("Explain json.dumps."))
    assert chat.turns[1].statistics.reused_tokens == 0
    messages = chat.conversation.as_messages()[:-1]
    with opened(more) as session:
        generation = session.generate(session.prompts.conversation(messages), 12)
        assert "".join(piece.text for piece in generation) == answer


def test_what_fits_into_the_context_keeps_it(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    used = chat.used
    for decoding in (DecodeSettings(mode="lookup"), replace(SMALL, window=2), PLAIN):
        assert chat.change(Adjusted(decoding, limit=12)) == ""
        assert chat.used == used and chat.settings == decoding
    said(chat.ask("Explain json.dumps."))
    assert chat.turns[1].statistics.reused_tokens == used - 1


def test_settings_that_cannot_be_change_nothing(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    before = (chat.settings, chat.sampling, chat.session.sampler)
    with pytest.raises(UsageError, match="grammar"):
        chat.change(Adjusted(SMALL, SamplingSettings(grammar="root ::= (")))
    with pytest.raises(UsageError, match="rows"):
        chat.change(Adjusted(replace(SMALL, window=200, ngram=20)))
    assert (chat.settings, chat.sampling, chat.session.sampler) == before
    assert said(chat.ask("Explain json.dumps."))


def test_a_context_that_does_not_fit_leaves_the_old_one(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    said(chat.ask(QUESTION))
    make, left = chat.session.copies._context, [1]

    def full(copy: Copy, settings: DecodeSettings, greedy: bool | None) -> Context:
        if left:
            left.pop()
            raise ModelLoadError("cannot make a context: not enough memory")
        return make(copy, settings, greedy)

    monkeypatch.setattr(chat.session.copies, "_context", full)
    with pytest.raises(ModelLoadError):
        chat.change(Adjusted(replace(SMALL, window=30)))
    assert chat.settings == SMALL
    assert said(chat.ask("Explain json.dumps."))


def test_a_context_that_was_lost_is_opened_anew_with_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ReplicaSettings(isolate=True)
    with Session(demo_model(), LOADING, SMALL, SamplingSettings(), replicas=alone) as session:
        chat = chat_on(session)
        expected = said(chat.ask(QUESTION))
        assert isinstance(session.engine, RemoteEngine)
        os.kill(session.engine.process_id, signal.SIGKILL)
        chat.clear()
        with pytest.raises(ReplicaLost):
            said(chat.ask(QUESTION))
        assert chat.undo() == QUESTION
        make = session.copies._context

        def refused(*_: object) -> Context:
            raise ModelLoadError("cannot make a context: not enough memory")

        monkeypatch.setattr(session.copies, "_context", refused)
        with pytest.raises(ModelLoadError):
            said(chat.ask(QUESTION))
        monkeypatch.setattr(session.copies, "_context", make)
        assert said(chat.ask(QUESTION)) == expected
        assert any("opened anew" in note for note in chat.notes)
        said(chat.ask("Explain json.dumps."))
        assert not any("opened anew" in note for note in chat.notes)


def test_a_model_without_a_template_talks_in_chatml() -> None:
    with opened() as session:
        session.prompts.use(None)
        chat = chat_on(session)
        assert "ChatML" in chat.notes[0]
        said(chat.ask(QUESTION))
        assert "<|im_start|>user" in session.text(session.decoder.text, special=True)


BEGINS_THOUGHT = "{% if add_generation_prompt %}<think>\n{% endif %}"


def use_also(session: Session, source: str) -> None:
    """The session's template with something behind it."""
    own = session.prompts.template
    assert own
    formatter = session.model.compile_template(own.source + source)
    session.prompts.use(replace(own, source=own.source + source, formatter=formatter))


def test_a_thought_that_the_prompt_opened_stays_decoded_where_the_template_keeps_it() -> None:
    with opened() as session:
        use_also(session, BEGINS_THOUGHT)
        chat = chat_on(session, 10)
        said(chat.ask(QUESTION))
        kept = [*session.decoder.text]
        watched = Watched(session)
        said(chat.ask("And then?"))
        assert watched.prompt[: len(kept)] == kept


def test_a_thought_that_the_prompt_opened_and_ctrl_c_cut_off_leaves_the_history() -> None:
    with opened() as session:
        use_also(session, BEGINS_THOUGHT + "{# split('</think>') #}")
        chat = chat_on(session)
        with closing(chat.ask(QUESTION)) as pieces:
            first = next(pieces)
        assert first.thought
        content = chat.conversation.messages[-1].content
        assert content == f"<think>\n{chat.turns[-1].text}\n</think>\n\n" and answer_of(content) == ""
