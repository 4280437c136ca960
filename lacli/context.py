"""What the loop needs of a model: one batch in, logits out, the cache's sequence calls, a clock and a sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, Ints
from lacli.tree import Branches

Floats = npt.NDArray[np.floating]

Read = Callable[[int], None]


def unread(done: int) -> None:
    """Tell nobody how many tokens of a prompt are decoded."""


Reading = Callable[[int], AbstractContextManager[Read]]
"""Shows how a prompt is read: is entered with the tokens to read, and gets their number after each part."""


def unseen(tokens: int) -> AbstractContextManager[Read]:
    """Show nothing while a prompt is read."""
    return nullcontext(unread)


class Successors(NamedTuple):
    """The most probable next tokens of each output row, best first: (outputs, count) token ids and their logits."""

    tokens: Ints
    logits: Floats


class Context(Protocol):
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
    def prefill_rows(self) -> int:
        """Rows of a prefill call: Ctrl-C is heard between two, and what is read so far is known."""

    @property
    def mixed_rows(self) -> int:
        """Rows of a step that pieces of prompts may share with other texts' rows; more of them are decoded apart."""

    @property
    def trained_context(self) -> int:
        """Tokens of the longest text that the model was trained for."""

    @property
    def sequences(self) -> int:
        """Sequence ids 0 .. sequences-1 may be used."""

    @property
    def vocabulary(self) -> int:
        """Token ids 0 .. vocabulary-1 exist."""

    def decode(self, batch: Batch) -> bool:
        """Run one batch; False, with nothing changed, when the cache has no room for it."""

    def greedy(self) -> Ints:
        """The most probable next token of each output row of the last batch, (outputs,) integers.

        Raises LacliError when the logit of one of them is NaN or infinite: then the model computes nonsense.
        """

    def logits(self) -> Floats:
        """The last batch's logits, (outputs, vocabulary), valid until the next decode.

        Not to be had from an engine that was made to give greedy choices only.
        """

    def row_logits(self, row: int) -> Floats:
        """The logits of one output row of the last batch, (vocabulary,); where an engine is far away, only these come.

        Not to be had from an engine that was made to give greedy choices only.
        """

    def successors(self, count: int) -> Successors:
        """The most probable next tokens of each output row of the last batch, valid until the next decode.

        Also to be had from an engine that was made to give greedy choices, which may give fewer than `count`.
        """

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` own the cells of `source` at positions start .. end-1."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        """Take positions start .. end-1 from a sequence; False, with nothing changed, where the model cannot."""

    @property
    def can_share(self) -> bool:
        """Whether `copy` can give a sequence the beginning of another, which a recurrent state does not keep."""

    @property
    def passes_all_cells(self) -> bool:
        """Whether attention passes all cells, those of other sequences too, as on a CPU: idle ones cost time there."""

    def clear(self) -> None:
        """Empty the cache."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation (llama_vocab_is_eog)."""


class EngineGroup(ABC):
    """What decodes the steps of one text: a single engine, or replicas that share the rows of each step.

    `tokens` is always the whole text: the cache holds a beginning of it, and its last token is the next step's input.
    """

    @property
    @abstractmethod
    def engine(self) -> Context:
        """One that speaks for all, which are of one model and size."""

    @property
    @abstractmethod
    def past(self) -> int:
        """Tokens of the text that at least one cache holds."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """Tokens that every cache can hold."""

    @property
    @abstractmethod
    def cache_s(self) -> float:
        """Seconds of sequence calls so far."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of the last step; those that several replicas have decoded count for each."""

    @property
    @abstractmethod
    def times(self) -> tuple[float, float]:
        """Seconds of decoding the last step and of reading its choices."""

    @abstractmethod
    def room(self, tokens: Sequence[int]) -> int:
        """Rows that the next step's tree may have."""

    @abstractmethod
    def prefill(self, tokens: Sequence[int], read: Read = unread, *, all_replicas: bool = True) -> float:
        """Decode what is missing of a text's beginning; return the seconds that it took.

        `read`: gets the number of tokens decoded so far, after each batch. `all_replicas`: bring every replica up to
        date, not just the first.
        """

    @abstractmethod
    def decode(self, tokens: Sequence[int], tree: Branches) -> bool:
        """Decode a step; False, with nothing changed, when it finds no cells."""

    @abstractmethod
    def choices(self) -> Mapping[int, int]:
        """The most probable token after each output node of the last step."""

    @abstractmethod
    def logits(self) -> Callable[[int], Floats]:
        """A function that returns the logits, (vocabulary,), after an output node of the last step."""

    @abstractmethod
    def successors(self, count: int) -> Successors:
        """The `count` most probable tokens after each output node of the last step, in the tree's order."""

    @abstractmethod
    def commit(self, nodes: Sequence[int], *, ordered: bool) -> None:
        """Hold on to the input and the accepted `nodes` of the last step.

        `ordered`: hold only cells in the order of the text, which those behind other guesses are not.
        """

    @abstractmethod
    def cut(self, length: int) -> None:
        """Cut the caches back to the first `length` tokens; a model that cannot forget a part forgets all."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def unshare(self) -> None:
        """Mend what an interrupt may have left: sequences that own more than is known."""


class StepClock:
    """What the parts of one step take, in seconds, counted from its making on.

    `groups`: of the step's texts. Where there are several, each is told the time of the whole step up to its own end.
    `choose_s`: seconds of reading the most probable tokens and, added by each text, of choosing its own.
    """

    def __init__(self, groups: Sequence[EngineGroup]) -> None:
        self.groups = groups
        self._begin, self._cache_before = perf_counter(), self._cache_s()

    def decoded(self) -> None:
        """The batch is decoded, and the most probable tokens are read."""
        # Sequences that catch up with a long text do so once: no step costs that again.
        self._shared_s = self._cache_s() - self._cache_before
        self._decode_s, self.choose_s = self.groups[0].times

    def step_s(self) -> float:
        """The time so far, which another step like this one takes too."""
        return perf_counter() - self._begin - self._shared_s

    def parts(self) -> tuple[float, float, float, float]:
        """The time so far: decoding, choosing, sequence calls, and Python for all the rest."""
        cache_s = self._cache_s() - self._cache_before
        known = self._decode_s + self.choose_s + cache_s
        return self._decode_s, self.choose_s, cache_s, perf_counter() - self._begin - known

    def _cache_s(self) -> float:
        seconds = 0.0
        for group in self.groups:
            seconds += group.cache_s
        return seconds


class Distribution(NamedTuple):
    """What a token is drawn from: (candidates,) token ids and their probabilities, which sum to 1."""

    tokens: Ints
    probabilities: Floats


class Sampler(Protocol):
    """Draws the tokens of one text after another; what it was told of the text may change what it draws next.

    A token becomes known to it once: by `draw` itself, or by `accept` after `distribution`.
    """

    def begin(self, text: Sequence[int]) -> None:
        """Start anew, with the same random numbers, behind a prompt of these tokens."""

    def draw(self, logits: Floats) -> int:
        """The next token, from one row of logits, (vocabulary,). Raises SamplingError when none is possible."""

    def distribution(self, logits: Floats) -> Distribution:
        """What the next token would be drawn from. Raises SamplingError when none is possible."""

    def accept(self, token: int) -> None:
        """Take in the token that was drawn from `distribution`."""
