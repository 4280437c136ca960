"""Flags without effect are named once with the reason; what the environment sets is not; slips in it are."""

from __future__ import annotations

import json
import sys

import pytest

from lacli.cli import ignored
from tests.loading import STDLIB_7M
from tests.program import call, run

ASK = ("run", str(STDLIB_7M), "--raw", "-p", "x", "-n", "0")


def said(*flags: str, **env: str) -> list[str]:
    """The notes of a run with these flags, but for the one that -n has cut the answer."""
    done = call(*ASK, *flags, env=env)
    assert done.code == 0, done.err
    return [line.removeprefix("lacli: ") for line in done.err.splitlines() if "was cut" not in line]


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ("--mode plain -W 15 --no-pool-text", "-W and --no-pool-text have no effect in mode plain"),
        ("--mode lookup --preset code", "--preset has no effect in mode lookup"),
        ("-W 5 --sources pool --auto-rows 4", "--sources and --auto-rows have no effect in mode lookahead"),
        ("--mode plain --temp 1 --verify rejection", "--verify has no effect in mode plain"),
        ("--top-k 5 -s 3", "--top-k and -s have no effect at temperature 0; --temp sets it"),
        ("--temp 1 --dry-base 2", "--dry-base has no effect without --dry-multiplier"),
        ("--temp 1 --mirostat 2 --top-k 5 --min-p 0.1", "--top-k and --min-p have no effect with --mirostat"),
        (
            "--repeat-last-n 5",
            "--repeat-last-n has no effect without --repeat-penalty, --presence-penalty or --frequency-penalty",
        ),
        (r"--stop \n --stop \t", r"--stop '\n' keeps its backslash; a line break is $'\n' in bash"),
        (
            "--show-accepted",
            "--show-accepted has no effect where stdout has no colours; --color on writes them all the same",
        ),
    ],
)
def test_a_flag_without_effect_is_named_with_the_reason(flags: str, note: str) -> None:
    assert said(*flags.split()) == [note]


@pytest.mark.parametrize(
    "flags",
    [
        "--mode lookahead -W 5 -N 4 -G 3 --pool-text",
        "--mode auto -W 5 --sources pool",
        "--temp 1 --top-k 5 -s 3 --dry-base 2 --dry-multiplier 1",
        "--xtc-probability 0.5 -s 3",
        "--repeat-penalty 1.5 --repeat-last-n 5",
        "--show-accepted --color on",
        "-ngl 0",
    ],
)
def test_nothing_is_said_of_flags_that_do_something(flags: str) -> None:
    assert said(*flags.split()) == []


def test_more_threads_than_cores_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.llamacpp.devices.logical_cores", lambda: 1)
    assert said("-t", "2") == ["-t 2 is more than the 1 core here: its threads wait for each other"]
    assert said(LACLI_THREADS="2")[0].endswith("for each other; LACLI_THREADS sets it")
    assert said("-t", "1") == said() == []


def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "_has_gpu", lambda: False)
    assert said("-ngl", "99") == ["-ngl has no effect here: llama.cpp finds no GPU (lacli doctor)"]
    monkeypatch.setattr(ignored, "_has_gpu", lambda: True)
    assert said("-ngl", "99") == []


def test_what_the_environment_sets_is_not_named_but_where_it_makes_a_flag_idle() -> None:
    assert said(LACLI_MODE="plain", LACLI_WINDOW="3", LACLI_TOP_K="5", LACLI_SHOW_ACCEPTED="1") == []
    assert said("-N", "4", LACLI_MODE="plain") == ["-N has no effect in mode plain; LACLI_MODE sets --mode"]


def test_quiet_is_quiet_and_json_stays_json() -> None:
    done = call(*ASK, "--mode", "plain", "-W", "5", "--json", env={"LACLI_TEMPP": "1"})
    assert json.loads(done.out)["mode"] == "plain" and done.err.count("no effect") == 1
    assert call(*ASK, "-q", "--mode", "plain", "-W", "5", env={"LACLI_TEMPP": "1"}).err == ""


BARE = {"LACLI_JSON_SCHEMA": "{}", "LACLI_NO_STDIN": "1", "LACLI_EMPTY": ""}


@pytest.mark.parametrize(
    "command", [ASK, ["list"], ["show", str(STDLIB_7M)], ["mask", "-W", "1"], ["pull", str(STDLIB_7M)]]
)
def test_a_mistyped_variable_is_named_by_every_command(command: list[str]) -> None:
    done = call(*command, env={"LACLI_TEMPP": "0.5", "LACLI_XYZZY": "1", "LACLI_THREADS": "1", **BARE})
    notes = [line for line in done.err.splitlines() if "no flag reads" in line]
    assert done.code == 0
    assert notes == [
        "lacli: no flag reads LACLI_JSON_SCHEMA: --json-schema has no variable",
        "lacli: no flag reads LACLI_NO_STDIN: --no-stdin has no variable",
        "lacli: no flag reads LACLI_TEMPP: did you mean LACLI_TEMP?",
        "lacli: no flag reads LACLI_XYZZY",
    ]


def test_variables_of_other_commands_cost_no_import_of_all() -> None:
    done = run("-X", "importtime", "-m", "lacli", "list", "no-such", program=(sys.executable,))
    assert "lacli.cli.ignored" in done.err and "lacli.cli.bench" not in done.err
