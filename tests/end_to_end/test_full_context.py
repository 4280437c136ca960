"""What a chat does when its context is full: sentences and choices, or a shift."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Conversation
from lacli.chat.talk import Chat
from lacli.check.judge import PLAIN
from lacli.errors import PromptError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.resolve import demo_model
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from tests.talking import (
    LOADING,
    QUESTION,
    SMALL,
    TURNS,
    chat_on,
    opened,
    said,
)


def test_a_full_context_says_what_can_be_done() -> None:
    with opened(PLAIN, context=256) as session:
        chat = chat_on(session, 300)
        said(chat.ask(QUESTION))
        chat.session.adapt(PLAIN, SamplingSettings(ignore_eos=True))
        said(chat.ask("Explain json.dumps."))
        assert all(word in chat.notes[0] for word in ("/compact", "/clear", "-c 512"))
        with pytest.raises(PromptError, match="the context 256") as found:
            said(chat.ask("And os.path?"))
        assert all(word in found.value.hint for word in ("/compact", "/clear", "-c 512"))
        assert chat.conversation.questions == 2, "the question that had no room is taken back"
        assert chat.compact() == 1
        assert chat.conversation.questions == 1


def test_a_compacted_chat_leaves_half_of_the_context_free() -> None:
    with opened(PLAIN, context=512) as session:
        chat = chat_on(session, 8)
        for question in TURNS[:12]:
            said(chat.ask(question))
        assert chat.used > 256
        dropped = chat.compact()
        assert dropped and chat.conversation.questions == 12 - dropped
        assert len(session.prompts.conversation(chat.conversation.as_messages())) <= 256
        assert said(chat.ask(QUESTION))
        assert len(chat.conversation.messages) == 2 * (13 - dropped)


def test_a_message_larger_than_the_context_is_refused_and_the_chat_goes_on() -> None:
    with opened(PLAIN, context=256) as session:
        chat = chat_on(session)
        with pytest.raises(PromptError, match="shorter one"):
            said(chat.ask("word " * 400))
        assert chat.conversation.questions == 0
        assert said(chat.ask(QUESTION))


@pytest.mark.parametrize("decoding", [SMALL, PLAIN], ids=lambda each: each.mode)
def test_a_shifted_context_goes_on_and_keeps_the_system_prompt(decoding: DecodeSettings) -> None:
    endless = SamplingSettings(ignore_eos=True)
    with opened(decoding, endless, context=256) as session:
        adjusted = Adjusted(decoding, endless, 300)
        chat = Chat(session, adjusted, Conversation("You are a careful programmer."), context_shift=True)
        said(chat.ask(QUESTION))
        assert chat.last and chat.last.statistics.tokens == 300
        kept = session.text(session.decoder.text, special=True)
        assert "careful programmer." in kept and "is_empty: Return" not in kept
        chat.limit = 10
        said(chat.ask("Explain json.dumps."))
        assert chat.dropped == 1 and not chat.notes
        assert chat.conversation.questions == 1


def test_a_chat_that_shifts_cannot_be_strict() -> None:
    with opened(replace(SMALL, strict=True)) as session:
        assert "--strict" in chat_on(session, context_shift=True).notes[0]


def test_a_cache_with_quantised_keys_is_not_shifted() -> None:
    loading = replace(LOADING, cache_type_k="q8_0")
    with Session(demo_model(), loading, PLAIN, SamplingSettings()) as session:
        assert "-ctk" in chat_on(session, context_shift=True).notes[0]
