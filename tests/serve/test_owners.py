"""Several keys: what is decoded for one is neither lent to another nor shown to it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from openai import OpenAI

import lacli
from lacli.api.request import PromptProgress
from lacli.api.streams import AsyncStream
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve.app import Server, ServeSettings
from lacli.serve.guard import GuardSettings
from lacli.serve.meter import Meter
from lacli.stats import RunStatistics
from tests.serve.conftest import NAME, serving

PROMPT = "def owners_of(texts):\n    " + '"""Return the owners of texts, each once."""\n' * 3


@pytest.fixture(scope="module")
def guarded(model: lacli.Model) -> Iterator[str]:
    settings = ServeSettings(NAME, SamplingSettings())
    with serving(Server(model, settings).app(GuardSettings(("one", "two")))) as address:
        yield f"{address}/v1"


def cached_tokens(address: str, key: str) -> int:
    client = OpenAI(api_key=key, base_url=address, max_retries=0)
    usage = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=4).usage
    assert usage and usage.prompt_tokens_details
    return usage.prompt_tokens_details.cached_tokens or 0


def test_an_owners_beginning_is_decoded_once_and_anothers_again(guarded: str) -> None:
    assert not cached_tokens(guarded, "one")
    assert cached_tokens(guarded, "one")
    assert not cached_tokens(guarded, "two")
    assert cached_tokens(guarded, "two")


def stream(cost: RunStatistics, **more: Any) -> AsyncStream:
    """An answer that has cost this."""
    return cast(
        AsyncStream,
        SimpleNamespace(**{"cost": cost, "owner": "", "in_loop": False, "is_decoded": True, "limit": -1, **more}),
    )


def test_slots_tell_an_owner_of_its_own_texts_only() -> None:
    meter = Meter()
    with (
        meter.counting(stream(RunStatistics()), [1, 2]),
        meter.counting(stream(RunStatistics(), owner="1"), [1, 2, 3]),
    ):
        shown: list[dict[str, Any]] = meter.slots(3, 100, "1")
    assert [each["is_processing"] for each in shown] == [True, True, False]
    assert [each.get("n_prompt_tokens") for each in shown] == [None, 3, None]
    assert set(shown[0]) == set(shown[2])


def test_slots_show_answers_that_have_waited_for_a_place_and_none_that_waits_or_has_ended() -> None:
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


def test_who_finds_no_place_is_told_when_those_that_wait_will_have_one() -> None:
    meter = Meter()
    assert meter.seconds_until(9, 2) == 10, "nothing is known"
    with (
        meter.counting(stream(RunStatistics(steps=1, prompt_s=2.0)), [1]),
        meter.counting(stream(RunStatistics()), [1]),
    ):
        assert meter.seconds_until(8, 2) == 10 and meter.seconds_until(20, 2) == 20, "one has a place for 2 s"
    meter, begun = Meter(), RunStatistics(steps=2, tokens=2, prompt_s=1.0, decode_s=0.1)
    with meter.counting(stream(begun, limit=30), [1]), meter.counting(stream(RunStatistics(), limit=10), [1]):
        assert meter.seconds_until(8, 2) == 12, "10 and 30 tokens of 0.1 s, behind prompts of a second"
    meter = Meter()
    answered = RunStatistics(steps=3, tokens=21, prompt_s=1.0, decode_s=1.5, waited_s=0.5)
    for statistics in (answered, RunStatistics()):
        with meter.counting(stream(statistics), [1, 2]):
            pass
    assert meter.seconds_until(8, 2) == 12 and meter.seconds_until(99, 2) == 60
    with meter.counting(stream(RunStatistics(), limit=5), [1]), meter.counting(stream(RunStatistics(), limit=99), [1]):
        assert meter.seconds_until(8, 2) == 9, "half of those that wait have a quarter of the tokens at most"
    with meter.counting(stream(RunStatistics(steps=9, tokens=101, prompt_s=1.0, decode_s=10.0)), [1]):
        assert meter.seconds_until(8, 2) == 44, "those that run may have more tokens than those that have ended"
    meter = Meter()
    with meter.counting(stream(RunStatistics(steps=1, tokens=1, prompt_s=0.1)), [1]):
        assert meter.seconds_until(8, 2) == 10, "a first token says nothing of the others' time"


def test_the_estimate_counts_nothing_as_it_is_made_in_another_thread_than_the_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = Meter()
    waits = stream(RunStatistics(prompt_s=4.0), in_loop=True)
    with meter.counting(stream(RunStatistics(prompt_s=2.0)), [1]):
        with meter.counting(waits, [1]):
            pass
        monkeypatch.setattr(meter, "_count", pytest.fail)
        cast(Any, waits).in_loop = False
        assert meter.seconds_until(4, 1) == 12
        monkeypatch.undo()


def test_counters_are_whole_numbers_however_large() -> None:
    meter = Meter()
    with meter.counting(stream(RunStatistics(prompt_tokens=12_345_678, tokens=1)), []):
        pass
    text = meter.text(0, 0)
    assert "\nllamacpp:prompt_tokens_total 12345678\n" in text and "\nllamacpp:n_tokens_max 12345679\n" in text


def test_of_a_prompt_that_was_left_what_was_decoded_counts_with_its_seconds() -> None:
    """The piece that is decoded when the client leaves is decoded to its end."""
    meter = Meter()
    left = SimpleNamespace(cost=PromptProgress(1000, 100, 228, 0.5).statistics, owner="", in_loop=True)
    with meter.counting(cast(AsyncStream, left), [1] * 1000):
        pass
    assert "\nllamacpp:prompt_tokens_total 0\n" in meter.text(0, 0)
    left.cost, left.in_loop = PromptProgress(1000, 100, 356, 1.0).statistics, False
    for _ in range(2):
        text = meter.text(0, 0)
        assert "\nllamacpp:prompt_tokens_total 256\n" in text and "\nllamacpp:prompt_tokens_seconds 256\n" in text
    assert meter.seconds_until(24, 2) == 12, "it had a place for a second"
