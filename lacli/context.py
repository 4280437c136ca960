"""The protocols of a context, which decodes batches and keeps their cache, and of a sampler.

`Closing` is the base class of objects that own a library's memory, threads or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, Ints

Floats = npt.NDArray[np.floating]


class Closing:
    """A base class whose objects close at the end of their `with` block. `close` may be called more than once."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Context(Protocol):
    """A model with a cache of `cells` cells. A token is one cell, also if it belongs to several sequence ids.

    Positions of an id have no gaps. Ends are exclusive, and -1 as an end or an id means all, as in llama.cpp's
    llama_memory_* functions.

    `batch_rows`: the most rows of a call of `decode`. `prefill_rows`: the most rows of a prefill call; Ctrl-C acts
    between two calls. `mixed_rows`: the most rows of a step with prompt chunks and other sequences. `max_outputs`: the
    most rows with logits in a call. `trained_tokens`: the longest sequence of the model's training. `ids`: ids are 0 ..
    `ids`-1. `can_share`: whether `copy` can share a part of a sequence, unlike a recurrent state.
    `passes_all_cells`: whether attention reads the cells of all sequences, as on a CPU, so that idle cells cost time.
    """

    cells: int
    batch_rows: int
    prefill_rows: int
    mixed_rows: int
    max_outputs: int
    trained_tokens: int
    ids: int
    can_share: bool
    passes_all_cells: bool

    def decode(self, batch: Batch) -> bool:
        """Decode one batch and return True; if too few cells are free, change nothing and return False."""

    def greedy(self) -> Ints:
        """Return the most probable next token of each output row of the last batch, (outputs,) integers.

        Raises NumbersError if a logit of these rows is NaN or infinite.
        """

    def row_logits(self, row: int) -> Floats:
        """Return the logits of output row number `row` of the last batch, (vocabulary,), valid until the next decode.

        Must not be called if the context was made to give greedy choices only.
        """

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let the id `target` share the cells of the id `source` at positions start .. end-1."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        """Remove positions start .. end-1 of the id `sequence`. If the model cannot, change nothing, return False."""

    def clear(self) -> None:
        """Empty the cache; after a NumbersError, overwrite its values too."""

    def is_end(self, token: int) -> bool:
        """Return whether the token ends an answer (llama_vocab_is_eog)."""


class Distribution(NamedTuple):
    """The tokens that a draw can give, and their probabilities, which sum to 1. Both have the shape (candidates,)."""

    tokens: Ints
    probabilities: Floats


class Sampler(Protocol):
    """Draws the tokens of a sequence, one by one; earlier tokens may change the next draw.

    Each token is recorded once: by `draw`, or by `accept` after a call of `distribution`.
    """

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a sequence with the `tokens` of its prompt, and start the same random numbers again."""

    def draw(self, logits: Floats) -> int:
        """Draw the next token from one row of logits, (vocabulary,). Raises SamplingError if no token is possible."""

    def distribution(self, logits: Floats) -> Distribution:
        """Return the distribution of the next draw. Raises SamplingError if no token is possible."""

    def accept(self, token: int) -> None:
        """Record a token that was drawn from the result of `distribution`."""
