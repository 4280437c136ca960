"""`lacli bench` as a user meets it, on the demo model: what it prints, what it refuses, what Ctrl-C leaves."""

from __future__ import annotations

import csv
import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lacli.auto.model_cost import KIND
from lacli.bench.plan import planned
from lacli.bench.rounds import Rounds
from lacli.bench.run import last_answer_s
from lacli.bench.tasks import CLASSES
from lacli.errors import LacliError
from lacli.text.records import NAME, Records
from tests.fakes.bench_field import COST
from tests.fakes.tiny_models import write_lfm2, write_mamba
from tests.program import Done, call, exit_code, finish, on_terminal, start

MODES = ["plain", "jacobi", "lookup", "lookahead", "auto"]
QUICK = ("bench", "-q", "--classes", "edit", "--each", "1", "-r", "1", "-n", "24")
NAMES = {
    "class", "mode", "window", "ngram", "guesses", "steps", "tokens_per_step", "speedup", "identical", "first_diff",
    "model_filename", "model_type", "model_size", "model_n_params", "n_threads", "n_batch", "type_k", "type_v",
    "n_gpu_layers", "flash_attn", "backends", "cpu_info", "gpu_info", "n_prompt", "n_gen", "test_time", "avg_ns",
    "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts", "ms_per_step", "rows_per_step", "accept_hist",
    "accept_rates", "draft_n", "draft_n_accepted", "draft_hit_rate", "first_token_ms", "peak_memory_mib",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("known")


@pytest.fixture(scope="module")
def everything(known: None) -> list[dict[str, Any]]:
    """The rows of one quick benchmark of all modes."""
    return rows(*QUICK)


def rows(*arguments: str) -> list[dict[str, Any]]:
    done = call(*arguments, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert isinstance(found, list)
    return found


def test_json_is_a_list_of_flat_rows_with_the_promised_names(everything: list[dict[str, Any]]) -> None:
    assert [row["mode"] for row in everything] == MODES
    for row in everything:
        assert row.keys() >= NAMES
        assert not any(isinstance(value, dict) for value in row.values())
        assert row["tokens"] == row["n_gen"] <= 24 and row["class"] == "edit"
    plain = everything[0]
    assert (plain["speedup"], plain["tokens_per_step"], plain["steps"]) == (1.0, 1.0, plain["tokens"])


def test_the_columns_of_every_format_are_documented(everything: list[dict[str, Any]]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    assert not {name for row in everything for name in row if f"`{name}`" not in page}


def test_other_formats_have_the_same_rows(everything: list[dict[str, Any]]) -> None:
    lines = [json.loads(line) for line in call(*QUICK, "--modes", "plain", "-o", "jsonl").out.splitlines()]
    table = list(csv.DictReader(StringIO(call(*QUICK, "--modes", "plain", "-o", "csv").out)))
    for name in ("class", "mode", "tokens", "steps", "draft_n"):
        assert [str(row[name]) for row in lines] == [row[name] for row in table] == [str(everything[0][name])]


def test_people_get_a_summary_with_what_to_type_and_tables_where_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine there are no verdicts.
    monkeypatch.setattr("lacli.bench.run.process_time", count(0.0, 1e6).__next__)
    shown = call(*QUICK, "--modes", "lookup").out
    assert re.search(r"^lookup: \d\.\d\dx, \w+( \w+)? on edit$", shown, re.MULTILINE) and "tokens/s" not in shown
    assert shown.splitlines()[-1].startswith("  lacli ") and max(map(len, shown.splitlines()[:-1])) <= 80
    detailed = call(*QUICK, "--modes", "lookup", "--details").out
    assert "tokens/s" in detailed and "|" not in detailed and "\nlookup " in detailed
    assert detailed.splitlines()[-1].startswith("  lacli ")
    assert call(*QUICK, "--modes", "lookup", "--details", env={"LC_ALL": "C"}).out.isascii()
    assert "| tokens/s |" in call(*QUICK, "--modes", "lookup", "-o", "md").out


@pytest.mark.parametrize(("core_s", "busy"), [(0.0, True), (1e6, False)])
def test_a_busy_machine_is_named_before_the_numbers_and_nothing_is_advised(
    core_s: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Processor seconds from the first look to the second.
    monkeypatch.setattr("lacli.bench.run.process_time", count(0.0, core_s).__next__)
    done = call(*(word for word in QUICK if word != "-q"), "--modes", "lookup", "-t", "2")
    assert ("busy, the warm-up had a core for 0% of its time" in done.err and "-t 1 needs one" in done.err) == busy
    told = " ".join(done.out.split())
    assert ("busy, the threads had a core for 0% of the time: these numbers say little. Times plain" in told) == busy
    assert ("one thread tells more: lacli bench" in told and " -t 1 " in told) == busy
    assert ("-t 2" in told) != busy, "one thread is advised in the place of two"
    timed = call("bench", "--classes", "edit", "--modes", "auto", "--seconds", "6", "-n", "8", "-r", "1").err
    assert ("how fast guesses that all come true would be" in timed) != busy
    assert (", not certain" in told or "too few" in told or "undecided" in told) != busy


def test_answers_end_late_where_time_decides_and_never_where_their_number_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lacli.bench.run.last_answer_s", lambda *given: 0.0)
    flags = ("bench", "--classes", "edit", "--modes", "lookup", "--seconds", "6", "-n", "8")
    assert "the time was up after 2 of " in call(*flags).err
    assert "the time was up" not in call(*flags, "--each", "1", "-r", "2").err


@pytest.mark.parametrize(("planned", "spent", "left"), [(48, 5, 85), (58, 35, 58), (48, 90, 48), (200, 20, 280)])
def test_the_warm_up_counts_as_far_as_the_plan_keeps_its_time(planned: float, spent: float, left: float) -> None:
    assert last_answer_s(60.0, planned, spent) == left


def test_a_plan_of_a_busy_moment_is_made_anew_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.bench.run.EARLY", 1e9)
    flags = ("bench", "--classes", "edit", "--modes", "lookup", "--seconds", "600", "-n", "2", "-r", "1")
    told = call(*flags).err
    assert told.count("the machine was busy while that was planned") == 1 and told.count(" prompts, answers of") == 2
    assert "while that was planned" not in call(*flags, "--each", "1").err


def test_no_plan_is_made_anew_where_less_time_is_left_than_the_first_one_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.bench.run.EARLY", 1e9)
    # 3 s from each look to the next one: all answers take so long, and none of 6 s is left behind them.
    monkeypatch.setattr("lacli.bench.run.perf_counter", count(0.0, 3.0).__next__)
    told = call("bench", "--classes", "edit", "--modes", "lookup", "--seconds", "6", "-n", "2", "-r", "1").err
    assert told.count(" prompts, answers of") == 1 and "while that was planned" not in told


def test_ctrl_c_in_the_second_plan_leaves_what_the_first_one_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.bench.run.EARLY", 1e9)
    times = count()

    def interrupted(*arguments: Any) -> Any:
        if next(times):
            raise KeyboardInterrupt
        return planned(*arguments)

    monkeypatch.setattr("lacli.bench.run.planned", interrupted)
    done = call("bench", "--classes", "edit", "--modes", "lookup", "--seconds", "600", "-n", "2", "-r", "1")
    assert done.code == 130 and "stopped after 16 of 16 answers" in done.err and "lookup: " in done.out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((*QUICK, "--modes", "lookahead", "--details"), "tokens/s"),
        (("check", "-q", "-c", "256", "-n", "8", "--each", "1", "--mode", "lookup"), "same bits"),
        (("cost", "-q", "--rows", "1,2,4", "--contexts", "16,64", "--seconds", "0.2"), "a row"),
    ],
)
def test_what_is_measured_follows_the_width_of_the_terminal(command: tuple[str, ...], words: str) -> None:
    done = finish(on_terminal(*command, columns=60))
    assert done.code == 0 and words in done.out
    # A command to copy stays on one line; a busy machine's is longer than a calm one's.
    assert max(len(line) for line in done.out.splitlines() if not line.startswith("  lacli ")) <= 60


def test_a_sweep_is_the_product_of_its_ranges_with_g_tied_to_w() -> None:
    found = rows(*QUICK, "--modes", "lookahead", "-W", "1,4", "-N", "3-4")
    assert [(row["window"], row["ngram"], row["guesses"]) for row in found if row["mode"] == "lookahead"] == [
        (1, 3, 1), (1, 4, 1), (4, 3, 4), (4, 4, 4),
    ]  # fmt: skip


def test_a_point_beyond_the_sequence_limit_is_left_out_with_its_reason() -> None:
    arguments = [part for part in QUICK if part != "-q"]
    done = call(*arguments, "--modes", "lookahead", "-W", "3,200", "-o", "json")
    assert done.code == 0
    assert [row["window"] for row in json.loads(done.out)] == [None, 3]
    assert "left out: lookahead W=200" in done.err and "401 sequences" in done.err


def of_file(tmp_path: Path, prompts: Sequence[Mapping[str, object]], *arguments: str) -> Done:
    """A quick benchmark of prompts of one's own, plain only."""
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in prompts))
    quick = ("-n", "8", "-r", "1", "--modes", "plain", "-o", "json")
    return call("bench", "--prompts", str(file), *quick, *arguments)


def test_prompts_of_ones_own_keep_their_classes_and_their_turns(tmp_path: Path) -> None:
    """A class named all is not taken for the total; a second turn comes behind the first answer."""
    talk = {"question_id": 1, "category": "talk", "turns": ["Say yes.", "Why?"]}
    done = of_file(tmp_path, [{"prompt": "Say yes.", "class": "all"}, {"prompt": "Count to three."}, talk])
    # The second turn is a prompt too, as the table counts it.
    assert "4 prompts in 3 classes" in done.err
    found = {row["class"]: row for row in json.loads(done.out)}
    assert {name: row["prompts"] for name, row in found.items()} == {"class all": 1, "own": 1, "talk": 2, "all": 4}
    assert found["talk"]["n_prompt"] > 2 * found["class all"]["n_prompt"] + 8
    chosen = json.loads(of_file(tmp_path, [{"prompt": "Say yes.", "class": "a"}, talk], "--classes", "a").out)
    assert [(row["class"], row["prompts"]) for row in chosen] == [("a", 1)]


def test_what_is_longer_than_the_context_is_left_out_and_said(tmp_path: Path) -> None:
    """Of a system text too: summaries ask the same of every text, which stands there."""
    words = "word " * 600
    prompts = [{"prompt": words}, {"prompt": "Sum up.", "system": words}, {"prompt": "Sum up.", "system": "short"}]
    done = of_file(tmp_path, prompts, "-c", "256")
    assert done.code == 0 and done.err.count("left out") == 2
    assert json.loads(done.out)[0]["prompts"] == 1
    refused = of_file(tmp_path, prompts[:2], "-c", "256")
    assert refused.code == 1 and "no prompt fits into the context" in refused.err


def test_what_fails_after_the_answers_does_not_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LacliError("no memory for a context")

    monkeypatch.setattr("lacli.bench.run.judge", fail)
    done = call(*QUICK, "--modes", "plain", "-o", "json")
    assert done.code == 0 and len(json.loads(done.out)) == 1
    assert "no memory for a context" in done.err


def test_sampling_gives_every_mode_the_same_text_too() -> None:
    found = rows(*QUICK, "--temp", "1", "-s", "3", "--modes", "lookahead,auto")
    assert all(row["identical"] or row["verdict"] in ("rounding", "unclear") for row in found)
    assert "--temp 1.0" in found[0]["sampling"] and "--seed 3" in found[0]["sampling"]
    auto = found[-1]
    assert auto["ceiling"] >= 1 and auto["ceiling_rows"] == (32 if auto["ceiling"] > 1 else 1)


def test_rejection_draws_other_texts_so_none_is_called_different() -> None:
    found = rows(*QUICK, "--temp", "1", "--verify", "rejection", "--modes", "lookahead")
    assert {row["identical"] for row in found} == {row["verdict"] for row in found} == {None}


def test_a_recurrent_model_is_measured_plainly_and_leaves_nothing_to_draw(tmp_path: Path) -> None:
    write_mamba(tmp_path / "mamba.gguf")
    arguments = ("--classes", "chat", "--each", "1", "-r", "1", "-n", "8", "-o", "json")
    done = call("bench", str(tmp_path / "mamba.gguf"), *arguments, "--plot", str(tmp_path / "bench.svg"))
    assert done.code == 0 and "only plain decoding is measured: a recurrent model" in done.err
    assert [row["mode"] for row in json.loads(done.out)] == ["plain"]
    assert "nothing to draw" in done.err and not (tmp_path / "bench.svg").exists()


def test_the_ceiling_and_its_share_are_modes_autos(tmp_path: Path) -> None:
    found = rows(*QUICK, "--modes", "lookup,auto", "--classes", "edit,code")
    for row in found:
        assert (row["ceiling_rows"] is not None) is (row["ceiling"] is not None) is (row["mode"] == "auto")
        if row["mode"] == "auto" and row["ceiling"] > 1:
            assert row["ceiling_rows"] == 32
            share = min(max(row["speedup"] - 1, 0) / (row["ceiling"] - 1), 1)
            assert row["ceiling_share"] == pytest.approx(share, abs=2e-2)
    done = call(*QUICK, "--modes", "lookup,auto", "-o", "md")
    (table,) = (part for part in done.out.split("\n\n") if "| ceiling |" in part)
    assert [line.split("|")[1:3] for line in table.splitlines()[2:]] == [[" edit  ", " auto "]]
    assert "an oracle that drafts plain decoding's own text" in done.out


def test_without_mode_auto_or_with_other_draws_no_ceiling_is_looked_for() -> None:
    loud = [part for part in QUICK if part != "-q"]
    for arguments in (("--modes", "lookup"), ("--modes", "auto", "--temp", "1", "--verify", "rejection")):
        done = call(*loud, *arguments, "-o", "json")
        assert done.code == 0 and "ceiling:" not in done.err
        assert {row["ceiling"] for row in json.loads(done.out)} == {None}


def test_a_hybrid_models_chains_are_measured_and_what_is_not_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.bench.run.COST_S", 0.6)
    write_lfm2(tmp_path / "hybrid.gguf")
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one two one two one two"}\n')
    # With no limit of time none is left out that was held up as it warmed up.
    arguments = ("--prompts", str(file), "-n", "24", "-r", "1", "-o", "json", "--check", "--full")
    done = call("bench", str(tmp_path / "hybrid.gguf"), *arguments)
    assert done.code == 0 and "guesses are measured: a hybrid model" in done.err
    found = json.loads(done.out)
    assert [row["mode"] for row in found] == ["plain", "jacobi", "lookup", "auto"]
    assert all(row["identical"] or row["verdict"] == "rounding" for row in found)


def test_check_judges_every_difference_and_finds_no_bug() -> None:
    done = call("bench", "-q", "--classes", "code,edit", "--each", "1", "-r", "1", "-n", "48", "--check", "-o", "json")
    assert done.code == 0, done.out
    assert {row["verdict"] for row in json.loads(done.out)} <= {"identical", "rounding"}


def test_a_bug_makes_check_exit_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    from lacli.cache import Cache

    commit = Cache.commit

    def forgetful(self: Cache, tree: Any, nodes: Any, again: int = 0) -> None:
        """Keeps one accepted token too few whenever there are two, and says otherwise."""
        commit(self, tree, nodes, again)
        if len(nodes) > 1:
            self._engine.remove(0, self.past - 2, self.past - 1)

    monkeypatch.setattr(Cache, "commit", forgetful)
    flags = ("--each", "2", "-r", "1", "-n", "64", "--modes", "lookup", "--check", "--details")
    done = call("bench", "-q", "--classes", "edit", *flags)
    assert done.code == 3
    assert "BUG: " in done.out and " bug\n" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--modes", "plain,fast"), "there is no mode 'fast' (the modes are plain, jacobi, lookup, lookahead, auto)"),
        (("--classes", "poems"), "there is no prompt class poems (the classes are " + ", ".join(CLASSES)),
        (("-W", "1-"), "-W '1-' is neither a number nor a range"),
        (("--plot", "picture.doc"), "picture.doc"),
        (("--check", "--temp", "1", "--verify", "rejection"), "--verify rejection"),
        (("--suite", "gsm8k"), "no such option: --suite"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = call("bench", *arguments)
    assert (done.code, done.out) == (2, "")
    lines = [line for line in done.err.splitlines() if "no MODEL given" not in line]
    assert len(lines) == 1 and words in lines[0]


def test_ctrl_c_prints_what_was_finished() -> None:
    # The bar is wanted here.
    env = {"TTY_INTERACTIVE": "1"}
    flags = ("--classes", "edit,code", "--full", "-n", "64", "--modes", "lookup", "-o", "md")
    terminal = on_terminal("bench", *flags, env=env)
    terminal.expect("prompts in 2 classes")
    terminal.expect(r" [2-9]\d*/\d+")
    terminal.sendintr()
    done = finish(terminal)
    assert done.code == 130
    assert "| edit" in done.out or "| code" in done.out
    assert "stopped" in done.out


def test_ctrl_c_while_the_oracle_answers_keeps_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = Rounds.__iter__

    def pressed(rounds: Rounds) -> Iterator[None]:
        for number, _ in enumerate(go_on(rounds), start=1):
            yield
            if number == 2 and rounds.contenders[-1].label == "oracle":
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Rounds, "__iter__", pressed)
    done = call("bench", "--classes", "edit", "--each", "2", "-r", "1", "-n", "24", "--modes", "auto", "-o", "md")
    assert done.code == 130
    assert "| edit" in done.out and "stopped" in done.err and "| ceiling |" in done.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--modes", "plain", "-n", "20000", "-c", "20000", "--full"), b"warming up"),
        (("--modes", "auto"), b"timing steps"),
    ],
)
def test_ctrl_c_before_the_answers_is_no_traceback(flags: tuple[str, ...], words: bytes, tmp_path: Path) -> None:
    with start("bench", "--classes", "edit", *flags, env={"XDG_CACHE_HOME": str(tmp_path)}) as process:
        assert process.stderr
        while words not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert exit_code(process.returncode) == 130 and out == b""
    assert b"Traceback" not in err and not Records(tmp_path / "lacli" / NAME).all(KIND)


def test_ctrl_c_between_the_sizes_of_the_cost_of_rows_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.session.session.cost_beside", lambda *_: replace(COST, stopped=True))
    done = call(*QUICK, "--modes", "auto")
    assert (done.code, done.out) == (130, "") and "stopped before anything was compared" in done.err


def test_the_picture_is_written_and_what_cannot_be_is_said_before(tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    done = call(*QUICK, "--modes", "lookup", "--plot", str(picture))
    assert done.code == 0 and picture.read_bytes().startswith(b"<?xml")
    refused = call(*QUICK, "--plot", str(tmp_path / "missing" / "bench.svg"))
    assert refused.code == 1 and refused.out == "" and "missing" in refused.err


def test_what_was_typed_stands_in_the_advised_commands_and_what_run_has_not_in_the_benchmarks_alone() -> None:
    flags = ("-t", "1", "-ctk", "q8_0", "--no-repack", "-W", "3,5", "--classes", "code", "--json")
    with patch("lacli.bench.run.benchmark", return_value=0) as benchmark:
        assert call("bench", "demo", *flags, "--seconds", "20").code == 0
        assert call("bench", "-m", "a b.gguf", "--each", "2", "-r", "1", "-fa", "on").code == 1
        assert call("bench", "--each", "2", "-r", "1", "-fa", "on").code == 0
    first, second = (each.args[4].typed for each in benchmark.call_args_list)
    shared = "demo -t 1 -ctk q8_0 -nr"
    assert (first.run(), first.seconds) == (f"lacli run {shared}", 20)
    words = f"lacli bench {shared} -W 3,5 --classes code --json --seconds 40"
    assert sorted(first.measure(first.compared, 40).split()) == sorted(words.split())
    assert (second.run(), second.measure("")) == ("lacli run -fa on", "lacli bench -fa on --each 2 -r 1")
