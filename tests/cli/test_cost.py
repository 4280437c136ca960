"""`lacli cost`: what it measures and keeps, what it refuses."""

from __future__ import annotations

import json
import signal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lacli.auto.model_cost import measure
from lacli.llamacpp.library import version
from lacli.text.records import NAME, Records
from tests.fakes.tiny_models import write_lfm2
from tests.program import Done, call

FEW = ("--rows", "1,2,4", "--contexts", "16,64", "--seconds", "0.2")


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    """A cache directory of the test's own."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a step takes a millisecond of a clock that ticks whenever it is read."""
    ticks = count()
    monkeypatch.setattr("lacli.auto.model_cost.measure", partial(measure, clock=lambda: next(ticks) / 1000))


def done(cache: dict[str, str], *arguments: str) -> Done:
    finished = call("cost", *arguments, env=cache)
    assert finished.code == 0, finished.err
    return finished


def measured(cache: dict[str, str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done(cache, "--json", *arguments).out)
    return found


def kept(cache: dict[str, str]) -> list[tuple[Any, Any]]:
    records = Records(Path(cache["XDG_CACHE_HOME"]) / "lacli" / NAME).kinds().get("cost", {})
    return [(json.loads(key), value) for key, value in records.items()]


def sizes_of(found: dict[str, Any]) -> list[tuple[int, list[int]]]:
    return [(each["context"], each["rows"]) for each in found["staircases"]]


def test_what_was_measured_is_shown_and_shown_again_until_it_is_measured_afresh(cache: dict[str, str]) -> None:
    shown = done(cache, *FEW)
    library = f"llama.cpp {version()}"
    assert shown.out.startswith(f"model     llama 7.3M Q8_0\nlibrary   {library}\nmachine   ")
    assert "after 16 tokens" in shown.out
    assert [line.split()[1] for line in shown.err.splitlines()[:2]] == ["timing", "timing"]
    first = measured(cache, *FEW)
    assert first["cached"] is True and len(kept(cache)) == 1
    assert (first["engine"], first["engine_version"]) == ("llama.cpp", version())
    assert sizes_of(first) == [(16, [1, 2, 4]), (64, [1, 2, 4])]
    assert ", just now (--fresh measures again)" in done(cache, *FEW).out
    ((key, value),) = kept(cache)
    Records(Path(cache["XDG_CACHE_HOME"]) / "lacli" / NAME).save("cost", key, {**value, "description": "what was kept"})
    assert measured(cache, *FEW)["description"] == "what was kept"
    assert "timing" not in done(cache, *FEW, "--fresh", "-q").err
    assert measured(cache, *FEW)["description"] == "llama 7.3M Q8_0" and len(kept(cache)) == 1


def test_of_a_hybrid_model_nothing_is_measured_and_why_is_said(cache: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "lfm2.gguf"
    write_lfm2(path)
    found = measured(cache, str(path), *FEW)
    assert "recurrent" in found["chain_only"] and found["staircases"] == [] and not kept(cache)


@pytest.mark.parametrize(
    ("arguments", "sizes", "note"),
    [
        (
            ("-c", "256", "-b", "3", "--rows", "1,2,4", "--contexts", "64,9999"),
            [(64, [1, 2]), (254, [1, 2])],
            "-b and -c limit steps to 2 rows after 254 tokens",
        ),
        (("--rows", "8,16,1,4,7,4", "--contexts", "16,32"), [(each, [1, 4, 7, 8, 16]) for each in (16, 32)], ""),
    ],
)
def test_sizes_and_contexts_are_lists_and_steps_without_room_are_left_out(
    cache: dict[str, str], arguments: tuple[str, ...], sizes: list[tuple[int, list[int]]], note: str
) -> None:
    found = done(cache, "--json", *arguments, "--seconds", "1")
    assert sizes_of(json.loads(found.out)) == sizes and note in found.err and ("limit steps" in found.err) is bool(note)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rows", "1,x"), "--rows 'x' is no number"),
        (("--contexts", "0,4"), "--rows take numbers from 1 to 1048576"),
        (("--seconds", "0"), "--seconds"),
        (("nowhere.gguf",), "no such file"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(
    cache: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    finished = call("cost", *arguments, env=cache)
    assert (finished.code, finished.out, len(finished.err.splitlines())) == (1 + ("--" in words), "", 1)
    assert words in finished.err


def test_ctrl_c_ends_it_and_saves_nothing(cache: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()

    def clock() -> float:
        if (now := next(ticks)) == 190:
            signal.raise_signal(signal.SIGINT)
        return now / 1000

    monkeypatch.setattr("lacli.auto.model_cost.measure", partial(measure, clock=clock))
    finished = call("cost", *FEW, env=cache)
    assert (finished.code, finished.out) == (130, "") and not kept(cache)


def test_without_times_that_make_sense_there_is_a_sentence_and_no_table(
    cache: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.auto.model_cost.measure", lambda *_, **__: ((), 0.0))
    finished = call("cost", "--rows", "1,8", "--contexts", "16", env=cache)
    assert (finished.code, finished.out) == (1, "") and not kept(cache)
    assert finished.err == (
        "lacli: the machine is too busy, or too slow, to time steps of enough rows "
        "(try again when other programs are idle, or give more --seconds)\n"
    )
