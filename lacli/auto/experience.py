"""What mode auto has learned of a machine and a model, beside any text: it goes on from one answer to the next.

How long steps take, how often guesses come true, what the model held probable, what a window was worth.
"""

from __future__ import annotations

from lacli.auto.belief import Belief
from lacli.auto.credit import Credit
from lacli.auto.kept import Kept, KeptTexts
from lacli.auto.pace import Pace
from lacli.auto.pooled import Pooled
from lacli.auto.recycling import Recycling
from lacli.auto.suffix import Suffix
from lacli.auto.width import Width
from lacli.settings import DecodeSettings
from lacli.staircase import Cost


class Experience:
    """The parts of it, one for each part of the mode that learns."""

    def __init__(
        self,
        settings: DecodeSettings,
        cost: Cost | None = None,
        kept: KeptTexts | None = None,
        *,
        sampled: bool = False,
    ) -> None:
        """cost: the staircases measured before. kept: texts of earlier runs. sampled: not the most probable tokens."""
        self.pace = Pace(settings.most_rows, cost)
        self.credit = Credit()
        columns = settings.window if "window" in settings.sources else 0
        self.width = Width(columns, settings.ngram, settings.auto_rows)
        self.recycling = Recycling()
        self.suffix_belief = Belief(Suffix.expected_sampled if sampled else Suffix.expected)
        self.taught_belief = Belief(Pooled.expected)
        self.found_belief = Belief(Pooled.expected)
        self.kept = kept
        self.kept_belief = Belief(Kept.expected)
