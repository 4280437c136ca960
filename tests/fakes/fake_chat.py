"""A chat without a model, for tests of commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from lacli.chat.conversation import Chat, Conversation
from lacli.chat.settings import ChatSettings
from lacli.engine.answer import Answer
from lacli.engine.load import ModelEngine
from lacli.llamacpp.settings import ModelSettings
from lacli.pool import NgramPool
from lacli.stats import Finish, RunStatistics
from lacli.text.stream import Piece
from lacli.tree import Origin

MODEL = SimpleNamespace(description="toy 1M F32", devices="CPU", context=100)


@dataclass
class FakeChat(Chat):
    """A chat whose answer is `pieces`; an exception among them is raised there. Tokens are words."""

    conversation: Conversation = field(default_factory=Conversation)
    settings: ChatSettings = ChatSettings()
    turns: list[Answer] = field(default_factory=list)
    used: int = 10
    cells: int = 100
    pieces: list[str | type[BaseException] | BaseException] = field(default_factory=lambda: ["ye", "s"])
    notes: list[str] = field(default_factory=list)

    @property
    def engine(self) -> ModelEngine:  # type: ignore[override]  # made of what a test has set
        engine = SimpleNamespace(
            model=MODEL,
            context=SimpleNamespace(cells=self.cells),
            prompts=SimpleNamespace(template=SimpleNamespace(name="chatml"), tokenize=str.split),
            settings=self.settings.decode_settings,
            sampling=self.settings.sampling,
            model_settings=ModelSettings(),
            context_hint=lambda tokens: f"-c {tokens} has room",
            weights=SimpleNamespace(names=["CPU (1)", "CPU (2)"]),
            times_plain=lambda run: 1.2,
            cache=None,
        )
        return cast(ModelEngine, engine)

    def ask(self, question: str) -> Generator[Piece]:
        self.conversation.ask(question)
        return self._answer()

    def again(self) -> Generator[Piece]:
        self.conversation.take_back_answer()
        return self._answer()

    def _answer(self) -> Generator[Piece]:
        text = ""
        try:
            for piece in self.pieces:
                if not isinstance(piece, str):
                    raise piece
                text += piece
                yield Piece(piece, Origin.POOL if len(text) > 2 else Origin.MODEL)
        finally:
            if text:
                self.conversation.answer(text)
                whole = text == "".join(piece for piece in self.pieces if isinstance(piece, str))
                run = RunStatistics(steps=2, tokens=6, decode_s=1.5, lengths=Counter({3: 2}))
                end: Finish = "eog" if whole else "interrupt"
                self.turns.append(Answer(text, tuple(range(6)), end, run, NgramPool(3, 2).statistics()))
                self.turns[-1].statistics.accepted_from[Origin.POOL] = 1
            else:
                self.conversation.undo()

    def resume(self, conversation: Conversation) -> None:
        self.conversation = conversation

    def change(self, settings: ChatSettings) -> str:
        self.settings = settings
        return ""


def talked(turns: Sequence[tuple[str, str]], system: str = "") -> Conversation:
    """Return a conversation of pairs of a question and its answer."""
    conversation = Conversation(system)
    for question, answer in turns:
        conversation.ask(question)
        conversation.answer(answer)
    return conversation
