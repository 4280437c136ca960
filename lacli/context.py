"""What the loop needs of a model: one batch in, logits out, the cache's sequence calls, a clock and a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, Ints

Floats = npt.NDArray[np.floating]


class Context(Protocol):
    """A model with a cache of `cells` cells, in which a token of several sequences is one cell.

    Positions of a sequence have no gaps. Ends are exclusive, and -1 as an end or a sequence means all, as in
    llama.cpp's llama_memory_* functions.
    `batch_rows`: rows that one call of `decode` may have. `prefill_rows`: of a prefill call; Ctrl-C is heard between
    two, and what is read so far is known. `mixed_rows`: rows of a step up to which prompt chunks share it with other
    sequences' rows; more are decoded apart. `max_outputs`: rows of a call that may have logits. `trained_tokens`:
    tokens of the longest sequence that the model was trained for. `ids`: sequence ids 0 .. `ids`-1 may be used.
    `can_share`: `copy` can give a sequence the beginning of another, which a recurrent state does not keep.
    `passes_all_cells`: attention passes all cells, other sequences' too, as on a CPU: idle ones cost time there.
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
        """Run one batch; False, with nothing changed, when the cache has no room for it."""

    def greedy(self) -> Ints:
        """The most probable next token of each output row of the last batch, (outputs,) integers.

        Raises NumbersError when the logit of one of them is NaN or infinite: then the model computes nonsense.
        """

    def row_logits(self, row: int) -> Floats:
        """The logits of one output row of the last batch, (vocabulary,), valid until the next decode.

        Not for a context that was made to give greedy choices only.
        """

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` own the cells of `source` at positions start .. end-1."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        """Take positions start .. end-1 from a sequence; False, with nothing changed, where the model cannot."""

    def clear(self) -> None:
        """Empty the cache, after a NumbersError of its values too."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation (llama_vocab_is_eog)."""


class Distribution(NamedTuple):
    """What a token is drawn from: (candidates,) token ids and their probabilities, which sum to 1."""

    tokens: Ints
    probabilities: Floats


class Sampler(Protocol):
    """Draws the tokens of one sequence after another; earlier tokens may change what it draws next.

    It learns of a token once: by `draw` itself, or by `accept` after `distribution`.
    """

    def begin(self, tokens: Sequence[int]) -> None:
        """Start anew, with the same random numbers, behind a prompt of these tokens."""

    def draw(self, logits: Floats) -> int:
        """The next token, from one row of logits, (vocabulary,). Raises SamplingError when none is possible."""

    def distribution(self, logits: Floats) -> Distribution:
        """What the next token would be drawn from. Raises SamplingError when none is possible."""

    def accept(self, token: int) -> None:
        """Take in the token that was drawn from `distribution`."""
