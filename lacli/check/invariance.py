"""Batch invariance: whether the logits of a token depend on how many rows are decoded with it.

The same tokens behind the same context go through the engine one at a time and in batches, as a chain in sequence 0,
and their logits are compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle, islice

import numpy as np

from lacli.batch import from_tree
from lacli.cache import Cache
from lacli.check.judge import largest_difference
from lacli.engine import Engine, Floats
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Rows of the batches; from 64 on ggml takes other kernels again, and a step of lookahead is often as large."""

PROBED = max(SIZES)
"""Tokens whose logits are compared."""

CONTEXTS = (32, 1000)
"""Tokens before them: a short and a long context, or what fits."""

PROBE = DecodeSettings(mode="lookup", lookup_draft=PROBED - 1)
"""What the probed context is made for: one sequence, and logits of as many rows."""


@dataclass(frozen=True)
class Probe:
    """What one length of context showed.

    context: tokens in the cache before the probed ones. differences: for each number of rows the largest difference
    of a logit from the same one decoded with the least rows (on its own, if a step may have one row). groups: the
    numbers of rows that agree bit for bit.
    """

    context: int
    differences: dict[int, float]
    groups: list[list[int]]

    @property
    def exact(self) -> bool:
        return len(self.groups) == 1

    @property
    def largest(self) -> float:
        return max(self.differences.values(), default=0.0)


def probe(engine: Engine, tokens: Sequence[int], least: int = 1) -> list[Probe]:
    """Probe an engine made for PROBE at each of CONTEXTS; `tokens` are repeated to fill it. Clears the engine.

    least: rows that a step has at least.
    """
    room = engine.cells - PROBED
    contexts = sorted({min(context, room) for context in CONTEXTS if room > 0})
    return [probe_at(engine, list(islice(cycle(tokens), context + PROBED)), least) for context in contexts]


def probe_at(engine: Engine, text: Sequence[int], least: int = 1) -> Probe:
    """Probe the last tokens of a text behind all others."""
    context, probed = text[:-PROBED], text[-PROBED:]
    cache = Cache(engine)
    cache.clear()
    cache.prefill(context)
    first: Floats | None = None
    differences: dict[int, float] = {}
    groups: dict[bytes, list[int]] = {}
    for size in SIZES:
        if not least <= size <= engine.batch_rows:
            continue
        if cache.past != len(context):
            # A recurrent model cannot go back.
            cache.clear()
            cache.prefill(context)
        logits = _decoded(engine, cache, probed, size)
        cache.truncate(len(context))
        if first is None:
            first = logits
        else:
            differences[size] = largest_difference(first, logits)
        groups.setdefault(sha256(logits.tobytes()).digest(), []).append(size)
    return Probe(len(context), differences, list(groups.values()))


def _decoded(engine: Engine, cache: Cache, tokens: Sequence[int], size: int) -> Floats:
    """The logits of the tokens, (tokens, vocabulary), decoded `size` rows at a time."""
    parts = []
    for start in range(0, len(tokens), size):
        root, *below = tokens[start : start + size]
        tree = Tree(root)
        tree.add(below, 0, Origin.CHAIN)
        fits = engine.decode(from_tree(tree, cache.past))
        assert fits, "the context is chosen so that the probe fits"
        parts.append(engine.logits().copy())
        cache.keep(tree, range(1, len(tree)))
    return np.concatenate(parts)
