"""Engines for one sequence at a time, in any mode, and comparisons of modes with plain decoding."""

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
    """An engine for one sequence at a time, with one verifier. `cost`: mode auto's step costs, None: by the clock.

    `tokens`: the last sequence's. `reused`: how many of its prompt's tokens the cache had.
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
        """The number of tokens that the engine counts in its cache."""
        return self.engine._admission._slots[0].past

    def generate(self, prompt: Sequence[int], limit: int = -1) -> Generator[Step]:
        """Yield the steps of an answer of at most `limit` tokens, -1: no limit."""
        for sequence, step, _ in self.engine.decode(prompt, SequenceOptions(limit, self._verifier)):
            assert sequence
            self.tokens, self.reused = sequence.tokens, sequence.reused
            if step:
                yield step


def fixed_clock_decoder(context: Context, settings: DecodeSettings, verifier: Verifier | None = None) -> Decoding:
    """Return a `Decoding` with fixed step costs, for the same steps each time. Mode auto drafts as much as possible."""
    return Decoding(context, settings, verifier, cost=FIXED_COST)


def compare(model: LlamaModel, settings: ModelSettings, limit: int) -> Comparison:
    """Return a greedy comparison with answers of at most `limit` tokens, on new contexts of a model."""
    from lacli.llamacpp.context import LlamaContext

    return Comparison(lambda decode: LlamaContext(model, settings, ContextSize.of(decode)), limit)


def bugs(runs: Sequence[Run]) -> list[Difference | str]:
    """Return the differences from plain decoding that rounding does not explain, and llama.cpp's errors."""
    return [run.difference or run.failure for run in runs if run.verdict == "bug"]
