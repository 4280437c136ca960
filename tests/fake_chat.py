"""A chat without a model, for what commands do to one. No test lives here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Conversation
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.pool import NgramPool
from lacli.replicas.replica import Work
from lacli.session.generation import Answer
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.stats import RunStatistics


def _words(text: str, *, add_special: bool, special: bool) -> list[str]:
    return text.split()


MODEL = SimpleNamespace(description="toy 1M F32", devices="CPU", tokenize=_words)
ENGINE = SimpleNamespace(cells=100)
TEMPLATE = SimpleNamespace(name="chatml")


@dataclass
class FakeChat:
    """Its tokens are words. refuses: settings that it does not take; anew: what it says of those that it takes."""

    conversation: Conversation = field(default_factory=Conversation)
    adjusted: Adjusted = field(default_factory=Adjusted)
    turns: list[Answer] = field(default_factory=list)
    refuses: Adjusted | None = None
    anew: str = ""
    used: int = 10
    cells: int = 100

    @property
    def session(self) -> Session:
        session = SimpleNamespace(
            model=MODEL,
            engine=ENGINE,
            template=TEMPLATE,
            settings=self.settings,
            sources=self.settings.sources,
            sampling=self.sampling,
            model_settings=ModelSettings(),
            decoder=SimpleNamespace(replicas=SimpleNamespace(work={"": Work()}, lost={})),
            copies=SimpleNamespace(names=["CPU (1)", "CPU (2)"]),
            losses=list,
        )
        return cast(Session, session)

    @property
    def settings(self) -> DecodeSettings:
        return self.adjusted.decoding

    @property
    def sampling(self) -> SamplingSettings:
        return self.adjusted.sampling

    @property
    def seed(self) -> int:
        return 11 if self.sampling.seed < 0 else -1

    @property
    def limit(self) -> int:
        return self.adjusted.limit

    @property
    def stops(self) -> tuple[str, ...]:
        return self.adjusted.stops

    @property
    def last(self) -> Answer | None:
        return self.turns[-1] if self.turns else None

    def undo(self) -> str | None:
        return self.conversation.undo()

    def clear(self) -> None:
        self.conversation.clear()

    def compact(self) -> int:
        dropped = 0
        while self.conversation.drop_oldest():
            dropped += 1
        return dropped

    def recall(self) -> None:
        pass

    def change(self, adjusted: Adjusted, seed: int = -1) -> str:
        if adjusted == self.refuses:
            raise UsageError("no memory for these settings")
        self.adjusted = adjusted
        return self.anew


def talked(turns: Sequence[tuple[str, str]], system: str = "") -> Conversation:
    """A conversation of questions with their answers."""
    conversation = Conversation(system)
    for question, answer in turns:
        conversation.ask(question)
        conversation.answer(answer)
    return conversation


def an_answer(text: str = "yes", tokens: int = 6, steps: int = 2, seconds: float = 1.5) -> Answer:
    run = RunStatistics(steps=steps, tokens=tokens, decode_s=seconds, lengths=Counter({tokens // steps: steps}))
    return Answer(text, tuple(range(tokens)), "eog", run, NgramPool(3, 2).statistics())
