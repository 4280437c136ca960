"""The most probable tokens of rows of logits. Numpy only."""

from __future__ import annotations

import numpy as np

from lacli.engine import Floats, Successors

REACH = 8.0
"""Tokens whose logit is further below the best one are not looked for: e^-8 of its probability guesses nothing."""


def ranked(logits: Floats, most: int) -> Successors:
    """Each row's best tokens, (rows, most), best first; where fewer are in reach the last ones have a logit of -inf."""
    # Sorting what is near the best is much less work than partitioning a whole vocabulary.
    rows, tokens = np.nonzero(logits > logits.max(axis=1, keepdims=True) - REACH)
    values = logits[rows, tokens]
    order = np.lexsort((-values, rows))
    rows, tokens, values = rows[order], tokens[order], values[order]
    first = np.searchsorted(rows, np.arange(len(logits)))
    ranks = np.arange(len(rows)) - first[rows]
    kept = ranks < most
    found = Successors(np.zeros((len(logits), most), np.int32), np.full((len(logits), most), -np.inf, np.float32))
    found.tokens[rows[kept], ranks[kept]] = tokens[kept]
    found.logits[rows[kept], ranks[kept]] = values[kept]
    return found
