"""What the counters count, and which answers the slots show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from lacli.engine.worker import AsyncStream
from lacli.serve.meter import Meter
from lacli.stats import RunStatistics


def stream(cost: RunStatistics, **more: Any) -> AsyncStream:
    """An answer that has cost this."""
    return cast(AsyncStream, SimpleNamespace(**{"cost": cost, "is_decoded": True, **more}))


def test_slots_show_answers_that_have_waited_for_one_and_none_that_waits_or_has_ended() -> None:
    meter = Meter()
    first, second, third = (stream(RunStatistics(), is_decoded=is_decoded) for is_decoded in (True, True, False))

    def shown() -> list[int]:
        return [each.get("n_prompt_tokens", 0) for each in meter.slots(2, 100)]

    with meter.counting(first, [1]), meter.counting(second, [1] * 2), meter.counting(third, [1] * 3):
        assert shown() == [1, 2]
        cast(Any, first).is_decoded = False
        assert shown() == [0, 2]
        cast(Any, third).is_decoded = True
        assert shown() == [3, 2]
    assert [each["is_processing"] for each in meter.slots(2, 100)] == [False, False]
