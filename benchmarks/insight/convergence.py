"""How the blocks of Jacobi decoding converge, iteration by iteration, from the batches of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

from lacli.check.replay import Rows
from lacli.settings import DecodeSettings


class Chain(NamedTuple):
    """The guesses of one iteration: the k-th one is for the position `input` + 1 + k."""

    input: int
    tokens: list[int]


@dataclass(frozen=True)
class Block:
    """One block from its first guesses on.

    positions: the guesses that it began with. right[k]: how many of these positions held the final text's token after
    k+1 iterations, up to the first iteration after which all did. A block that was given up before has none,
    and what it held after its last iteration is not known.
    """

    positions: int
    right: tuple[int, ...]

    @property
    def iterations(self) -> float:
        """Iterations to full convergence; infinite when the block was given up before."""
        return len(self.right) if self.right and self.right[-1] == self.positions else inf


@dataclass(frozen=True)
class Convergence:
    """The blocks of one or several runs; add two to merge them. cut: blocks that a text ended in, not counted."""

    blocks: tuple[Block, ...] = ()
    cut: int = 0

    def __add__(self, other: Convergence) -> Convergence:
        return Convergence(self.blocks + other.blocks, self.cut + other.cut)

    @classmethod
    def sum_of(cls, several: Iterable[Convergence]) -> Convergence:
        """The blocks of all runs."""
        return sum(several, start=cls())

    @property
    def shares(self) -> list[float]:
        """The share of all positions that held their final token after 1, 2, 3 .. iterations.

        It ends with the iteration after which all did, or before the one at which the first block was given up.
        """
        positions = sum(block.positions for block in self.blocks)
        longest = max((len(block.right) for block in self.blocks), default=0)
        # An abandoned block's guesses are known after all of its iterations but the last.
        known = min((len(block.right) for block in self.blocks if not isfinite(block.iterations)), default=longest)
        return [self._right(iteration) / positions for iteration in range(1, min(longest, known) + 1)]

    @property
    def median_iterations(self) -> float | None:
        """The middle block's iterations to full convergence; None where half were given up, or there are none."""
        middle = median(block.iterations for block in self.blocks) if self.blocks else inf
        return middle if isfinite(middle) else None

    @property
    def given_up(self) -> int:
        """Blocks that were dropped before all their positions were right."""
        return sum(not isfinite(block.iterations) for block in self.blocks)

    def _right(self, iteration: int) -> int:
        return sum(block.right[min(iteration, len(block.right)) - 1] for block in self.blocks)


def convergence(decoded: Sequence[Rows], text: Sequence[int], settings: DecodeSettings) -> Convergence:
    """How the blocks of one run in mode jacobi converged to its own text.

    decoded: the batches of the run, the prompt's too. text: the prompt's and all generated tokens, `Decoder.text`.
    A block is the positions that it began with; those that Jacobi iteration adds at its end, one an iteration, are
    not counted. A block is cut, and left out, when the text does not reach all its positions: the ones it reaches
    are the early ones, which converge first.
    """
    chains = [Chain(rows.positions[rows.input], rows.tokens[rows.input + 1 :]) for rows in decoded if any(rows.outputs)]
    blocks, cut = [], 0
    for block in _blocks([*chains, Chain(len(text) - 1, [])], settings.jacobi_iterations):
        if block[0].input + len(block[0].tokens) >= len(text):
            cut += 1
        elif block[0].tokens:
            blocks.append(_followed(block, text))
    return Convergence(tuple(blocks), cut)


def _blocks(chains: Sequence[Chain], most_iterations: int) -> Iterator[list[Chain]]:
    """The chains of each block, and after them the first of the next block, whose input says what was accepted."""
    block: list[Chain] = []
    for chain, following in pairwise(chains):
        block.append(chain)
        accepted = following.input - chain.input
        if accepted == len(chain.tokens) + 1 or len(block) == most_iterations:
            yield [*block, following]
            block = []
    if block:
        yield [*block, chains[-1]]


def _followed(block: Sequence[Chain], text: Sequence[int]) -> Block:
    """The block's first positions, iteration by iteration: a position is right once its token was accepted, too."""
    first, *later, following = block
    places = range(first.input + 1, first.input + 1 + len(first.tokens))
    right = []
    for chain in later:
        guesses = dict(enumerate(chain.tokens, start=chain.input + 1))
        right.append(sum(place <= chain.input or guesses.get(place) == text[place] for place in places))
    if following.input >= places[-1]:
        right.append(len(places))
    converged = right.index(len(places)) + 1 if len(places) in right else len(right)
    return Block(len(places), tuple(right[:converged]))
