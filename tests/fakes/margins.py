"""Comparisons with plain decoding on real models, as the tests of every mode need them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from lacli.check.compare import Comparison, Run
from lacli.check.judge import PLAIN as PLAIN
from lacli.check.judge import Difference
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings

Logits = npt.NDArray[np.float32]


def compare(model: LlamaModel, settings: ModelSettings, limit: int) -> Comparison:
    """A greedy comparison on contexts of a model."""
    return Comparison(partial(LlamaContext, model, settings), limit)


def bugs(runs: Sequence[Run]) -> list[Difference | str]:
    """The differences from plain's text that rounding does not explain, and what llama.cpp refused."""
    return [run.difference or run.failure for run in runs if run.bug]
