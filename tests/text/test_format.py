"""Names that resemble a mistyped one."""

from __future__ import annotations

from lacli.text.format import did_you_mean, suggest


def test_the_most_similar_name_comes_first_whatever_its_case() -> None:
    assert suggest("tmep", ["top-k", "temp", "seed"]) == ["temp"]
    assert suggest("QWEN", ["Qwen-2", "qwen"])[0] == "qwen"


def test_a_hint_offers_what_is_near_and_else_something_else() -> None:
    assert did_you_mean("plan", ["plain", "lookup"], "one of them") == "did you mean plain?"
    assert did_you_mean("zzz", ["plain", "lookup"], "one of them") == "one of them"
