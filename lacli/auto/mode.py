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
"""The most rows of a first draft. Later 2 more for each token of the best step, or a match's length if that is more."""

MAX_DELAY = 1.5
"""A sequence's token may take this many times as long as if each sequence had an equal share of the machine."""

IDLE_DRAFTS, MAX_PAUSE = 4, 4
"""After each IDLE_DRAFTS unused drafts in a row, drafts are a step rarer, up to one draft in MAX_PAUSE steps."""

INITIAL_BALANCE, MIN_BALANCE, MAX_BALANCE, LEAST_AT_FIRST = 2.0, -12.0, 12.0, 1.0
"""In plain steps. INITIAL_BALANCE: the most that drafts may lose before their first gain. MIN_BALANCE, MAX_BALANCE: the
bounds of the balance. LEAST_AT_FIRST: the least balance at the beginning of a sequence."""

SHARE = 0.01
"""Plain steps that each step adds to the balance. So even drafts that are all wrong make a run hardly longer."""

MARGIN, EXTRA_MARGIN, AMPLE_BALANCE = 1.08, 0.3, 4.0
"""MARGIN: the least expected speed of a step with drafts; 1 is plain decoding's, and hit rates are a little too high.
EXTRA_MARGIN: added to MARGIN at a balance of 0; less is added up to AMPLE_BALANCE, then nothing."""

LIKELY = 0.7
"""The least probability of a likely draft. It tests untested step costs; `passed_over` counts steps without it."""

REGAINED, MAX_REGAINED = 0.25, 6.0
"""Plain steps that a plainly decoded token of a long copy adds to a balance below 0, and the most in one sequence."""


class LossBudget:
    """A balance of time in plain steps, steps without drafts: an initial amount, plus drafts' savings, minus losses."""

    def __init__(self) -> None:
        self._balance, self._regained = INITIAL_BALANCE, 0.0

    def begin(self) -> None:
        """Raise a lower balance to LEAST_AT_FIRST for a new sequence. Old losses once stopped drafts for 600 tokens."""
        self._balance, self._regained = max(self._balance, LEAST_AT_FIRST), 0.0

    @property
    def max_cost(self) -> float:
        """The largest cost of the next step in plain steps: the balance, plus 1 for the token that each step gives."""
        return 1 + self._balance

    @property
    def margin(self) -> float:
        """The tokens that a step with drafts must be expected to give a sequence, for each plain step of its cost."""
        return MARGIN + EXTRA_MARGIN * max(1 - self._balance / AMPLE_BALANCE, 0.0)

    def record(self, tokens: float, cost: float) -> None:
        """Record a step of `cost` plain steps that gave each sequence `tokens` tokens on average."""
        self._balance = min(max(self._balance + tokens - cost + SHARE, MIN_BALANCE), MAX_BALANCE)

    def regain(self) -> None:
        """Add REGAINED to a balance below 0, after a step without drafts whose token continued a long copy."""
        if self._balance < 0 and self._regained < MAX_REGAINED:
            self._balance += REGAINED
            self._regained += REGAINED


class Experience:
    """What mode auto has learned from all sequences of an engine: the `costs` of steps, and the `budget` of losses.

    `fixed`: step costs that replace the real times of steps, None if real times count.
    """

    def __init__(self, settings: DecodeSettings, cost: Cost | None = None) -> None:
        self.fixed = cost.at(0) if cost and cost.is_fixed else None
        self.costs = StepCostModel(settings.max_rows, cost)
        self.budget = LossBudget()


class SharedStep:
    """A step of `sequences` sequences. It is recorded when the outcomes of all of them are known.

    `cost`: expected, in plain steps. `has_prompt`, `has_drafts`: whether the step has prompt rows, and any drafts.
    """

    def __init__(self, sequences: int, cost: float, *, has_prompt: bool) -> None:
        self.sequences, self.cost, self.has_prompt = sequences, cost, has_prompt
        self.has_drafts, self._unseen, self._tokens = False, sequences, 0

    def take(self, outcome: Outcome, experience: Experience) -> None:
        """Add the outcome of one sequence; after the last sequence's outcome record the step in `experience`."""
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
    """Mode auto: each step has the tree of drafts that saves the most time, or no drafts if none saves time."""

    def __init__(self, settings: DecodeSettings, is_end: Callable[[int], bool], experience: Experience) -> None:
        self._settings, self.experience = settings, experience
        self._suffix = SuffixSource(is_end)
        self._sources = self._suffix, RewritingSource(self._suffix)
        self._step: SharedStep | None = None
        # The most tokens of a step, the number of unused drafts in a row, and of steps until the next draft.
        self._longest = self._idle = self._pause = 0

    def begin(self, tokens: Sequence[int]) -> None:
        self.experience.budget.begin()
        for source in self._sources:
            source.begin(tokens)

    def grow(self, tokens: Sequence[int], max_rows: int) -> Tree:
        return self.grow_all([Growing(self, tokens, max_rows)], max_rows)[0]

    def grow_all(self, growing: Sequence[Growing], max_rows: int, prompt_rows: int = 0) -> list[Tree]:
        costs, sequences, trees = self.experience.costs, len(growing), [Tree(each.tokens[-1]) for each in growing]
        if sequences >= len(costs.relative):
            return trees
        costs.set_context(sum([len(each.tokens) for each in growing]))
        change = costs.change / costs.relative[sequences] if costs.last_rows != sequences else 0.0
        step = SharedStep(sequences, 1 + change, has_prompt=prompt_rows > 0)
        modes = [each.mode for each in growing if isinstance(each.mode, Auto)]
        drafting = [each for each in zip(modes, growing, trees, strict=True) if each[0]._begin_step(step)]
        known_rows = len(costs.relative) - 1 - prompt_rows
        max_rows = min(max_rows, self._settings.max_step_tokens, costs.max_trial_rows, known_rows)
        if max_rows > sequences and not costs.needs_plain_step:
            drafts = [(mode, mode._draft(each), tree) for mode, each, tree in drafting]
            if drafts := [each for each in drafts if each[1].chance]:
                self._draft_all(drafts, step, self._limits(sequences, prompt_rows, max_rows))
        return trees

    def _begin_step(self, step: SharedStep) -> bool:
        """Note that this sequence takes part in `step`. Return whether to draft for it: False while drafts pause."""
        self._step = step
        self._pause -= 1
        return self._pause <= 0

    def _draft(self, growing: Growing) -> Draft:
        for source in self._sources:
            source.extend(growing.tokens)
        longest = max(FIRST_DRAFT + 2 * self._longest, self._suffix.matches[-1][1])
        leaves = self._settings.leaves if self._settings.constraints.max_rollback < 0 else 1
        rows = min(growing.max_rows, self.experience.costs.max_trial_rows, longest)
        return Draft(self._sources, growing.tokens, leaves, rows - 1)

    def _draft_all(self, drafts: Sequence[tuple[Auto, Draft, Tree]], step: SharedStep, limits: Limits) -> None:
        """Add to the trees the drafts that save time, or else one likely token if step costs are untested."""
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

    def _limits(self, sequences: int, prompt_rows: int, max_rows: int) -> Limits:
        plain_rows = max(sequences, self._settings.constraints.min_outputs)
        costs, slopes = self.experience.costs.costs_for(plain_rows, prompt_rows)
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
"""Step costs for `lacli check`. Rows are so cheap that mode auto takes large steps, and the same steps in each run."""
