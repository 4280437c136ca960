"""What mode auto has learned of the texts and the steps of one run."""

from __future__ import annotations

from copy import copy

from lacli.auto import pool_source, recycling, rewriting, suffix
from lacli.auto.acceptance import AcceptanceEstimate, LossBudget, SourceAccount, WindowWidth
from lacli.auto.cost_model import StepCostModel
from lacli.auto.recycling import RecyclingSource
from lacli.auto.step_cost import Cost
from lacli.settings import SOURCES, DecodeSettings


class Experience:
    """What mode auto has learned of a model and a machine; it outlives the texts and goes on in the next answer.

    Of acceptance it knows the mean of all texts of its kind, whose tokens are `sampled` or not; each text makes an
    estimate of its own from that. `kinds`: what is known of each kind; they have all but acceptance in common.
    `acceptances`: how often guesses come true, by the names of their sources.
    """

    def __init__(self, settings: DecodeSettings, cost: Cost | None = None, *, sampled: bool = False) -> None:
        """Begin with a measured `cost`, if any; `sampled`: tokens are drawn, not argmax."""
        # Where few rows can be taken back, none are left for padding.
        self.cost_model = StepCostModel(settings.max_rows, cost, fills=settings.max_rollback < 0)
        self.kinds: dict[bool, Experience] = {}
        self.budget = LossBudget()
        columns = settings.window if "window" in settings.sources else 0
        self.width = WindowWidth(columns, settings.ngram, settings.auto_rows)
        self.recycling = RecyclingSource()
        self.accounts: dict[str, SourceAccount] = {name: SourceAccount() for name in SOURCES}
        self._begin_kind(sampled=sampled)

    def other_kind(self) -> Experience:
        """Begin to learn of texts of the other kind, beside this one."""
        other = copy(self)
        other.recycling = copy(self.recycling)
        other._begin_kind(sampled=not self.sampled)
        return other

    def _begin_kind(self, *, sampled: bool) -> None:
        self.sampled = sampled
        self.kinds[sampled] = self
        expected = {
            "suffix": suffix.EXPECTED,
            "rewriting": rewriting.EXPECTED,
            "recycling": recycling.EXPECTED,
            "pool": pool_source.EXPECTED,
            "window": pool_source.EXPECTED,
        }
        self.acceptances = {name: AcceptanceEstimate(chances) for name, chances in expected.items()}
        self.recycling.acceptance = self.acceptances["recycling"]
