"""What a check found, in words, in tables and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from lacli.check.compare import Alternative, checked_modes
from lacli.check.report import Setup, advice, as_json, as_lines, conclusion
from lacli.engine import Engine, Floats
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.check.test_compare import CELLS, DECODING, LIMIT, PROMPTS, Hidden, run_check
from tests.fakes.engine import FakeEngine
from tests.fakes.sampler import FakeSampler
from tests.fakes.wrong_engines import LateCopy, LateRemove, Rounding, WrongMask

SETUP = Setup(
    model="toy.gguf",
    description="toy",
    backend="CPU",
    on_gpu=False,
    context=CELLS,
    model_settings=ModelSettings(threads=1, threads_batch=1),
    decode_settings=DECODING,
    sampling=SamplingSettings(),
    sampled="as it says",
    predict=LIMIT,
    prompts=len(PROMPTS),
    piece=lambda token: f"<{token}>".encode(),
)


class OneRowApart(FakeEngine):
    """One row alone gives other logits."""

    def logits(self) -> Floats:
        return super().logits() + (len(self._logits) == 1) / 8


def tried(kind: type[FakeEngine] | None) -> Any:
    """What a check of rounding batch sizes says that tried engines of a kind under other flags; None: refused."""

    @contextmanager
    def opened(settings: DecodeSettings) -> Iterator[Engine]:
        if kind is None:
            raise LacliError("the backend knows no such cache")
        yield kind(CELLS, CELLS)

    return advice(SETUP, run_check(Rounding, modes=[], alternative=Alternative("-fa on", opened)))


def test_the_advice_says_which_flags_make_batch_sizes_agree() -> None:
    assert "With -fa on, 1 to 64 at once gave the same numbers" in tried(FakeEngine)
    assert "A token decoded alone is rounded differently here than among 2 to 64" not in tried(FakeEngine)
    assert "With -fa on, it still does, by up to 0.0" in tried(Rounding)
    assert "-fa on could not be tried: the backend knows no such cache" in tried(None)
    apart = advice(SETUP, run_check(OneRowApart, modes=[]))
    assert "A token decoded alone is rounded differently here than among 2 to 64" in apart
    exact = advice(SETUP, run_check(FakeEngine, modes=[]))
    assert exact == "Decoding 1 to 64 tokens at once gave 64 of them the same numbers to the last bit."


def test_strict_is_advised_where_it_could_help() -> None:
    found = run_check(Rounding, modes=[])
    assert "--strict" in advice(SETUP, found)
    for setup in (replace(SETUP, on_gpu=True), replace(SETUP, decode_settings=replace(DECODING, strict=True))):
        assert "--strict" not in advice(setup, found)


def test_without_modes_there_are_no_texts_to_compare() -> None:
    found = run_check(FakeEngine, modes=[])
    assert found.exit_code(fail_on_difference=True) == 0
    assert "no texts to compare" in conclusion(SETUP, found)
    assert "Modes beside" not in as_lines(SETUP, found)


def test_json_has_every_difference_and_nothing_that_is_not_json() -> None:
    for found in map(run_check, (Rounding, WrongMask, LateCopy)):
        read = json.loads(json.dumps(as_json(SETUP, found), allow_nan=False))
        assert read["answers"] == read["identical"] + read["rounding"] + read["bugs"] == 12
        assert len(read["differences"]) == read["rounding"] + read["bugs"]
        assert [mode["mode"] for mode in read["modes"]] == ["jacobi", "lookup", "lookahead", "auto"]
        assert [probe["context"] for probe in read["invariance"]] == [32]
        assert read["summary"] == conclusion(SETUP, found)
    broken = as_json(SETUP, run_check(LateRemove))
    assert "null" in json.dumps(broken, allow_nan=False) and broken["failure"]


def test_a_difference_in_json_has_both_tokens_and_what_they_are_apart() -> None:
    greedy, drawn = (
        as_json(SETUP, run_check(Rounding, sampler))["differences"][0] for sampler in (None, FakeSampler(1))
    )
    assert greedy["plain_text"] == f"<{greedy['plain_token']}>"
    assert (greedy["verdict"], greedy["draw_distance"]) == ("rounding", None)
    assert 0 <= greedy["margin"] <= 2 * greedy["logit_difference"]
    assert drawn["draw_distance"] >= 0 and drawn["draw_movement"] >= 0


@pytest.mark.parametrize("sampler", [None, FakeSampler(1), Hidden(1)])
@pytest.mark.parametrize("kind", [Rounding, WrongMask])
def test_the_verdict_comes_first_and_the_table_gives_each_parting_its_numbers(
    kind: type[FakeEngine], sampler: FakeSampler | None
) -> None:
    found = run_check(kind, sampler)
    setup = replace(SETUP, sampling=SamplingSettings(temp=1, seed=1)) if sampler else SETUP
    text = as_lines(setup, found)
    assert " ".join(text.split()).startswith(conclusion(setup, found))
    assert conclusion(setup, found).startswith("BUG: ") == bool(found.counts.bugs)
    (table,) = (part for part in text.split("\n\n") if part.startswith("Where texts part"))
    verdicts = [line.rpartition("  ")[2] for line in table.splitlines() if "'<" in line]
    assert sum(verdict.startswith("BUG: ") for verdict in verdicts) == found.counts.bugs
    assert sum(verdict.startswith("rounding: ") for verdict in verdicts) == found.counts.rounding
    assert all(re.search(r"\d", verdict) for verdict in verdicts)
    if isinstance(sampler, Hidden):
        assert all(re.match(r"\w+: \d+ of 65 draws give it", verdict) for verdict in verdicts)


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_report_fits_the_terminal_and_breaks_no_word(width: int) -> None:
    found = run_check(Rounding)
    text = as_lines(SETUP, found, width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert set(as_lines(SETUP, found).split()) == set(text.split())


def test_a_check_that_was_stopped_says_so_and_has_what_was_finished() -> None:
    def pressed(sentence: str) -> None:
        if sentence.startswith("lookahead"):
            raise KeyboardInterrupt

    found = run_check(FakeEngine, progress=pressed)
    assert [mode.settings.mode for mode in found.modes] == ["jacobi", "lookup"]
    assert conclusion(SETUP, found).startswith("Stopped early") and as_json(SETUP, found)["stopped"]
    with pytest.raises(KeyboardInterrupt):
        run_check(FakeEngine, modes=checked_modes(DECODING, "lookahead"), progress=pressed)


def test_why_steps_were_refused_is_said_once_below_the_table() -> None:
    found = run_check(LateCopy, modes=checked_modes(DECODING, "lookahead"))
    refused = [run for run in found.modes[0].runs if run.failure]
    first, *others = as_lines(SETUP, found).split("\n\n")
    (table,) = (part for part in others if part.startswith("Where texts part"))
    assert table.count("BUG, refused") == len(refused) > 0
    assert table.count("Refused: llama_decode") == len({run.failure for run in refused})
    assert first.startswith(f"BUG: rounding does not explain {found.counts.bugs} of 3 texts. Please report this with")
    for parting, (_, _, run) in zip(as_json(SETUP, found)["differences"], found.partings, strict=True):
        assert not run.failure or parting["position"] == len(run.tokens)
