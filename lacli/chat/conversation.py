"""A conversation with a model: its messages, and turns that decode only new tokens."""

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
"""If a prompt leaves less than this fraction (1/8) of the context for its answer, the oldest turns are dropped."""


@dataclass(frozen=True)
class Message:
    """One message. An answer's content is the generated text, reasoning included."""

    role: Literal["user", "assistant"]
    content: str


@dataclass
class Conversation:
    """A system prompt, and questions and answers in turns. A question is first; the last question may be unanswered.

    `dropped`: number of the oldest questions that prompts omit, with their answers, because the context is full.
    """

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    dropped: int = field(default=0, compare=False)

    def ask(self, text: str) -> None:
        """Add a question. It replaces an unanswered question, because templates need questions and answers in turns."""
        if self.is_open:
            self.messages.pop()
        self.messages.append(Message("user", text))

    def answer(self, text: str) -> None:
        """Add the answer to the last question. Raises ValueError if no question is unanswered."""
        if not self.is_open:
            raise ValueError("no question is unanswered: add one before its answer")
        self.messages.append(Message("assistant", text))

    def undo(self) -> str | None:
        """Remove the last question and its answer. Returns the question, or None if there was none."""
        self.take_back_answer()
        question = self.messages.pop().content if self.messages else None
        self.dropped = min(self.dropped, max(self.questions - 1, 0))
        return question

    def take_back_answer(self) -> None:
        if self.messages and not self.is_open:
            self.messages.pop()

    def drop_oldest(self) -> bool:
        """Omit one more question from prompts, the oldest. Returns False, and omits none, if only one is left."""
        if self.questions - self.dropped < 2:
            return False
        self.dropped += 1
        return True

    @property
    def questions(self) -> int:
        return (len(self.messages) + 1) // 2

    @property
    def is_open(self) -> bool:
        return len(self.messages) % 2 == 1

    def as_messages(self) -> list[dict[str, str]]:
        """Return the messages for a chat template: the system prompt if there is one, then all messages not dropped."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        sent = self.messages[2 * self.dropped :]
        return [*system, *({"role": message.role, "content": message.content} for message in sent)]


class Chat:
    """A conversation on one engine, whose cache keeps the tokens of the last turn.

    `turns`: the answers so far, the oldest first. `notes`: sentences for the user about the last turn.
    """

    def __init__(self, engine: ModelEngine, settings: ChatSettings, conversation: Conversation) -> None:
        self.engine = engine
        self.turns: list[Answer] = []
        self.notes: list[str] = []
        self._wanted = settings
        self.resume(conversation)

    @property
    def settings(self) -> ChatSettings:
        """The current settings, with the mode that the engine uses: the model may not support the requested mode."""
        return replace(self._wanted, decode_settings=self.engine.settings)

    @property
    def used(self) -> int:
        """Number of cells that the conversation needs, at most `cells`. Tokens that are not decoded yet count too."""
        return min(self._used, self.cells)

    @property
    def cells(self) -> int:
        return self.engine.context.cells

    def ask(self, question: str) -> Generator[Piece]:
        """Ask a question and yield pieces of the answer. Closing the generator ends the answer and keeps its text.

        If no answer begins, the question is removed. Raises PromptError if the question does not fit into the context.
        """
        with self._restored_if_unanswered():
            self.conversation.ask(question)
            yield from self._turn()

    def again(self) -> Generator[Piece]:
        """Answer the last question anew and yield pieces of the answer. If no answer begins, the old answer stays."""
        before = self.conversation.messages.copy()
        with self._restored_if_unanswered():
            self.conversation.take_back_answer()
            if self._wanted.sampling.seed < 0 and not self.engine.sampling.greedy:
                self.change(self._wanted)  # with another seed
            yield from self._turn()
        if before == self.conversation.messages:
            self.notes.append("the answer came out the same; /set temp 0.8 and /set seed -1 give others")

    def resume(self, conversation: Conversation) -> None:
        """Continue with `conversation` instead. The next turn keeps the cached tokens that its prompt begins with."""
        self.conversation, self._used = conversation, 0
        with suppress(PromptError):  # the next turn raises the error again
            self._used = len(self._prompt()[1]) if conversation.messages else 0

    def change(self, settings: ChatSettings) -> str:
        """Apply new settings, and draw a new seed unless they fix one. Returns the engine's new notes, joined, or "".

        Raises UsageError for impossible settings and ModelLoadError if the new context does not fit into memory. After
        an error the old settings stay.
        """
        known = len(self.engine.notes)
        with without_ctrl_c():  # a half changed engine could not decode
            self.engine.adapt(settings.decode_settings, settings.sampling)
        self._wanted = settings
        return "; ".join(self.engine.notes[known:])

    @contextmanager
    def _restored_if_unanswered(self) -> Iterator[None]:
        """Restore the conversation after the block if the block added no answer."""
        conversation, turns = self.conversation, len(self.turns)
        before, dropped = conversation.messages.copy(), conversation.dropped
        self.notes = []
        try:
            yield
        finally:
            if len(self.turns) == turns:
                conversation.messages[:], conversation.dropped = before, dropped

    def _turn(self) -> Generator[Piece]:
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
        """Add the generated `answer` to the conversation. `begun`: the prompt's end that opens reasoning, or ""."""
        # Later prompts show the answer without the end of this prompt, which may have opened the reasoning.
        self.conversation.answer(closed(begun + answer.text) if begun else answer.text)
        self.turns.append(answer)
        self._used = len(prompt) + len(answer.tokens)
        if answer.filled_context(self._wanted.max_tokens):
            self.notes.append(context_full(self.cells, self.engine.context_hint(self.cells)))

    def _prompt(self) -> tuple[str, list[int]]:
        """Return the conversation as text and as tokens.

        An answer at its end is followed by a question "?", which some templates need.
        """
        messages = self.conversation.as_messages()
        question = [] if self.conversation.is_open else [{"role": "user", "content": "?"}]
        rendered = self.engine.prompts.render([*messages, *question])
        return rendered, self.engine.prompts.tokenize(rendered)

    def _fitting_prompt(self) -> tuple[str, list[int]]:
        """Return the conversation as text and as tokens. If too little space is left for an answer, drop old turns.

        Turns are dropped until half of the context is free, so that the next turns can reuse the cache. Raises
        PromptError if the last question alone does not fit.
        """
        (rendered, tokens), before = self._prompt(), self.conversation.dropped
        if len(tokens) > self.cells - self.cells // ANSWER_SHARE:
            while len(tokens) > self.cells // 2 and self.conversation.drop_oldest():
                rendered, tokens = self._prompt()
        if (count := len(tokens)) >= self.cells:
            hint = f"send a shorter one; {self.engine.context_hint(count)}"
            raise PromptError(f"the message needs {count:,} tokens and the context has {self.cells:,}", hint)
        if dropped := self.conversation.dropped - before:
            oldest = f"the oldest {counted(dropped, 'question')}"
            self.notes.append(f"the context was full: the model no longer sees {oldest}")
        return rendered, tokens
