"""Batch invariance: the same tokens decoded one by one and in batches, and their logits compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
"""Rows of the batches; steps of lookahead have up to some 64, and ggml takes other kernels from there on."""

PROBED = max(SIZES)
"""Tokens whose logits are compared."""

CONTEXTS = (32, 1000)
"""Tokens before the probed ones: a short and a long context, or what fits."""

PROBE = DecodeSettings(mode="lookup", lookup_draft=PROBED - 1)
"""Makes the probed context: one sequence, and logits of PROBED rows."""


@dataclass(frozen=True)
class Probe:
    """What one length of context showed.

    `context`: tokens in the cache before the probed ones. `differences`: by number of rows, the largest difference of a
    logit from the same one decoded in the smallest batch. `groups`: the numbers of rows that agree bit for bit.
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


def probe(
    engine: Engine,
    tokens: Sequence[int],
    least: int = 1,
    *,
    contexts: Sequence[int] = CONTEXTS,
    decoded: Callable[[], None] = lambda: None,
) -> list[Probe]:
    """Probe an engine made for PROBE behind `contexts_in` it, which `tokens` are repeated to fill. Clears the engine.

    `least`: rows of a step at least. `decoded`: called after each of `sizes_in` the engine.
    """
    texts = [list(islice(cycle(tokens), context + PROBED)) for context in contexts_in(engine, contexts)]
    return [probe_at(engine, text, least, decoded) for text in texts]


def contexts_in(engine: Engine, contexts: Sequence[int]) -> list[int]:
    """The numbers of tokens behind which an engine can probe, at most those of `contexts`."""
    room = engine.cells - PROBED
    return sorted({min(context, room) for context in contexts if room > 0})


def sizes_in(engine: Engine, least: int) -> list[int]:
    """The numbers of rows that are probed, `least` at least."""
    return [size for size in SIZES if least <= size <= engine.batch_rows]


def probe_at(engine: Engine, text: Sequence[int], least: int = 1, decoded: Callable[[], None] = lambda: None) -> Probe:
    """Probe the last tokens of a text behind all others."""
    context, probed = text[:-PROBED], text[-PROBED:]
    cache = Cache(engine)
    cache.clear()
    cache.prefill(context)
    first: Floats | None = None
    differences: dict[int, float] = {}
    groups: dict[bytes, list[int]] = {}
    for size in sizes_in(engine, least):
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
        decoded()
    return Probe(len(context), differences, list(groups.values()))


def _decoded(engine: Engine, cache: Cache, tokens: Sequence[int], size: int) -> Floats:
    """The logits of the tokens, (tokens, vocabulary), decoded `size` rows at a time."""
    parts = []
    for start in range(0, len(tokens), size):
        root, *below = tokens[start : start + size]
        tree = Tree(root)
        tree.add_path(below, 0, Origin.CHAIN)
        fits = engine.decode(from_tree(tree, cache.past))
        assert fits, "the context is chosen so that the probe fits"
        parts.append(engine.logits().copy())
        cache.commit(tree, range(1, len(tree)))
    return np.concatenate(parts)
