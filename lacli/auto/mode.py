"""Mode auto: asks its sources for guesses, plans the step that pays, and learns from the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lacli.auto import rewriting, suffix
from lacli.auto.experience import Experience
from lacli.auto.past_texts import PastTexts, PastTextSource
from lacli.auto.planner import (
    Draft,
    Source,
    chain_rows,
    plan,
)
from lacli.auto.pool_source import PoolSource
from lacli.auto.recycling import MAX_SUCCESSORS
from lacli.auto.rewriting import RewritingSource
from lacli.auto.step_cost import Cost
from lacli.auto.suffix import MatchSource, SuffixSource
from lacli.engine import Engine, Successors
from lacli.modes import Mode, Outcome, new_mode
from lacli.pool import NgramPool, TextNgrams
from lacli.settings import LEAVES, DecodeSettings
from lacli.stats import Plan
from lacli.tree import Origin, Tree
from lacli.window import WindowBranch

CHEAP_ROW = 0.15
"""Plain steps a row up to which all sources are asked; dearer rows only copies repay. Source: docs/auto.md."""

REST = 8
"""Steps for which a match of a length that did not pay is not looked at: its worth changes slowly."""

IDLE_BACKOFF, MAX_IDLE_INTERVAL = 8, 4
"""Fruitless searches after which one step more is skipped between two, and the interval's limit in steps.

On a small model the search itself costs more than a hundredth of a step.
"""

AVERAGE_WEIGHT = 0.1
"""Weight of the latest step in the mean rows and tokens of a step."""


class Auto(Mode):
    """One tree a step from all sources, as large as pays; where nothing pays, a plain step.

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
        self.experience = experience
        self._cost, self._budget = experience.cost_model, experience.budget
        self._branch = WindowBranch(settings, pool, vocabulary, is_end)
        chosen = settings.sources
        # Those that are mostly right come first: where two guess differently the first one's word counts.
        # With each, by kind of match, the step until which it rests because it did not pay.
        self._match_sources: list[tuple[MatchSource, list[int]]] = []
        if "suffix" in chosen:
            matches = SuffixSource(experience.suffix_acceptance, is_end)
            copies = RewritingSource(matches, experience.rewriting_acceptance)
            self._match_sources.append((matches, [0] * len(suffix.EXPECTED)))
            self._match_sources.append((copies, [0] * len(rewriting.EXPECTED)))
        if "store" in chosen and experience.past_texts:
            source = PastTextSource(experience.past_texts, experience.past_text_acceptance)
            self._match_sources.append((source, [0] * len(suffix.EXPECTED)))
        self._sources: list[Source] = [source for source, _ in self._match_sources]
        if "pool" in chosen:
            self._sources.append(PoolSource(pool, Origin.POOL, TextNgrams(pool), experience.text_ngram_acceptance))
        self._recycles = "recycling" in chosen
        if self._recycles:
            self._sources.append(experience.recycling)
        if "window" in chosen:
            # The last one: what others guess too is not the window's gain.
            self._sources.append(PoolSource(pool, Origin.WINDOW, acceptance=experience.window_ngram_acceptance))
        # Numbers of steps: this one, the last booked one and the next that looks for guesses; and fruitless searches.
        self._step = self._booked = self._wake = self._idle = 0
        self._is_wide = self._is_asleep = False
        self._before = -1
        self._mean_rows, self._mean_tokens = 1.0, 1.0
        self._seen: tuple[list[int], list[int], Successors] | None = None

    def begin(self, text: Sequence[int]) -> None:
        self._wake = self._idle = 0
        self._cost.set_context(len(text))
        self._cost.refresh()
        self._seen = None
        for source in self._sources:
            source.begin(text)
        self._branch.open(text, self.experience.width.columns)

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._seen = None
        for source in self._sources:
            source.truncate(text, length)

    def prefilled(self, rows: int, seconds: float) -> None:
        self._cost.record_prefill(rows, seconds)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        self.plan = None
        self._step += 1
        self._is_asleep = self._step < self._wake
        if self._is_asleep:
            return Tree(text[-1])
        self._cost.set_context(len(text))
        room = min(room, self._settings.max_step_tokens)
        self._is_wide = self._cost.slope[1] <= CHEAP_ROW and self._settings.max_rollback < 0
        if self._is_wide:
            self._cost.refresh()
            self._learn(text)
            return self._grow_tree(text, room)
        return self._grow_chain(text, room)

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        if self._is_asleep:
            return
        seconds = outcome.seconds
        if self._is_wide:
            # The time it takes to learn from rows depends on their number too.
            begin = outcome.clock()
            self._look(tree, outcome)
            seconds += outcome.clock() - begin
        if self.plan:
            self._budget.record(outcome.accepted, self._cost.record(outcome.rows, seconds))
        else:
            self._budget.record_plain(self._step - self._booked)
            if outcome.rows <= self._settings.min_outputs and (excess := self._cost.record(1, seconds)):
                self._budget.record(0, excess)
        self._booked = self._step

    def _grow_chain(self, text: Sequence[int], room: int) -> Tree:
        """Where rows are dear: the best continuation of a match, searched for less often while none pays."""
        tree, is_worth_a_look = Tree(text[-1]), False
        for source, resting in self._match_sources:
            source.extend(text)
            kind = source.kind
            is_worth_a_look = is_worth_a_look or (kind >= 0 and self._step >= resting[kind])
        if is_worth_a_look and not self._cost.needs_plain_step:
            self._cost.refresh()
            self._add_best_chain(tree, room)
        elif self._idle % IDLE_BACKOFF == 0:
            self._cost.refresh()
        self._idle = 0 if self.plan else self._idle + 1
        self._wake = self._step + min(1 + self._idle // IDLE_BACKOFF, MAX_IDLE_INTERVAL)
        return tree

    def _add_best_chain(self, tree: Tree, room: int) -> None:
        cost, margin = self._cost, self._budget.margin
        best = margin
        for source, resting in self._match_sources:
            kind = source.kind
            if kind < 0 or self._step < resting[kind]:
                continue
            rows, tokens = chain_rows(source.chances(room - 1), cost.relative, cost.slope, room, self._budget.max_cost)
            if tokens > best * cost.relative[rows]:
                best = tokens / cost.relative[rows]
                found, size, expected = source, rows, tokens
            else:
                resting[kind] = self._step + REST
        if best > margin and self._pays(expected, cost.relative[size], f"a match of {found.match[1]}", margin):
            tree.add_path(found.continuation(size - 1), 0, found.origin)

    def _grow_tree(self, text: Sequence[int], room: int) -> Tree:
        """Where rows are cheap: the best guesses of all sources, and the window's columns."""
        columns, relative, max_cost = self._branch, self._cost.relative, self._budget.max_cost
        self._set_width(text, room)
        self._before = text[-2] if len(text) > 1 else -1
        room -= columns.rows
        draft = plan(self._sources, text, relative, self._cost.slope, room, max_cost, LEAVES, columns.rows)
        rows = 1 + len(draft.nodes) + columns.rows
        tree = Tree(text[-1])
        # An open window runs in every step; whether it brings what it costs is judged over many.
        least = 0.0 if columns.rows and relative[rows] <= max_cost else self._budget.margin
        if rows > 1 and self._pays(draft.tokens, relative[rows], "the best of all sources", least):
            self._plant(tree, draft)
            columns.add(tree)
        return tree

    def _set_width(self, text: Sequence[int], room: int) -> None:
        width = self.experience.width
        before = width.columns
        if width.decide(self._cost.relative, round(self._mean_rows), self._mean_tokens) != before:
            self._branch.open(text, width.columns)
        self._branch.narrow(room - 1)

    def _plant(self, tree: Tree, draft: Draft) -> None:
        """Put the draft into the tree: a single chain in sequence 0, branches in sequences of their own."""
        for node in draft.nodes:
            tree.add_node(node.parent + 1, node.token, node.origin)
        is_chain = all(node.parent == place for place, node in enumerate(draft.nodes, start=-1))
        tree.assign_sequences(0 if is_chain and not self._branch.rows else self._settings.window + 1)

    def _learn(self, text: Sequence[int]) -> None:
        """Score the sources' guesses by the text, then let recycling learn the last step's rows."""
        for source in self._sources:
            source.extend(text)
        if self._seen:
            self.experience.recycling.learn(*self._seen)
            self._seen = None

    def _look(self, tree: Tree, outcome: Outcome) -> None:
        """Note what a decoded step's rows say about other texts."""
        if self._recycles:
            # A padding row is the last one, and its token does not follow the one above it.
            nodes = [node for node in tree.outputs() if tree.origins[node] is not Origin.PADDING]
            tokens = [tree.tokens[node] for node in nodes]
            befores = [tree.tokens[tree.parents[node]] if node else self._before for node in nodes]
            found = outcome.successors(MAX_SUCCESSORS)
            self._seen = befores, tokens, Successors(found.tokens[: len(nodes)], found.logits[: len(nodes)])
        rows = len(tree)
        if self.plan and self._branch.rows:
            self._branch.take(tree, outcome.choices, outcome.accepted)
            self.experience.width.record(sum(tree.origins[node] is Origin.WINDOW for node in outcome.nodes))
            rows = max(rows - self._branch.rows, 1)
        self._mean_rows += AVERAGE_WEIGHT * (rows - self._mean_rows)
        self._mean_tokens += AVERAGE_WEIGHT * (outcome.accepted - self._mean_tokens)

    def _pays(self, tokens: float, cost: float, reason: str, least: float) -> bool:
        """Plan a step of `cost` plain steps if it promises `tokens` of at least `least` times that."""
        plain_s = self._cost.plain_s
        if self._cost.needs_plain_step or tokens < least * cost:
            return False
        self.plan = Plan(tokens, cost * plain_s, plain_s, reason)
        return True


@dataclass(frozen=True)
class AutoModes:
    """Makes the modes that settings ask for, mode auto too.

    `cost`: what steps cost here, where it was measured before. `past_texts`: those of earlier runs.
    """

    cost: Cost | None = None
    past_texts: PastTexts | None = None

    def __call__(
        self,
        settings: DecodeSettings,
        pool: NgramPool,
        engine: Engine,
        *,
        sampled: bool = False,
        before: Mode | None = None,
    ) -> Mode:
        if settings.mode != "auto":
            return new_mode(settings, pool, engine)
        known = before.experience if isinstance(before, Auto) else None
        experience = known or Experience(settings, self.cost, self.past_texts, sampled=sampled)
        return Auto(settings, pool, engine.vocabulary, engine.is_end, experience)
