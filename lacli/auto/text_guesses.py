"""What mode auto guesses of one text, and what it learns from that: nothing here knows of other texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lacli.auto import rewriting, suffix
from lacli.auto.experience import Experience
from lacli.auto.planner import Branches, Chain, Limits, Node, Source, best_prefix
from lacli.auto.pool_source import PoolSource
from lacli.auto.recycling import MAX_SUCCESSORS
from lacli.auto.rewriting import RewritingSource
from lacli.auto.suffix import MatchSource, SuffixSource
from lacli.context import Successors
from lacli.modes import Outcome
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from lacli.window import WindowBranch

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


class Match(NamedTuple):
    """A match that goes on. `most`: guesses that its chain may have; `guesses`, `tokens`: those of its best chain.

    `resting`: by kind of match, the step until which those of the source rest.
    """

    source: MatchSource
    resting: list[int]
    most: int
    order: Chain
    guesses: int
    tokens: float


class TextGuesses:
    """The sources of a text, its step, and how it goes on.

    Sequence 0 holds the text and a single chain, 1 .. W a window column each, those behind them a branch each.
    `text`, `room`, `tree`: of the step, and how many rows it may have. `is_planned`: it has guesses.
    `number`: of the step. `is_asleep`: it looks for no guesses. `sleeps_on`: it never does. `sources`: those that
    are asked now. `settings`, `experience`: as they are given.
    """

    def __init__(
        self,
        settings: DecodeSettings,
        pool: NgramPool,
        vocabulary: int,
        is_end: Callable[[int], bool],
        experience: Experience,
    ) -> None:
        self.settings = settings
        self.experience = experience
        self._cost = experience.cost_model
        self.branch = WindowBranch(settings, pool, vocabulary, is_end)
        chosen = settings.sources
        # Those that are mostly right come first: where two guess differently the first one's word counts.
        # With each, by kind of match, the step until which it rests because it did not pay.
        self._match_sources: list[tuple[MatchSource, list[int]]] = []
        if "suffix" in chosen:
            matches = SuffixSource(experience.acceptances["suffix"].for_text(), is_end)
            copies = RewritingSource(matches, experience.acceptances["rewriting"].for_text())
            self._match_sources.append((matches, [0] * len(suffix.EXPECTED)))
            self._match_sources.append((copies, [0] * len(rewriting.EXPECTED)))
        # Those that are asked for branches only, where rows are cheap, and only while they pay.
        self.branch_sources: list[Source] = []
        self._recycling = experience.recycling.for_text()
        if "pool" in chosen:
            acceptance = experience.acceptances["pool"].for_text()
            self.branch_sources.append(PoolSource(pool, Origin.POOL, acceptance, teaches=True))
        if "recycling" in chosen:
            self.branch_sources.append(self._recycling)
        acceptance = experience.acceptances["window"].for_text()
        self.window_source = PoolSource(pool, Origin.WINDOW, acceptance)
        self._all_sources = [*(each for each, _ in self._match_sources), *self.branch_sources, self.window_source]
        for each in self._all_sources:
            each.account = experience.accounts[each.origin.value]
        self.sources: list[Source] = []
        self._draft: list[Node] = []
        self.clock: Callable[[], float] = float
        self._spent: dict[Source, float] = {}
        self.text: Sequence[int] = ()
        self.room = 0
        self.is_planned = False
        # Tokens of its best step.
        self.longest = 0
        # Numbers of steps: this one and the next that looks for guesses; and fruitless searches.
        self.number = self._wake = self.idle = 0
        self.is_asleep = self.sleeps_on = False
        self._before = -1
        self._mean_rows, self._mean_tokens = 1.0, 1.0
        self._seen: tuple[list[int], list[int], Successors] | None = None

    def begin(self, text: Sequence[int]) -> None:
        """Begin a generation behind a prompt."""
        self._wake = self.idle = 0
        self.longest = 0
        self._seen = None
        self.experience.budget.begin()
        for source in self._all_sources:
            source.acceptance.begin()
            source.account.begin()
            source.begin(text)
        self.branch.open(text, self.experience.width.columns)

    def wakes(self, text: Sequence[int], room: int) -> bool:
        """Begin a step of the text; True if it looks for guesses."""
        self.is_planned = False
        self._draft = []
        self.text, self.room, self.tree = text, room, Tree(text[-1])
        self.number += 1
        self.is_asleep = self.sleeps_on or self.number < self._wake
        return not self.is_asleep

    def has_match(self) -> bool:
        """Follow the text; True if a match goes on that is worth a look."""
        found = False
        for source, resting in self._match_sources:
            source.extend(self.text)
            kind = source.kind
            found = found or (kind >= 0 and self.number >= resting[kind])
        return found

    def best_match(self, limits: Limits, least: float) -> Match | None:
        """Return the match whose chain brings the most tokens a second where the other texts guess nothing.

        One that brings fewer than `least`, in plain steps, or than one before it rests.
        """
        tried, best, found = min(FIRST_CHAIN + 2 * self.longest, self._cost.max_trial_rows), least, None
        room = min(self.room, limits.max_rows - limits.texts + 1)
        for source, resting in self._match_sources:
            kind = source.kind
            if kind < 0 or self.number < resting[kind]:
                continue
            most = min(room, max(tried, source.match[1])) - 1
            order = Chain(source.chances(most))
            (count,), tokens = best_prefix([order], limits, chains=True)
            cost = limits.relative[limits.texts + count]
            if tokens > best * cost:
                best, found = tokens / cost, Match(source, resting, most, order, count, tokens)
            else:
                resting[kind] = self.number + REST
        return found

    def doze(self) -> None:
        """Look for guesses less often while none pays."""
        self.idle = 0 if self.is_planned else self.idle + 1
        self._wake = self.number + min(1 + self.idle // IDLE_BACKOFF, MAX_IDLE_INTERVAL)

    def add_chain(self, match: Match, guesses: int) -> None:
        """Put the `guesses` that follow a match into the tree; with 0 of them the match rests."""
        if guesses:
            self.tree.add_path(match.source.continuation(guesses), 0, match.source.origin)
        else:
            match.resting[match.source.kind] = self.number + REST

    def ask_matches(self) -> None:
        """Ask the sources of matches, and no others."""
        self.sources = [source for source, _ in self._match_sources]

    def set_width(self, room: int) -> None:
        """Open a window of as many columns as may pay, with fewer than `room` rows."""
        width = self.experience.width
        before = width.columns
        if width.decide(self._cost.relative, round(self._mean_rows), self._mean_tokens) != before:
            self.branch.open(self.text, width.columns)
        self.branch.narrow(room - 1)

    def learn(self) -> None:
        """Score the sources' guesses by the text, then let recycling learn the last step's rows."""
        self._spent = {source: 0.0 for source in self.sources if source in self.branch_sources}
        for source in self.sources:
            begin = self.clock()
            source.extend(self.text)
            if source is self._recycling and self._seen:
                self._recycling.learn(*self._seen)
                self._seen = None
            if source in self._spent:
                self._spent[source] += self.clock() - begin
        self._before = self.text[-2] if len(self.text) > 1 else -1

    def branches(self, max_leaves: int) -> Branches:
        """Return the guesses of all sources that are asked."""
        return Branches(self.sources, self.text, max_leaves, self.room - 1)

    def add_time(self, seconds: float) -> None:
        """Book the time it took to choose among the guesses of all sources."""
        for source in self._spent:
            self._spent[source] += seconds / max(len(self.sources) - len(self._match_sources), 1)

    def plant(self, draft: list[Node]) -> None:
        """Put the draft into the tree: a single chain in sequence 0, branches in sequences of their own."""
        self._draft = draft
        for node in draft:
            self.tree.add_node(node.parent + 1, node.token, node.source.origin)
        is_chain = all(node.parent == place for place, node in enumerate(draft, start=-1))
        self.tree.assign_sequences(0 if is_chain and not self.branch.rows else self.settings.window + 1)

    def look(self, tree: Tree, outcome: Outcome) -> None:
        """Note what a decoded step's rows say about other texts."""
        recycling = self._recycling
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
        if self.is_planned and self.branch.rows:
            self.branch.take(tree, outcome.choices, outcome.accepted)
            self.experience.width.record(sum(tree.origins[node] is Origin.WINDOW for node in outcome.nodes))
            rows = max(rows - self.branch.rows, 1)
        self._mean_rows += AVERAGE_WEIGHT * (rows - self._mean_rows)
        self._mean_tokens += AVERAGE_WEIGHT * (outcome.accepted - self._mean_tokens)

    def account(self, outcome: Outcome, token_worth: float) -> None:
        """Book what the text's sources were worth in a step: their guesses, their rows, and their time."""
        relative, rows, plain_s = self._cost.relative, outcome.rows, self._cost.plain_s
        accepted = set(outcome.nodes)
        drafted, hits = Counter[Source](), Counter[Source]()
        for place, node in enumerate(self._draft, start=1):
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
            # Another text of the step may have put it to sleep.
            if source.account.awake:
                source.account.record_step(hits[source] * token_worth - cost)
