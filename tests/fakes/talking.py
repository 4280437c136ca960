"""Chats on the bundled model, and a record of an engine's last turn."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from lacli.chat.conversation import Chat, Conversation
from lacli.chat.settings import ChatSettings
from lacli.engine.engine import Progress
from lacli.engine.load import ModelEngine, open_engine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.stats import Step
from tests.loading import STDLIB_7M

SMALL = DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4)
LOADING = ModelSettings(threads=1, gpu_layers=0)
QUESTION = "Write a Python function is_empty: Return true if the queue is empty."
NAMES = ("json.dumps", "os.path.join", "shutil.copy", "random.choice", "textwrap.fill")
TASKS = ("Explain {}.", "Show me the source code of {}.", "Write a function like {}.", "What does {} return?")
TURNS = [task.format(name) for task in TASKS for name in NAMES]


def opened(
    decode_settings: DecodeSettings = SMALL, sampling: SamplingSettings | None = None, context: int = 0
) -> ModelEngine:
    return open_engine(STDLIB_7M, replace(LOADING, context=context), decode_settings, sampling or SamplingSettings())


def chat_on(engine: ModelEngine, limit: int = 12, sampling: SamplingSettings | None = None) -> Chat:
    settings = ChatSettings(limit, (), engine.settings, sampling or SamplingSettings())
    return Chat(engine, settings, Conversation())


def said(pieces: Generator[object]) -> str:
    return "".join(piece.text for piece in pieces)  # type: ignore[attr-defined]


class Watched:
    """Keeps the prompt, the steps and the sequence of an engine's last turn. `reused`: prompt tokens in the cache."""

    def __init__(self, engine: ModelEngine) -> None:
        self.steps: list[Step] = []
        self.prompt: list[int] = []
        self.text: list[int] = []
        self.reused = 0
        self._decode = engine.decode
        engine.decode = self._noting  # type: ignore[method-assign, assignment]

    def _noting(self, prompt: Sequence[int], *more: Any) -> Generator[Progress]:
        self.prompt, self.steps = list(prompt), []
        for progress in self._decode(prompt, *more):
            assert progress.sequence
            self.text, self.reused = progress.sequence.tokens, progress.sequence.reused or 0
            self.steps += [progress.step] if progress.step else []
            yield progress

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.tokens]
