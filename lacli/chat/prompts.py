"""The tokens of a conversation's prompts: what was generated keeps the tokens that it was generated with.

A text can be cut into tokens in several ways, and a model does not always take the tokenizer's. Read anew, an answer
could begin to differ from what is in the cache, and would be decoded again from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lacli.chat.conversation import Conversation
from lacli.session.session import Session


class Spelled(NamedTuple):
    """A conversation up to the end of an answer, and its tokens."""

    text: str
    tokens: list[int]


class Prompts:
    """Prompts of one conversation, which grows, and is sometimes cut back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._answered: list[Spelled] = []

    def spell(self, messages: Sequence[Mapping[str, str]]) -> Spelled:
        """A conversation as the template writes it, up to where the next answer begins."""
        text = self._session.prompts.render(messages)
        while self._answered and not text.startswith(self._answered[-1].text):
            self._answered.pop()
        known = self._answered[-1] if self._answered else Spelled("", [])
        rest = self._session.prompts.tokenize(text[len(known.text) :], add_special=not known.text)
        if known.text and not self._is_special(rest[:1]):
            # A tokenizer may join the answer's end with ordinary text behind it, or put a space between them.
            return Spelled(text, self._session.prompts.tokenize(text))
        return Spelled(text, [*known.tokens, *rest])

    def answered(self, prompt: Spelled, tokens: Sequence[int]) -> None:
        """Remember the tokens of an answer; an end token is the template's to write."""
        kept = [*tokens[:-1]] if tokens and self._session.model.is_end(tokens[-1]) else [*tokens]
        text = prompt.text + self._session.prompts.marked(self._session.text(kept), "assistant")
        self._answered.append(Spelled(text, [*prompt.tokens, *kept]))

    def recall(self, conversation: Conversation) -> None:
        """Remember the tokens of answers that were saved with them; those of another model say something else."""
        self._answered = []
        messages = conversation.as_messages()
        first = len(messages) - len(conversation.messages)
        for place, message in enumerate(conversation.messages, start=first):
            if message.tokens and self._say(message.tokens) in message.content:
                self.answered(self.spell(messages[:place]), message.tokens)

    def _say(self, tokens: Sequence[int]) -> str:
        """What tokens say with the names of special ones, which another model's may be here, less the end."""
        model = self._session.model
        if max(tokens) >= model.vocabulary:
            return "\0"
        return self._session.text(tokens[:-1] if model.is_end(tokens[-1]) else tokens, special=True)

    def _is_special(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and not self._session.model.piece(tokens[0])
