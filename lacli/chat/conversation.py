"""A conversation with a model in this process: the tokens of its prompts, and turns that decode only what is new."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from lacli.chat.setting import shortened
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Conversation, Message
from lacli.errors import PromptError
from lacli.llamacpp.sampling import SamplingSettings, new_seed
from lacli.session.generation import Answer
from lacli.session.report import as_lines, context_full, describe
from lacli.session.session import Session
from lacli.settings import DecodeSettings, Detail
from lacli.stats import Finish
from lacli.terminal.interrupts import without_ctrl_c
from lacli.text.reasoning import begun_reasoning, closed, mark_reasoning
from lacli.text.stream import Piece

ENDED_BY: dict[Finish, str] = {"eog": "an end token", "stop": "a stop text", "length": "the limit"}

FULL, COMPACT = 7 / 8, 1 / 2
"""Shares of the context: a longer prompt leaves its oldest questions out, until it is no longer than the second."""

SHORT_ANSWERS = 8
"""Answers that a context has room for at the length that is advised where one has filled it."""


class Prompt(NamedTuple):
    """A conversation as its template writes it, up to the end of an answer, and its tokens."""

    text: str
    tokens: list[int]


class PromptTokens:
    """The tokens of a conversation's prompts: an answer keeps the tokens that it was generated with.

    A text can be cut into tokens in several ways, and a model does not always take the tokenizer's. Read anew, an
    answer could begin to differ from what is in the cache, and would be decoded again from there.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._answered: list[Prompt] = []

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> Prompt:
        """A conversation up to where its next answer begins."""
        text = self._session.prompts.render(messages)
        while self._answered and not text.startswith(self._answered[-1].text):
            self._answered.pop()
        known = self._answered[-1] if self._answered else Prompt("", [])
        rest = self._session.prompts.tokenize(text[len(known.text) :], add_special=not known.text)
        begins_special = bool(rest) and not self._session.model.piece(rest[0])
        if known.text and not begins_special:
            # A tokenizer may join the answer's end with ordinary text behind it, or put a space between them.
            return Prompt(text, self._session.prompts.tokenize(text))
        return Prompt(text, [*known.tokens, *rest])

    def answered(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        """Remember the tokens of an answer; an end token is the template's to write."""
        kept = self._without_end(tokens)
        text = prompt.text + self._session.prompts.marked(self._session.text(kept), "assistant")
        self._answered.append(Prompt(text, [*prompt.tokens, *kept]))

    def recall(self, conversation: Conversation) -> None:
        """Remember the tokens that a conversation's answers came with; those of another model say something else."""
        self._answered = []
        messages = conversation.as_messages()
        first = len(messages) - len(conversation.shown)
        for place, message in enumerate(conversation.shown, start=first):
            known = message.tokens and max(message.tokens) < self._session.model.vocabulary
            # Another model's tokens may be control tokens here: shown with their names they are not the answer.
            if known and self._session.text(self._without_end(message.tokens), special=True) in message.content:
                self.answered(self.prompt(messages[:place]), message.tokens)

    def _without_end(self, tokens: Sequence[int]) -> list[int]:
        return [*tokens[:-1]] if tokens and self._session.model.is_end(tokens[-1]) else [*tokens]


class Chat:
    """Turns of a conversation on one session, whose cache holds the last of them.

    `conversation`: what was said. `turns`: the answers so far. `notes`: sentences about the last turn or change.
    `dropped`: the number of oldest questions that it left out for the first time. `takes_commands`: advice may name
    slash commands.
    """

    def __init__(self, session: Session, settings: ChatSettings, conversation: Conversation) -> None:
        """Where the user has set no seed, the session's is the one in use."""
        self.conversation = conversation
        self._wanted = settings
        self.turns: list[Answer] = []
        self.notes: list[str] = []
        self.dropped = 0
        self.takes_commands = True
        self.session = session
        self._used = 0
        self._seed = session.sampling.seed
        self._prompts = PromptTokens(session)
        self.recall()

    @property
    def last(self) -> Answer | None:
        """The latest answer."""
        return self.turns[-1] if self.turns else None

    @property
    def mode(self) -> str:
        """How tokens are guessed, in a word."""
        return self.settings.decode_settings.mode

    @property
    def guessing(self) -> str:
        """How tokens are guessed, in a line."""
        return describe(self.settings.decode_settings)

    @property
    def settings(self) -> ChatSettings:
        """The settings, with a mode that the model can run."""
        return replace(self._wanted, decode_settings=self.session.settings)

    @property
    def seed(self) -> int:
        """The seed in use where the user has set none; -1 where he has, or where nothing is drawn."""
        return -1 if self.session.sampling.greedy or self._wanted.sampling.seed >= 0 else self._seed

    @property
    def used(self) -> int:
        """Tokens of the context that the conversation takes, decoded already or not."""
        return min(self._used, self.cells)

    @property
    def cells(self) -> int:
        """Tokens that the context has room for."""
        return self.session.engine.cells

    @property
    def asked_cells(self) -> int:
        return self.session.model_settings.context

    @property
    def description(self) -> str:
        return self.session.model.description

    @property
    def template(self) -> str:
        return self.session.prompts.template.name

    @property
    def in_use(self) -> ChatSettings:
        """The settings, with those sources alone that can guess anything here."""
        now = self.settings
        return replace(now, decode_settings=replace(now.decode_settings, sources=self.session.sources))

    @property
    def most_cells(self) -> int:
        return self.session.model.context

    def tokens_of(self, text: str) -> int:
        return len(self.session.model.tokenize(text, add_special=False, special=False))

    def report(self, answer: Answer, *, detail: Detail, width: int) -> str:
        limit = self.settings.max_tokens
        return as_lines(self.session, answer, detail=detail, width=width, max_tokens=limit)

    def ask(self, question: str) -> Generator[Piece]:
        """Ask, and give the answer as it comes; close it to stop, and what came so far is the answer.

        Raises PromptError where the context has no room for the question, which is taken back then.
        """
        if not question.strip():
            raise PromptError("the message is empty", "write one")
        before = self.conversation.messages.copy()
        self.notes = []
        if self.conversation.is_open and (before_it := self.conversation.messages[-1].content) != question:
            # A file may stand before the question.
            asked = before_it.rpartition("\n\n")[2]
            self.notes.append(f'"{shortened(asked)}" had no answer and is left out')
        self.conversation.ask(question)
        return self._turn(before)

    def again(self) -> Generator[Piece]:
        """Answer the last question anew; the answer that there is goes when the new one comes."""
        before, turns = self.conversation.messages.copy(), len(self.turns)
        try:
            self.notes = []
            self.conversation.take_back_answer()
            self._draw_anew()
            yield from self._turn(before)
            if before == self.conversation.messages and self._wanted.max_tokens:
                self.notes.append(self._why_the_same())
        finally:
            if len(self.turns) == turns:
                self._restore(before)

    def undo(self) -> str | None:
        """Take the last question and its answer back; the question, or None where nothing was asked."""
        question = self.conversation.undo()
        self._cut_back()
        return question

    def clear(self) -> None:
        """Forget all questions and answers; the system prompt stays."""
        self.conversation.clear()
        self._cut_back()

    def resume(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation = conversation
        self.recall()

    def compact(self) -> int:
        """Drop the oldest questions with their answers until half the context is free; the number of those dropped.

        At least one is, where there is one before the last question.
        """
        rest = Conversation(self.conversation.system, self.conversation.messages)
        if dropped := self._drop_half(rest):
            self.resume(rest)
        return dropped

    def _drop_half(self, conversation: Conversation) -> int:
        """Drop from a conversation what `compact` drops, and return the number of questions."""
        dropped = 0
        while not dropped or len(self._prompt(conversation).tokens) > COMPACT * self.cells:
            if not conversation.drop_oldest():
                break
            dropped += 1
        return dropped

    def recall(self) -> None:
        """Take in a conversation that was edited; its answers keep the tokens they were generated with."""
        self.conversation.left_out = 0
        with suppress(PromptError):  # the next turn says it
            self._prompts.recall(self.conversation)
        self._cut_back()

    def change(self, settings: ChatSettings, seed: int = -1) -> str:
        """Take new settings; what to know about them, empty where there is nothing. `seed`: where they set none.

        Raises UsageError for settings that cannot be, ModelLoadError for a context that does not fit into memory; then
        the old ones stay.
        """
        known = len(self.session.notes)
        if seed >= 0:
            self._seed = seed
        elif settings.sampling.seed < 0 <= self._wanted.sampling.seed:
            self._seed = new_seed()
        new_context = self._adapt(settings.decode_settings, settings.sampling)
        self._wanted = settings
        sentences = self.session.notes[known:]
        if new_context:
            sentences.append("the context was made anew: the conversation is decoded again with the next message")
        return "; ".join(sentences)

    def _draw_anew(self) -> None:
        if self._wanted.sampling.seed < 0 and not self.session.sampling.greedy:
            self._seed = new_seed()
            self._adapt(self.session.settings, self._wanted.sampling)

    def _why_the_same(self) -> str:
        sampling = self._wanted.sampling
        if not sampling.temp and not sampling.xtc_probability:
            return "at temperature 0 the answer comes out the same; /set temp 0.8 for another one"
        if sampling.seed >= 0:
            return f"with seed {sampling.seed} the answer comes out the same; /set seed -1 for another one each time"
        return "another seed gave the same answer"

    def _restore(self, messages: list[Message]) -> None:
        conversation = self.conversation
        conversation.messages[:] = messages
        conversation.left_out = min(conversation.left_out, max(conversation.questions - 1, 0))
        self.dropped = 0

    def _turn(self, before: list[Message]) -> Generator[Piece]:
        """The answer to the last question; `before`: the messages that come back where it has no room."""
        try:
            prompt = self._fitting_prompt()
        except PromptError:
            self._restore(before)
            raise
        generation = self.session.generate(
            prompt.tokens,
            self._wanted.max_tokens,
            (*self._wanted.stops, *self.session.prompts.turn_ends),
            reuse=True,
        )
        begun = begun_reasoning(prompt.text)
        try:
            yield from mark_reasoning(generation, begun)
        finally:
            with without_ctrl_c():
                if generation.statistics.steps:
                    self._finish(prompt, generation.answer(), begun)
        if not generation.statistics.steps:
            no_limit = "/set n -1" if self.takes_commands else "-n -1"
            self.notes.append(f"-n is 0, so nothing was answered; {no_limit} takes the limit away")

    def _finish(self, prompt: Prompt, answer: Answer, begun: str) -> None:
        """Take what came as the answer."""
        # The answer is read later without the end of its prompt, where its reasoning may have begun.
        self.conversation.answer(closed(begun + answer.text) if begun else answer.text, answer.tokens)
        self._prompts.answered(prompt, answer.tokens)
        self.turns.append(answer)
        self._used = len(prompt.tokens) + len(answer.tokens)
        if answer.filled_context(self._wanted.max_tokens):
            self.notes.append(context_full(self.cells, self._ways_to_room(self._used)))
        if not answer.text and answer.finish_reason != "interrupt":
            self.notes.append(f"the answer is empty: it ended at once, by {ENDED_BY[answer.finish_reason]}")

    def _prompt(self, conversation: Conversation) -> Prompt:
        """A conversation as the beginning of the next prompt; some templates want a question at the end."""
        messages = conversation.as_messages()
        return self._prompts.prompt(messages if conversation.is_open else [*messages, {"role": "user", "content": "?"}])

    def _fitting_prompt(self) -> Prompt:
        """The conversation as a prompt with room for an answer behind it, without the oldest questions where needed.

        Raises PromptError where the last question has no room alone.
        """
        conversation, before = self.conversation, self.conversation.left_out
        prompt = self._prompt(conversation)
        if len(prompt.tokens) > FULL * self.cells:
            # What is left is decoded again, so it should not soon be too long again.
            while len(prompt.tokens) > COMPACT * self.cells and conversation.left_out < conversation.questions - 1:
                conversation.left_out += 1
                self._prompts.recall(conversation)
                prompt = self._prompt(conversation)
        if len(prompt.tokens) >= self.cells:
            conversation.left_out = before
            self._prompts.recall(conversation)
            raise self._too_long(len(prompt.tokens))
        self.dropped = conversation.left_out - before
        return prompt

    def _too_long(self, tokens: int) -> PromptError:
        """The error about a question that makes a prompt of `tokens` alone; it is taken back."""
        system = self.conversation.system
        larger, with_system = self._larger(tokens), " with /system" if self.takes_commands else ""
        ways = [
            "send a shorter one" if not system or self._tokens([Message("user", "?")]) < self.cells else "",
            f"shorten the system prompt{with_system}" if system else "",
            f"start again with {larger}" if larger else "",
        ]
        needs = "with the system prompt the message needs" if system else "the message needs"
        return PromptError(f"{needs} {tokens:,} tokens and the context has {self.cells:,}", _either(ways))

    def _ways_to_room(self, tokens: int) -> str:
        """What a user can do about an answer that a context has ended, full with `tokens`."""
        limit = f"/set n {self.cells // SHORT_ANSWERS}" if self.takes_commands else f"-n {self.cells // SHORT_ANSWERS}"
        larger = self._larger(tokens)
        return _either([f"{limit} keeps answers short", f"a chat with {larger} has more room" if larger else ""])

    def _tokens(self, messages: list[Message]) -> int:
        """The tokens of a prompt of these messages; as many as the context has where the template fails."""
        conversation = Conversation(self.conversation.system, messages)
        try:
            return len(self.session.prompts.conversation(conversation.as_messages()))
        except PromptError:
            return self.cells

    def _larger(self, tokens: int) -> str:
        """The flag for a context with room for `tokens` and half of this one, empty where the model cannot have it."""
        whole = -(-(tokens + self.cells // 2) // self.cells)
        cells = min(whole * self.cells, self.session.model.context)
        return f"-c {cells}" if cells > max(tokens, self.cells) else ""

    def _cut_back(self) -> None:
        """Forget, in the cache and in what was learned, what the conversation does not have any more."""
        with suppress(PromptError):  # the next turn says it
            prompt = self._prompt(self.conversation)
            self.session.decoder.cut_back(prompt.tokens)
            self._used = len(prompt.tokens) if self.conversation.messages else 0

    def _adapt(self, decode_settings: DecodeSettings, sampling: SamplingSettings) -> bool:
        """Change the session, with this chat's seed where the user has set none; half changed it could not go on."""
        with without_ctrl_c():
            return self.session.adapt(
                decode_settings, replace(sampling, seed=self._seed) if sampling.seed < 0 else sampling
            )


def _either(ways: list[str]) -> str:
    """The `ways` that there are, with "or" before the last."""
    *others, last = filter(None, ways)
    return f"{', '.join(others)}, or {last}" if others else last
