"""`lacli check`: planted mistakes are called bugs, rounding is not, and what was found is said in words and JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lacli.batch import Batch, Ints
from lacli.check.compare import (
    Alternative,
    Result,
    check,
    checked_modes,
    exact_settings,
    fixed_seed,
    refuse_other_draws,
)
from lacli.check.judge import Seer
from lacli.check.report import (
    Setup,
    advice,
    as_json,
    as_lines,
    conclusion,
)
from lacli.engine import Engine, Floats
from lacli.errors import BatchRefused, LacliError, UsageError
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.fakes.engine import FakeEngine, RuleBroken
from tests.fakes.sampler import FakeSampler
from tests.fakes.tiny_models import write_lfm2, write_mamba
from tests.program import Done, call, start

PROMPTS = [
    [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 7, 1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2],
    [4, 4, 4, 5, 6, 4, 4, 4, 5, 7, 4, 4, 4, 5, 6, 4, 4, 1, 4, 4, 4, 5, 6, 4, 4, 4],
    [9, 1, 9, 2, 9, 3, 9, 1, 9, 2, 9, 4, 9, 1, 9, 2, 9, 3, 9, 1, 9, 2, 9, 3, 9, 1],
]
LIMIT = 30
CELLS = 96
DECODING = DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4)
MODES = checked_modes(DECODING)
ON_DEMO = ("-c", "512", "-t", "1", "-n", "24", "--prompts", "2")


class LikeLlama(FakeEngine):
    """Refuses a broken rule as `llama.py` does."""

    def decode(self, batch: Batch) -> bool:
        try:
            return super().decode(batch)
        except RuleBroken as error:
            raise BatchRefused(f"llama_decode failed (-1): {error}") from error

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        # llama.cpp says nothing about a cell that is there already.
        with suppress(RuleBroken):
            super().copy(source, target, start, end)


class WrongMask(LikeLlama):
    """A row sees the first token at its position too, whoever it belongs to."""

    def _visible(self, sequence: int, position: int) -> list[tuple[int, int]]:
        seen = super()._visible(sequence, position)
        here = ((cell.position, cell.token) for cell in self._cells if cell.position == position)
        return sorted({*seen, *list(here)[:1]})


class LateCopy(LikeLlama):
    """Copies begin one position too late."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        super().copy(source, target, start + 1, end)


class WrongCopy(LikeLlama):
    """The accepted tokens are taken from the next candidate, where that has as many."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        held = {cell.position for cell in self._cells if source + 1 in cell.owners}
        if source and held.issuperset(range(start, end)):
            source += 1
        super().copy(source, target, start, end)


class LateRemove(LikeLlama):
    """Removes begin one position too late."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return super().remove(sequence, start + 1, end)


class EarlyRemove(LikeLlama):
    """Removes begin one position too early."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return super().remove(sequence, max(start - 1, 0), end)


class Rounding(LikeLlama):
    """Logits depend a little on the rows of the batch, and the second choice is often close."""

    noise = 0.02

    def decode(self, batch: Batch) -> bool:
        self.now = len(batch)
        return super().decode(batch)

    def logits_after(self, context: list[tuple[int, int]]) -> Floats:
        logits = super().logits_after(context)
        best = int(logits.argmax())
        logits[(best + 1) % self.vocabulary] = 3 - 0.015 * (len(context) % 3)
        if self.now > 1:
            logits += np.random.default_rng(zlib.crc32(repr((self.now, context)).encode())).uniform(
                -self.noise, self.noise, len(logits)
            )
        return logits


class Tied(Rounding):
    """Near ties, but exact."""

    noise = 0.0


class Hidden(FakeSampler):
    """Does not show its number."""

    def uniform(self) -> float | None:
        return None


def run_check(kind: type[FakeEngine], sampler: Seer | None = None, **more: Any) -> Result:
    @contextmanager
    def opened(settings: DecodeSettings) -> Iterator[Engine]:
        yield kind(CELLS, CELLS, settings.sequences, most_outputs=max(settings.sequences, settings.most_outputs))

    return check(opened, PROMPTS, more.pop("modes", MODES), LIMIT, sampler=sampler, **more)


def setup(sampling: SamplingSettings | None = None) -> Setup:
    return Setup(
        model="toy.gguf",
        description="toy",
        backend="CPU",
        on_gpu=False,
        context=CELLS,
        loading=ModelSettings(threads=1, threads_batch=1),
        decoding=DECODING,
        sampling=sampling or SamplingSettings(),
        sampled="as it says",
        predict=LIMIT,
        prompts=len(PROMPTS),
        piece=lambda token: f"<{token}>".encode(),
    )


@pytest.fixture(scope="module")
def rounded() -> Result:
    return run_check(Rounding)


@pytest.mark.parametrize("kind", [FakeEngine, Tied])
@pytest.mark.parametrize("sampler", [None, FakeSampler(7), FakeSampler(7, 0.5, 0.3)])
def test_an_exact_engine_gives_identical_texts(kind: type[FakeEngine], sampler: FakeSampler | None) -> None:
    found = run_check(kind, sampler)
    assert (found.answers, found.identical, found.verdict) == (12, 12, "identical")
    assert [mode.settings.mode for mode in found.modes] == ["jacobi", "lookup", "lookahead", "auto"]
    assert found.exit_code(fail_on_difference=True) == 0


@pytest.mark.parametrize("kind", [WrongMask, LateCopy, WrongCopy, LateRemove, EarlyRemove])
@pytest.mark.parametrize("sampler", [None, FakeSampler(3), Hidden(3)])
def test_a_planted_mistake_is_a_bug(kind: type[FakeEngine], sampler: FakeSampler | None) -> None:
    found = run_check(kind, sampler)
    assert found.bugs
    assert found.verdict == "bug"
    assert found.exit_code() == 3
    assert conclusion(setup(), found).startswith("BUG: ")


@pytest.mark.parametrize("kind", [WrongMask, WrongCopy])
def test_a_mistake_that_changes_texts_is_found_by_the_margin(kind: type[FakeEngine]) -> None:
    """Not only because some later step was refused."""
    runs = [run for mode in run_check(kind).modes for run in mode.runs if run.bug]
    parted = [run.difference for run in runs if run.difference]
    assert any(0 < parting.margin < float("inf") and parting.rounding == 0 for parting in parted)


def test_what_a_batch_rounds_is_no_bug(rounded: Result) -> None:
    assert rounded.verdict == "rounding"
    assert rounded.rounding and not rounded.bugs
    assert rounded.exit_code() == 0
    assert rounded.exit_code(fail_on_difference=True) == 3
    for mode in rounded.modes:
        for run in mode.runs:
            if run.difference:
                assert 0 <= run.difference.margin <= 2 * run.difference.rounding < 0.1


@pytest.mark.parametrize("kind", [FakeSampler, Hidden])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_what_a_batch_rounds_is_no_bug_when_tokens_are_drawn(kind: type[FakeSampler], temperature: float) -> None:
    results = [run_check(Rounding, kind(seed, temperature, 0.1)) for seed in range(4)]
    partings = [run.difference for found in results for mode in found.modes for run in mode.runs if run.difference]
    assert partings, "all texts are equal: the test has lost its point"
    assert sum(found.bugs for found in results) == 0
    for parting in partings:
        assert parting.draw and parting.draw.reached
        assert (parting.draw.distance is None) == (kind is Hidden)


def test_a_step_that_llama_cpp_refuses_is_a_bug_and_says_what_it_said() -> None:
    found = run_check(LateCopy)
    failed = [run for mode in found.modes for run in mode.runs if run.failure]
    assert failed and all("llama_decode failed (-1)" in run.failure for run in failed)
    assert "llama_decode failed (-1)" in as_lines(setup(), found)
    assert any("failed" in (parting["failure"] or "") for parting in as_json(setup(), found)["differences"])


def test_a_text_that_is_plains_up_to_a_refused_step_has_no_other_difference() -> None:
    class Refusing(FakeEngine):
        def decode(self, batch: Batch) -> bool:
            if self.sequences > 1 and batch.wanted and len(self._cells) > 40:
                raise BatchRefused("llama_decode failed (-1)")
            return super().decode(batch)

    found = run_check(Refusing)
    *chains, lookahead, auto = found.modes
    assert [mode.bugs for mode in chains] == [0, 0] and lookahead.bugs == auto.bugs == 3
    runs = [*lookahead.runs, *auto.runs]
    for run, parting in zip(runs, as_json(setup(), found)["differences"], strict=True):
        assert (run.failure, run.difference) == ("llama_decode failed (-1)", None)
        assert parting["position"] == len(run.tokens) > 0


@pytest.mark.parametrize("several", [False, True])
def test_an_error_that_is_no_refusal_is_no_finding(several: bool) -> None:
    class Out(FakeEngine):
        def decode(self, batch: Batch) -> bool:
            if (self.sequences > 1) is several and batch.wanted:
                raise LacliError("the device is gone")
            return super().decode(batch)

    with pytest.raises(LacliError, match="the device is gone"):
        run_check(Out)


def test_a_mode_alone_can_be_checked_and_plain_against_itself() -> None:
    assert [mode.mode for mode in checked_modes(DECODING, "lookup")] == ["lookup"]
    found = run_check(Rounding, modes=checked_modes(DECODING, "plain"))
    assert (found.answers, found.verdict) == (3, "identical")
    assert found.modes[0].tokens_per_step == 1


def test_without_modes_batch_sizes_are_compared_alone() -> None:
    found = run_check(FakeEngine, modes=[])
    assert found.exit_code(fail_on_difference=True) == 0
    assert "nothing" not in as_lines(setup(), found)
    assert "no texts to compare" in conclusion(setup(), found)


def test_other_flags_are_tried_where_batch_sizes_do_not_agree() -> None:
    @contextmanager
    def exact(settings: DecodeSettings) -> Iterator[Engine]:
        yield FakeEngine(CELLS, CELLS)

    @contextmanager
    def rounding(settings: DecodeSettings) -> Iterator[Engine]:
        yield Rounding(CELLS, CELLS)

    @contextmanager
    def refused(settings: DecodeSettings) -> Iterator[Engine]:
        raise LacliError("the backend knows no such cache")
        yield

    assert run_check(FakeEngine, modes=[], alternative=Alternative("-fa on", exact)).advice is None
    tried = run_check(Rounding, modes=[], alternative=Alternative("-fa on", exact))
    assert tried.advice and tried.advice.exact
    assert "with -fa on batches of 1 to 64 rows gave the same bits" in advice(setup(), tried)
    assert "One row gives other logits here than batches of 2 to 64 rows" not in advice(setup(), tried)
    still = run_check(Rounding, modes=[], alternative=Alternative("-fa on", rounding))
    assert "with -fa on they still depend on it (by up to 0.0" in advice(setup(), still)
    failed = run_check(Rounding, modes=[], alternative=Alternative("-fa on", refused))
    assert "-fa on could not be tried: the backend knows no such cache" in advice(setup(), failed)
    assert "--strict" in advice(setup(), run_check(Rounding, modes=[]))
    assert "--strict" not in advice(replace(setup(), on_gpu=True), run_check(Rounding, modes=[]))
    assert "--strict" not in advice(replace(setup(), decoding=replace(DECODING, strict=True)), run_check(Rounding))
    assert (
        advice(setup(), run_check(FakeEngine, modes=[])) == "Batches of 1 to 64 rows gave the same logits bit for bit."
    )


def test_one_row_apart_from_all_others_is_said() -> None:
    class OneRow(FakeEngine):
        def logits(self) -> Floats:
            return super().logits() + (len(self._logits) == 1) / 8

    assert "One row gives other logits here than batches of 2 to 64 rows" in advice(
        setup(), run_check(OneRow, modes=[])
    )


def test_flags_to_try_are_those_not_given_yet() -> None:
    tried = exact_settings(ModelSettings(threads=3))
    assert tried == ModelSettings(threads=3, flash_attention="on", cache_type_k="q8_0", cache_type_v="q8_0")
    assert exact_settings(tried) is None


def test_a_random_seed_becomes_a_fixed_one() -> None:
    assert fixed_seed(SamplingSettings(temp=1)).seed == fixed_seed(SamplingSettings(temp=1)).seed >= 0
    assert fixed_seed(SamplingSettings(temp=1, seed=12)).seed == 12


def test_a_verifier_with_other_random_numbers_is_refused() -> None:
    with pytest.raises(UsageError, match="--verify rejection"):
        refuse_other_draws(SamplingSettings(temp=1, verify="rejection"))
    refuse_other_draws(SamplingSettings(verify="rejection"))  # greedy decoding draws nothing


def test_json_has_every_difference_and_nothing_that_is_not_json(rounded: Result) -> None:
    for found in (rounded, run_check(WrongMask), run_check(LateCopy), run_check(Rounding, FakeSampler(1))):
        text = json.dumps(as_json(setup(), found), allow_nan=False)
        read = json.loads(text)
        assert read["answers"] == read["identical"] + read["rounding"] + read["bugs"] == 12
        assert len(read["differences"]) == read["rounding"] + read["bugs"]
        assert [mode["mode"] for mode in read["modes"]] == ["jacobi", "lookup", "lookahead", "auto"]
        assert [probe["context"] for probe in read["invariance"]] == [32]
        assert read["summary"] == conclusion(setup(), found)
    broken = as_json(setup(), run_check(LateRemove))
    assert "null" in json.dumps(broken, allow_nan=False) and broken["failure"]
    parting = as_json(setup(), rounded)["differences"][0]
    assert parting["plain_text"] == f"<{parting['plain_token']}>"
    assert parting["verdict"] == "rounding"
    assert parting["draw_distance"] is None
    assert 0 <= parting["margin"] <= 2 * parting["logit_difference"]


@pytest.mark.parametrize("sampler", [None, FakeSampler(1)])
def test_the_table_names_what_parted_and_is_narrow(sampler: FakeSampler | None) -> None:
    for kind in (Rounding, WrongMask):
        found = run_check(kind, sampler)
        sampling = SamplingSettings(temp=1, seed=1) if sampler else None
        *_, table, last = as_lines(setup(sampling), found).split("\n\n")
        assert " ".join(last.split()) == conclusion(setup(sampling), found)
        lines = table.splitlines()
        assert len(lines) == 2 + found.rounding + found.bugs
        assert max(map(len, lines)) <= 100
        assert sum(line.endswith("BUG") for line in lines) == found.bugs


def test_why_steps_were_refused_is_said_once_below_the_table() -> None:
    found = run_check(LateCopy, modes=checked_modes(DECODING, "lookahead"))
    refused = [run for run in found.modes[0].runs if run.failure]
    *_, table, last = as_lines(setup(), found).split("\n\n")
    assert table.count("BUG, refused") == len(refused) > 0
    assert table.count("Refused: llama_decode") == len({run.failure for run in refused})
    assert (
        last == f"BUG: rounding does not explain {found.bugs} of 3 texts. Please report this with the output of --json."
    )


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--fail-on-difference"], 3)])
def test_rounding_fails_a_check_only_where_that_is_asked_for(
    arguments: list[str], code: int, rounded: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.cli.examine.check", lambda *_, **__: rounded)
    done = check_demo("-q", *arguments)
    assert (done.code, done.err) == (code, "")
    assert f"{rounded.rounding} of 12 texts part from plain's" in done.out


def check_demo(*arguments: str) -> Done:
    return call("check", *ON_DEMO, *arguments)


def test_the_demo_model_has_no_bug() -> None:
    done = check_demo("--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["bugs"], found["answers"], found["prompts"], found["predict"]) == (0, 8, 2, 24)
    assert found["context"] == 512 and found["temperature"] == 0 and found["seed"] is None
    assert [probe["context"] for probe in found["invariance"]] == [32, 448]
    assert found["advice_flags"] == (None if found["batch_invariant"] else "-fa on -ctk q8_0 -ctv q8_0")


def test_the_demo_model_has_no_bug_when_tokens_are_drawn() -> None:
    done = check_demo("--temp", "0.8", "-s", "7", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["bugs"], found["answers"], found["seed"], found["temperature"]) == (0, 8, 7, 0.8)


def test_strict_settings_reach_the_check() -> None:
    done = check_demo("--strict", "--temp", "0.8", "-n", "48", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["strict"] and found["batch_invariant"]
    assert (found["flash_attention"], found["cache_type_k"], found["advice_flags"]) == ("on", "q8_0", None)
    assert found["identical"] == found["answers"] == 8


def test_a_mistake_on_the_demo_model_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongRows(LlamaEngine):
        """Reads each row's choice from the row before it."""

        def greedy(self) -> Ints:
            return np.roll(super().greedy(), 1)

    monkeypatch.setattr("lacli.cli.examine.LlamaEngine", WrongRows)
    done = check_demo("--mode", "lookahead", "-W", "3", "-G", "3")
    assert done.code == 3
    assert "BUG: rounding does not explain" in done.out


def test_a_model_that_cannot_go_back_has_its_batch_sizes_compared(tmp_path: Path) -> None:
    write_mamba(tmp_path / "model.gguf")
    done = call("check", str(tmp_path / "model.gguf"), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["modes"], found["answers"], found["verdict"]) == ([], 0, "identical")
    assert len(found["invariance"]) == 2
    assert "a recurrent model keeps one state" in done.err


@pytest.mark.parametrize(("flags", "back"), [((), 8), (("-b", "6", "--mode", "auto"), 4)])
def test_a_model_that_goes_back_along_chains_is_checked_without_lookahead(
    flags: tuple[str, ...], back: int, tmp_path: Path
) -> None:
    write_lfm2(tmp_path / "model.gguf")
    chains = ["auto"] if flags else ["jacobi", "lookup", "auto"]
    done = call("check", str(tmp_path / "model.gguf"), "--json", "--prompts", "2", "-n", "16", *flags)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [mode["mode"] for mode in found["modes"]] == chains
    assert (found["answers"], found["bugs"]) == (2 * len(chains), 0)
    assert f"only chains of at most {back} guesses are checked: a hybrid model" in done.err


def test_lookahead_on_such_a_model_is_left_out_and_why_is_said(tmp_path: Path) -> None:
    write_lfm2(tmp_path / "model.gguf")
    done = call("check", str(tmp_path / "model.gguf"), "--mode", "lookahead", "-n", "4", "--prompts", "1")
    assert done.code == 0 and "only batch sizes are compared: a hybrid model" in done.err
    assert "no texts to compare" in done.out


def test_a_small_batch_keeps_auto_from_nothing_and_lookahead_from_all(tmp_path: Path) -> None:
    done = check_demo("--mode", "auto", "-b", "8", "--prompts", "1", "--json")
    assert done.code == 0 and json.loads(done.out)["answers"] == 1
    done = check_demo("--mode", "lookahead", "-b", "8")
    assert done.code == 2 and "a smaller -W, -N or -G" in done.err


def test_a_person_gets_tables_and_progress_on_stderr() -> None:
    done = check_demo("--mode", "lookup", "--prompts", "1", "--temp", "0.5")
    assert done.code == 0
    assert "lookup" in done.out and "jacobi:" not in done.out and "1 prompt, at most 24 tokens" in done.out
    assert "Batch sizes" in done.out and "The text is plain's." in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    assert "lacli: plain: 1 answer of at most 24 tokens" in done.err
    assert "seed 7" in done.err
    assert "\x1b" not in done.out + done.err


def test_quiet_leaves_stderr_empty() -> None:
    done = check_demo("--mode", "lookup", "--prompts", "1", "-q")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temp", "1", "--verify", "rejection"], "--verify rejection"),
        (["-b", "16"], "-b is 16"),
        (["--prompts", "9"], "--prompts"),
        (["-n", "0"], "-n"),
        (["--mode", "best"], "--mode"),
    ],
)
def test_flags_that_cannot_be_checked_are_refused_in_one_line(arguments: list[str], words: str) -> None:
    done = check_demo("-q", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err and done.err.count("\n") == 1


def test_a_prompt_of_ones_own_is_checked_instead_of_the_built_in_ones(tmp_path: Path) -> None:
    flags = ("check", "-q", "-c", "512", "-n", "8", "--mode", "lookup", "--json")
    (tmp_path / "prompt").write_text("Explain os.path.join.")
    found = [
        json.loads(call(*flags, *prompt).out)
        for prompt in (["-p", "Explain os.path.join."], ["-f", str(tmp_path / "prompt")])
    ]
    assert [one["prompts"] for one in found] == [1, 1]
    assert found[0]["modes"] == found[1]["modes"]
    assert call("check", "-f", "nosuch").code == 1


def test_ctrl_c_ends_a_check_with_nothing_printed() -> None:
    with start("check", "-n", "400") as process:
        assert process.stderr and process.stdout
        for line in process.stderr:
            if b"plain:" in line:
                break
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.read() == b""
        # The next mode may have begun.
        assert all(re.fullmatch(rb"lacli: \w+: [^\n]*\n", line) for line in process.stderr)
    assert process.returncode == 130


def test_mode_auto_is_checked_in_large_steps_whatever_they_cost_here() -> None:
    (found,) = run_check(Tied, modes=[replace(DECODING, mode="auto")]).modes
    rows = [step.rows for run in found.runs for step in run.steps]
    assert max(rows) > 8 and sum(rows) > 3 * len(rows)
    (again,) = run_check(Tied, modes=[replace(DECODING, mode="auto")]).modes
    assert [step.rows for run in again.runs for step in run.steps] == rows, "a check repeats itself"
