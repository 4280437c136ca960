"""A conversation with a model: the tokens of its prompts, and turns that decode only what is new."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Conversation, Message
from lacli.engine.answer import Answer
from lacli.engine.load import ModelEngine
from lacli.errors import PromptError
from lacli.llamacpp.sampling import SamplingSettings, new_seed
from lacli.report import as_lines, context_full
from lacli.settings import DecodeSettings, Detail
from lacli.terminal.interrupts import without_ctrl_c
from lacli.text.format import counted
from lacli.text.reasoning import begun_reasoning, closed, mark_reasoning
from lacli.text.stream import Piece

ANSWER_SHARE = 8
"""A prompt that leaves less than one part in this many of the context for its answer drops the oldest turns."""


class Prompt(NamedTuple):
    """A conversation as its template writes it, up to the end of an answer, and its tokens."""

    text: str
    tokens: list[int]


class PromptTokens:
    """The tokens of a conversation's prompts: an answer keeps the tokens that it was generated with.

    A text can be cut into tokens in several ways, and a model does not always choose the tokenizer's. Cut anew, an
    answer could differ from what is in the cache, and would be decoded again from there.
    """

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine
        self._answered: list[Prompt] = []

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> Prompt:
        """A conversation up to where its next answer begins."""
        text = self._engine.prompts.render(messages)
        while self._answered and not text.startswith(self._answered[-1].text):
            self._answered.pop()
        known = self._answered[-1] if self._answered else Prompt("", [])
        rest = self._engine.prompts.tokenize(text[len(known.text) :], add_special=not known.text)
        begins_special = bool(rest) and not self._engine.model.piece(rest[0])
        if known.text and not begins_special:
            # A tokenizer may join the answer's end with ordinary text behind it, or put a space between them.
            return Prompt(text, self._engine.prompts.tokenize(text))
        return Prompt(text, [*known.tokens, *rest])

    def answered(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        """Remember the tokens of an answer; an end token is the template's to write."""
        kept = self._without_end(tokens)
        text = prompt.text + self._engine.prompts.marked(self._engine.text(kept), "assistant")
        self._answered.append(Prompt(text, [*prompt.tokens, *kept]))

    def recall(self, conversation: Conversation) -> None:
        """Remember the tokens that a conversation's answers came with; those of another model say something else."""
        self._answered = []
        messages = conversation.as_messages()
        first = len(messages) - len(conversation.sent)
        for place, message in enumerate(conversation.sent, start=first):
            known = message.tokens and max(message.tokens) < self._engine.model.vocabulary
            # Another model's tokens may be control tokens here: shown with their names they are not the answer.
            if known and self._engine.text(self._without_end(message.tokens), special=True) in message.content:
                self.answered(self.prompt(messages[:place]), message.tokens)

    def _without_end(self, tokens: Sequence[int]) -> list[int]:
        return [*tokens[:-1]] if tokens and self._engine.model.is_end(tokens[-1]) else [*tokens]


class Chat:
    """Turns of a conversation on one engine, whose cache holds the last of them.

    `turns`: the answers so far. `notes`: sentences about the last turn or change.
    """

    def __init__(self, engine: ModelEngine, settings: ChatSettings, conversation: Conversation) -> None:
        """If the user has set no seed, the session's is the one in use."""
        self.engine = engine
        self.conversation = conversation
        self.turns: list[Answer] = []
        self.notes: list[str] = []
        self._wanted = settings
        self._used = 0
        self._seed = engine.sampling.seed
        self._prompts = PromptTokens(engine)
        self.recall()

    @property
    def settings(self) -> ChatSettings:
        """The settings, with a mode that the model can run."""
        return replace(self._wanted, decode_settings=self.engine.settings)

    @property
    def seed(self) -> int:
        """The seed in use if the user has set none; -1 if he has, or if nothing is drawn."""
        return -1 if self.engine.sampling.greedy or self._wanted.sampling.seed >= 0 else self._seed

    @property
    def used(self) -> int:
        """Tokens of the context that the conversation takes, decoded already or not."""
        return min(self._used, self.cells)

    @property
    def cells(self) -> int:
        """Tokens that the context has room for."""
        return self.engine.context.cells

    @property
    def last(self) -> Answer | None:
        """The latest answer."""
        return self.turns[-1] if self.turns else None

    def tokens_of(self, text: str) -> int:
        """The number of a text's tokens."""
        return len(self.engine.model.tokenize(text, add_special=False, special=False))

    def report(self, answer: Answer, detail: Detail) -> str:
        """What an answer cost, a line for each subject."""
        return as_lines(self.engine, answer, detail=detail, max_tokens=self.settings.max_tokens)

    def ask(self, question: str) -> Generator[Piece]:
        """Ask, and give the answer as it comes; close it to stop, and what came so far is the answer.

        Raises PromptError if the context has no room for the question, which is taken back then.
        """
        if not question.strip():
            raise PromptError("the message is empty", "write one")
        before, dropped = self.conversation.messages.copy(), self.conversation.dropped
        self.notes = []
        self.conversation.ask(question)
        return self._turn(before, dropped)

    def again(self) -> Generator[Piece]:
        """Answer the last question anew; the answer that there is goes when the new one comes."""
        before, dropped, turns = self.conversation.messages.copy(), self.conversation.dropped, len(self.turns)
        self.notes = []
        try:
            self.conversation.take_back_answer()
            if self._wanted.sampling.seed < 0 and not self.engine.sampling.greedy:
                self._seed = new_seed()
                self._adapt(self.engine.settings, self._wanted.sampling)
            yield from self._turn(before, dropped)
            if before == self.conversation.messages and self._wanted.max_tokens:
                self.notes.append("the answer came out the same; /set temp 0.8 and /set seed -1 give others")
        finally:
            if len(self.turns) == turns:
                self.conversation.messages[:] = before

    def undo(self) -> str | None:
        """Take the last question and its answer back; the question, or None if nothing was asked."""
        question = self.conversation.undo()
        self._count_used()
        return question

    def clear(self) -> None:
        """Forget all questions and answers; the system prompt stays."""
        self.conversation.clear()
        self._count_used()

    def resume(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation = conversation
        self.recall()

    def recall(self) -> None:
        """Take in a conversation that was edited; its answers keep the tokens they were generated with."""
        with suppress(PromptError):  # the next turn says it
            self._prompts.recall(self.conversation)
        self._count_used()

    def change(self, settings: ChatSettings, seed: int = -1) -> str:
        """Take new settings; what to know about them, empty for nothing. `seed`: the one in use if they set none.

        Raises UsageError for settings that cannot be, ModelLoadError for a context that does not fit into memory; then
        the old ones stay.
        """
        known = len(self.engine.notes)
        if seed >= 0:
            self._seed = seed
        elif settings.sampling.seed < 0 <= self._wanted.sampling.seed:
            self._seed = new_seed()
        new_context = self._adapt(settings.decode_settings, settings.sampling)
        self._wanted = settings
        sentences = self.engine.notes[known:]
        if new_context:
            sentences.append("the context was made anew: the conversation is decoded again with the next message")
        return "; ".join(sentences)

    def _turn(self, before: list[Message], dropped: int) -> Generator[Piece]:
        """The answer to the last question. `before`, `dropped`: what comes back if it has no room."""
        try:
            prompt = self._fitting_prompt()
        except PromptError:
            self.conversation.messages[:], self.conversation.dropped = before, dropped
            raise
        stops = (*self._wanted.stops, *self.engine.prompts.turn_ends)
        generation = self.engine.generate(prompt.tokens, self._wanted.max_tokens, stops)
        begun = begun_reasoning(prompt.text)
        try:
            yield from mark_reasoning(generation, begun)
        finally:
            with without_ctrl_c():
                if generation.statistics.steps:
                    self._finish(prompt, generation.answer(), begun)

    def _finish(self, prompt: Prompt, answer: Answer, begun: str) -> None:
        """Take what came as the answer."""
        # The answer is read later without the end of its prompt, which may have begun its reasoning.
        self.conversation.answer(closed(begun + answer.text) if begun else answer.text, answer.tokens)
        self._prompts.answered(prompt, answer.tokens)
        self.turns.append(answer)
        self._used = len(prompt.tokens) + len(answer.tokens)
        if answer.filled_context(self._wanted.max_tokens):
            self.notes.append(context_full(self.cells, self.engine.context_hint(self.cells + 1)))
        if not answer.text and answer.finish_reason != "interrupt":
            self.notes.append("the answer is empty: it ended at once")

    def _prompt(self) -> Prompt:
        """The conversation as the beginning of the next prompt; some templates want a question at the end."""
        messages = self.conversation.as_messages()
        question = [] if self.conversation.is_open else [{"role": "user", "content": "?"}]
        return self._prompts.prompt([*messages, *question])

    def _fitting_prompt(self) -> Prompt:
        """The conversation as a prompt; without room for an answer behind it the oldest turns are dropped from it.

        Half of the context is free then, so that the next turns go on in the cache. Raises PromptError if the last
        question alone has no room.
        """
        prompt, dropped = self._prompt(), self.conversation.dropped
        if len(prompt.tokens) > self.cells - self.cells // ANSWER_SHARE:
            while len(prompt.tokens) > self.cells // 2 and self.conversation.drop_oldest():
                self._prompts.recall(self.conversation)
                prompt = self._prompt()
        if (tokens := len(prompt.tokens)) >= self.cells:
            hint = f"send a shorter one; {self.engine.context_hint(tokens)}"
            raise PromptError(f"the message needs {tokens:,} tokens and the context has {self.cells:,}", hint)
        if dropped := self.conversation.dropped - dropped:
            oldest = f"the oldest {counted(dropped, 'question')}"
            self.notes.append(f"the context was full: the model does not see {oldest} any more")
        return prompt

    def _count_used(self) -> None:
        """Count what the conversation takes after it was edited; the next turn cuts the cache back."""
        with suppress(PromptError):  # the next turn says it
            self._used = len(self._prompt().tokens) if self.conversation.messages else 0

    def _adapt(self, decode_settings: DecodeSettings, sampling: SamplingSettings) -> bool:
        """Change the engine, with this chat's seed if the user has set none; half changed it could not go on."""
        with without_ctrl_c():
            return self.engine.adapt(
                decode_settings, replace(sampling, seed=self._seed) if sampling.seed < 0 else sampling
            )
