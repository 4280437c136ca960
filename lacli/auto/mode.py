"""Mode auto: asks its sources for guesses, plans the step that pays, and learns from the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lacli.auto.experience import Experience
from lacli.auto.shared_step import SharedStep
from lacli.auto.step_cost import Cost
from lacli.auto.text_guesses import TextGuesses
from lacli.context import Context
from lacli.modes import Growing, Mode, Outcome, new_mode
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.tree import Tree


class Auto(Mode):
    """One tree a step from all sources, as large as pays; where nothing pays, a plain step."""

    def __init__(self, guesses: TextGuesses) -> None:
        self._guesses = guesses
        self._settings, self.experience = guesses.settings, guesses.experience
        # None where no text of the step looks for guesses: then nothing is learned either.
        self._shared: SharedStep | None = None
        self._is_wide = False
        # The number of the last step that was booked.
        self._booked = 0

    def begin(self, text: Sequence[int]) -> None:
        self._guesses.begin(text)

    def prefilled(self, rows: int, seconds: float) -> None:
        self.experience.cost_model.record_prefill(rows, seconds)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        if self._wakes(text, room):
            self._plan_step([self], [self._guesses], room, 0)
        return self._guesses.tree

    def grow_all(self, texts: Sequence[Growing], room: int, beside: int = 0) -> list[Tree]:
        modes = [text.mode for text in texts if isinstance(text.mode, Auto)]
        assert len(modes) == len(texts), "the texts of a step are in one mode"
        woken = [mode._wakes(tokens, most) for mode, (_, tokens, most) in zip(modes, texts, strict=True)]
        if awake := [mode._guesses for mode, wakes in zip(modes, woken, strict=True) if wakes]:
            self._plan_step(modes, awake, room, beside)
        trees = [mode._guesses.tree for mode in modes]
        if not beside:
            self._fill_up(trees, [most for _, _, most in texts], room)
        return trees

    def _fill_up(self, trees: Sequence[Tree], rooms: Sequence[int], room: int) -> None:
        """Pad the step where one of more rows takes less time, as far as the texts have cells."""
        filled, rows = self.experience.cost_model.filled, sum(map(len, trees))
        if rows >= len(filled) or filled[rows] > room:
            return
        more = filled[rows] - rows
        # They lie in the text's own sequence: guesses in it would see them, and a branch that is accepted leaves them.
        most, place = max([(most, place) for place, most in enumerate(rooms) if len(trees[place]) == 1], default=(0, 0))
        for _ in range(more if more < most else 0):
            trees[place].pad()

    def without_guesses(self) -> Mode:
        self._guesses.sleeps_on = True
        return self

    def _wakes(self, text: Sequence[int], room: int) -> bool:
        """Begin a step of the text; True if it looks for guesses."""
        self._shared = None
        return self._guesses.wakes(text, room)

    def _plan_step(self, modes: Sequence[Auto], awake: Sequence[TextGuesses], room: int, beside: int) -> None:
        """Grow the trees of the texts of `modes`, where all of them have a row in what is known of steps."""
        room = min(room, self._settings.max_step_tokens, len(self.experience.cost_model.relative) - 1 - beside)
        if len(modes) > room:
            return
        step = SharedStep(self.experience, self._settings, [mode._guesses for mode in modes], awake, room, beside)
        is_wide = step.grow()
        for mode in modes:
            mode._shared, mode._is_wide = step, is_wide and not mode._guesses.is_asleep

    def observe(self, tree: Tree, outcome: Outcome) -> None:
        step, guesses = self._shared, self._guesses
        if step is None:
            return
        guesses.clock = outcome.clock
        guesses.longest = max(guesses.longest, outcome.accepted)
        seconds = outcome.seconds
        if self._is_wide:
            # The time it takes to learn from rows depends on their number too.
            begin = outcome.clock()
            guesses.look(tree, outcome)
            seconds += outcome.clock() - begin
        step.book(outcome.accepted, guesses.number - self._booked, outcome.rows, seconds)
        if self._is_wide:
            guesses.account(outcome, step.token_worth)
        self._booked = guesses.number


@dataclass(frozen=True)
class AutoModes:
    """Makes the modes that settings ask for, mode auto too.

    `cost`: what steps cost here, where it was measured before.
    """

    cost: Cost | None = None

    def __call__(
        self,
        settings: DecodeSettings,
        pool: NgramPool,
        engine: Context,
        *,
        sampled: bool = False,
        before: Mode | None = None,
    ) -> Mode:
        if settings.mode != "auto":
            return new_mode(settings, pool, engine)
        known = before.experience if isinstance(before, Auto) else None
        experience = known.kinds.get(sampled) if known else None
        if experience is None:
            experience = known.other_kind() if known else Experience(settings, self.cost, sampled=sampled)
        return Auto(TextGuesses(settings, pool, engine.vocabulary, engine.is_end, experience))
