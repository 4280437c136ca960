"""A conversation's messages, and its turns as the loop of a chat sees them, whatever answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lacli.chat.setting import shortened
from lacli.chat.settings import ChatSettings
from lacli.errors import PromptError
from lacli.session.generation import Answer
from lacli.session.report import describe
from lacli.settings import Detail
from lacli.stats import Step
from lacli.text.stream import Piece

Role = Literal["user", "assistant"]


@dataclass(frozen=True)
class Message:
    """One message; an answer's content is what was generated, reasoning included.

    `tokens`: the ids that an answer was generated with, where they are known.
    """

    role: Role
    content: str
    tokens: tuple[int, ...] = field(default=(), compare=False)


class Conversation:
    """Questions and answers in turns, beginning with a question; the last question may have no answer yet."""

    def __init__(self, system: str = "", messages: Sequence[Message] = ()) -> None:
        roles = [message.role for message in messages]
        assert all(role == ("assistant" if index % 2 else "user") for index, role in enumerate(roles)), roles
        self.system = system
        self.messages = [*messages]

    def ask(self, text: str) -> None:
        """Add a question, in the place of one that has no answer: templates want turns."""
        if self.is_open:
            self.messages.pop()
        self.messages.append(Message("user", text))

    def answer(self, text: str, tokens: Sequence[int] = ()) -> None:
        """Add the answer to the last question. `tokens`: as in `Message`."""
        assert self.is_open, "there is no question to answer"
        self.messages.append(Message("assistant", text, tuple(tokens)))

    def undo(self) -> str | None:
        """Take the last question back, with its answer, and return it; None where nothing was asked."""
        self.take_back_answer()
        return self.messages.pop().content if self.messages else None

    def take_back_answer(self) -> bool:
        """Remove the last question's answer; False where it has none."""
        if not self.messages or self.is_open:
            return False
        self.messages.pop()
        return True

    def clear(self) -> None:
        """Forget all questions and answers; the system prompt stays."""
        self.messages.clear()

    def drop_oldest(self) -> bool:
        """Remove the oldest question and its answer; False where only the last question is left."""
        if self.questions < 2:
            return False
        del self.messages[:2]
        return True

    @property
    def questions(self) -> int:
        """The number of questions, the open one included."""
        return (len(self.messages) + 1) // 2

    @property
    def is_open(self) -> bool:
        """True if the last question has no answer."""
        return len(self.messages) % 2 == 1

    @property
    def last_answer(self) -> str | None:
        """The latest answer, or None."""
        answers = [message.content for message in self.messages[-2:] if message.role == "assistant"]
        return answers[-1] if answers else None

    def as_messages(self) -> list[dict[str, str]]:
        """What a chat template takes: role and content of each message, after the system prompt if there is one."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *({"role": message.role, "content": message.content} for message in self.messages)]


class Talk:
    """Turns of a conversation, answered by a model in this process (`conversation.py`) or a server (`connected.py`).

    `conversation`: what was said. `turns`: the answers so far. `notes`: sentences about the last turn or change.
    `dropped`: the number of oldest questions that had no room in it. `watch`: gets every step. `takes_commands`: advice
    may name slash commands. `replicas`: copies of the model, of which some may be lost.
    """

    replicas = 1

    def __init__(self, settings: ChatSettings, conversation: Conversation) -> None:
        self.conversation = conversation
        self._wanted = settings
        self.turns: list[Answer] = []
        self.notes: list[str] = []
        self.dropped = 0
        self.watch: Callable[[Step, str], None] | None = None
        self.takes_commands = True

    @property
    def description(self) -> str:
        """What answers, in words."""
        raise NotImplementedError

    @property
    def template(self) -> str:
        """The chat template's name."""
        raise NotImplementedError

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
        """The settings, as the user asked for them."""
        return self._wanted

    @property
    def in_use(self) -> ChatSettings:
        """The settings, less what has no effect here."""
        return self.settings

    @property
    def seed(self) -> int:
        """The seed in use where the user has set none; -1 where he has, or where nothing is drawn."""
        return -1

    @property
    def last(self) -> Answer | None:
        """The latest answer."""
        return self.turns[-1] if self.turns else None

    @property
    def used(self) -> int:
        """Tokens of the context that the conversation takes; below 0 where that is not known."""
        raise NotImplementedError

    @property
    def cells(self) -> int:
        """Tokens that the context has room for; 0 where that is not known."""
        raise NotImplementedError

    @property
    def most_cells(self) -> int:
        """Tokens that a context of this model can have."""
        return self.cells

    @property
    def asked_cells(self) -> int:
        """Tokens of the context that the user asked for; 0 for none."""
        return 0

    def tokens_of(self, text: str) -> int:
        """The number of a text's tokens; 0 where that is not known."""
        raise NotImplementedError

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

    def compact(self) -> int:
        """Drop the oldest questions with their answers; the number of those dropped."""
        raise NotImplementedError

    def resume(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation = conversation
        self.recall()

    def recall(self) -> None:
        """Take in a conversation that was edited."""

    def change(self, settings: ChatSettings, seed: int = -1) -> str:
        """Take new settings; what to know about them, empty where there is nothing. `seed`: where they set none."""
        raise NotImplementedError

    def report(self, answer: Answer, *, detail: Detail, width: int) -> str:
        """What an answer cost, a line for each subject. `width`: columns of the terminal."""
        raise NotImplementedError

    def verdicts(self, answer: Answer) -> Sequence[str]:
        """An answer beside plain decoding, the longest sentence first; none where nothing is known."""
        return ()

    def losses(self) -> list[str]:
        """Sentences about replicas that were lost since they were asked for."""
        return []

    def _turn(self, before: list[Message]) -> Generator[Piece]:
        """The answer to the last question; `before`: the messages that come back where it has no room."""
        raise NotImplementedError

    def _draw_anew(self) -> None:
        """Let the next answer draw other tokens."""

    def _cut_back(self) -> None:
        """Take in that the conversation has become shorter."""

    def _why_the_same(self) -> str:
        sampling = self._wanted.sampling
        if not sampling.temp and not sampling.xtc_probability:
            return "at temperature 0 the answer comes out the same; /set temp 0.8 for another one"
        if sampling.seed >= 0:
            return f"with seed {sampling.seed} the answer comes out the same; /set seed -1 for another one each time"
        return "another seed gave the same answer"

    def _restore(self, messages: list[Message]) -> None:
        self.conversation.messages[:] = messages
        self.dropped = 0
