"""`lacli bench` as a user meets it, on the demo model: what it prints, what it refuses, what Ctrl-C leaves."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from lacli.bench.rounds import Rounds
from lacli.bench.tasks import CLASSES
from lacli.cost.known import cost_key
from lacli.cost.measure import MeasurePlan
from lacli.cost.store import CostStore
from lacli.errors import LacliError
from lacli.hub.names import demo_model
from lacli.llamacpp.settings import ModelSettings
from lacli.staircase import Cost, Point, Staircase
from tests import fake_rivals
from tests.fakes.tiny_models import write_lfm2, write_mamba
from tests.program import (
    call,
    finish,
    on_terminal,
    start,
)

MODES = ["plain", "jacobi", "lookup", "lookahead", "auto"]
QUICK = ("bench", "-q", "--classes", "edit", "--each", "1", "-r", "1", "-n", "24")
NAMES = {
    "class", "mode", "window", "ngram", "guesses", "steps", "tokens_per_step", "speedup", "identical", "first_diff",
    "model_filename", "model_type", "model_size", "model_n_params", "n_threads", "n_batch", "type_k", "type_v",
    "n_gpu_layers", "flash_attn", "backends", "cpu_info", "gpu_info", "n_prompt", "n_gen", "test_time", "avg_ns",
    "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts", "ms_per_step", "rows_per_step", "accept_hist",
    "accept_rates", "draft_n", "draft_n_accepted", "draft_hit_rate", "first_token_ms", "peak_memory_mib",
}  # fmt: skip


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What steps of the demo model cost is known, so that nothing has to be measured for mode auto."""
    cache = tmp_path_factory.mktemp("cache")
    key = cost_key(demo_model(), ModelSettings(threads=1, gpu_layers=0), MeasurePlan())
    CostStore(cache / "lacli" / "cost").save(key, COST)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def rows(*arguments: str) -> list[dict[str, Any]]:
    done = call(*arguments, "-o", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert isinstance(found, list)
    return found


COST = Cost(
    (Staircase(64, tuple(Point(rows, rows**0.6, rows**0.6) for rows in (1, 2, 4, 8, 16, 32))),),
    measured_at=1e9,
    budget=1e3,
)


def test_json_is_a_list_of_flat_rows_with_the_promised_names() -> None:
    found = rows(*QUICK)
    assert [row["mode"] for row in found] == MODES
    for row in found:
        assert row.keys() >= NAMES
        assert not any(isinstance(value, dict) for value in row.values())
        assert row["tokens"] == row["n_gen"] <= 24 and row["class"] == "edit"
    plain = found[0]
    assert (plain["speedup"], plain["tokens_per_step"], plain["steps"]) == (1.0, 1.0, plain["tokens"])


def test_the_columns_of_every_format_are_documented() -> None:
    page = (Path(__file__).parent.parent / "docs" / "benchmarks.md").read_text()
    found = rows(*QUICK, "--details")
    names = {name for row in found for name in row}
    assert not {name for name in names if f"`{name}`" not in page}


def test_all_formats_have_the_same_counts() -> None:
    as_json = rows(*QUICK, "--modes", "lookup")
    lines = [json.loads(line) for line in call(*QUICK, "--modes", "lookup", "-o", "jsonl").out.splitlines()]
    table = list(csv.DictReader(StringIO(call(*QUICK, "--modes", "lookup", "-o", "csv").out)))
    for name in ("class", "mode", "tokens", "steps", "draft_n"):
        wanted = [str(row[name]) for row in as_json]
        assert [str(row[name]) for row in lines] == [row[name] for row in table] == wanted


def test_the_tables_end_with_a_sentence_on_what_pays() -> None:
    done = call(*QUICK)
    assert done.code == 0
    last = done.out.split("\n\n")[-1]
    assert any(
        words in last
        for words in ("pays on this machine", "may pay on this machine", "settings tried pays", "does not pay")
    )


def test_a_sweep_is_the_product_of_its_ranges_with_g_tied_to_w() -> None:
    found = rows(*QUICK, "--modes", "lookahead", "-W", "1,4", "-N", "3-4")
    assert [(row["window"], row["ngram"], row["guesses"]) for row in found if row["mode"] == "lookahead"] == [
        (1, 3, 1), (1, 4, 1), (4, 3, 4), (4, 4, 4),
    ]  # fmt: skip


def test_flash_attention_is_an_axis_with_a_plain_decoding_of_its_own() -> None:
    found = rows(*QUICK, "--modes", "lookup", "-fa", "on,off")
    assert [(row["mode"], row["flash_attn"]) for row in found] == [
        ("plain", "on"), ("plain", "off"), ("lookup", "on"), ("lookup", "off"),
    ]  # fmt: skip
    assert [row["speedup"] for row in found[:2]] == [1.0, 1.0]


def test_a_point_beyond_the_sequence_limit_is_left_out_with_its_reason() -> None:
    arguments = [part for part in QUICK if part != "-q"]
    done = call(*arguments, "--modes", "lookahead", "-W", "3,200", "-o", "json")
    assert done.code == 0
    assert [row["window"] for row in json.loads(done.out)] == [None, 3]
    assert "left out: lookahead W=200" in done.err and "401 sequences" in done.err


def test_the_ablation_runs_the_nine_rows_of_table_3() -> None:
    found = rows(*QUICK, "-n", "8", "--ablation")
    assert [(row["ngram"], row["window"], row["guesses"]) for row in found] == [
        (None, None, None), (None, None, None), (10, 1, 3), (5, 1, 10), (5, 1, 30), (5, 1, 30), (5, 30, 1), (5, 15, 15),
        (5, 15, 15),
    ]  # fmt: skip
    assert [row["mode"] for row in found[:2]] == ["plain", "lookup"]


def test_prompts_of_ones_own_keep_their_classes(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Say yes.", "class": "short"}\n{"prompt": "Count to three."}\n')
    found = rows("bench", "-q", "--prompts", str(file), "-n", "8", "-r", "1", "--modes", "lookup")
    assert [(row["class"], row["prompts"]) for row in found[::2]] == [("short", 1), ("own", 1), ("all", 2)]


def test_a_class_named_all_is_not_taken_for_the_total(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Say yes.", "class": "all"}\n{"prompt": "Count.", "class": "b"}\n')
    found = rows("bench", "-q", "--prompts", str(file), "-n", "8", "-r", "1", "--modes", "plain")
    assert [(row["class"], row["prompts"]) for row in found] == [("class all", 1), ("b", 1), ("all", 2)]


def test_prompts_are_measured_with_their_system_texts(tmp_path: Path) -> None:
    """Summaries ask the same of every text, which is in the system prompt."""
    file = tmp_path / "mine.jsonl"
    texts = ["word " * 600, "short", "a little longer"]
    file.write_text("".join(json.dumps({"prompt": "Sum up.", "system": text}) + "\n" for text in texts))
    done = call("bench", "--prompts", str(file), "-c", "256", "-n", "8", "-r", "1", "--modes", "plain", "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)[0]["prompts"] == 2


def test_what_fails_after_the_answers_does_not_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LacliError("no memory for a context")

    monkeypatch.setattr("lacli.bench.product.judge", fail)
    done = call(*QUICK, "-o", "json")
    assert done.code == 0 and len(json.loads(done.out)) == len(MODES)
    assert "no memory for a context" in done.err


def test_with_nothing_to_draw_there_is_no_picture_and_no_traceback(tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Say yes."}\n')
    write_mamba(tmp_path / "mamba.gguf")
    arguments = ("--prompts", str(file), "-r", "1", "-n", "8", "--plot", str(picture))
    done = call("bench", str(tmp_path / "mamba.gguf"), *arguments, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.code == 0 and "nothing to draw" in done.err and not picture.exists()


def test_two_turns_are_two_prompts_the_second_behind_the_first_answer(tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text('{"question_id": 1, "category": "talk", "turns": ["Say yes.", "Why?"]}\n')
    (plain,) = rows("bench", "-q", "--prompts", str(file), "-n", "8", "-r", "1", "--modes", "plain")
    file.write_text('{"question_id": 1, "category": "talk", "turns": ["Say yes."]}\n')
    (single,) = rows("bench", "-q", "--prompts", str(file), "-n", "8", "-r", "1", "--modes", "plain")
    assert plain["prompts"] == 2
    assert plain["n_prompt"] > 2 * single["n_prompt"] + 8


def test_sampling_gives_every_mode_the_same_text_too() -> None:
    found = rows(*QUICK, "--temp", "1", "-s", "3")
    assert all(row["identical"] or row["verdict"] in ("rounding", "unclear") for row in found)
    assert "--temp 1.0" in found[0]["sampling"] and "--seed 3" in found[0]["sampling"]


def test_rejection_draws_other_texts_so_none_is_called_different() -> None:
    found = rows(*QUICK, "--temp", "1", "--verify", "rejection", "--modes", "lookahead")
    assert {row["identical"] for row in found} == {row["verdict"] for row in found} == {None}


def test_a_recurrent_model_is_measured_plainly_and_why_is_said(tmp_path: Path) -> None:
    write_mamba(tmp_path / "mamba.gguf")
    arguments = ("--classes", "chat", "--each", "1", "-r", "1", "-n", "8", "--details", "-o", "json")
    done = call("bench", str(tmp_path / "mamba.gguf"), *arguments)
    assert done.code == 0 and "only plain decoding is measured: a recurrent model" in done.err
    assert [row["mode"] for row in json.loads(done.out)] == ["plain"]


def test_the_ceiling_and_its_share_are_modes_autos(tmp_path: Path) -> None:
    found = rows(*QUICK, "--modes", "lookup,auto", "--classes", "edit,code")
    for row in found:
        assert (row["ceiling_rows"] is not None) is (row["ceiling"] is not None) is (row["mode"] == "auto")
        if row["mode"] == "auto" and row["ceiling"] > 1:
            assert row["ceiling_rows"] == 32
            share = max(row["speedup"] - 1, 0) / (row["ceiling"] - 1)
            assert row["ceiling_share"] == pytest.approx(share, abs=2e-2)
    done = call(*QUICK, "--modes", "lookup,auto")
    (table,) = (part for part in done.out.split("\n\n") if "| ceiling |" in part)
    assert [line.split("|")[1:3] for line in table.splitlines()[2:]] == [[" edit  ", " auto "]]
    assert "an oracle that drafts plain decoding's own text" in done.out


def test_without_mode_auto_or_with_other_draws_no_ceiling_is_looked_for() -> None:
    loud = [part for part in QUICK if part != "-q"]
    for arguments in (("--modes", "lookup"), ("--modes", "auto", "--temp", "1", "--verify", "rejection")):
        done = call(*loud, *arguments, "-o", "json")
        assert done.code == 0 and "ceiling:" not in done.err
        assert {row["ceiling"] for row in json.loads(done.out)} == {None}


def test_a_sampled_ceiling_is_reached_with_plains_own_text() -> None:
    found = rows(*QUICK, "--modes", "auto", "--temp", "1", "-s", "3")
    assert found[1]["ceiling"] >= 1 and found[1]["ceiling_rows"] == (32 if found[1]["ceiling"] > 1 else 1)


def test_an_unknown_cost_is_measured_before_the_answers(tmp_path: Path) -> None:
    loud = [part for part in QUICK if part != "-q"]
    arguments = (*loud, "--modes", "auto", "--minutes", "0.1", "-o", "json")
    done = call(*arguments, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.code == 0
    assert 0 <= done.err.find("timing steps of") < done.err.find("warming up")


def test_a_hybrid_models_chains_are_measured_and_what_is_not_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.bench.product.COST_S", 0.6)
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


def test_details_show_the_pool_the_matches_and_the_blocks() -> None:
    found = rows(*QUICK, "--details")
    jacobi, lookahead = found[1], found[3]
    assert lookahead["pool_tokens"] == sorted(lookahead["pool_tokens"])
    assert lookahead["predicted_tokens_per_step"] == pytest.approx(lookahead["seen_tokens_per_step"], abs=1e-3)
    assert jacobi["convergence"] == sorted(jacobi["convergence"])


def test_another_programs_numbers_stand_in_the_same_table(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text('{"prompt": "Say yes."}\n')
    arguments = ("bench", "--prompts", str(file), "-n", "30", "-r", "2", "--modes", "plain", "-o", "json")
    (plain,) = json.loads(call(*arguments).out)
    log = f"""I encoded {plain["n_prompt"]} tokens in 0.250 seconds, speed: 12.000 t/s
I decoded 30 tokens in 3000.000 seconds, speed: 0.010 t/s
I n_accept = 6
"""
    fake_rivals.make(tmp_path, "llama-lookahead", log=log, out="")
    done = call(*arguments, "--vs", "llama-lookahead", env={"PATH": str(tmp_path)})
    _, rival = json.loads(done.out)
    assert (rival["mode"], rival["tokens"], rival["steps"], rival["median_ts"]) == ("llama-lookahead", 60, 48, 0.01)
    assert rival["speedup"] < 1 and rival["window"] is None


def test_another_program_that_fails_is_left_out_with_its_reason(tmp_path: Path) -> None:
    fake_rivals.make(tmp_path, "llama-lookahead", log="error: it is broken\n", code=1)
    quick = [part for part in QUICK if part != "-q"]
    done = call(*quick, "--modes", "plain", "-o", "json", "--vs", "llama-lookahead", env={"PATH": str(tmp_path)})
    assert done.code == 0 and [row["mode"] for row in json.loads(done.out)] == ["plain"]
    assert "left out: llama-lookahead" in done.err and "it is broken" in done.err


def test_check_judges_every_difference_and_finds_no_bug() -> None:
    done = call("bench", "-q", "--classes", "code,edit", "--each", "2", "-r", "1", "-n", "64", "--check", "-o", "json")
    assert done.code == 0, done.out
    assert {row["verdict"] for row in json.loads(done.out)} <= {"identical", "rounding"}


def test_a_bug_makes_check_exit_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    from lacli.cache import Cache

    keep = Cache.keep

    def forgetful(self: Cache, tree: Any, nodes: Any, again: int = 0) -> None:
        """Keeps one accepted token too few whenever there are two, and says otherwise."""
        keep(self, tree, nodes, again)
        if len(nodes) > 1:
            self._engine.remove(0, self.past - 2, self.past - 1)

    monkeypatch.setattr(Cache, "keep", forgetful)
    done = call(
        "bench", "-q", "--classes", "edit", "--each", "2", "-r", "1", "-n", "64", "--modes", "lookup", "--check"
    )
    assert done.code == 3
    assert "bug" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--modes", "plain,fast"), "there is no mode 'fast' (the modes are plain, jacobi, lookup, lookahead, auto)"),
        (("--classes", "poems"), "there is no prompt class poems (the classes are " + ", ".join(CLASSES)),
        (("--suite", "mmlu"), "mmlu"),
        (("--prompts", "x.jsonl", "--suite", "gsm8k"), "--prompts and --suite are both given"),
        (("-W", "1-"), "-W '1-' is neither a number nor a range"),
        (("-G", "V"), "-G 'V'"),
        (("-fa", "maybe"), "-fa 'maybe'"),
        (("--vs", "llama-draft"), "llama-draft"),
        (("--plot", "picture.doc"), "picture.doc"),
        (("--ablation", "-W", "3"), "--ablation has settings of its own"),
        (("--chart", "-o", "json"), "--chart is for people"),
        (("--samples", "x.jsonl"), "--samples writes HumanEval's completions only"),
        (("-W", ""), "-W ''"),
        (("-N", "1", "--modes", "lookahead"), "-N is 1"),
        (("-W", "1000", "--modes", "lookahead"), "1016 sequences"),
        (("--vs", ""), "there is no rival"),
        (("--check", "--temp", "1", "--verify", "rejection"), "--verify rejection"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = call("bench", *arguments)
    assert (done.code, done.out) == (2, "")
    lines = [line for line in done.err.splitlines() if "no MODEL given" not in line]
    assert len(lines) == 1 and words in lines[0]


def test_a_malformed_prompt_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "fine"}\n{"prompt": 7}\n')
    done = call("bench", "-q", "--prompts", str(file))
    assert done.code == 1 and done.out == ""
    assert f"{file}:2" in done.err and len(done.err.splitlines()) == 1


def test_prompts_longer_than_the_context_are_left_out_and_said(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "word " * 600}) + "\n" + json.dumps({"prompt": "short"}) + "\n")
    done = call("bench", "--prompts", str(file), "-c", "256", "-n", "8", "-r", "1", "--modes", "plain", "-o", "json")
    assert done.code == 0 and "left out" in done.err
    assert json.loads(done.out)[0]["prompts"] == 1


def test_no_prompt_that_fits_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "word " * 600}) + "\n")
    done = call("bench", "-q", "--prompts", str(file), "-c", "256")
    assert done.code == 1 and "no prompt fits into the context" in done.err


def test_ctrl_c_prints_what_was_finished() -> None:
    terminal = on_terminal("bench", "--classes", "edit,code", "--full", "-n", "64", "--modes", "lookup", "-o", "md")
    terminal.expect("prompts in 2 classes")
    terminal.expect(r" [2-9]\d*/\d+")
    terminal.sendintr()
    done = finish(terminal)
    assert done.code == 130
    assert "| edit" in done.out or "| code" in done.out
    assert "stopped" in done.out


def test_ctrl_c_while_warming_up_is_no_traceback() -> None:
    with start("bench", "--classes", "edit", "--modes", "plain", "-n", "100000", "-c", "100000", "--full") as process:
        assert process.stderr
        while b"warming up" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_ctrl_c_while_the_oracle_answers_keeps_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = Rounds.__iter__

    def pressed(rounds: Rounds) -> Iterator[None]:
        for number, _ in enumerate(go_on(rounds), start=1):
            yield
            if number == 2 and rounds.contenders[-1].label == "oracle":
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Rounds, "__iter__", pressed)
    done = call("bench", "--classes", "edit", "--each", "2", "-r", "1", "-n", "24", "--modes", "auto")
    assert done.code == 130
    assert "| edit" in done.out and "stopped" in done.err and "| ceiling |" in done.out


def test_ctrl_c_while_the_cost_of_rows_is_measured_is_no_traceback(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    with start("bench", "--classes", "edit", "--modes", "auto", env=cache) as process:
        assert process.stderr
        while b"timing steps" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130 and out == b""
    assert b"Traceback" not in err and not list(tmp_path.rglob("cost/*.json"))


def test_the_picture_is_written_and_what_cannot_be_is_said_before(tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    done = call(*QUICK, "--minutes", "0.1", "--plot", str(picture), env=cache)
    assert done.code == 0 and picture.read_bytes().startswith(b"<?xml")
    refused = call(*QUICK, "--plot", str(tmp_path / "missing" / "bench.svg"))
    assert refused.code == 1 and refused.out == "" and "missing" in refused.err
