"""`lacli cost` as a person meets it: what it prints, what it keeps, what it refuses, Ctrl-C."""

from __future__ import annotations

import json
import signal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lacli.cost.measure import measure
from lacli.llamacpp.context import MOST_BACK
from tests.fakes.tiny_models import write_lfm2, write_llama, write_mamba
from tests.program import Done, call, start

FEW = ("--rows", "1,2,4", "--contexts", "16,64", "--seconds", "0.2")


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    """A cache directory of the test's own."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a step takes a millisecond of a clock that ticks whenever it is read."""
    ticks = count()
    monkeypatch.setattr("lacli.cost.known.measure", partial(measure, clock=lambda: next(ticks) / 1000))


def done(cache: dict[str, str], *arguments: str) -> Done:
    finished = call("cost", *arguments, env=cache)
    assert finished.code == 0, finished.err
    return finished


def measured(cache: dict[str, str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done(cache, "--json", *arguments).out)
    return found


def kept(cache: dict[str, str]) -> list[Path]:
    return sorted(Path(cache["XDG_CACHE_HOME"]).rglob("cost/*.json"))


def test_it_prints_tables_and_a_conclusion_and_nothing_else_on_stdout(cache: dict[str, str]) -> None:
    finished = done(cache, *FEW)
    assert finished.out.startswith("model     llama 7.3M Q8_0\nmachine   ")
    assert "behind 16 tokens" in finished.out and "behind 64 tokens" in finished.out
    assert "The best by the paper's law" in finished.out.replace("\n", " ")
    assert [line.split()[1] for line in finished.err.splitlines()[1:3]] == ["timing", "timing"]
    assert done(cache, *FEW, "-q", "--fresh").err in ("", finished.err.splitlines()[-1] + "\n")


def test_what_was_measured_is_shown_again_until_it_is_measured_afresh(cache: dict[str, str]) -> None:
    first = measured(cache, *FEW)
    assert first["cached"] is False and len(kept(cache)) == 1
    assert [staircase["rows"] for staircase in first["staircases"]] == [[1, 2, 4]] * 2
    again = measured(cache, *FEW)
    assert again == {**first, "cached": True}
    assert " ago (--fresh measures again)" in done(cache, *FEW).out
    (path,) = kept(cache)
    path.write_text(path.read_text().replace("llama 7.3M Q8_0", "what was kept"))
    assert measured(cache, *FEW)["description"] == "what was kept"
    afresh = measured(cache, *FEW, "--fresh")
    assert (afresh["description"], afresh["cached"]) == ("llama 7.3M Q8_0", False)
    assert measured(cache, *FEW)["description"] == "llama 7.3M Q8_0"
    assert kept(cache) == [path]


def test_other_flags_and_other_models_are_measured_on_their_own(cache: dict[str, str], tmp_path: Path) -> None:
    tiny = tmp_path / "tiny.gguf"
    write_llama(tiny)
    for number, arguments in enumerate(((), ("-ctk", "q8_0"), ("-tb", "2"), (str(tiny),)), start=1):
        assert measured(cache, *FEW, *arguments)["cached"] is False
        assert len(kept(cache)) == number


def test_a_damaged_file_is_measured_again(cache: dict[str, str]) -> None:
    measured(cache, *FEW)
    (path,) = kept(cache)
    path.write_bytes(path.read_bytes()[:200])
    again = done(cache, *FEW)
    assert "cannot be read, so it is measured again" in again.err and "best by the paper" in again.out
    assert "cannot be read" not in done(cache, *FEW).err
    assert measured(cache, *FEW)["cached"] is True


@pytest.mark.parametrize("command", [("run", "-p", "Say yes."), ("chat", "-p", "Say yes.")])
def test_a_damaged_file_is_named_once_where_it_would_be_used(cache: dict[str, str], command: tuple[str, ...]) -> None:
    measured(cache, *FEW)
    (path,) = kept(cache)
    path.write_bytes(path.read_bytes()[:200])
    first, second, plainly = (
        call(*command, "-n", "8", "--mode", mode, env=cache) for mode in ("auto", "auto", "plain")
    )
    assert (first.code, second.code) == (0, 0) and first.out == second.out == plainly.out
    assert str(path) in first.err and "lacli cost measures it again" in first.err and not path.exists()
    assert str(path) not in second.err


def test_a_chat_looks_for_costs_in_every_mode_since_auto_may_come_later(cache: dict[str, str]) -> None:
    measured(cache, *FEW)
    (path,) = kept(cache)
    path.write_bytes(path.read_bytes()[:200])
    assert str(path) not in call("run", "-p", "Say yes.", "-n", "1", "--mode", "plain", env=cache).err
    assert str(path) in call("chat", "--commands", "-n", "1", "--mode", "plain", stdin=b"/mode auto\n", env=cache).err


def test_a_cache_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    finished = done({"XDG_CACHE_HOME": str(tmp_path / "file")}, *FEW)
    assert "cannot keep it in" in finished.err and "The best by the paper's law" in finished.out.replace("\n", " ")


def test_a_hybrid_models_chains_are_measured_as_far_as_they_go_back(cache: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "lfm2.gguf"
    write_lfm2(path)
    found = measured(cache, str(path), *FEW)
    assert "hybrid" in found["chain_only"] and found["settings"] == []
    assert [(each["context"], each["rows"]) for each in found["staircases"]] == [(16, [1, 2, 4]), (64, [1, 2, 4])]
    far = measured(cache, str(path), "--rows", "1,3,64", "--contexts", "9999", "--seconds", "0.2")["staircases"]
    assert [each["rows"] for each in far] == [[1, 3, 1 + MOST_BACK]] and 64 < far[0]["context"] < 512
    short = measured(cache, str(path), *FEW, "-b", "3")["staircases"]
    assert [each["rows"] for each in short] == [[1, 2]] * 2


def test_a_recurrent_model_has_nothing_to_choose(cache: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tiny-mamba.gguf"
    write_mamba(path)
    said = " ".join(done(cache, str(path), *FEW).out.split())
    # It goes back along no chain either.
    assert "There is nothing to choose: a recurrent model" in said and "chain" not in said
    assert "recurrent" in measured(cache, str(path), *FEW)["chain_only"]


def test_of_a_hybrid_model_steps_along_a_chain_are_measured(cache: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tiny-lfm2.gguf"
    write_lfm2(path)
    said = " ".join(done(cache, str(path), *FEW).out.split())
    assert "can go back along a chain of guesses only" in said and "nothing to choose" not in said
    assert measured(cache, str(path), *FEW)["staircases"]


def test_a_kept_file_without_steps_or_a_reason_is_measured_again(cache: dict[str, str]) -> None:
    measured(cache, *FEW)
    (path,) = kept(cache)
    content = json.loads(path.read_text())
    content["cost"]["staircases"] = []
    path.write_text(json.dumps(content))
    again = done(cache, *FEW)
    assert "cannot be read, so it is measured again" in again.err and "nothing to choose" not in again.out


def test_a_small_context_and_batch_bound_what_is_measured(cache: dict[str, str]) -> None:
    found = measured(cache, "-c", "256", "-b", "3", "--rows", "1,2,4", "--contexts", "64,9999", "--seconds", "1")
    assert [(staircase["context"], staircase["rows"]) for staircase in found["staircases"]] == [
        (64, [1, 2]),
        (254, [1, 2]),
    ]
    assert found["notes"] == [
        "steps of 4 rows were left out: a batch takes 3 (-b)",
        "contexts were cut to 254 tokens: beside steps of 2 rows, 256 cells (-c) have room for no more",
    ]


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (("-b", "1", "--contexts", "16"), "steps of 2 to 128 rows were left out: a batch takes 1 (-b)"),
        (("--rows", "4096", "-c", "512", "--contexts", "4"), "steps of 4096 rows were left out: a context of 512"),
    ],
)
def test_where_no_larger_step_fits_the_reason_is_said(
    cache: dict[str, str], arguments: tuple[str, ...], note: str
) -> None:
    said = done(cache, *arguments, "--seconds", "0.2").out
    assert "Only steps of a single row were measured" in said and f"\nnote      {note}" in said


def test_a_note_is_not_taken_from_what_was_measured_for_other_sizes(cache: dict[str, str]) -> None:
    few = ("-b", "3", "--contexts", "16", "--seconds", "0.2", "--rows")
    assert measured(cache, *few, "1,2")["notes"] == []
    assert measured(cache, *few, "1,2,4")["notes"] == ["steps of 4 rows were left out: a batch takes 3 (-b)"]


def test_sizes_and_contexts_are_ranges_too(cache: dict[str, str]) -> None:
    found = measured(cache, "--rows", "8-16*2,1-7+3,4", "--contexts", "16-32+16", "--seconds", "1")
    assert [(staircase["context"], staircase["rows"]) for staircase in found["staircases"]] == [
        (16, [1, 4, 7, 8, 16]),
        (32, [1, 4, 7, 8, 16]),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rows", "0"), "--rows takes numbers from 1 to 4096"),
        (("--rows", "1,x"), "--rows 'x' is neither a number nor a range"),
        (("--rows", ""), "--rows '' is neither a number nor a range"),
        (("--contexts", "-5"), "--contexts '-5' is neither a number nor a range"),
        (("--contexts", "1e3"), "--contexts '1e3' is neither a number nor a range"),
        (("--contexts", "0-4"), "--contexts takes numbers from 1 to 1048576"),
        (("--rows", "1,4097"), "--rows takes numbers from 1 to 4096"),
        (("--rows", "1-999"), "--rows 1-999 has more than 256 values"),
        (("--rows", "4-1"), "ends before it begins"),
        (("--seconds", "0"), "--seconds"),
        (("--seconds", "soon"), "--seconds"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_in_a_line(
    cache: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    finished = call("cost", *arguments, env=cache)
    assert (finished.code, finished.out, len(finished.err.splitlines())) == (2, "", 1)
    assert words in finished.err


def test_a_model_that_is_not_there_is_said_in_a_line(cache: dict[str, str]) -> None:
    finished = call("cost", "nowhere.gguf", env=cache)
    assert (finished.code, finished.out) == (1, "") and "no such file" in finished.err


def test_ctrl_c_says_that_nothing_is_kept(cache: dict[str, str]) -> None:
    with start("cost", "--seconds", "60", env=cache) as process:
        assert process.stderr
        for line in process.stderr:
            if b"timing" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert out == b"" and err.decode().strip() == "lacli: stopped before everything was measured, so nothing is kept"
    assert not kept(cache)
