"""A conversation's messages: questions and answers in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["user", "assistant"]


@dataclass(frozen=True)
class Message:
    """One message; an answer's content is what was generated, reasoning included.

    `tokens`: the ids that an answer was generated with, if they are known.
    """

    role: Role
    content: str
    tokens: tuple[int, ...] = field(default=(), compare=False)


class Conversation:
    """Questions and answers in turns, beginning with a question; the last question may have no answer yet.

    `dropped`: the number of oldest questions that prompts leave out with their answers, for want of cells.
    """

    def __init__(self, system: str = "", messages: Sequence[Message] = ()) -> None:
        roles = [message.role for message in messages]
        assert all(role == ("assistant" if index % 2 else "user") for index, role in enumerate(roles)), roles
        self.system = system
        self.messages = [*messages]
        self.dropped = 0

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
        """Take the last question back, with its answer, and return it; None if nothing was asked."""
        self.take_back_answer()
        question = self.messages.pop().content if self.messages else None
        self.dropped = min(self.dropped, max(self.questions - 1, 0))
        return question

    def take_back_answer(self) -> bool:
        """Remove the last question's answer; False if it has none."""
        if not self.messages or self.is_open:
            return False
        self.messages.pop()
        return True

    def clear(self) -> None:
        """Forget all questions and answers; the system prompt stays."""
        self.messages.clear()
        self.dropped = 0

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

    @property
    def sent(self) -> list[Message]:
        """The messages that a prompt has."""
        return self.messages[2 * self.dropped :]

    def as_messages(self) -> list[dict[str, str]]:
        """What a chat template takes: role and content of each message, after the system prompt if there is one."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *({"role": message.role, "content": message.content} for message in self.sent)]
