"""Mode auto: asks its sources for guesses, plans the step that pays, and learns from the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lacli.auto import rewriting, suffix
from lacli.auto.experience import Experience
from lacli.auto.past_texts import PastTexts, PastTextSource
from lacli.auto.planner import Branches, Chain, Limits, Node, Source, best_prefix
from lacli.auto.pool_source import PoolSource
from lacli.auto.recycling import MAX_SUCCESSORS
from lacli.auto.rewriting import RewritingSource
from lacli.auto.step_cost import Cost
from lacli.auto.suffix import MatchSource, SuffixSource
from lacli.engine import Engine, Successors
from lacli.modes import Growing, Mode, Outcome, new_mode
from lacli.pool import NgramPool, TextNgrams
from lacli.settings import DecodeSettings
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
            matches = SuffixSource(experience.suffix_acceptance.for_text(), is_end)
            copies = RewritingSource(matches, experience.rewriting_acceptance.for_text())
            self._match_sources.append((matches, [0] * len(suffix.EXPECTED)))
            self._match_sources.append((copies, [0] * len(rewriting.EXPECTED)))
        if "store" in chosen and experience.past_texts:
            source = PastTextSource(experience.past_texts, experience.past_text_acceptance.for_text())
            self._match_sources.append((source, [0] * len(suffix.EXPECTED)))
        # Those that are asked for branches only, where rows are cheap, and only while they pay.
        self._branch_sources: list[Source] = []
        self._recycling = experience.recycling.for_text()
        if "pool" in chosen:
            acceptance = experience.text_ngram_acceptance.for_text()
            self._branch_sources.append(PoolSource(pool, Origin.POOL, TextNgrams(pool), acceptance))
        if "recycling" in chosen:
            self._branch_sources.append(self._recycling)
        acceptance = experience.window_ngram_acceptance.for_text()
        self._window_source = PoolSource(pool, Origin.WINDOW, acceptance=acceptance)
        self._all_sources = [*(each for each, _ in self._match_sources), *self._branch_sources, self._window_source]
        for each in self._all_sources:
            each.account = experience.accounts[each.origin.value]
        self._sources: list[Source] = []
        self._draft: list[Node] = []
        self._shared: SharedStep | None = None
        self._clock: Callable[[], float] = float
        self._spent: dict[Source, float] = {}
        self._longest = 0
        # Numbers of steps: this one, the last booked one and the next that looks for guesses; and fruitless searches.
        self._step = self._booked = self._wake = self._idle = 0
        self._is_asleep = False
        self._before = -1
        self._mean_rows, self._mean_tokens = 1.0, 1.0
        self._seen: tuple[list[int], list[int], Successors] | None = None

    def begin(self, text: Sequence[int]) -> None:
        self._wake = self._idle = 0
        self._longest = 0
        self._cost.set_context(len(text))
        self._cost.refresh()
        self._seen = None
        for source in self._all_sources:
            source.acceptance.begin()
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
        return self.grow_all([Growing(self, text, room)], room)[0]

    def grow_all(self, texts: Sequence[Growing], room: int, beside: int = 0) -> list[Tree]:
        steps, awake, cost = list[Auto](), list[Auto](), self._cost
        for mode, tokens, own_room in texts:
            assert isinstance(mode, Auto), "the texts of a step have one mode"
            steps.append(mode)
            if mode._wakes(tokens, own_room):
                awake.append(mode)
        room = min(room, self._settings.max_step_tokens, len(cost.relative) - 1 - beside)
        if awake and len(texts) <= room:
            cost.set_texts(len(texts))
            cost.set_context(sum([len(tokens) for _, tokens, _ in texts]))
            step = SharedStep(steps, awake, room, beside)
            for mode in steps:
                mode._shared = step
            if self._opens_branches(step):
                self._grow_trees(step)
            else:
                self._grow_chains(step)
        return [mode._tree for mode in steps]

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        step = self._shared
        if step is None:
            return
        self._clock = outcome.clock
        self._longest = max(self._longest, outcome.accepted)
        seconds, is_wide = outcome.seconds, step.is_wide and not self._is_asleep
        if is_wide:
            # The time it takes to learn from rows depends on their number too.
            begin = outcome.clock()
            self._look(tree, outcome)
            seconds += outcome.clock() - begin
        step.tokens += outcome.accepted
        step.unseen -= 1
        if not step.unseen:
            self._book(step, outcome.rows, seconds)
        if is_wide:
            self._account(outcome, len(step.texts))
        self._booked = self._step

    def _wakes(self, text: Sequence[int], room: int) -> bool:
        """Begin a step of the text; True if it looks for guesses."""
        self.plan = self._shared = None
        self._draft = []
        self._text, self._room, self._tree = text, room, Tree(text[-1])
        self._step += 1
        self._is_asleep = self._step < self._wake
        return not self._is_asleep

    def _book(self, step: SharedStep, rows: int, seconds: float) -> None:
        """Record what a step of all texts cost and brought, in steps without guesses and the tokens of one."""
        texts, cost = len(step.texts), step.cost
        if cost:
            # Beside a piece of prompt a step costs more than one of its size otherwise.
            self._budget.record(step.tokens / texts, cost if step.beside else self._cost.record(rows, seconds))
            return
        self._budget.record_plain(self._step - self._booked)
        is_plain = rows <= max(texts, self._settings.min_outputs) and not step.beside
        if is_plain and (excess := self._cost.record(texts, seconds)):
            self._budget.record(0, excess)

    def _opens_branches(self, step: SharedStep) -> bool:
        """Choose the sources of the next step; True if any of them guesses branches."""
        cost, texts, relative = self._cost, len(step.texts), self._cost.relative
        promising = any(
            relative[texts * rows] < tokens * relative[texts]
            for rows, tokens in PROMISING.items()
            if texts * rows < len(relative)
        )
        is_cheap = promising or cost.slope[texts] * texts <= CHEAP_ROW * relative[texts]
        if self._settings.max_rollback >= 0 or not is_cheap:
            return False
        cost.refresh()
        for mode in step.awake:
            if texts == 1:
                mode._set_width(mode._text, min(mode._room, step.room))
            else:
                # A window of each text would be rows in every step.
                mode._branch.narrow(0)
            mode._sources = [source for source, _ in mode._match_sources]
        for alike in zip(*[mode._branch_sources for mode in step.awake], strict=True):
            account = alike[0].account
            was_awake = account.awake
            if account.decide(promising=promising):
                for mode, source in zip(step.awake, alike, strict=True):
                    if not was_awake:
                        source.begin(mode._text)
                    mode._sources.append(source)
        is_any = len(self._sources) > len(self._match_sources)
        # The window comes last: what others guess too is not its gain.
        if texts == 1 and self._branch.rows:
            self._sources.append(self._window_source)
        step.is_wide = bool(is_any or self._branch.rows or not self._branch_sources)
        return step.is_wide

    def _grow_chains(self, step: SharedStep) -> None:
        """Where rows are dear: the best continuations of matches, searched for less often while none pays."""
        looking = [mode for mode in step.awake if mode._has_match()]
        if looking and not self._cost.needs_plain_step:
            self._cost.refresh()
            self._add_best_chains(step, looking)
        elif step.awake[0]._idle % IDLE_BACKOFF == 0:
            self._cost.refresh()
        for mode in step.awake:
            mode._idle = 0 if mode.plan else mode._idle + 1
            mode._wake = mode._step + min(1 + mode._idle // IDLE_BACKOFF, MAX_IDLE_INTERVAL)

    def _has_match(self) -> bool:
        """Follow the text; True if a match goes on that is worth a look."""
        found = False
        for source, resting in self._match_sources:
            source.extend(self._text)
            kind = source.kind
            found = found or (kind >= 0 and self._step >= resting[kind])
        return found

    def _add_best_chains(self, step: SharedStep, looking: Sequence[Auto]) -> None:
        limits, margin = self._limits(step, step.room), self._budget.margin
        # Chains of several texts may pass a cliff together that none would pass alone.
        least = margin if limits.texts == 1 else 0.0
        found = [(mode, match) for mode in looking if (match := mode._best_match(limits, least))]
        if not found:
            return
        counts, tokens = [found[0][1].guesses], found[0][1].tokens
        if limits.texts > 1:
            most = max(self._cost.max_trial_rows, limits.texts + max(match.most for _, match in found))
            orders = [Chain(match.source.chances(match.most)) for _, match in found]
            limits = limits._replace(max_rows=min(step.room, most))
            counts, tokens = best_prefix(orders, limits, chains=True)
        pays = step.pays(tokens, limits, sum(counts), margin)
        for (mode, match), count in zip(found, counts, strict=True):
            if pays and count:
                mode._tree.add_path(match.source.continuation(count), 0, match.source.origin)
                mode._expect(step, match.order.taken[:count], f"a match of {match.source.match[1]}")
            else:
                match.resting[match.source.kind] = mode._step + REST

    def _best_match(self, limits: Limits, least: float) -> Match | None:
        """Return the match whose chain brings the most tokens a second where the other texts guess nothing.

        One that brings fewer than `least`, in plain steps, or than one before it rests.
        """
        tried, best, found = min(FIRST_CHAIN + 2 * self._longest, self._cost.max_trial_rows), least, None
        room = min(self._room, limits.max_rows - limits.texts + 1)
        for source, resting in self._match_sources:
            kind = source.kind
            if kind < 0 or self._step < resting[kind]:
                continue
            most = min(room, max(tried, source.match[1])) - 1
            order = Chain(source.chances(most))
            (count,), tokens = best_prefix([order], limits, chains=True)
            cost = limits.relative[limits.texts + count]
            if tokens > best * cost:
                best, found = tokens / cost, Match(source, resting, most, order, count, tokens)
            else:
                resting[kind] = self._step + REST
        return found

    def _grow_trees(self, step: SharedStep) -> None:
        """Where rows are cheap: the best guesses of all sources, and the window's columns."""
        for mode in step.awake:
            mode._learn(mode._text)
            mode._before = mode._text[-2] if len(mode._text) > 1 else -1
        columns = self._branch.rows if len(step.texts) == 1 else 0
        limits = self._limits(step, min(step.room, self._cost.max_trial_rows), columns)
        leaves, begin = self._settings.leaves, self._clock()
        orders = [Branches(mode._sources, mode._text, leaves, mode._room - 1) for mode in step.awake]
        counts, tokens = best_prefix(orders, limits)
        share = (self._clock() - begin) / len(step.awake)
        for mode in step.awake:
            for source in mode._spent:
                mode._spent[source] += share / max(len(mode._sources) - len(mode._match_sources), 1)
        # An open window runs in every step; whether it brings what it costs is judged over many.
        rows = limits.texts + sum(counts) + columns
        least = 0.0 if columns and limits.relative[rows] <= limits.max_cost else self._budget.margin
        is_due = self._cost.needs_plain_step
        if rows > limits.texts and not is_due and step.pays(tokens, limits, sum(counts), least):
            for mode, order, count in zip(step.awake, orders, counts, strict=True):
                if count or columns:
                    mode._plant(order.nodes[:count])
                    mode._expect(step, order.taken[:count], "the best of all sources")
            if columns:
                self._branch.add(self._tree)

    def _limits(self, step: SharedStep, room: int, columns: int = 0) -> Limits:
        """Return what the step may be, with `columns` rows of a window and at most `room` in all."""
        relative, slope, texts, beside = self._cost.relative, self._cost.slope, len(step.texts), step.beside
        if beside:
            # A piece of prompt has to be decoded anyway, so guesses pay for what they add to it.
            plain, more = relative[texts], relative[texts] - relative[texts + beside]
            relative, slope = [max(cost + more, plain) for cost in relative[beside:]], slope[beside:]
        return Limits(relative, slope, room - columns, self._budget.max_cost, texts, columns)

    def _expect(self, step: SharedStep, chances: Sequence[float], reason: str) -> None:
        """Note what the text is expected to get of a step with guesses."""
        plain_s = self._cost.plain_s * self._cost.relative[len(step.texts)]
        self.plan = Plan(sum(chances, 1.0), step.cost * plain_s, plain_s, reason)

    def _account(self, outcome: Outcome, texts: int) -> None:
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
            if source.account.awake:
                # Beside other texts a token is worth less, since a step without guesses brings one for each.
                source.account.record_step(hits[source] * relative[texts] / texts - cost)

    def _set_width(self, text: Sequence[int], room: int) -> None:
        width = self.experience.width
        before = width.columns
        if width.decide(self._cost.relative, round(self._mean_rows), self._mean_tokens) != before:
            self._branch.open(text, width.columns)
        self._branch.narrow(room - 1)

    def _plant(self, draft: list[Node]) -> None:
        """Put the draft into the tree: a single chain in sequence 0, branches in sequences of their own."""
        self._draft = draft
        for node in draft:
            self._tree.add_node(node.parent + 1, node.token, node.source.origin)
        is_chain = all(node.parent == place for place, node in enumerate(draft, start=-1))
        self._tree.assign_sequences(0 if is_chain and not self._branch.rows else self._settings.window + 1)

    def _learn(self, text: Sequence[int]) -> None:
        """Score the sources' guesses by the text, then let recycling learn the last step's rows."""
        self._spent = {source: 0.0 for source in self._sources if source in self._branch_sources}
        for source in self._sources:
            begin = self._clock()
            source.extend(text)
            if source is self._recycling and self._seen:
                self._recycling.learn(*self._seen)
                self._seen = None
            if source in self._spent:
                self._spent[source] += self._clock() - begin

    def _look(self, tree: Tree, outcome: Outcome) -> None:
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
        if self.plan and self._branch.rows:
            self._branch.take(tree, outcome.choices, outcome.accepted)
            self.experience.width.record(sum(tree.origins[node] is Origin.WINDOW for node in outcome.nodes))
            rows = max(rows - self._branch.rows, 1)
        self._mean_rows += AVERAGE_WEIGHT * (rows - self._mean_rows)
        self._mean_tokens += AVERAGE_WEIGHT * (outcome.accepted - self._mean_tokens)


class SharedStep:
    """A step of texts of mode auto.

    `awake`: those that look for guesses. `room`: rows that it may have. `beside`: rows that it has besides, of pieces
    of prompt. `is_wide`: sources of branches were asked. `cost`: of its guesses, in steps without any; 0 for none.
    `unseen`: texts whose outcome is not known yet. `tokens`: those that the others got.
    """

    def __init__(self, texts: Sequence[Auto], awake: Sequence[Auto], room: int, beside: int) -> None:
        self.texts, self.awake = texts, awake
        self.room, self.beside = room, beside
        self.is_wide = False
        self.cost = 0.0
        self.unseen = len(texts)
        self.tokens = 0

    def pays(self, tokens: float, limits: Limits, guesses: int, least: float) -> bool:
        """Plan a step with `guesses` if it promises `tokens`, at least `least` times what plain steps would bring."""
        cost = limits.relative[limits.texts + limits.beside + guesses] / limits.relative[limits.texts]
        if tokens / limits.texts < least * cost:
            return False
        self.cost = cost
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
