"""A conversation with a model: its messages, and turns that decode only what is new."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from lacli.chat.settings import ChatSettings
from lacli.engine.answer import Answer
from lacli.engine.load import ModelEngine
from lacli.errors import PromptError
from lacli.interrupts import without_ctrl_c
from lacli.report import context_full
from lacli.text.format import counted
from lacli.text.reasoning import begun_reasoning, closed, mark_reasoning
from lacli.text.stream import Piece

ANSWER_SHARE = 8
"""A prompt that leaves less than one part in this many of the context for its answer drops the oldest turns."""


@dataclass(frozen=True)
class Message:
    """One message; an answer's content is what was generated, reasoning included."""

    role: Literal["user", "assistant"]
    content: str


@dataclass
class Conversation:
    """Questions and answers in turns, beginning with a question; the last question may have no answer yet.

    `dropped`: the number of oldest questions that prompts leave out with their answers, for want of cells.
    """

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    dropped: int = field(default=0, compare=False)

    def ask(self, text: str) -> None:
        """Add a question, in the place of one that has no answer: templates want turns."""
        if self.is_open:
            self.messages.pop()
        self.messages.append(Message("user", text))

    def answer(self, text: str) -> None:
        """Add the answer to the last question. Raises ValueError if it has one."""
        if not self.is_open:
            raise ValueError("the last question has an answer")
        self.messages.append(Message("assistant", text))

    def undo(self) -> str | None:
        """Take the last question back, with its answer, and return it; None if nothing was asked."""
        self.take_back_answer()
        question = self.messages.pop().content if self.messages else None
        self.dropped = min(self.dropped, max(self.questions - 1, 0))
        return question

    def take_back_answer(self) -> None:
        """Remove the last question's answer, if it has one."""
        if self.messages and not self.is_open:
            self.messages.pop()

    def drop_oldest(self) -> bool:
        """Leave one more of the oldest questions out of prompts; False if only the last one is left."""
        if self.questions - self.dropped < 2:
            return False
        self.dropped += 1
        return True

    @property
    def questions(self) -> int:
        """The number of questions, the open one included."""
        return (len(self.messages) + 1) // 2

    @property
    def is_open(self) -> bool:
        """True if the last question has no answer."""
        return len(self.messages) % 2 == 1

    def as_messages(self) -> list[dict[str, str]]:
        """What a chat template takes: the system prompt if there is one, and the messages that are not dropped."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        sent = self.messages[2 * self.dropped :]
        return [*system, *({"role": message.role, "content": message.content} for message in sent)]


class Chat:
    """Turns of a conversation on one engine, whose cache holds the last of them.

    `turns`: the answers so far. `notes`: sentences about the last turn.
    """

    def __init__(self, engine: ModelEngine, settings: ChatSettings, conversation: Conversation) -> None:
        self.engine = engine
        self.turns: list[Answer] = []
        self.notes: list[str] = []
        self._wanted = settings
        self.resume(conversation)

    @property
    def settings(self) -> ChatSettings:
        """The settings, with a mode that the model can run."""
        return replace(self._wanted, decode_settings=self.engine.settings)

    @property
    def used(self) -> int:
        """Tokens of the context that the conversation takes, decoded already or not."""
        return min(self._used, self.cells)

    @property
    def cells(self) -> int:
        """Tokens that the context has room for."""
        return self.engine.context.cells

    def ask(self, question: str) -> Generator[Piece]:
        """Ask, and give the answer as it comes; close it to stop, and what came so far is the answer.

        A question that gets no answer is taken back. Raises PromptError if the context has no room for it.
        """
        with self._unless_unanswered():
            self.conversation.ask(question)
            yield from self._turn()

    def again(self) -> Generator[Piece]:
        """Answer the last question anew; the answer that there is goes when the new one comes."""
        before = self.conversation.messages.copy()
        with self._unless_unanswered():
            self.conversation.take_back_answer()
            if self._wanted.sampling.seed < 0 and not self.engine.sampling.greedy:
                self.change(self._wanted)  # with another seed
            yield from self._turn()
        if before == self.conversation.messages:
            self.notes.append("the answer came out the same; /set temp 0.8 and /set seed -1 give others")

    def resume(self, conversation: Conversation) -> None:
        """Go on with a conversation, another one or this one edited; the next turn cuts the cache back."""
        self.conversation, self._used = conversation, 0
        with suppress(PromptError):  # the next turn raises it again
            self._used = len(self._prompt()[1]) if conversation.messages else 0

    def change(self, settings: ChatSettings) -> str:
        """Take new settings; what to know about them, empty for nothing. If they have no seed, a new one is chosen.

        Raises UsageError for settings that cannot be, ModelLoadError for a context that does not fit into memory; then
        the old ones stay.
        """
        known = len(self.engine.notes)
        with without_ctrl_c():  # half changed the engine could not go on
            self.engine.adapt(settings.decode_settings, settings.sampling)
        self._wanted = settings
        return "; ".join(self.engine.notes[known:])

    @contextmanager
    def _unless_unanswered(self) -> Iterator[None]:
        """Leave the conversation as it was if no answer comes inside."""
        conversation, turns = self.conversation, len(self.turns)
        before, dropped = conversation.messages.copy(), conversation.dropped
        self.notes = []
        try:
            yield
        finally:
            if len(self.turns) == turns:
                conversation.messages[:], conversation.dropped = before, dropped

    def _turn(self) -> Generator[Piece]:
        """The answer to the last question."""
        rendered, prompt = self._fitting_prompt()
        stops = (*self._wanted.stops, *self.engine.prompts.template.stops)
        text, pieces = self.engine.generate(prompt, self._wanted.max_tokens, stops)
        begun = begun_reasoning(rendered)
        try:
            yield from mark_reasoning(pieces, begun)
        finally:
            with without_ctrl_c():
                pieces.close()
                if text.statistics.steps:
                    self._finish(prompt, text.answer(), begun)

    def _finish(self, prompt: Sequence[int], answer: Answer, begun: str) -> None:
        """Take what came as the answer."""
        # The answer is read later without the end of its prompt, which may have begun its reasoning.
        self.conversation.answer(closed(begun + answer.text) if begun else answer.text)
        self.turns.append(answer)
        self._used = len(prompt) + len(answer.tokens)
        if answer.filled_context(self._wanted.max_tokens):
            self.notes.append(context_full(self.cells, self.engine.context_hint(self.cells)))

    def _prompt(self) -> tuple[str, list[int]]:
        """The conversation as the beginning of the next prompt, and its tokens; some templates want a question last."""
        messages = self.conversation.as_messages()
        question = [] if self.conversation.is_open else [{"role": "user", "content": "?"}]
        rendered = self.engine.prompts.render([*messages, *question])
        return rendered, self.engine.prompts.tokenize(rendered)

    def _fitting_prompt(self) -> tuple[str, list[int]]:
        """The conversation as a prompt, and its tokens; the oldest turns are dropped if there is no room for an answer.

        Half of the context is free then, so that the next turns go on in the cache. Raises PromptError if the last
        question alone has no room.
        """
        (rendered, tokens), dropped = self._prompt(), self.conversation.dropped
        if len(tokens) > self.cells - self.cells // ANSWER_SHARE:
            while len(tokens) > self.cells // 2 and self.conversation.drop_oldest():
                rendered, tokens = self._prompt()
        if (count := len(tokens)) >= self.cells:
            hint = f"send a shorter one; {self.engine.context_hint(count)}"
            raise PromptError(f"the message needs {count:,} tokens and the context has {self.cells:,}", hint)
        if dropped := self.conversation.dropped - dropped:
            oldest = f"the oldest {counted(dropped, 'question')}"
            self.notes.append(f"the context was full: the model does not see {oldest} any more")
        return rendered, tokens
