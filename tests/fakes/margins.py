"""Comparisons with plain decoding on real models, as the tests of every mode need them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from lacli.check.compare import Comparison, Run
from lacli.check.judge import PLAIN as PLAIN
from lacli.check.judge import Difference, plain_logits
from lacli.context import Context
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings

Logits = npt.NDArray[np.float32]


def compare(model: LlamaModel, settings: ModelSettings, limit: int) -> Comparison:
    """A greedy comparison on contexts of a model."""
    return Comparison(partial(LlamaContext, model, settings), limit)


def logits_of_last(engine: Context, prompt: Sequence[int], tokens: Sequence[int]) -> Logits:
    """The logits, (vocabulary,), from which plain decoding chooses the last of its first tokens."""
    return plain_logits(engine, prompt, tokens[:-1]).astype(np.float32)


def bugs(runs: Sequence[Run]) -> list[Difference | str]:
    """The differences from plain's text that rounding does not explain, and what llama.cpp refused."""
    return [run.difference or run.failure for run in runs if run.bug]
