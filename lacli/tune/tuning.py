"""What came of a search: the record behind tables, JSON and the remembered result. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lacli.settings import DecodeSettings, ModelSettings
from lacli.tune.confirm import Confirmed
from lacli.tune.search import Entrant
from lacli.tune.store import Tuned


@dataclass(frozen=True)
class Setup:
    """What was tuned. model: as it was typed, '' for none. asked, sampling: prompts and sampling in words.

    flags: of the model, those of them without which a result is not found. temp: the answers' temperature.
    """

    model: str
    description: str
    devices: str
    loading: ModelSettings
    asked: str
    sampling: str
    flags: str = ""
    temp: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """A search that is over, or was stopped.

    ranked: the candidates that have answered, the best first. lost: how many more the cost of rows has ruled out.
    confirmed: the last round, None where it was not reached. only_plain: why there was nothing to search, '' where
    there was. trouble: why the result could not be remembered, '' where it was.
    """

    setup: Setup
    seconds: float = 0.0
    ranked: Sequence[Entrant] = ()
    lost: int = 0
    confirmed: Confirmed | None = None
    interrupted: bool = False
    only_plain: str = ""
    trouble: str = ""

    @property
    def best(self) -> DecodeSettings | None:
        """The setting to remember; None where the search did not get so far."""
        if self.only_plain:
            return DecodeSettings(mode="plain")
        sure = self.confirmed and self.confirmed.enough and not self.interrupted
        return self.confirmed.best if self.confirmed and sure else None

    def remembered(self, now: float) -> Tuned | None:
        """What is kept of it. now: seconds since 1970."""
        if not self.best:
            return None
        if not self.confirmed:
            return Tuned(self.best, 1.0, None, None, 1.0, 0, now, self.setup.temp)
        ratio = self.confirmed.used.speedup
        return Tuned(
            settings=self.best,
            speedup=ratio.value,
            low=ratio.low,
            high=ratio.high,
            over_auto=self.confirmed.used_over_auto.value,
            prompts=self.confirmed.plain.prompts,
            tuned_at=now,
            temp=self.setup.temp,
        )
