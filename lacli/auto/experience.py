"""What mode auto learns of a model and a machine: it outlives the texts, and is kept between runs."""

from __future__ import annotations

from lacli.auto import past_texts, pool_source, rewriting, suffix
from lacli.auto.acceptance import AcceptanceEstimate, LossBudget, WindowWidth
from lacli.auto.cost_model import StepCostModel
from lacli.auto.past_texts import PastTexts
from lacli.auto.recycling import RecyclingSource
from lacli.auto.step_cost import Cost
from lacli.settings import DecodeSettings


class Experience:
    """What mode auto has learned of a model and a machine; it outlives the texts and goes on in the next answer."""

    def __init__(
        self,
        settings: DecodeSettings,
        cost: Cost | None = None,
        texts: PastTexts | None = None,
        *,
        sampled: bool = False,
    ) -> None:
        """Begin with a measured `cost` and texts of earlier runs, if any; `sampled`: tokens are drawn, not argmax."""
        self.cost_model = StepCostModel(settings.max_rows, cost)
        self.budget = LossBudget()
        columns = settings.window if "window" in settings.sources else 0
        self.width = WindowWidth(columns, settings.ngram, settings.auto_rows)
        self.recycling = RecyclingSource()
        self.suffix_acceptance = AcceptanceEstimate(suffix.EXPECTED_SAMPLED if sampled else suffix.EXPECTED)
        self.rewriting_acceptance = AcceptanceEstimate(rewriting.EXPECTED_SAMPLED if sampled else rewriting.EXPECTED)
        self.text_ngram_acceptance = AcceptanceEstimate(pool_source.EXPECTED)
        self.window_ngram_acceptance = AcceptanceEstimate(pool_source.EXPECTED)
        self.past_texts = texts
        self.past_text_acceptance = AcceptanceEstimate(past_texts.EXPECTED)
