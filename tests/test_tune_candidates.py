"""What a search tries: what makes sense, what the cost of rows rules out, and how each is typed."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import typer.main

from lacli.cli.lookahead_options import lookahead_group
from lacli.cli.main import app
from lacli.settings import DecodeSettings, ModelSettings
from lacli.staircase import Point, Staircase
from lacli.tune.candidates import candidates, flags, words

LOADING = ModelSettings(threads=1, threads_batch=1)
COMMANDS: dict[str, Any] = getattr(typer.main.get_command(app), "commands")  # noqa: B009  # Typer's own class has it


EVERY = [
    DecodeSettings(mode="plain"),
    DecodeSettings(mode="auto"),
    *(each.settings for each in candidates(None, LOADING)[0]),
]


def stairs(row: float) -> Staircase:
    """A staircase on which a further row costs so much of a plain step."""
    times = [(rows, 0.1 * (1 + row * (rows - 1))) for rows in (1, 2, 4, 8, 16, 32, 64, 128)]
    return Staircase(64, tuple(Point(rows, time, time) for rows, time in times))


def test_on_nearly_free_rows_nothing_is_ruled_out_and_where_a_row_costs_a_step_all_but_auto_is() -> None:
    every, lost = candidates(stairs(0.01), LOADING)
    assert not lost and len(every) == len({each.settings for each in every}) > 50
    left, lost = candidates(stairs(1.001), LOADING)
    assert {each.settings.mode for each in left} == {"auto"}
    assert len(left) + len(lost) == len(every)


@pytest.mark.parametrize("row", [0.1, 0.3, 0.6])
def test_what_is_ruled_out_would_lose_though_all_its_guesses_came_true(row: float) -> None:
    staircase = stairs(row)
    left, lost = candidates(staircase, LOADING)
    for settings in lost:
        assert staircase.relative(settings.most_rows, settings.most_outputs) > settings.most_tokens
    for each in left:
        most = staircase.relative(each.settings.most_rows, each.settings.most_outputs)
        assert each.settings.mode == "auto" or most <= each.settings.most_tokens


def test_steps_larger_than_any_that_was_measured_cost_no_less_than_those() -> None:
    short = Staircase(64, stairs(1.2).points[:3])
    left, lost = candidates(short, LOADING)
    assert short.relative(4) == pytest.approx(4.6)
    assert DecodeSettings(mode="lookahead", window=0, ngram=5, guesses=15) in [each.settings for each in left]
    assert DecodeSettings(mode="lookahead", window=0, ngram=3, guesses=15) in lost
    small, large = (DecodeSettings(mode="lookahead", window=width, ngram=7, guesses=width) for width in (2, 15))
    expected = {each.settings: each.expected for each in left}
    assert expected[large] < expected[small] < 1


def test_auto_with_fewer_sources_comes_first_and_then_what_the_law_expects_most_of() -> None:
    every, _ = candidates(stairs(0.05), LOADING)
    autos = [each for each in every if each.settings.mode == "auto"]
    assert every[: len(autos)] == autos and all(each.settings.sources != DecodeSettings().sources for each in autos)
    expected = [each.expected for each in every[len(autos) :]]
    assert expected == sorted(expected, reverse=True)


def test_without_a_staircase_everything_is_tried() -> None:
    every, lost = candidates(None, LOADING)
    assert not lost and {each.expected for each in every} == {1.0}


def test_what_does_not_fit_into_a_batch_is_not_tried() -> None:
    every, lost = candidates(None, ModelSettings(batch=20))
    assert not lost and 0 < len(every) < len(candidates(None, LOADING)[0])
    assert all(each.settings.most_rows <= 20 for each in every)
    assert {each.settings.auto_rows for each in every if each.settings.mode == "auto"} == {20}


def test_a_recurrent_model_gets_chains_no_longer_than_it_can_take_back() -> None:
    every, _ = candidates(None, LOADING, back=4)
    assert {each.settings.mode for each in every} == {"auto", "lookup"}
    assert all(each.settings.back == 4 for each in every)
    assert {each.settings.lookup_draft for each in every if each.settings.mode == "lookup"} == {2, 3, 4}


@pytest.mark.parametrize("settings", EVERY, ids=words)
def test_a_settings_flags_mean_the_setting(settings: DecodeSettings) -> None:
    parsed = COMMANDS["run"].make_context("run", flags(settings).split()).params
    group = {name: parsed[name] for name in signature(lookahead_group).parameters}
    assert lookahead_group(**group).settings == settings


def test_every_candidate_has_words_of_its_own() -> None:
    named = [words(each.settings) for each in candidates(None, LOADING)[0]]
    assert len(set(named)) == len(named)
