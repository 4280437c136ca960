"""The modes: what each one guesses in a step, and what it learns from the model's choices.

A mode grows one tree a step and observes the outcome. It decides speed, never text: the loop (`decode.py`)
verifies every guess the same way. Each mode is one idea; none touches the cache or the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from lacli.engine import Successors
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings, window_rows
from lacli.stats import Plan
from lacli.suffixes import SuffixIndex
from lacli.tree import ROOT, Origin, Tree
from lacli.window import Window

WINDOW_SEED = 2402
"""The window's first guesses come from a generator of their own, so the user's seed never meets them."""


class Outcome(NamedTuple):
    """A verified step.

    choices: the model's choice after each output node. accepted: how many tokens it brought. rows: of the batch.
    seconds: what it took so far. successors: the most probable tokens after each output node, of at most so many.
    """

    choices: Mapping[int, int]
    accepted: int
    rows: int
    seconds: float
    successors: Callable[[int], Successors]


class Mode:
    """Guesses for one text after another, of which each may go on from the one before.

    plan: what the last tree was expected to bring, where the mode expects anything.
    """

    plan: Plan | None = None

    def begin(self, text: Sequence[int]) -> None:
        """A generation begins behind a prompt; what is known of its beginning is known still."""

    def truncate(self, text: Sequence[int], length: int) -> None:
        """The text, still whole here, is cut back to its first `length` tokens."""

    def grow(self, text: Sequence[int], room: int) -> Tree:
        """A tree below the text's last token with at most `room` (1 or more) nodes.

        Calling it again with less room, when the cache had too little, gives a smaller tree of the same step.
        """
        raise NotImplementedError

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """Take in a verified step, whose tokens are in the text already."""


class Plain(Mode):
    """One token a step."""

    def grow(self, text: Sequence[int], room: int) -> Tree:
        return Tree(text[-1])


class Lookup(Mode):
    """Prompt lookup: what followed the longest match of the text's end, as one chain (Table 3 of the paper, row 2)."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._index = SuffixIndex(settings.lookup_match)
        self._draft = settings.lookup_draft

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
        self._size = settings.window
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
        self._vocabulary = vocabulary
        self._is_end = is_end
        # Where on the text the n-grams begin that the pool has learned, and where the next one will.
        self._spans: list[tuple[int, int]] = []
        self._next = 0

    def begin(self, text: Sequence[int]) -> None:
        settings = self._settings
        if settings.pool_prompt:
            # What the window has found since would push the text's own n-grams out where G is small.
            for begin, end in self._spans:
                self._pool.learn(text[: end + settings.ngram - 1], begin, again=True)
            self._learn(text)
        else:
            self._next = max(self._next, len(text))
        self._prompt = list(text)
        self._random = Random(WINDOW_SEED)
        wanted = settings.window + settings.ngram - 3
        guesses = self._pool.chain(text[-1], wanted) if settings.window_init == "pool" else ()
        self._window = Window(settings.window, settings.ngram, self._draw, guesses)
        self._ends: list[int] = []

    def truncate(self, text: Sequence[int], length: int) -> None:
        ngram = self._settings.ngram
        self._next = min(self._next, max(length - ngram + 1, 0))
        while self._spans and self._spans[-1][1] > self._next:
            begin, end = self._spans.pop()
            self._pool.forget(text[: end + ngram - 1], max(begin, self._next))
            if begin < self._next:
                self._spans.append((begin, self._next))

    def grow(self, text: Sequence[int], room: int) -> Tree:
        if self._settings.pool_text:
            self._learn(text)
        settings, window = self._settings, self._window
        while window_rows(window.width, settings.ngram) >= room:
            window.narrow(window.width - 1)
        tree = Tree(text[-1])
        room -= window_rows(window.width, settings.ngram)
        for sequence, candidate in enumerate(self._pool.lookup(text[-1]), start=settings.window + 1):
            if len(tree) + tree.missing(candidate) > room:
                break
            tree.add(candidate, sequence, Origin.POOL)
        self._ends = [self._add_column(tree, path, column) for column, path in enumerate(window.paths(), start=1)]
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        window = self._window
        results = [outcome.choices[end] for end in self._ends]
        for key, continuation in window.ngrams(tree.tokens[ROOT], results):
            self._pool.insert(key, continuation)
        # An end token would make all guesses after it guesses about another text.
        window.slide([self._draw() if self._is_end(token) else token for token in results])
        if self._settings.window_shift == "refill":
            window.shift(outcome.accepted - 1)

    def _add_column(self, tree: Tree, path: list[int], sequence: int) -> int:
        end = tree.add(path, sequence, Origin.WINDOW, verify=False)
        tree.verified[end] = True
        return end

    def _learn(self, text: Sequence[int]) -> None:
        """Put the n-grams that the text has completed since the last call into the pool."""
        complete = len(text) - self._settings.ngram + 1
        if complete > self._next:
            self._pool.learn(text, self._next)
            begin = self._spans.pop()[0] if self._spans and self._spans[-1][1] == self._next else self._next
            self._spans.append((begin, complete))
            self._next = complete

    def _draw(self) -> int:
        if self._settings.window_init == "random":
            return self._random.randrange(self._vocabulary)
        return self._random.choice(self._prompt)
