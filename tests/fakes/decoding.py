"""Engines of tests for one sequence at a time, in any mode, and comparisons of modes with plain decoding."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lacli.auto.mode import FIXED_COST
from lacli.auto.step_cost import Cost
from lacli.check.compare import Comparison, Run
from lacli.check.judge import PLAIN as PLAIN
from lacli.check.judge import Difference
from lacli.context import Context
from lacli.engine.engine import Engine, SequenceOptions
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.stats import Step
from lacli.verify import Verifier

if TYPE_CHECKING:
    from lacli.llamacpp.model import LlamaModel

Logits = npt.NDArray[np.float32]


class Decoding:
    """An engine for one sequence at a time, that draws with one verifier; without `cost` mode auto goes by the clock.

    `tokens`, `reused`: of the last sequence.
    """

    def __init__(
        self, context: Context, settings: DecodeSettings, verifier: Verifier | None = None, *, cost: Cost | None = None
    ) -> None:
        self.engine = Engine(context, settings, cost=cost)
        self._verifier = verifier
        self.tokens: list[int] = []
        self.reused: int | None = None

    @property
    def settings(self) -> DecodeSettings:
        return self.engine.settings

    @property
    def past(self) -> int:
        """Tokens that the engine believes its cache to have."""
        return self.engine._admission._slots[0].past

    def generate(self, prompt: Sequence[int], limit: int = -1) -> Generator[Step]:
        """The steps of what follows a prompt."""
        for sequence, step, _ in self.engine.decode(prompt, SequenceOptions(limit, self._verifier)):
            assert sequence
            self.tokens, self.reused = sequence.tokens, sequence.reused
            if step:
                yield step


def fixed_clock_decoder(context: Context, settings: DecodeSettings, verifier: Verifier | None = None) -> Decoding:
    """Takes the same steps each time; rows cost next to nothing, so mode auto drafts all it can."""
    return Decoding(context, settings, verifier, cost=FIXED_COST)


def compare(model: LlamaModel, settings: ModelSettings, limit: int) -> Comparison:
    """A greedy comparison on contexts of a model."""
    from lacli.llamacpp.context import LlamaContext

    return Comparison(lambda decode: LlamaContext(model, settings, ContextSize.of(decode)), limit)


def bugs(runs: Sequence[Run]) -> list[Difference | str]:
    """The differences from plain's text that rounding does not explain, and what llama.cpp refused."""
    return [run.difference or run.failure for run in runs if run.verdict == "bug"]
