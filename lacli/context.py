"""The loop's protocols of a model: one batch in, logits out, the cache's sequence calls, and a sampler.

`Closing` is the base of what owns a library's memory, threads or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, Ints

Floats = npt.NDArray[np.floating]


class Closing:
    """Closed at the end of its `with` block; `close` may be called more than once."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Context(Protocol):
    """A model with a cache of `cells` cells, in which a token of several ids is one cell.

    Positions of an id have no gaps. Ends are exclusive, and -1 as an end or an id means all, as in llama.cpp's
    llama_memory_* functions.

    `batch_rows`: most rows of a call of `decode`. `prefill_rows`: most rows of a prefill call; Ctrl-C acts between two
    calls. `mixed_rows`: most rows of a step that prompt chunks share with other sequences. `max_outputs`: most rows of
    a call with logits. `trained_tokens`: the longest sequence of the model's training. `ids`: ids 0 .. `ids`-1 may be
    used. `can_share`: `copy` can give an id the beginning of another; a recurrent state cannot. `passes_all_cells`:
    attention passes the cells of all sequences, as on a CPU, so idle cells cost time.
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
        """Run one batch; False, with nothing changed, if too few cells are free."""

    def greedy(self) -> Ints:
        """The most probable next token of each output row of the last batch, (outputs,) integers.

        Raises NumbersError if one of their logits is NaN or infinite: the model computes nonsense then.
        """

    def row_logits(self, row: int) -> Floats:
        """The logits of one output row of the last batch, (vocabulary,), valid until the next decode.

        Not for a context that was made to give greedy choices only.
        """

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` own the cells of `source` at positions start .. end-1."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        """Take positions start .. end-1 from an id; False, with nothing changed, if the model cannot."""

    def clear(self) -> None:
        """Empty the cache; after a NumbersError, clear its values too."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation (llama_vocab_is_eog)."""


class Distribution(NamedTuple):
    """The candidates of a draw: (candidates,) token ids and their probabilities, which sum to 1."""

    tokens: Ints
    probabilities: Floats


class Sampler(Protocol):
    """Draws the tokens of one sequence after another; earlier tokens may change the next draw.

    It learns of a token once: by `draw` itself, or by `accept` after `distribution`.
    """

    def begin(self, tokens: Sequence[int]) -> None:
        """Start anew, with the same random numbers, after a prompt of these tokens."""

    def draw(self, logits: Floats) -> int:
        """The next token, from one row of logits, (vocabulary,). Raises SamplingError when none is possible."""

    def distribution(self, logits: Floats) -> Distribution:
        """The distribution of the next draw. Raises SamplingError when no token is possible."""

    def accept(self, token: int) -> None:
        """Take in the token that was drawn from `distribution`."""
