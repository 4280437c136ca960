"""What a measured cost is shown as: tables and sentences for a person, an object for a program."""

from __future__ import annotations

import json
import re

import pytest

from lacli.cost.cost_json import as_json
from lacli.cost.report import (
    WIDTH,
    Setup,
    as_lines,
    conclusion,
)
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.staircase import Cost, Point, Staircase

SETUP = Setup("/models/toy.gguf", ModelSettings(threads=4, threads_batch=4))
CPU = Staircase(64, (Point(1, 0.01, 0.01), Point(4, 0.025, 0.02), Point(8, 0.05, 0.04), Point(128, 0.55, 0.5)))
LONG = Staircase(2000, (Point(1, 0.02, 0.02), Point(8, 0.06, 0.05)))
GPU = Staircase(64, (Point(1, 0.02, 0.02), Point(64, 0.021, 0.0205), Point(128, 0.024, 0.022)))


def cost(*staircases: Staircase) -> Cost:
    return Cost(staircases, "llama 7B Q4_0", "A processor", measured_at=1.75e9, budget=20.0)


def test_every_measured_number_is_in_the_table() -> None:
    lines = as_lines(SETUP, cost(CPU, LONG)).splitlines()
    assert "behind 64 tokens" in lines[6] and "behind 2000 tokens" in lines[6]
    rows = [re.split(r" {2,}", line.strip()) for line in lines[7:12]]
    assert rows == [
        ["rows", "ms", "times", "a row", "one read", "ms", "times", "a row", "one read"],
        ["1", "10.0", "1.00", "10.0", "20.0", "1.00", "20.0"],
        ["4", "25.0", "2.50", "5.00", "20.0"],
        ["8", "50.0", "5.00", "6.25", "40.0", "60.0", "3.00", "5.71", "50.0"],
        ["128", "550.0", "55.00", "4.17", "500.0"],
    ]


def test_each_context_has_a_table_of_what_lookahead_must_bring() -> None:
    text = as_lines(SETUP, cost(CPU, LONG))
    _, *tables = text.split(" tokens: the S that makes lookahead as fast as plain decoding")
    assert len(tables) == 2
    # W=1 N=3 G=1: four rows, all of which are read; W=0 N=3 G=1: three.
    assert re.search(r"\n +1 +1 +2\.5 .*\| +0\.48 ", tables[0])
    assert re.search(r"\n +0 +1 +2\.0 .*\| +- +-", tables[0])
    assert "~" not in tables[0].split("15  15")[0] and "~" in tables[1]


def test_where_rows_cost_it_says_that_the_default_cannot_pay() -> None:
    said = conclusion(cost(CPU, LONG))
    assert "A step of 128 rows costs 55 plain ones, 43% of a plain step for each further row." in said
    needed = CPU.relative(120, 76)
    assert f"(120 rows), W=15 N=5 G=15 must bring {needed:.1f} tokens" in said
    assert "can bring at most 18: it cannot pay" in said
    assert "among steps of at most 128 rows is W=1 N=3 G=1, 0.48 times plain's speed: none of them pays" in said
    assert "Behind 2000 tokens the best among steps of at most 8 rows is W=1 N=3 G=1" in said
    assert "2.7 times as fast at most, with 8 rows a step, the best of the sizes measured." in said


def test_where_every_window_was_measured_it_speaks_of_all() -> None:
    wide = Staircase(64, (Point(1, 1.0, 1.0), Point(512, 300.0, 250.0)))
    text = as_lines(SETUP, cost(wide))
    assert "no window pays" in conclusion(cost(wide)) and "among" not in text and "~" not in text


@pytest.mark.parametrize(
    "points",
    [
        (Point(1, 1.0, 1.0), Point(2, 1.5, 1.5)),
        (Point(1, 1.0, 1.0), Point(3, 0.9, 0.9)),
        (Point(1, 1.0, 1.0), Point(2, 1.5, 1.5), Point(3, 2.1, 2.0)),
    ],
)
def test_nothing_is_said_of_steps_far_beyond_those_measured(points: tuple[Point, ...]) -> None:
    few = cost(Staircase(64, points))
    most = points[-1].rows
    said = conclusion(few)
    assert "Whether W=15 N=5 G=15 pays is not known: its full steps have 120 rows" in said
    assert f"the largest measured has {most}." in said
    assert f"The best by the paper's law is not known: no window in the table has steps of at most {most} rows" in said
    assert "of the sizes measured" in said
    assert not re.search(
        r"W=15 N=5 G=15 must bring|cannot pay|free here|no window pays|The best by the paper's law is W", said
    )
    found = as_json(SETUP, few)
    assert found["best_window"] is found["best_speedup"] is None
    for each in found["settings"]:
        known = each["rows"] <= 2 * most
        assert (each["break_even"] is not None) == (each["most_speedup"] is not None) == known
        assert (each["expected_speedup"] is not None) == (known and each["window"] > 0)
    cells = re.findall(r"\n +15 +15 (.*)", as_lines(SETUP, few))
    assert len(cells) == 1 and re.split(r"[ |]+", cells[0].strip()) == ["-"] * 10


def test_free_rows_are_said_to_be_free_up_to_the_largest_size_measured() -> None:
    few = cost(Staircase(64, (Point(1, 1.0, 1.0), Point(3, 0.9, 0.9))))
    assert "Up to the 3 rows measured they are nearly free" in conclusion(few)


def test_up_to_twice_the_largest_size_a_number_is_about_right_and_never_the_best() -> None:
    middle = Staircase(64, (Point(1, 1.0, 1.0), Point(64, 1.05, 1.05)))
    text = as_lines(SETUP, cost(middle))
    assert re.search(r"must bring about 1\.1 tokens .* 1\.\d\d times as fast", conclusion(cost(middle)))
    assert re.search(r"\n +15 +15 +1\.\d +~1\.1 +~1\.1 +- +- +\| +1\.\d\d +~1\.\d\d +~1\.\d\d +- +-\n", text)
    assert "~ more than the 64 rows measured, - more than 128, or no window: not known" in text
    found = as_json(SETUP, cost(middle))
    chosen = (found["best_window"], found["best_ngram"])
    rows = {(each["window"], each["ngram"]): each["rows"] for each in found["settings"]}
    faster = [each["rows"] for each in found["settings"] if (each["expected_speedup"] or 0) > found["best_speedup"]]
    assert rows[chosen] <= 64 and faster and min(faster) > 64


def test_where_rows_are_free_it_says_which_setting_pays() -> None:
    said = conclusion(cost(GPU))
    assert "Steps of up to 64 rows cost hardly more than one of a single row." in said
    assert re.search(
        r"W=15 N=5 G=15 must bring 1\.\d tokens .* the paper's law expects 2\.0: 1\.\d\d times as fast", said
    )
    assert "The best by the paper's law among steps of at most 128 rows is W=" in said
    assert re.search(r" is W=\d+ N=\d G=\d+, 1\.\d\d times plain's speed\.", said)
    assert "cannot" not in said and "pays" not in said


def test_a_model_of_single_rows_has_nothing_to_choose() -> None:
    alone = Cost((), "mamba", "A processor", chain_only="it keeps one state")
    assert "nothing to choose: it keeps one state" in as_lines(SETUP, alone)
    found = as_json(SETUP, alone)
    assert found["chain_only"] == "it keeps one state" and found["best_window"] is None
    assert found["staircases"] == found["settings"] == []


def test_for_a_model_of_chains_rows_have_a_price_and_lookahead_has_none() -> None:
    chains = Cost((CPU,), "lfm2", "A processor", chain_only="it keeps one state")
    text = " ".join(as_lines(SETUP, chains).split())
    assert "for each further row" in text and "Lookahead is not for this model" in text
    assert "W=" not in text and "N=" not in text and "all come true" in text
    found = as_json(SETUP, chains)
    assert found["settings"] == [] and found["best_window"] is None
    assert found["staircases"][0]["rows"] == [1, 4, 8, 128]


def test_from_a_single_row_nothing_follows() -> None:
    alone = cost(Staircase(8, (Point(1, 0.5, 0.5),)))
    text = as_lines(SETUP, alone)
    assert "Only steps of a single row were measured" in text and "as fast as plain" not in text
    found = as_json(SETUP, alone)
    assert found["settings"] == [] and found["best_window"] is None and found["staircases"][0]["ms"] == [500]


def test_numbers_of_another_time_say_so() -> None:
    ages = {30.0: "30 seconds", 60.0: "60 seconds", 120.0: "2 minutes", 7200.0: "2 hours", 259200.0: "3 days"}
    for seconds, words in ages.items():
        lines = as_lines(Setup("toy.gguf", ModelSettings(threads=1), seconds), cost(CPU))
        assert f", {words} ago (--fresh measures again)" in lines
    assert "--fresh" not in as_lines(SETUP, cost(CPU))


def test_rough_times_and_notes_are_mentioned() -> None:
    rough = Staircase(64, (Point(1, 1.0, 1.0, 0.5), Point(2, 1.5, 1.5, 0.4)))
    assert "All this is rough" in conclusion(cost(rough))
    noted = Cost((CPU,), notes=("contexts above 64 tokens take too long",))
    assert "note      contexts above 64 tokens" in as_lines(SETUP, noted)
    long = Cost((CPU,), notes=(" ".join(["contexts above 64 tokens take too long"] * 4),))
    _, heading = as_lines(SETUP, long).partition("\n\n")[0].split("\nnote")
    assert "\n" + " " * 10 in heading and max(map(len, heading.splitlines())) <= WIDTH


def test_it_fits_a_page_that_is_not_too_wide() -> None:
    assert max(map(len, as_lines(SETUP, cost(CPU, LONG)).splitlines())) <= WIDTH + 4


def test_the_json_holds_the_same_numbers() -> None:
    found = json.loads(json.dumps(as_json(SETUP, cost(CPU, LONG))))
    short, long = found["staircases"]
    assert short["context"] == 64 and long["context"] == 2000
    assert short["rows"] == [1, 4, 8, 128] and short["ms"] == [10, 25, 50, 550] and short["one_read_ms"][1] == 20
    assert short["relative"] == [1, 2.5, 5, 55]
    assert (long["ceiling_rows"], long["ceiling_speedup"]) == (8, 2.6667)
    settings = {(each["context"], each["window"], each["ngram"]): each for each in found["settings"]}
    default = settings[64, 15, 5]
    assert (default["rows"], default["outputs"], default["most_tokens"]) == (120, 76, 18)
    assert default["break_even"] == round(CPU.relative(120, 76), 4)
    assert default["expected_speedup"] == round(default["expected_tokens"] / default["break_even"], 4)
    assert settings[2000, 0, 3]["expected_tokens"] is None
    assert found["best_window"] == 1 and found["cached"] is False and found["threads"] == 4
    assert found["measured_at"] == "2025-06-15T15:06:40+00:00"
    assert found["summary"] == conclusion(cost(CPU, LONG))


def test_what_costs_more_than_it_can_bring_with_fewer_rows_cannot_pay_with_more() -> None:
    most = DecodeSettings(mode="lookahead").most_tokens
    dear = cost(Staircase(64, (Point(1, 1.0, 1.0), Point(32, most + 0.5, most + 0.5))))
    assert "W=15 N=5 G=15 cannot pay" in conclusion(dear)
    bearable = cost(Staircase(64, (Point(1, 1.0, 1.0), Point(32, most - 0.5, most - 0.5))))
    assert "Whether W=15 N=5 G=15 pays is not known" in conclusion(bearable)


def test_sizes_that_cost_less_than_the_next_smaller_one_are_named() -> None:
    stairs = Staircase(
        64, (Point(1, 1.0, 1.0), Point(2, 1.9, 1.9), Point(3, 2.8, 2.8), Point(4, 1.85, 1.8), Point(8, 3.6, 3.5))
    )
    assert "A step of 4 rows costs less than the next smaller one measured" in conclusion(cost(stairs))
    assert "costs less than the next" not in conclusion(cost(CPU))


def test_what_guesses_from_the_text_alone_must_bring_is_said() -> None:
    """Without a window and with one candidate of N-1 tokens a step has N rows."""
    stairs = Staircase(64, (Point(1, 1.0, 1.0), Point(3, 3.0, 3.0), Point(4, 1.5, 1.5), Point(8, 9.0, 9.0)))
    assert "W=0 N=4 G=1 must bring 1.5 tokens a step" in conclusion(cost(stairs))
