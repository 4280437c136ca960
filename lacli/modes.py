"""The modes: what each one guesses in a step, and what it learns from the model's choices.

A mode grows one tree a step and observes the outcome. It decides speed, never text: the loop (`decode.py`)
verifies every guess the same way. Each mode is one idea; none touches the cache or the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from lacli.auto.experience import Experience
from lacli.auto.mode import Auto
from lacli.columns import WINDOW_SEED, Columns
from lacli.engine import Engine
from lacli.mode import Mode, Outcome
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.suffixes import SuffixIndex
from lacli.taught import Taught
from lacli.tree import Origin, Tree


class Plain(Mode):
    """One token a step."""

    def grow(self, text: Sequence[int], room: int) -> Tree:
        return Tree(text[-1])


class Lookup(Mode):
    """Prompt lookup: what followed the longest match of the text's end, as one chain (Table 3 of the paper, row 2)."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._index = SuffixIndex(settings.lookup_match)
        self._draft = settings.chain

    def begin(self, text: Sequence[int]) -> None:
        self._index.extend(text)

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._index.truncate(length)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        self._index.extend(text)
        tree = Tree(text[-1])
        found = self._index.continuation(text)
        if found is not None:
            tree.add(text[found : found + min(self._draft, room - 1)], 0, Origin.CHAIN)
        return tree


class Jacobi(Mode):
    """Jacobi decoding: one block of guesses, iterated until it is fixed or often enough (Algorithm 1)."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._size = settings.chain
        self._most_iterations = settings.jacobi_iterations

    def begin(self, text: Sequence[int]) -> None:
        self._prompt = list(text)
        self._random = Random(WINDOW_SEED)
        self._block: list[int] = []
        self._iterations = 0

    def grow(self, text: Sequence[int], room: int) -> Tree:
        if not self._block:
            self._block = self._random.choices(self._prompt, k=self._size)
            self._iterations = 0
        self._block = self._block[: room - 1]
        tree = Tree(text[-1])
        tree.add(self._block, 0, Origin.CHAIN)
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """The choices after the accepted part are the block's next values; a block that is fixed or old starts anew."""
        self._iterations += 1
        self._block = [outcome.choices[node] for node in range(outcome.accepted, 1 + len(self._block))]
        if self._iterations >= self._most_iterations:
            self._block = []


class Lookahead(Mode):
    """Lookahead decoding: a window that finds n-grams and a pool whose n-grams are verified (Algorithm 2).

    Sequence 0 holds the text, 1 .. W a window column each, W+1 .. W+G a candidate each.
    """

    def __init__(
        self, settings: DecodeSettings, pool: NgramPool, vocabulary: int, is_end: Callable[[int], bool]
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._taught = Taught(pool)
        self._columns = Columns(settings, pool, vocabulary, is_end)

    def begin(self, text: Sequence[int]) -> None:
        if self._settings.pool_prompt:
            self._taught.refresh(text)
            self._taught.learn(text)
        else:
            self._taught.skip(text)
        self._columns.open(text, self._settings.window)

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._taught.truncate(text, length)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        if self._settings.pool_text:
            self._taught.learn(text)
        self._columns.narrow(room - 1)
        tree = Tree(text[-1])
        room -= self._columns.rows
        for sequence, candidate in enumerate(self._pool.lookup(text[-1]), start=self._settings.window + 1):
            if len(tree) + tree.missing(candidate) > room:
                break
            tree.add(candidate, sequence, Origin.POOL)
        self._columns.add(tree)
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        self._columns.take(tree, outcome.choices, outcome.accepted)


def new_mode(settings: DecodeSettings, pool: NgramPool, engine: Engine, experience: Experience | None) -> Mode:
    """The mode that the settings ask for. experience: of mode auto."""
    match settings.mode:
        case "plain":
            return Plain()
        case "lookup":
            return Lookup(settings)
        case "jacobi":
            return Jacobi(settings)
        case "lookahead":
            return Lookahead(settings, pool, engine.vocabulary, engine.is_end)
        case "auto":
            assert experience, "mode auto learns into one"
            return Auto(settings, pool, engine.vocabulary, engine.is_end, experience)
