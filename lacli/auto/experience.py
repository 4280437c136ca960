"""What mode auto learns of a model and a machine: it outlives the texts, and is kept between runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Protocol

from lacli.auto import past_texts, pool_source, recycling, rewriting, suffix
from lacli.auto.acceptance import AcceptanceEstimate, LossBudget, SourceAccount, WindowWidth
from lacli.auto.cost_model import StepCostModel
from lacli.auto.past_texts import PastTexts
from lacli.auto.recycling import RecyclingSource
from lacli.auto.step_cost import Cost
from lacli.settings import SOURCES, DecodeSettings
from lacli.text.format import DAY
from lacli.text.records import UNREADABLE

STEPS = "steps"
"""Name of what was seen of the costs of steps, which other devices do not share."""

HALF_LIFE_S = 30 * DAY
"""Seconds after which what was learned counts half; 48 tries weigh as much as what is assumed after three months."""


class Part(Protocol):
    """A part of the experience that is kept between runs, as numbers in lists and dictionaries."""

    def numbers(self) -> Any:
        """Return what it has learned."""
        raise NotImplementedError

    def begin_from(self, kept: Any, weight: float) -> None:
        """Begin from numbers that count `weight` times, from 0 to 1. Raises one of UNREADABLE, changing nothing."""
        raise NotImplementedError


class Experience:
    """What mode auto has learned of a model and a machine; it outlives the texts and goes on in the next answer.

    Of acceptance it knows the mean of all texts of its kind, whose tokens are `sampled` or not; each text makes an
    estimate of its own from that. `kinds`: what is known of each kind; they have all but acceptance in common.
    `acceptances`: how often guesses come true, by the names of their sources.
    Owners of texts have nothing in common but the costs of steps; `is_kept`: false for all but the program's own.
    """

    def __init__(
        self,
        settings: DecodeSettings,
        cost: Cost | None = None,
        texts: PastTexts | None = None,
        *,
        sampled: bool = False,
    ) -> None:
        """Begin with a measured `cost` and texts of earlier runs, if any; `sampled`: tokens are drawn, not argmax."""
        self._settings, self.is_kept = settings, True
        # Where few rows can be taken back, none are left for padding.
        self.cost_model = StepCostModel(settings.max_rows, cost, fills=settings.max_rollback < 0)
        self._begin_owner(texts, sampled=sampled)

    def for_owner(self) -> Experience:
        """Begin to learn of the texts of another owner, with what is known of the machine's steps alone."""
        other = copy(self)
        other._begin_owner(None, sampled=self.sampled)
        other.is_kept = False
        return other

    def other_kind(self) -> Experience:
        """Begin to learn of texts of the other kind, beside this one."""
        other = copy(self)
        other.recycling = copy(self.recycling)
        other._begin_kind(sampled=not self.sampled)
        return other

    def _begin_owner(self, texts: PastTexts | None, *, sampled: bool) -> None:
        settings = self._settings
        self.kinds: dict[bool, Experience] = {}
        self.budget = LossBudget()
        columns = settings.window if "window" in settings.sources else 0
        self.width = WindowWidth(columns, settings.ngram, settings.auto_rows)
        self.recycling = RecyclingSource()
        self.past_texts = texts
        self.accounts: dict[str, SourceAccount] = {name: SourceAccount() for name in SOURCES}
        self._begin_kind(sampled=sampled)

    def _begin_kind(self, *, sampled: bool) -> None:
        self.sampled = sampled
        self.kinds[sampled] = self
        expected = {
            "suffix": suffix.EXPECTED,
            "rewriting": rewriting.EXPECTED,
            "recycling": recycling.EXPECTED,
            "pool": pool_source.EXPECTED,
            "window": pool_source.EXPECTED,
            "store": past_texts.EXPECTED,
        }
        self.acceptances = {name: AcceptanceEstimate(chances) for name, chances in expected.items()}
        self.recycling.acceptance = self.acceptances["recycling"]

    @property
    def hit_rates(self) -> Mapping[str, tuple[float, float]]:
        """The part of the tries that came true and the tries that count, by the sources that have some."""
        found = {}
        for name, acceptance in self.acceptances.items():
            hits, tries = map(sum, zip(*acceptance.numbers(), strict=True))
            if tries:
                found[name] = hits / tries, tries
        return found

    @property
    def _parts(self) -> Mapping[str, Part]:
        """What is kept between runs, by name."""
        accounts = {f"{name}_account": account for name, account in self.accounts.items()}
        return {
            **self.acceptances,
            **accounts,
            "window_pause": self.width,
            "budget": self.budget,
            STEPS: self.cost_model,
        }

    def numbers(self) -> dict[str, Any]:
        """Return what was learned, for another run to begin from: numbers alone, no text and no tokens."""
        return {name: part.numbers() for name, part in self._parts.items()}

    def begin_from(self, kept: Any, age_s: float) -> None:
        """Begin from numbers that are `age_s` seconds old; parts without any that can be read begin anew."""
        weight = 0.5 ** (max(age_s, 0.0) / HALF_LIFE_S)
        # A second kind finds what is common under way.
        parts = self._parts if len(self.kinds) == 1 else self.acceptances
        for name, part in parts.items():
            with suppress(*UNREADABLE):
                part.begin_from(kept[name], weight)
