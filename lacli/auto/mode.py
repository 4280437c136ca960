"""Mode auto: drafts tokens from the sequence itself, takes the fastest step, and learns from the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from lacli.auto.draft import Draft, Limits, best_step
from lacli.auto.step_cost import Cost, StepCost, StepCostModel
from lacli.auto.suffix import MIN_COPY, RewritingSource, SuffixSource
from lacli.modes import Growing, Mode, Outcome
from lacli.settings import DecodeSettings
from lacli.tree import Tree

FIRST_DRAFT = 4
"""Rows of first drafts. Later drafts have two more for each token of the best step, or the match's length."""

MAX_DELAY = 1.5
"""Other sequences' drafts may make a sequence wait this much longer than with its share of the machine."""

IDLE_DRAFTS, MAX_PAUSE = 4, 4
"""After every IDLE_DRAFTS unused drafts in a row the next one comes a step later, at most MAX_PAUSE steps."""

INITIAL_BALANCE, MIN_BALANCE, MAX_BALANCE, LEAST_AT_FIRST = 2.0, -12.0, 12.0, 1.0
"""In plain steps. INITIAL_BALANCE: drafts may lose so much before they gain anything. MIN_BALANCE, MAX_BALANCE: bounds
of gains minus losses. LEAST_AT_FIRST: the least balance when a sequence begins."""

SHARE = 0.01
"""Part of a run that drafts may lose as well: a run of wrong drafts is hardly longer than a plain one."""

MARGIN, EXTRA_MARGIN, AMPLE_BALANCE = 1.08, 0.3, 4.0
"""MARGIN: the speed, compared with plain decoding, that a draft must promise, since hit rates are a little too high.
EXTRA_MARGIN: an empty balance adds it. AMPLE_BALANCE: from this balance on nothing is added."""

LIKELY = 0.7
"""A draft of this probability that is not taken is worth a note, and a trial of the saved step costs."""

REGAINED, MAX_REGAINED = 0.25, 6.0
"""Plain steps of losses that each token of a long copy cancels below a balance of 0, and the most in a sequence."""


class LossBudget:
    """The balance of plain steps that drafts have saved and lost."""

    def __init__(self) -> None:
        self._balance, self._regained = INITIAL_BALANCE, 0.0

    def begin(self) -> None:
        """Forget losses of earlier sequences: on a busy machine they stopped drafts for 600 tokens."""
        self._balance, self._regained = max(self._balance, LEAST_AT_FIRST), 0.0

    @property
    def max_cost(self) -> float:
        """The largest cost of a step in plain steps; a step gives at least one token."""
        return 1 + self._balance

    @property
    def margin(self) -> float:
        """Tokens per plain step that a step with drafts must promise."""
        return MARGIN + EXTRA_MARGIN * max(1 - self._balance / AMPLE_BALANCE, 0.0)

    def record(self, tokens: float, cost: float) -> None:
        """Record a step that gave each sequence `tokens` tokens for `cost` plain steps."""
        self._balance = min(max(self._balance + tokens - cost + SHARE, MIN_BALANCE), MAX_BALANCE)

    def regain(self) -> None:
        """Cancel some losses, since a step without drafts continued a long copy."""
        if self._balance < 0 and self._regained < MAX_REGAINED:
            self._balance += REGAINED
            self._regained += REGAINED


class Experience:
    """Knowledge that the sequences of an engine share: the `costs` of steps, and the `budget` of losses.

    `fixed`: the assumed cost of steps, None if a clock measures it.
    """

    def __init__(self, settings: DecodeSettings, cost: Cost | None = None) -> None:
        self.fixed = cost.at(0) if cost and cost.is_fixed else None
        self.costs = StepCostModel(settings.max_rows, cost)
        self.budget = LossBudget()


class SharedStep:
    """A step of some `sequences`, recorded with the outcome of the last one.

    `cost`: expected, in plain steps. `has_prompt`: it has rows of a prompt. `has_drafts`: it has drafts.
    """

    def __init__(self, sequences: int, cost: float, *, has_prompt: bool) -> None:
        self.sequences, self.cost, self.has_prompt = sequences, cost, has_prompt
        self.has_drafts, self._unseen, self._tokens = False, sequences, 0

    def take(self, outcome: Outcome, experience: Experience) -> None:
        """Add the outcome of one sequence."""
        self._tokens += outcome.accepted
        self._unseen -= 1
        if self._unseen:
            return
        cost, costs = self.cost, experience.costs
        if not self.has_prompt:
            taken = costs.record(outcome.rows, outcome.seconds, is_plain=not self.has_drafts)
            if self.has_drafts:
                cost = taken / costs.relative[self.sequences]
        experience.budget.record(self._tokens / self.sequences, cost)


class Auto(Mode):
    """One tree a step, as large as saves time; if no tree does, a plain step."""

    def __init__(self, settings: DecodeSettings, is_end: Callable[[int], bool], experience: Experience) -> None:
        self._settings, self.experience = settings, experience
        self._suffix = SuffixSource(is_end)
        self._sources = self._suffix, RewritingSource(self._suffix)
        self._step: SharedStep | None = None
        # Tokens of the best step, unused drafts in a row, and steps until the next draft.
        self._longest = self._idle = self._pause = 0

    def begin(self, tokens: Sequence[int]) -> None:
        self.experience.budget.begin()
        for source in self._sources:
            source.begin(tokens)

    def grow(self, tokens: Sequence[int], room: int) -> Tree:
        return self.grow_all([Growing(self, tokens, room)], room)[0]

    def grow_all(self, growing: Sequence[Growing], room: int, beside: int = 0) -> list[Tree]:
        costs, sequences, trees = self.experience.costs, len(growing), [Tree(each.tokens[-1]) for each in growing]
        if sequences >= len(costs.relative):
            return trees
        costs.set_context(sum([len(each.tokens) for each in growing]))
        change = costs.change / costs.relative[sequences] if costs.last != sequences else 0.0
        step = SharedStep(sequences, 1 + change, has_prompt=beside > 0)
        modes = [each.mode for each in growing if isinstance(each.mode, Auto)]
        drafting = [each for each in zip(modes, growing, trees, strict=True) if each[0]._begin_step(step)]
        max_rows = min(room, self._settings.max_step_tokens, costs.max_trial_rows, len(costs.relative) - 1 - beside)
        if max_rows > sequences and not costs.needs_plain_step:
            drafts = [(mode, mode._draft(each), tree) for mode, each, tree in drafting]
            if drafts := [each for each in drafts if each[1].chance]:
                self._draft_all(drafts, step, self._limits(sequences, beside, max_rows))
        return trees

    def _begin_step(self, step: SharedStep) -> bool:
        """Begin a step; return whether tokens are drafted for it."""
        self._step = step
        self._pause -= 1
        return self._pause <= 0

    def _draft(self, growing: Growing) -> Draft:
        for source in self._sources:
            source.extend(growing.tokens)
        longest = max(FIRST_DRAFT + 2 * self._longest, self._suffix.matches[-1][1])
        leaves = self._settings.leaves if self._settings.constraints.max_rollback < 0 else 1
        rows = min(growing.room, self.experience.costs.max_trial_rows, longest)
        return Draft(self._sources, growing.tokens, leaves, rows - 1)

    def _draft_all(self, drafts: Sequence[tuple[Auto, Draft, Tree]], step: SharedStep, limits: Limits) -> None:
        """Put the drafts that save time into the trees, or a likely one that tests the saved step costs."""
        likely = [draft.chance >= LIKELY for _, draft, _ in drafts]
        counts, cost = best_step([draft for _, draft, _ in drafts], step.sequences, limits)
        if any(likely) and not any(counts) and self.experience.costs.needs_test and not step.has_prompt:
            place = likely.index(True)
            counts[place] = int(drafts[place][1].has_node())
            cost = limits.costs[step.sequences + counts[place]]
        for (mode, draft, tree), count, is_likely in zip(drafts, counts, likely, strict=True):
            mode._idle = 0 if count else mode._idle + 1
            mode._pause = min(1 + mode._idle // IDLE_DRAFTS, MAX_PAUSE)
            mode.passed_over += is_likely and not count
            if count:
                draft.plant(tree, count)
                step.cost, step.has_drafts = cost, True

    def _limits(self, sequences: int, beside: int, max_rows: int) -> Limits:
        """Return the limits of a step that decodes `beside` rows of prompts in any case."""
        least = max(sequences, self._settings.constraints.min_outputs)
        costs, slopes = self.experience.costs.costs_for(least, beside)
        budget = self.experience.budget
        share = max(sequences / self.experience.costs.relative[sequences], 1.0)
        max_wait = MAX_DELAY * share if sequences > 1 else inf
        return Limits(costs, slopes, max_rows, budget.margin, budget.max_cost, max_wait)

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        if fixed := self.experience.fixed:
            outcome = outcome._replace(seconds=fixed.seconds(outcome.rows))
        self._longest = max(self._longest, outcome.accepted)
        step.take(outcome, self.experience)
        if not step.has_drafts and self._suffix.matches[-1][1] >= MIN_COPY:
            self.experience.budget.regain()


FIXED_COST = Cost((StepCost(0, {1: 1e-2, 64: 1.315e-2}),), is_fixed=True)
"""Rows as cheap as on few machines: mode auto takes large steps, the same ones each time, for a check."""
