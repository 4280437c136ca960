"""A benchmark's tables and its conclusion in words."""

from __future__ import annotations

from dataclasses import replace

from lacli.bench.report import as_lines, conclusion
from lacli.bench.results import results
from lacli.bench.rounds import Rounds
from lacli.bench.tasks import ALL
from tests.fakes.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    MACHINE,
    PLAIN,
    TASKS,
    asker,
    contender,
    dear,
    free,
    played,
    run,
)
from tests.fakes.clock import FakeClock


def test_where_every_row_costs_as_much_as_a_step_nothing_pays(clock: FakeClock) -> None:
    rounds, found = run(clock, dear, PLAIN, LOOKUP, LOOKAHEAD)
    sentence = " ".join(conclusion(found).split())
    assert "None of the 2 settings tried pays on this machine" in sentence and "use --mode plain" in sentence


def test_the_conclusion_names_the_setting_that_pays_and_the_classes_where_it_does_not(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD)
    assert "lookahead W=3 N=3 G=2 pays on this machine" in conclusion(found)
    slow = [
        replace(result, answered=tuple(replace(each, plain=each.trials) for each in result.answered))
        for result in found
        if result.kind == "edit"
    ]
    sentence = " ".join(conclusion([*found[:2], *slow, *found[4:]]).split())
    assert "it may pay for code (lookahead W=3 N=3 G=2" in sentence
    assert "plain is the better choice for edit" in sentence


def test_where_large_steps_lose_smaller_ones_are_suggested(clock: FakeClock) -> None:
    rounds, found = run(clock, dear, PLAIN, replace(LOOKAHEAD, window=8, guesses=8))
    assert "Smaller steps may do better than" in " ".join(conclusion(found).split())
    rounds, found = run(clock, dear, PLAIN, LOOKAHEAD)
    assert "Smaller steps" not in conclusion(found)


def test_only_plain_decoding_leaves_nothing_to_conclude(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN)
    assert "nothing to compare" in conclusion(found)


def test_with_several_plain_decodings_the_fastest_is_what_counts(clock: FakeClock) -> None:
    """Lookup is half as fast again as the slow one, and slower than the fast one."""
    slow, _ = contender(PLAIN, clock, lambda rows, outputs: 3.0)
    fast, _ = contender(PLAIN, clock, lambda rows, outputs: 1.0)
    lookup, _ = contender(LOOKUP, clock, lambda rows, outputs: 3.0)
    ones = [replace(slow, label="plain, -fa on"), replace(fast, label="plain, -fa off", baseline=1), lookup]
    rounds = played(Rounds(ones, TASKS, 2, asker()))
    found = results(rounds)
    assert found[-1].speedup.value > 1
    sentence = " ".join(conclusion(found).split())
    assert "The setting tried does not pay on this machine" in sentence and "plain, -fa off's speed" in sentence


def test_the_best_of_many_settings_is_to_be_measured_alone(clock: FakeClock) -> None:
    many = [replace(LOOKAHEAD, window=window) for window in range(5)]
    rounds, found = run(clock, free, PLAIN, *many)
    sentence = " ".join(conclusion(found).split())
    assert "is the best of 5 settings" in sentence and "measure it alone" in sentence


def test_the_tables_show_every_class_and_mode_in_a_form_that_markdown_reads(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKUP, LOOKAHEAD)
    text = as_lines(found, MACHINE, {})
    for words in ("code", "edit", ALL, "plain", "lookup", "lookahead W=3 N=3 G=2", "toy 1M F32", "a processor"):
        assert words in text
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            assert len({line.count("|") for line in lines}) == 1 and set(lines[1]) <= set("|-:")


def test_a_class_that_only_plain_decoding_has_answered_yet_is_no_traceback(clock: FakeClock) -> None:
    rounds = played(Rounds([contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)], TASKS, 1, asker()), 3)
    assert conclusion(results(rounds))
