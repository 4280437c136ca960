"""One step of the texts of mode auto: the rows that pay best in all of them, and what they cost and brought."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from lacli.auto.experience import Experience
from lacli.auto.planner import Chain, Limits, best_prefix
from lacli.auto.text_guesses import IDLE_BACKOFF, TextGuesses
from lacli.settings import DecodeSettings

CHEAP_ROW = 0.15
"""Plain steps a row up to which all sources are asked; dearer rows only copies repay. Source: docs/auto.md."""

PROMISING = {2: 1.22, 4: 1.4, 8: 1.5}
"""Tokens that steps of at most 2, 4, 8 rows bring with recycling alone; it is tried in each text if they cost less."""


MAX_DELAY = 1.5
"""How many times longer than with its share of the machine a text may wait for a token, for the guesses of others.

With 1, 1.5, 2 and without a bound an answer of 35 tokens took 0.9, 1.2, 3.5 and 2.6 s beside a text that repeats itself
(0.5B Q4_0, two AVX-512 cores). On the law of those cores four edits bring 1.78 tokens a plain step with 1.5, and 1.83
without.
"""


class SharedStep:
    """The next step of `texts`, which begin with a token each; in all it may have `room` rows.

    `awake`: the texts that look for guesses, at least one. `beside`: rows of pieces of prompt that the step has beyond
    `room`. Costs are told in steps without guesses, of a row for each text.
    """

    def __init__(
        self,
        experience: Experience,
        settings: DecodeSettings,
        texts: Sequence[TextGuesses],
        awake: Sequence[TextGuesses],
        room: int,
        beside: int,
    ) -> None:
        self._cost, self._budget, self._settings = experience.cost_model, experience.budget, settings
        self._texts, self._awake = len(texts), awake
        self._room, self._beside = room, beside
        # Of the guesses that were planned, 0 for none.
        self._planned = 0.0
        # Texts whose outcome is not known, and what the others got.
        self._unseen, self._tokens = len(texts), 0
        self._plain_rows = self._cost.filled[len(texts)]
        self._cost.set_texts(self._plain_rows)
        self._cost.set_context(sum([len(text.text) for text in texts]))
        if not awake[0].longest:
            # A text begins with all that is known.
            self._cost.refresh()

    def grow(self) -> bool:
        """Grow the trees of the texts; True if sources of branches were asked."""
        is_wide = self._opens_branches()
        if is_wide:
            self._grow_trees()
        else:
            self._grow_chains()
        return is_wide

    def book(self, tokens: int, steps: int, rows: int, seconds: float) -> None:
        """Take in the tokens of a text; with the last text's the step's cost is recorded.

        `steps`: those without guesses since a step was booked, this one included. `rows`, `seconds`: of the step.
        """
        self._tokens += tokens
        self._unseen -= 1
        if self._unseen:
            return
        if self._planned:
            # Beside a piece of prompt a step costs more than others of its size.
            cost = self._planned if self._beside else self._cost.record(rows, seconds)
            if rows == self._plain_rows and not self._beside:
                # Guesses took the rows that fill a plain step up, and what was told is its excess.
                cost += 1
            self._budget.record(self._tokens / self._texts, cost)
            return
        self._budget.record_plain(steps)
        is_plain = self._plain_rows <= rows <= max(self._plain_rows, self._settings.min_outputs) and not self._beside
        if is_plain and (excess := self._cost.record(self._plain_rows, seconds)):
            self._budget.record(0, excess)

    @property
    def token_worth(self) -> float:
        """Single-row steps that a further token saves: a step without guesses brings one for each text."""
        return self._cost.relative[self._texts] / self._texts

    def _opens_branches(self) -> bool:
        """Choose the sources of the step; True if any of them guesses branches."""
        cost, texts, first, relative = self._cost, self._texts, self._awake[0], self._cost.relative
        promising = any(
            relative[texts * rows] < tokens * relative[texts]
            for rows, tokens in PROMISING.items()
            if texts * rows < len(relative)
        )
        is_cheap = promising or cost.slope[texts] * texts <= CHEAP_ROW * relative[texts]
        if self._settings.max_rollback >= 0 or not is_cheap:
            return False
        cost.refresh()
        for text in self._awake:
            text.ask_matches()
        if texts == 1:
            first.set_width(min(first.room, self._room))
        else:
            # A window of each text would be rows in every step.
            for text in self._awake:
                text.branch.narrow(0)
        matches = len(first.sources)
        for alike in zip(*[text.branch_sources for text in self._awake], strict=True):
            # The texts have one account, which decides once.
            were_awake = {source.account: source.account.awake for source in alike}
            are_asked = {account: account.decide(promising=promising) for account in were_awake}
            for text, source in zip(self._awake, alike, strict=True):
                if are_asked[source.account]:
                    if not were_awake[source.account]:
                        source.begin(text.text)
                    text.sources.append(source)
        # The window comes last: what others guess too is not its gain.
        if first.branch.rows:
            first.sources.append(first.window_source)
        return any([len(text.sources) > matches for text in self._awake]) or not first.branch_sources

    def _grow_chains(self) -> None:
        """Where rows are dear: the best continuations of matches, searched for less often while none pays."""
        looking = [text for text in self._awake if text.has_match()]
        if looking and not self._cost.needs_plain_step:
            self._cost.refresh()
            self._add_best_chains(looking)
        elif self._awake[0].idle % IDLE_BACKOFF == 0:
            self._cost.refresh()
        for text in self._awake:
            text.doze()

    def _add_best_chains(self, looking: Sequence[TextGuesses]) -> None:
        limits, margin = self._limits(self._room), self._budget.margin
        # Chains of several texts may pass a cliff together that none would pass alone.
        least = margin if self._texts == 1 else 0.0
        found = [(text, match) for text in looking if (match := text.best_match(limits, least))]
        if not found:
            return
        orders = [match.order for _, match in found]
        counts, tokens = [found[0][1].guesses], found[0][1].tokens
        if self._texts > 1:
            most = max(self._cost.max_trial_rows, self._texts + max(match.most for _, match in found))
            orders = [Chain(match.source.chances(match.most)) for _, match in found]
            counts, tokens = best_prefix(orders, limits._replace(max_rows=min(self._room, most)), chains=True)
        pays = self._pays(tokens, limits, sum(counts), margin)
        for (text, match), count in zip(found, counts, strict=True):
            text.add_chain(match, count if pays else 0)
            if pays and count:
                text.is_planned = True

    def _grow_trees(self) -> None:
        """Where rows are cheap: the best guesses of all sources, and a single text's window."""
        for text in self._awake:
            text.learn()
        first = self._awake[0]
        columns = first.branch.rows
        limits = self._limits(min(self._room, self._cost.max_trial_rows), columns)
        begin = first.clock()
        orders = [text.branches(self._settings.leaves) for text in self._awake]
        counts, tokens = best_prefix(orders, limits)
        share = (first.clock() - begin) / len(orders)
        for text in self._awake:
            text.add_time(share)
        rows = self._texts + sum(counts) + columns
        # An open window runs in every step; whether it brings what it costs is judged over many.
        least = 0.0 if columns and limits.relative[rows] <= limits.max_cost else self._budget.margin
        if rows == self._texts or self._cost.needs_plain_step or not self._pays(tokens, limits, sum(counts), least):
            return
        for text, order, count in zip(self._awake, orders, counts, strict=True):
            if count or columns:
                text.plant(order.nodes[:count])
                text.is_planned = True
        if columns:
            first.branch.add(first.tree)

    def _limits(self, room: int, columns: int = 0) -> Limits:
        """Return what the step may be, with `columns` rows of a window and at most `room` in all."""
        (relative, slope), texts, beside = self._cost.next_costs(), self._texts, self._beside
        if beside:
            # A piece of prompt has to be decoded anyway, so guesses pay for what they add to it.
            plain, more = relative[texts], relative[texts] - relative[texts + beside]
            relative, slope = [max(cost + more, plain) for cost in relative[beside:]], slope[beside:]
        # With its share a text has a token in as many single-row steps as there are texts.
        max_wait = MAX_DELAY * max(1 / self.token_worth, 1.0) if texts > 1 else inf
        return Limits(relative, slope, room - columns, self._budget.max_cost, texts, columns, max_wait)

    def _pays(self, tokens: float, limits: Limits, guesses: int, least: float) -> bool:
        """Plan a step with `guesses` if it promises `tokens`, at least `least` times what plain steps would bring."""
        cost = limits.relative[self._texts + limits.beside + guesses] / limits.relative[self._texts]
        # Rows that would be filled up anyway have nothing to lose.
        if tokens / self._texts < (least if cost > 1 else 1.0) * cost:
            return False
        self._planned = cost
        return True
