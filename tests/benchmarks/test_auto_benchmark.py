"""The benchmark of mode auto on simulated machines: its staircases, its clock, its contenders, and that it runs."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

import pytest

import lacli.decode
from benchmarks.auto import CONTENDERS, EXPECTED, counting_kinds, kinds_table, settings_of
from benchmarks.simulated import PLAIN_S, SHAPES, SimulatedEngine, Stairs
from lacli.auto.acceptance import AcceptanceEstimate
from lacli.errors import UsageError
from lacli.settings import DecodeSettings
from tests.fakes.decoding import auto_decoder
from tests.fakes.engine import FakeEngine
from tests.loading import STDLIB_7M
from tests.program import ROOT, SECONDS, environment

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_goes_through_its_points_and_on_behind_them(name: str) -> None:
    stairs = Stairs.named(name)
    points = [tuple(map(float, point.split(":"))) for point in SHAPES[name].split(",")]
    assert [stairs(int(rows)) for rows, _ in points] == pytest.approx([cost for _, cost in points])
    steps = [stairs(rows + 1) - stairs(rows) for rows in (62, 63, 64, 100)]
    assert steps == pytest.approx([steps[0]] * 4)


def test_points_of_ones_own_are_a_staircase_and_anything_else_is_an_error() -> None:
    assert Stairs.named("1:1,3:2")(2) == pytest.approx(1.5) and Stairs.named("1:1")(9) == 1
    for text in ("steep", "1:1,2", ""):
        with pytest.raises(UsageError, match="is no staircase"):
            Stairs.named(text)


def test_what_is_given_as_measured_is_the_staircase() -> None:
    stairs = Stairs.named("q4_0")
    (measured,) = stairs.cost().staircases
    assert [measured.relative(rows) for rows in (1, 2, 16, 64)] == pytest.approx([1, 1.9, 7.1, 27])


def test_the_clock_moves_by_the_staircase_alone_and_is_put_back() -> None:
    stairs = Stairs.named("q4_0")
    engine, settings = SimulatedEngine(FakeEngine(), stairs), DecodeSettings(mode="lookup")
    decoder = auto_decoder(engine, settings)
    with engine.clock():
        steps = list(decoder.generate(PROMPT, 30))
    assert [step.decode_s for step in steps] == pytest.approx([PLAIN_S * stairs(step.rows) for step in steps])
    assert {step.choose_s + step.cache_s + step.python_s for step in steps} == {0.0}
    assert vars(lacli.decode)["perf_counter"] is perf_counter
    assert [step.tokens for step in auto_decoder(FakeEngine(), settings).generate(PROMPT, 30)] == [
        step.tokens for step in steps
    ]


def test_guesses_are_counted_by_their_kind_beside_what_was_expected() -> None:
    estimate = AcceptanceEstimate(EXPECTED["suffix"])
    with counting_kinds() as counts:
        estimate.record(2, True)
        estimate.record(2, False)
    estimate.record(2, True)
    (row,) = [line for line in kinds_table(counts).splitlines() if "suffix 2 " in line]
    assert row.strip("| ").replace(" ", "").split("|") == ["suffix2", f"{EXPECTED['suffix'][2]:.3f}", "0.500", "2"]


def test_names_say_which_sources_are_asked() -> None:
    found = {name: settings_of(name, []).sources for name in CONTENDERS if name.startswith("auto")}
    assert found["auto"] == ("suffix", "recycling", "pool", "window")
    assert found["auto:pool+window"] == ("pool", "window") and found["auto-pool"] == ("suffix", "recycling", "window")
    chosen = settings_of("lookahead", ["window=3", "window_init=prompt"])
    assert (chosen.mode, chosen.window, chosen.window_init) == ("lookahead", 3, "prompt")


def test_it_runs_to_its_tables() -> None:
    arguments = (
        "--model",
        str(STDLIB_7M),
        "--stairs",
        "f16",
        "--classes",
        "edit",
        "--first",
        "1",
        "--limit",
        "16",
        "--threads",
        "1",
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.auto", *arguments, "--only", "oracle,lookup,auto", "--context", "1024"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| auto / lookup" in done.stdout and "| oracle" in done.stdout
    assert "1 of 1" in done.stdout.split("\n\n")[-1]
