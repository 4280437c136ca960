"""Mode auto: asks its sources for guesses, plans the step that pays, and learns from the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from lacli.auto.model_cost import ModelRecords

CHEAP_ROW = 0.15
"""Plain steps a row up to which all sources are asked; dearer rows only copies repay. Source: docs/auto.md."""

PROMISING = {2: 1.22, 4: 1.4, 8: 1.5}
"""Tokens that steps of at most 2, 4, 8 rows bring with recycling alone; where they cost less it is tried in each text.

Source: python -m benchmarks.auto --stairs gpu --only auto:recycling --set auto_rows=2, with 4 and with 8 rows.
"""

REST = 8
"""Steps for which a match of a length that did not pay is not looked at: its worth changes slowly."""

IDLE_BACKOFF, MAX_IDLE_INTERVAL = 8, 4
"""Fruitless searches after which one step more is skipped between two, and the interval's limit in steps.

On a small model the search itself costs more than a hundredth of a step.
"""

FIRST_CHAIN = 4
"""Rows of a text's first chains; later ones may have twice the tokens of its best step more, or as many as the match.

Where 32 rows cost 5.4 plain steps, longer chains that a text did not deserve cost 6% (python -m benchmarks.replay).
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
        # Those that are asked for branches only, where rows are cheap, and only while they pay.
        self._branch_sources: list[Source] = []
        if "pool" in chosen:
            acceptance = experience.text_ngram_acceptance
            self._branch_sources.append(PoolSource(pool, Origin.POOL, TextNgrams(pool), acceptance))
        if "recycling" in chosen:
            self._branch_sources.append(experience.recycling)
        self._window_source = PoolSource(pool, Origin.WINDOW, acceptance=experience.window_ngram_acceptance)
        self._all_sources = [*(each for each, _ in self._match_sources), *self._branch_sources, self._window_source]
        for each in self._all_sources:
            each.account = experience.accounts[each.origin.value]
        self._sources: list[Source] = []
        self._draft: Draft | None = None
        self._clock: Callable[[], float] = float
        self._spent: dict[Source, float] = {}
        self._longest = 0
        # Numbers of steps: this one, the last booked one and the next that looks for guesses; and fruitless searches.
        self._step = self._booked = self._wake = self._idle = 0
        self._is_wide = self._is_asleep = False
        self._before = -1
        self._mean_rows, self._mean_tokens = 1.0, 1.0
        self._seen: tuple[list[int], list[int], Successors] | None = None

    def begin(self, text: Sequence[int]) -> None:
        self._wake = self._idle = 0
        self._longest = 0
        self._cost.set_context(len(text))
        self._cost.refresh()
        self._seen = None
        for estimate in self.experience.acceptances.values():
            estimate.begin()
        for source in self._all_sources:
            source.account.begin()
            source.begin(text)
        self._branch.open(text, self.experience.width.columns)

    def truncate(self, text: Sequence[int], length: int) -> None:
        self._seen = None
        for source in self._all_sources:
            source.truncate(text, length)

    def prefilled(self, rows: int, seconds: float) -> None:
        self._cost.record_prefill(rows, seconds)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        self.plan = self._draft = None
        self._step += 1
        self._is_asleep = self._step < self._wake
        if self._is_asleep:
            return Tree(text[-1])
        self._cost.set_context(len(text))
        room = min(room, self._settings.max_step_tokens)
        self._is_wide = self._opens_branches(text, room)
        if self._is_wide:
            return self._grow_tree(text, min(room, self._cost.max_trial_rows))
        return self._grow_chain(text, room)

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        if self._is_asleep:
            return
        self._clock = outcome.clock
        self._longest = max(self._longest, outcome.accepted)
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
        if self._is_wide:
            self._account(outcome)
        self._booked = self._step

    def _opens_branches(self, text: Sequence[int], room: int) -> bool:
        """Choose the sources of the next step; True if any of them guesses branches."""
        cost = self._cost
        promising = any(cost.relative[rows] < tokens for rows, tokens in PROMISING.items() if rows < len(cost.relative))
        if self._settings.max_rollback >= 0 or not (promising or cost.slope[1] <= CHEAP_ROW):
            return False
        cost.refresh()
        self._set_width(text, room)
        awake = []
        for source in self._branch_sources:
            was_awake = source.account.awake
            if source.account.decide(promising=promising):
                if not was_awake:
                    source.begin(text)
                awake.append(source)
        # The window comes last: what others guess too is not its gain.
        window = [self._window_source] if self._branch.rows else []
        self._sources = [*(source for source, _ in self._match_sources), *awake, *window]
        return bool(awake or window or not self._branch_sources)

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
        tried = min(FIRST_CHAIN + 2 * self._longest, cost.max_trial_rows)
        best = margin
        for source, resting in self._match_sources:
            kind = source.kind
            if kind < 0 or self._step < resting[kind]:
                continue
            most = min(room, max(tried, source.match[1]))
            rows, tokens = chain_rows(source.chances(most - 1), cost.relative, cost.slope, most, self._budget.max_cost)
            if tokens > best * cost.relative[rows]:
                best = tokens / cost.relative[rows]
                found, size, expected = source, rows, tokens
            else:
                resting[kind] = self._step + REST
        if best > margin and self._pays(expected, cost.relative[size], f"a match of {found.match[1]}", margin):
            tree.add_path(found.continuation(size - 1), 0, found.origin)

    def _grow_tree(self, text: Sequence[int], room: int) -> Tree:
        """Where rows are cheap: the best guesses of all sources, and the window's columns."""
        self._learn(text)
        columns, relative, max_cost = self._branch, self._cost.relative, self._budget.max_cost
        self._before = text[-2] if len(text) > 1 else -1
        begin = self._clock()
        draft = plan(
            self._sources, text, relative, self._cost.slope, room - columns.rows, max_cost, LEAVES, columns.rows
        )
        share = (self._clock() - begin) / max(len(self._sources) - len(self._match_sources), 1)
        for source in self._spent:
            self._spent[source] += share
        rows = 1 + len(draft.nodes) + columns.rows
        tree = Tree(text[-1])
        # An open window runs in every step; whether it brings what it costs is judged over many.
        least = 0.0 if columns.rows and relative[rows] <= max_cost else self._budget.margin
        if rows > 1 and self._pays(draft.tokens, relative[rows], "the best of all sources", least):
            self._plant(tree, draft)
            columns.add(tree)
            self._draft = draft
        return tree

    def _account(self, outcome: Outcome) -> None:
        """Book what a step's sources were worth: their guesses, their rows, and their time."""
        relative, rows, plain_s = self._cost.relative, outcome.rows, self._cost.plain_s
        accepted = set(outcome.nodes)
        drafted, hits = Counter[Source](), Counter[Source]()
        for place, node in enumerate(self._draft.nodes if self._draft else (), start=1):
            drafted[node.source] += 1
            hits[node.source] += place in accepted
            if node.parent < 0 or node.parent + 1 in accepted:
                node.source.account.record_guess(node.chance, place in accepted)
        if not plain_s:
            return
        for source, seconds in self._spent.items():
            cost = seconds / plain_s
            if drafted[source] and rows < len(relative):
                cost += relative[rows] - relative[max(rows - drafted[source], 1)]
            source.account.record_step(hits[source] - cost)

    def _set_width(self, text: Sequence[int], room: int) -> None:
        width = self.experience.width
        before = width.columns
        if width.decide(self._cost.relative, round(self._mean_rows), self._mean_tokens) != before:
            self._branch.open(text, width.columns)
        self._branch.narrow(room - 1)

    def _plant(self, tree: Tree, draft: Draft) -> None:
        """Put the draft into the tree: a single chain in sequence 0, branches in sequences of their own."""
        for node in draft.nodes:
            tree.add_node(node.parent + 1, node.token, node.source.origin)
        is_chain = all(node.parent == place for place, node in enumerate(draft.nodes, start=-1))
        tree.assign_sequences(0 if is_chain and not self._branch.rows else self._settings.window + 1)

    def _learn(self, text: Sequence[int]) -> None:
        """Score the sources' guesses by the text, then let recycling learn the last step's rows."""
        self._spent = {source: 0.0 for source in self._sources if source in self._branch_sources}
        for source in self._sources:
            begin = self._clock()
            source.extend(text)
            if source is self.experience.recycling and self._seen:
                self.experience.recycling.learn(*self._seen)
                self._seen = None
            if source in self._spent:
                self._spent[source] += self._clock() - begin

    def _look(self, tree: Tree, outcome: Outcome) -> None:
        """Note what a decoded step's rows say about other texts."""
        recycling = self.experience.recycling
        if recycling in self._spent:
            begin = outcome.clock()
            # A padding row is the last one, and its token does not follow the one above it.
            nodes = [node for node in tree.outputs() if tree.origins[node] is not Origin.PADDING]
            tokens = [tree.tokens[node] for node in nodes]
            befores = [tree.tokens[tree.parents[node]] if node else self._before for node in nodes]
            found = outcome.successors(MAX_SUCCESSORS)
            self._seen = befores, tokens, Successors(found.tokens[: len(nodes)], found.logits[: len(nodes)])
            self._spent[recycling] += outcome.clock() - begin
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

    `cost`: what steps cost here, where it was measured before. `past_texts`: those of earlier runs. `records`: what is
    known of the model on this machine, and where it is kept.
    """

    cost: Cost | None = None
    past_texts: PastTexts | None = None
    records: ModelRecords | None = None

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
        experience = before.experience if isinstance(before, Auto) else self._new_experience(settings, sampled=sampled)
        return Auto(settings, pool, engine.vocabulary, engine.is_end, experience)

    def _new_experience(self, settings: DecodeSettings, *, sampled: bool) -> Experience:
        cost = self.cost or (self.records.cost() if self.records else None)
        experience = Experience(settings, cost, self.past_texts, sampled=sampled)
        if self.records:
            self.records.go_on(experience)
        return experience
