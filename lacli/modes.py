"""The modes but auto: each grows a step's tree and learns from its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from lacli.pool import NgramPool
from lacli.settings import DecodeSettings, window_rows
from lacli.tree import ROOT, Origin, Tree
from lacli.window import WINDOW_SEED, Window


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Count the tokens that two sequences have in common at their beginning."""
    low, high = 0, min(len(left), len(right))
    # Halves are compared by one call each: a loop over 30,000 tokens would take milliseconds.
    while low < high:
        middle = (low + high + 1) // 2
        if [*left[low:middle]] == [*right[low:middle]]:
            low = middle
        else:
            high = middle - 1
    return low


class Outcome(NamedTuple):
    """A verified step.

    `choices`: the most probable token after each output node. `nodes`: the accepted drafts. `rows`: of the batch.
    `seconds`: of the step so far.
    """

    choices: Mapping[int, int]
    nodes: Sequence[int]
    rows: int
    seconds: float

    @property
    def accepted(self) -> int:
        """Tokens that the step brought, the model's own among them."""
        return 1 + len(self.nodes)


class Growing(NamedTuple):
    """A sequence of the next step. `room`: most rows of its tree, at least 1."""

    mode: Mode
    tokens: Sequence[int]
    room: int


class Mode:
    """Drafts the next tokens of one sequence. `passed_over`: steps with a likely draft that cost too much to take."""

    passed_over = 0

    def begin(self, tokens: Sequence[int]) -> None:
        """Take in the prompt, before the first step."""

    def grow(self, tokens: Sequence[int], room: int) -> Tree:
        """Grow a tree of at most `room` (1 or more) nodes, of which the first is the sequence's last token.

        A second call with less room, after the cache had too few cells, gives a smaller tree of the same step.
        """
        raise NotImplementedError

    def grow_all(self, growing: Sequence[Growing], room: int, beside: int = 0) -> list[Tree]:
        """Grow the trees of a step, at most `room` nodes in all, for sequences with modes of this kind.

        `beside`: rows of prompt chunks in the same step.
        """
        return [mode.grow(tokens, min(most, room // len(growing))) for mode, tokens, most in growing]

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """Learn from a verified step, whose tokens are in the sequence already."""


class Plain(Mode):
    """One token a step."""

    def grow(self, tokens: Sequence[int], room: int) -> Tree:
        return Tree(tokens[-1])


class Lookup(Mode):
    """Prompt lookup: the tokens after the longest match of the sequence's end (Table 3 of the paper, row 2)."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._longest, self._draft = settings.lookup_match, settings.linear_draft
        # The end of the latest occurrence of each run before the last token, whose own runs would match themselves.
        self._end: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def begin(self, tokens: Sequence[int]) -> None:
        for end in range(self._indexed + 1, len(tokens)):
            for length in range(1, min(self._longest, end) + 1):
                self._end[tuple(tokens[end - length : end])] = end
            self._indexed = end

    def grow(self, tokens: Sequence[int], room: int) -> Tree:
        self.begin(tokens)
        tree = Tree(tokens[-1])
        ends = (self._end.get(tuple(tokens[-length:])) for length in range(min(self._longest, len(tokens)), 0, -1))
        if found := next(filter(None, ends), None):
            tree.add_path(tokens[found : found + min(self._draft, room - 1)], 0, Origin.CHAIN)
        return tree


class Jacobi(Mode):
    """Jacobi decoding: one block of guesses, iterated until it is fixed or often enough (Algorithm 1)."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._size = settings.linear_draft
        self._max_iterations = settings.jacobi_iterations

    def begin(self, tokens: Sequence[int]) -> None:
        self._prompt = list(tokens)
        self._random = Random(WINDOW_SEED)
        self._block: list[int] = []
        self._iterations = 0

    def grow(self, tokens: Sequence[int], room: int) -> Tree:
        if not self._block:
            self._block = self._random.choices(self._prompt, k=self._size)
            self._iterations = 0
        self._block = self._block[: room - 1]
        tree = Tree(tokens[-1])
        tree.add_path(self._block, 0, Origin.CHAIN)
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """The choices after the accepted part are the block's next values; a block that is fixed or old starts anew."""
        self._iterations += 1
        self._block = [outcome.choices[node] for node in range(outcome.accepted, 1 + len(self._block))]
        if self._iterations >= self._max_iterations:
            self._block = []


class Lookahead(Mode):
    """Lookahead decoding: a window that finds n-grams and a pool whose n-grams are verified (Algorithm 2).

    Id 0 holds the sequence, 1 .. W a window column each, W+1 .. W+G a candidate each.
    """

    def __init__(self, settings: DecodeSettings, pool: NgramPool, is_end: Callable[[int], bool]) -> None:
        self._settings, self._pool, self._is_end = settings, pool, is_end
        # The index of the first n-gram that the pool has not learned.
        self._unlearned = 0

    def begin(self, tokens: Sequence[int]) -> None:
        settings = self._settings
        if settings.pool_prompt:
            self._unlearned = self._pool.learn(tokens)
        guesses = self._pool.draft(tokens[-1], settings.window + settings.ngram - 3)
        self._window = Window(settings.window, settings.ngram, tokens[:], guesses)

    def grow(self, tokens: Sequence[int], room: int) -> Tree:
        settings = self._settings
        if settings.pool_prompt:
            self._unlearned = self._pool.learn(tokens, self._unlearned)
        self._window.narrow(room - 1)
        tree = Tree(tokens[-1])
        room -= window_rows(self._window.width, settings.ngram)
        for sequence, candidate in enumerate(self._pool.lookup(tokens[-1]), start=settings.window + 1):
            if len(tree) + tree.missing(candidate) > room:
                break
            tree.add_path(candidate, sequence, Origin.POOL)
        self._window.add_to(tree)
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """Harvest the n-grams of the window's columns into the pool, and slide."""
        results = self._window.results(outcome.choices)
        for key, continuation in self._window.ngrams(tree.tokens[ROOT], results):
            self._pool.insert(key, continuation)
        self._window.slide(results, self._is_end)
