"""Chats on the bundled model, and a decoder that is watched while one talks. No test lives here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from lacli.auto.mode import AutoModes
from lacli.batch import Batch
from lacli.chat.conversation import Chat
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Conversation
from lacli.check.judge import (
    Difference,
    largest_difference,
    parting,
    plain_logits,
    within,
)
from lacli.check.replay import Recorder, Rows, accepted_rows
from lacli.context import Context, Floats
from lacli.engine.engine import Progress
from lacli.engine.load import ModelEngine, open_engine
from lacli.llamacpp.context import LlamaContext
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


def chat_on(session: ModelEngine, limit: int = 12, sampling: SamplingSettings | None = None, **more: bool) -> Chat:
    settings = ChatSettings(session.settings, sampling or SamplingSettings(), limit)
    return Chat(session, settings, Conversation(), **more)


def said(pieces: Generator[object]) -> str:
    return "".join(piece.text for piece in pieces)  # type: ignore[attr-defined]


class Tracked(Recorder):
    """Knows which token lies at which position of each sequence, by what was called."""

    def __init__(self, engine: Context) -> None:
        super().__init__(engine)
        self.held: dict[int, dict[int, int]] = defaultdict(dict)

    def decode(self, batch: Batch) -> bool:
        rows = Rows.of(batch)
        for token, position, sequences in zip(rows.tokens, rows.positions, rows.sequences, strict=True):
            for sequence in sequences:
                self.held[sequence][position] = token
        return super().decode(batch)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self.held[target] |= {at: token for at, token in self.held[source].items() if start <= at < end}
        super().copy(source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        for each in [*self.held] if sequence < 0 else [sequence]:
            self.held[each] = {at: token for at, token in self.held[each].items() if at < start or 0 <= end <= at}
        return super().remove(sequence, start, end)

    def clear(self) -> None:
        self.held.clear()
        super().clear()

    def close(self) -> None:
        """The context is closed by whoever has opened it."""


class Watched:
    """An engine on a tracked context, whose steps of the last turn and prompts are kept."""

    def __init__(self, engine: ModelEngine) -> None:
        self.context = Tracked(engine.context)
        engine.use(self.context, engine.settings, AutoModes())
        self.engine = engine
        self.steps: list[Step] = []
        self.prompt: list[int] = []
        self.text: list[int] = []
        self.reused = 0
        self._decode = engine.decode
        engine.decode = self._noting  # type: ignore[method-assign, assignment]

    def _noting(self, prompt: Sequence[int], *more: Any) -> Generator[Progress]:
        self.prompt, self.steps, self.context.decoded = list(prompt), [], []
        for progress in self._decode(prompt, *more):
            assert progress.sequence
            self.text, self.reused = progress.sequence.tokens, progress.sequence.reused or 0
            self.steps += [progress.step] if progress.step else []
            yield progress

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.tokens]

    @property
    def holds_its_text(self) -> bool:
        """Whether each cached position has the token of the text there, so that a difference can only be rounding."""
        return [token for _, token in sorted(self.context.held[0].items())] == self.text[:-1]

    def logits_after(self, text: Sequence[int]) -> Floats:
        """The logits after the first generated tokens, in the shape of the step that chose the next one."""
        recorded = [rows for rows in self.context.decoded if any(rows.outputs)]
        ends = list(accumulate(len(step.tokens) for step in self.steps))
        place = next(place for place, end in enumerate(ends) if len(text) < end)
        begin, rows = [0, *ends][place], recorded[place]
        self.context.remove(-1, rows.positions[0], -1)
        for sequence in {sequence for ids in rows.sequences for sequence in ids if sequence}:
            self.context.remove(sequence, 0, -1)
            self.context.copy(0, sequence, 0, rows.positions[0])
        assert self.context.decode(rows.batch())
        logits: Floats = self.context.logits()[sum(rows.outputs[: accepted_rows(rows, text[begin:])[-1]])].copy()
        return logits


def judged(watched: Watched, plain_context: LlamaContext, expected: Sequence[int]) -> Difference | None:
    """Where the turn parts from a fresh plain run of the same prompt, by the rule of `lacli check`."""
    at = parting(expected, watched.tokens)
    if at is None:
        return None
    plain, other = expected[at], watched.tokens[at]
    replayed = watched.logits_after(expected[:at])
    logits = plain_logits(plain_context, watched.prompt, expected[:at])
    margin, rounding = float(logits[plain]) - float(logits[other]), largest_difference(logits, replayed)
    return Difference(at, plain, other, margin, rounding, "rounding" if within(margin, rounding) else "bug")
