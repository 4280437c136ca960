"""What the loop needs of a model: one batch in, one choice a row out, and the cache's sequence calls.

A Protocol only. `llama.py` implements it on llama.cpp; the tests implement it on a toy model that enforces
llama.cpp's rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lacli.batch import Batch, Ints


class Engine(Protocol):
    """A model with a cache of `cells` cells, in which a token of several sequences is one cell.

    Positions of a sequence have no gaps. Ends are exclusive, and -1 as an end or a sequence means all, as in
    llama.cpp's llama_memory_* functions.
    """

    @property
    def cells(self) -> int:
        """Tokens that the cache can hold."""

    @property
    def batch_rows(self) -> int:
        """Rows that one call of `decode` may have."""

    @property
    def sequences(self) -> int:
        """Sequence ids 0 .. sequences-1 may be used."""

    @property
    def vocabulary(self) -> int:
        """Token ids 0 .. vocabulary-1 exist."""

    def decode(self, batch: Batch) -> bool:
        """Run one batch; False, with nothing changed, when the cache has no room for it."""

    def greedy(self) -> Ints:
        """The most probable next token of each output row of the last batch, (outputs,) integers."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` own the cells of `source` at positions start .. end-1."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        """Take positions start .. end-1 from a sequence; False, with nothing changed, where the model cannot."""

    def clear(self) -> None:
        """Empty the cache."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation (llama_vocab_is_eog)."""
