"""Sizes, ages and counts in words."""

from __future__ import annotations

from lacli.text.format import (
    age_in_words,
    count_in_words,
    memory_in_words,
    size_in_words,
    tokens_in_words,
)

DAY = 86_400


def test_ages_are_said_as_people_say_them() -> None:
    said = {
        5: "just now",
        60: "1 minute ago",
        2 * 3600 + 5: "2 hours ago",
        DAY: "1 day ago",
        13 * DAY: "13 days ago",
        14 * DAY: "2 weeks ago",
        60 * DAY: "2 months ago",
        800 * DAY: "2 years ago",
    }
    assert {seconds: age_in_words(seconds) for seconds in said} == said


def test_numbers_are_said_in_their_units() -> None:
    sizes = {0: "0 kB", 1: "1 kB", 4_700_000: "4.7 MB", 358_339_936: "358 MB", 4_700_000_000: "4.7 GB"}
    assert {size: size_in_words(size) for size in sizes} == sizes
    assert [memory_in_words(mib) for mib in (0.4, 338.2, 5_530)] == ["0.4 MiB", "338 MiB", "5.4 GiB"]
    contexts = {0: "-", 512: "512", 32_768: "32k", 131_072: "128k", 40_960: "40k", 100_000: "100000"}
    assert {tokens: tokens_in_words(tokens) for tokens in contexts} == contexts
    assert [count_in_words(count) for count in (7_344_384, 630_139_776, 7_615_616_512)] == ["7.3M", "630M", "7.6B"]
