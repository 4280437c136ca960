"""Mode auto: asks its sources, plans a step that pays, and learns from what came of it.

What a source knows, what rows cost and which of them pay live beside it; here they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lacli.auto.credit import Credit
from lacli.auto.pace import Pace
from lacli.auto.planner import Draft, chain_rows, plan
from lacli.auto.pooled import Pooled
from lacli.auto.recycling import MOST, Recycling
from lacli.auto.source import Source
from lacli.auto.suffix import Suffix
from lacli.columns import Columns
from lacli.cost.staircase import Cost
from lacli.engine import Successors
from lacli.modes import Mode, Outcome
from lacli.pool import NgramPool
from lacli.settings import LEAVES, DecodeSettings
from lacli.stats import Plan
from lacli.taught import Taught
from lacli.tree import Origin, Tree

MARGIN = 1.03
"""How much better than a plain step a step with guesses must look: expectations are a little too bright."""

CHEAP_ROW = 0.15
"""Plain steps that a row may cost where guesses of every kind are looked for; dearer ones only copies repay."""


class Auto(Mode):
    """One tree a step from all sources, as large as pays; where nothing does, a plain step."""

    def __init__(
        self,
        settings: DecodeSettings,
        pool: NgramPool,
        vocabulary: int,
        is_end: Callable[[int], bool],
        cost: Cost | None = None,
    ) -> None:
        self._settings = settings
        self._pace = Pace(settings.auto_rows, cost)
        self._credit = Credit()
        self._suffix = Suffix()
        self._recycling = Recycling()
        taught = Pooled(pool, Origin.POOL, Taught(pool))
        found = Pooled(pool, Origin.WINDOW)
        by_name: dict[str, list[Source]] = {
            "suffix": [self._suffix], "pool": [taught], "window": [found], "recycling": [self._recycling]
        }  # fmt: skip
        chosen = settings.sources
        self._sources = [source for name, sources in by_name.items() if name in chosen for source in sources]
        self._recycles = "recycling" in chosen
        self._chains = "suffix" in chosen
        self._columns = Columns(settings, pool, vocabulary, is_end)
        self._width = settings.window if "window" in chosen else 0
        self._most = settings.auto_rows if settings.back < 0 else min(settings.auto_rows, settings.back + 1)
        self._drafted = self._wide = False
        self._before = -1
        self._seen: tuple[list[int], list[int], Successors] | None = None

    def begin(self, text: Sequence[int]) -> None:
        self._pace.reach(len(text))
        for source in self._sources:
            source.begin(text)
        self._columns.open(text, self._width)

    def truncate(self, text: Sequence[int], length: int) -> None:
        for source in self._sources:
            source.truncate(text, length)

    def prefilled(self, rows: int, seconds: float) -> None:
        self._pace.prefilled(rows, seconds)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        self._drafted = False
        self.plan = None
        self._wide = self._settings.back < 0 and self._pace.slope[1] <= CHEAP_ROW
        if self._wide:
            self._learn(text)
            return self._grow_tree(text, min(room, self._most))
        if not self._chains:
            return Tree(text[-1])
        self._suffix.extend(text)
        length = self._suffix.match[1]
        return self._grow_chain(text, min(room, self._most), length) if length else Tree(text[-1])

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        if not self._drafted:
            self._pace.saw(1, outcome.seconds)
            self._credit.pass_plain()
        else:
            if self._pace.plain:
                self._credit.book(outcome.accepted, outcome.seconds / self._pace.plain)
            self._pace.saw(outcome.rows, outcome.seconds)
        if self._wide:
            self._look(tree, outcome)

    def _grow_chain(self, text: Sequence[int], most: int, length: int) -> Tree:
        """Where rows are dear: one chain, of what followed the longest match."""
        suffix, relative = self._suffix, self._pace.relative
        chances = map(suffix.chance, range(length, length + most))
        rows, tokens = chain_rows(chances, relative, most)
        tree = Tree(text[-1])
        if rows > 1 and self._pays(tokens, relative[rows]):
            tree.add(suffix.chain(rows - 1), 0, Origin.SUFFIX)
        return tree

    def _grow_tree(self, text: Sequence[int], room: int) -> Tree:
        """Where rows are cheap: the best guesses of all sources, and the window's columns."""
        columns, pace = self._columns, self._pace
        columns.narrow(room - 1)
        self._before = text[-2] if len(text) > 1 else -1
        draft = plan(self._sources, text, pace.relative, pace.slope, room - columns.rows, LEAVES, columns.rows)
        rows = 1 + len(draft.nodes) + columns.rows
        tree = Tree(text[-1])
        if rows > 1 and self._pays(draft.tokens, pace.relative[rows]):
            self._plant(tree, draft)
            columns.add(tree)
        return tree

    def _plant(self, tree: Tree, draft: Draft) -> None:
        """Put the draft into the tree: a single chain in sequence 0, branches in sequences of their own."""
        for node in draft.nodes:
            tree.attach(node.parent + 1, node.token, node.origin)
        tree.number(self._settings.window + 1)

    def _learn(self, text: Sequence[int]) -> None:
        """What the text has become, and then what the rows said: guesses are scored before they are mended."""
        for source in self._sources:
            source.extend(text)
        if self._seen:
            self._recycling.learn(*self._seen)
            self._seen = None

    def _look(self, tree: Tree, outcome: Outcome) -> None:
        """Take from a decoded step what its rows say about other texts."""
        if self._recycles:
            nodes = tree.outputs()
            tokens = [tree.tokens[node] for node in nodes]
            befores = [tree.tokens[tree.parents[node]] if node else self._before for node in nodes]
            self._seen = befores, tokens, outcome.successors(MOST)
        if self._columns.rows and self._drafted:
            self._columns.take(tree, outcome.choices, outcome.accepted)

    def _pays(self, tokens: float, cost: float) -> bool:
        plain = self._pace.plain
        if not plain or tokens < MARGIN * cost or not self._credit.covers(cost):
            return False
        self._drafted = True
        self.plan = Plan(tokens, cost * plain, plain, "")
        return True
