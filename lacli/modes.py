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
    """Return the number of tokens that two sequences have in common at their beginning."""
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
    """What a verified step gave one sequence.

    `choices`: the most probable token after each node of the tree whose logits were read, by node. `nodes`: the tree's
    nodes of the accepted drafts. `rows`: all rows of the step. `seconds`: the step's time until now.
    """

    choices: Mapping[int, int]
    nodes: Sequence[int]
    rows: int
    seconds: float

    @property
    def accepted(self) -> int:
        """The number of tokens that the step gave, the model's own token included."""
        return 1 + len(self.nodes)


class Growing(NamedTuple):
    """A sequence of the next step: its mode and all its tokens. `max_rows`: the most rows of its tree, at least 1."""

    mode: Mode
    tokens: Sequence[int]
    max_rows: int


class Mode:
    """Drafts the next tokens of one sequence. `passed_over`: how many steps left a likely draft out as too slow."""

    passed_over = 0

    def begin(self, tokens: Sequence[int]) -> None:
        """Learn the tokens of the prompt, before the first step."""

    def grow(self, tokens: Sequence[int], max_rows: int) -> Tree:
        """Return the tree of the next step: the last of `tokens` (the whole sequence), and drafts after this token.

        `max_rows`: the most nodes, 1 or more. `grow` is called again with fewer if the cache has too few cells.
        """
        raise NotImplementedError

    def grow_all(self, growing: Sequence[Growing], max_rows: int, prompt_rows: int = 0) -> list[Tree]:
        """Return the tree of each sequence of a step. Each sequence has its own mode, of this class.

        `max_rows`: the most nodes of all trees together. `prompt_rows`: rows of prompt chunks in the same step.
        """
        return [mode.grow(tokens, min(most, max_rows // len(growing))) for mode, tokens, most in growing]

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """Learn from a verified step of this `tree`. Its tokens are in the sequence already."""


class Plain(Mode):
    """Plain decoding: no drafts, one token a step."""

    def grow(self, tokens: Sequence[int], max_rows: int) -> Tree:
        return Tree(tokens[-1])


class Lookup(Mode):
    """Prompt lookup: drafts what followed an earlier match of the sequence's end (Table 3 of the paper, row 2)."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._longest, self._draft = settings.lookup_match, settings.linear_draft
        # The index after the latest occurrence of each run of tokens. Runs with the last token would match themselves.
        self._end: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def begin(self, tokens: Sequence[int]) -> None:
        for end in range(self._indexed + 1, len(tokens)):
            for length in range(1, min(self._longest, end) + 1):
                self._end[tuple(tokens[end - length : end])] = end
            self._indexed = end

    def grow(self, tokens: Sequence[int], max_rows: int) -> Tree:
        self.begin(tokens)
        tree = Tree(tokens[-1])
        ends = (self._end.get(tuple(tokens[-length:])) for length in range(min(self._longest, len(tokens)), 0, -1))
        if found := next(filter(None, ends), None):
            tree.add_path(tokens[found : found + min(self._draft, max_rows - 1)], 0, Origin.CHAIN)
        return tree


class Jacobi(Mode):
    """Jacobi decoding (Algorithm 1): a block of drafted tokens, which each step replaces by the model's choices."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._size = settings.linear_draft
        self._max_iterations = settings.jacobi_iterations

    def begin(self, tokens: Sequence[int]) -> None:
        self._prompt = list(tokens)
        self._random = Random(WINDOW_SEED)
        self._block: list[int] = []
        self._iterations = 0

    def grow(self, tokens: Sequence[int], max_rows: int) -> Tree:
        if not self._block:
            self._block = self._random.choices(self._prompt, k=self._size)
            self._iterations = 0
        self._block = self._block[: max_rows - 1]
        tree = Tree(tokens[-1])
        tree.add_path(self._block, 0, Origin.CHAIN)
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """Replace the block by the choices after the accepted part; after `jacobi_iterations` steps, empty it."""
        self._iterations += 1
        self._block = [outcome.choices[node] for node in range(outcome.accepted, 1 + len(self._block))]
        if self._iterations >= self._max_iterations:
            self._block = []


class Lookahead(Mode):
    """Lookahead decoding (Algorithm 2): a window finds n-grams, and n-grams of the pool are drafts.

    Id 0 is the sequence's. Window columns have the ids 1 .. W, and candidates, the n-grams, have W+1 .. W+G.
    """

    def __init__(self, settings: DecodeSettings, pool: NgramPool, is_end: Callable[[int], bool]) -> None:
        self._settings, self._pool, self._is_end = settings, pool, is_end
        self._unlearned = 0  # the index of the first n-gram that the pool has not learned

    def begin(self, tokens: Sequence[int]) -> None:
        settings = self._settings
        if settings.pool_prompt:
            self._unlearned = self._pool.learn(tokens)
        guesses = self._pool.draft(tokens[-1], settings.window + settings.ngram - 3)
        self._window = Window(settings.window, settings.ngram, tokens[:], guesses)

    def grow(self, tokens: Sequence[int], max_rows: int) -> Tree:
        settings = self._settings
        if settings.pool_prompt:
            self._unlearned = self._pool.learn(tokens, self._unlearned)
        self._window.narrow(max_rows - 1)
        tree = Tree(tokens[-1])
        max_rows -= window_rows(self._window.width, settings.ngram)
        for sequence, candidate in enumerate(self._pool.lookup(tokens[-1]), start=settings.window + 1):
            if len(tree) + tree.missing(candidate) > max_rows:
                break
            tree.add_path(candidate, sequence, Origin.POOL)
        self._window.add_to(tree)
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        """Insert the n-grams of the window's columns into the pool, and move the window on by one row."""
        results = self._window.results(outcome.choices)
        for key, continuation in self._window.ngrams(tree.tokens[ROOT], results):
            self._pool.insert(key, continuation)
        self._window.slide(results, self._is_end)
