"""Mode auto: asks its sources, plans a step that pays, and learns from what came of it.

What a source knows, what rows cost and which of them pay live beside it; here they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lacli.auto.experience import Experience
from lacli.auto.kept import Kept
from lacli.auto.matching import Matching, kind
from lacli.auto.planner import Draft, chain_rows, plan
from lacli.auto.pooled import Pooled
from lacli.auto.recycling import MOST
from lacli.auto.source import Source
from lacli.auto.suffix import Suffix
from lacli.engine import Successors
from lacli.modes import Mode, Outcome
from lacli.pool import NgramPool, Taught
from lacli.settings import LEAVES, DecodeSettings
from lacli.stats import Plan
from lacli.tree import Origin, Tree
from lacli.window import Columns

CHEAP_ROW = 0.15
"""Plain steps that a row may cost where guesses of every kind are looked for; dearer ones only copies repay."""

REST = 8
"""Steps in which a match of a length that did not pay is not looked at again: what it is worth changes slowly."""

DROWSY, DEEPEST_SLEEP = 8, 4
"""Steps that looked for guesses in vain until one fewer of the next ones looks, and of how many at least one does.

On a small model the looking itself costs more than a hundredth of a step.
"""

AVERAGE = 0.9
"""What a step still counts in the average one step later."""


class Auto(Mode):
    """One tree a step from all sources, as large as pays; where nothing does, a plain step.

    Sequence 0 holds the text and a single chain, 1 .. W a window column each, those behind them a branch each.
    """

    def __init__(
        self,
        settings: DecodeSettings,
        pool: NgramPool,
        vocabulary: int,
        is_end: Callable[[int], bool],
        experience: Experience,
    ) -> None:
        self._settings = settings
        self._experience = experience
        self._pace, self._credit = experience.pace, experience.credit
        self._columns = Columns(settings, pool, vocabulary, is_end)
        self._most = settings.most_tokens
        chosen = settings.sources
        # Those that are mostly right come first: where two guess differently the first one's word counts.
        # With each, by kind of match, the step until which nobody asks again: it did not pay the last time.
        self._chains: list[tuple[Matching, list[int]]] = []
        if "suffix" in chosen:
            self._chains.append((Suffix(experience.suffix_belief), [0] * len(Suffix.expected)))
        if "store" in chosen and experience.kept:
            self._chains.append((Kept(experience.kept, experience.kept_belief), [0] * len(Suffix.expected)))
        # Steps: this one, the last one that was booked, the one that looks again, and how many looked in vain.
        self._step = self._booked = self._wake = self._idle = 0
        self._sources: list[Source] = [source for source, _ in self._chains]
        if "pool" in chosen:
            self._sources.append(Pooled(pool, Origin.POOL, Taught(pool), experience.taught_belief))
        self._recycles = "recycling" in chosen
        if self._recycles:
            self._sources.append(experience.recycling)
        if "window" in chosen:
            # The last one: what others guess too is not the window's gain.
            self._sources.append(Pooled(pool, Origin.WINDOW, belief=experience.found_belief))
        self._wide = self._asleep = False
        self._before = -1
        self._rows, self._tokens = 1.0, 1.0
        self._seen: tuple[list[int], list[int], Successors] | None = None

    def begin(self, text: Sequence[int]) -> None:
        self._wake = self._idle = 0
        self._pace.reach(len(text))
        self._pace.settle()
        self._seen = None
        for source in self._sources:
            source.begin(text)
        self._columns.open(text, self._experience.width.columns)

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._seen = None
        for source in self._sources:
            source.truncate(text, length)

    def prefilled(self, rows: int, seconds: float) -> None:
        self._pace.prefilled(rows, seconds)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        self.plan = None
        self._step += 1
        self._asleep = self._step < self._wake
        if self._asleep:
            return Tree(text[-1])
        pace = self._pace
        pace.reach(len(text))
        self._wide = pace.slope[1] <= CHEAP_ROW and self._settings.back < 0
        if self._wide:
            pace.settle()
            self._learn(text)
            return self._grow_tree(text, min(room, self._most))
        tree, asked = Tree(text[-1]), False
        for source, resting in self._chains:
            source.extend(text)
            length = source.match[1]
            asked = asked or (length > 0 and self._step >= resting[kind(length)])
        if asked and not pace.doubtful:
            pace.settle()
            self._grow_chain(tree, min(room, self._most))
        elif self._idle % DROWSY == 0:
            pace.settle()
        self._idle = 0 if self.plan else self._idle + 1
        self._wake = self._step + min(1 + self._idle // DROWSY, DEEPEST_SLEEP)
        return tree

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        if self._asleep:
            return
        seconds = outcome.seconds
        if self._wide:
            # What is learned from rows takes its time by their number too.
            begin = outcome.clock()
            self._look(tree, outcome)
            seconds += outcome.clock() - begin
        if self.plan:
            self._credit.book(outcome.accepted, self._pace.saw(outcome.rows, seconds))
        else:
            self._credit.pass_plain(self._step - self._booked)
            if outcome.rows <= self._settings.least_outputs and (back := self._pace.saw(1, seconds)):
                self._credit.book(0, back)
        self._booked = self._step

    def _grow_chain(self, tree: Tree, most: int) -> None:
        """Where rows are dear: what followed the longest match, of the source whose chain is worth most."""
        pace, margin = self._pace, self._credit.margin
        best = margin
        for source, resting in self._chains:
            length = source.match[1]
            if not length or self._step < resting[kind(length)]:
                continue
            chances = map(source.chance, range(length, length + source.ahead(most - 1)))
            rows, tokens = chain_rows(chances, pace.relative, pace.slope, most, self._credit.dearest)
            if tokens > best * pace.relative[rows]:
                best = tokens / pace.relative[rows]
                found, size, expected = source, rows, tokens
            else:
                resting[kind(length)] = self._step + REST
        if best > margin and self._pays(expected, pace.relative[size], f"a match of {found.match[1]}", margin):
            tree.add(found.chain(size - 1), 0, found.origin)

    def _grow_tree(self, text: Sequence[int], room: int) -> Tree:
        """Where rows are cheap: the best guesses of all sources, and the window's columns."""
        columns, pace = self._columns, self._pace
        self._set_width(text, room)
        self._before = text[-2] if len(text) > 1 else -1
        draft = plan(
            self._sources,
            text,
            pace.relative,
            pace.slope,
            room - columns.rows,
            self._credit.dearest,
            LEAVES,
            columns.rows,
        )
        rows = 1 + len(draft.nodes) + columns.rows
        tree = Tree(text[-1])
        # An open window runs in every step; whether it brings what it costs is judged over many.
        least = 0.0 if columns.rows and pace.relative[rows] <= self._credit.dearest else self._credit.margin
        if rows > 1 and self._pays(draft.tokens, pace.relative[rows], "the best of all sources", least):
            self._plant(tree, draft)
            columns.add(tree)
        return tree

    def _set_width(self, text: Sequence[int], room: int) -> None:
        width = self._experience.width
        before = width.columns
        if width.decide(self._pace.relative, round(self._rows), self._tokens) != before:
            self._columns.open(text, width.columns)
        self._columns.narrow(room - 1)

    def _plant(self, tree: Tree, draft: Draft) -> None:
        """Put the draft into the tree: a single chain in sequence 0, branches in sequences of their own."""
        for node in draft.nodes:
            tree.attach(node.parent + 1, node.token, node.origin)
        chain = all(node.parent == place for place, node in enumerate(draft.nodes, start=-1))
        tree.number(0 if chain and not self._columns.rows else self._settings.window + 1)

    def _learn(self, text: Sequence[int]) -> None:
        """What the text has become, and then what the rows said: guesses are scored before they are mended."""
        for source in self._sources:
            source.extend(text)
        if self._seen:
            self._experience.recycling.learn(*self._seen)
            self._seen = None

    def _look(self, tree: Tree, outcome: Outcome) -> None:
        """Take from a decoded step what its rows say about other texts."""
        if self._recycles:
            # A padding row is the last one, and its token does not follow the one above it.
            nodes = [node for node in tree.outputs() if tree.origins[node] is not Origin.CHAIN]
            tokens = [tree.tokens[node] for node in nodes]
            befores = [tree.tokens[tree.parents[node]] if node else self._before for node in nodes]
            found = outcome.successors(MOST)
            self._seen = befores, tokens, Successors(found.tokens[: len(nodes)], found.logits[: len(nodes)])
        rows = len(tree)
        if self.plan and self._columns.rows:
            self._columns.take(tree, outcome.choices, outcome.accepted)
            found_here = sum(tree.origins[node] is Origin.WINDOW for node in outcome.nodes)
            self._experience.width.saw(found_here)
            rows = max(rows - self._columns.rows, 1)
        self._rows += (1 - AVERAGE) * (rows - self._rows)
        self._tokens += (1 - AVERAGE) * (outcome.accepted - self._tokens)

    def _pays(self, tokens: float, cost: float, reason: str, least: float) -> bool:
        """Whether a step that costs so many plain ones is taken, at `least` times their worth; it is the plan then."""
        plain = self._pace.plain
        if self._pace.doubtful or tokens < least * cost:
            return False
        self.plan = Plan(tokens, cost * plain, plain, reason)
        return True
