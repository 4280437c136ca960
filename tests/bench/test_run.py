"""`lacli bench` as a user meets it, on the 7M model: what it prints, what it refuses, what Ctrl-C leaves."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from time import perf_counter

import pytest

from lacli.auto.model_cost import KIND
from lacli.llamacpp.library import version
from lacli.text.records import NAME, Records
from tests.program import call, exit_code, finish, on_terminal, start

MODES = ["plain", "auto", "jacobi", "lookup", "lookahead"]
QUICK = ("bench", "-q", "--classes", "edit", "--each", "1", "-r", "1", "-n", "24")

pytestmark = pytest.mark.usefixtures("known")


def test_json_is_a_list_of_rows_with_the_names_that_are_documented() -> None:
    done = call(*QUICK, "--modes", ",".join(MODES), "-o", "json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [row["mode"] for row in rows] == MODES
    page = (Path(__file__).parents[2] / "docs" / "internals" / "benchmarks.md").read_text()
    for row in rows:
        assert row["tokens"] == row["n_gen"] <= 24 and row["class"] == "edit"
        assert not {name for name in row if f"`{name}`" not in page}
        assert (row["engine"], row["engine_version"]) == ("llama.cpp", version())
    plain = rows[0]
    assert (plain["speedup"], plain["tokens_per_step"], plain["steps"]) == (1.0, 1.0, plain["tokens"])


def test_if_the_time_is_up_before_an_answer_there_is_a_table_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.bench.rounds.perf_counter", lambda: perf_counter() + 60)
    done = call("bench", "--classes", "edit", "--modes", "lookup", "--seconds", "6", "-o", "md")
    assert done.code == 0 and "lookup: cannot tell, the time was up before it answered" in done.out
    assert "All texts" not in done.out
    assert f" with llama.cpp {version()} on " in done.out and "| plain | llama.cpp |" in done.out


def test_settings_whose_steps_are_too_dear_are_left_out_if_nothing_was_named() -> None:
    asked = ("bench", "--classes", "edit", "--each", "1", "-r", "1", "-n", "8", "-o", "json")
    name, why = "lookahead W=15 N=5 G=15", "a step takes 41 plain steps, more than the tokens it can bring"
    for flags, modes in (((), ["plain", "auto", "lookup"]), (("--modes", "lookahead"), ["plain", "lookahead"])):
        done = call(*asked, *flags)
        assert [row["mode"] for row in json.loads(done.out)] == modes
        assert (f"left out: {name}: {why}; --modes measures it" in done.err) is not bool(flags)


def test_ctrl_c_prints_what_was_finished() -> None:
    # The line with the seconds left is wanted here.
    env = {"TTY_INTERACTIVE": "1"}
    flags = ("--classes", "edit,code", "-n", "64", "--modes", "lookup", "-o", "md")
    terminal = on_terminal("bench", *flags, env=env)
    terminal.expect("to all prompts in turns")
    terminal.expect(r"\d+ s left")
    terminal.sendintr()
    done = finish(terminal)
    assert done.code == 130
    assert "| edit" in done.out or "| code" in done.out
    assert "stopped" in done.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("--modes", "plain", "-n", "20000", "-c", "20000"), b"lacli: "), (("--modes", "auto"), b"timing steps")],
)
def test_ctrl_c_before_the_answers_is_no_traceback(flags: tuple[str, ...], words: bytes, tmp_path: Path) -> None:
    with start("bench", "--classes", "edit", *flags, env={"XDG_CACHE_HOME": str(tmp_path)}) as process:
        assert process.stderr
        while words not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert exit_code(process.returncode) == 130 and out == b""
    assert b"Traceback" not in err and not Records(tmp_path / "lacli" / NAME).kinds().get(KIND)
