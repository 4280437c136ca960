"""What lies behind the paper's numbers: the fit of its law, its Table 3, a look inside modes, and their commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.insight.__main__ import app
from benchmarks.insight.inside import Details, as_columns, as_lines, look_inside
from benchmarks.insight.law import PAPER, Law, SweepPoint, error, fit, law_sentence, sweep_points
from benchmarks.insight.table3 import table3
from lacli.bench.rounds import Contender, Exchange
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.errors import LacliError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.fakes.bench_field import LOOKAHEAD, LOOKUP, PLAIN, contender, task
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeEngine
from tests.program import MACHINE

SWEEP = [(gamma, sequences) for gamma in (2, 4, 6) for sequences in (1, 5, 10, 15, 30)]


@pytest.mark.parametrize("law", [PAPER, Law(0.1, 1.0), Law(0.71234, 5.0), Law(0.9, 1.5)])
def test_a_fit_recovers_the_law_that_made_the_points(law: Law) -> None:
    points = [(gamma, sequences, law.compression(gamma, sequences)) for gamma, sequences in SWEEP]
    found = fit(points)
    assert found is not None
    assert (found.alpha, found.f) == pytest.approx((law.alpha, law.f), abs=1e-6)
    assert error(found, points) == pytest.approx(0, abs=1e-9)


def test_a_fit_of_noisy_points_is_near_the_law_and_no_other_is_nearer_to_the_points() -> None:
    noise = np.random.default_rng(1).normal(0, 0.03, len(SWEEP))
    points = [(*point, PAPER.compression(*point) + off) for point, off in zip(SWEEP, noise, strict=True)]
    found = fit(points)
    assert found is not None
    assert found.alpha == pytest.approx(PAPER.alpha, abs=0.06)
    assert found.f == pytest.approx(PAPER.f, abs=0.6)
    nearby = [Law(found.alpha + shift, found.f + other) for shift in (-1e-3, 0, 1e-3) for other in (-1e-2, 0, 1e-2)]
    assert min(error(law, points) for law in [*nearby, PAPER]) == error(found, points)


def test_f_stays_at_one_where_more_was_measured_than_the_law_allows() -> None:
    found = fit([(1, 1, 1.9), (1, 2, 3.0), (1, 4, 3.0)])
    assert found is not None
    assert found.f == 1.0
    assert 0 < found.alpha < 1


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(4, 15, 1.8)],
        [(4, 15, 1.8), (4, 15, 1.9)],
        [(4, 15, 1.8), (0, 5, 1.0), (4, 0, 1.0)],
        [(4, 5, 1.0), (4, 15, 1.0)],
    ],
)
def test_there_is_no_fit_where_the_points_do_not_determine_one(points: list[tuple[int, int, float]]) -> None:
    assert fit(points) is None


def test_there_is_no_fit_where_two_laws_go_through_all_points() -> None:
    points = [(gamma, sequences, Law(0.35, 2.0).compression(gamma, sequences)) for gamma, sequences in [(1, 1), (2, 2)]]
    assert fit(points) is None
    assert fit([*points, (4, 15, Law(0.35, 2.0).compression(4, 15))]) is not None


def test_the_ablation_has_the_nine_rows_of_the_papers_table_3() -> None:
    rows, _ = table3(DecodeSettings(mode="lookahead", pool_text=False, window_init="random", lookup_draft=3))
    assert [point.label[:2] for point in rows] == [f"{row}:" for row in range(1, 10)]
    assert [point.settings.mode for point in rows] == ["plain", "lookup", *["lookahead"] * 7]
    assert rows[1].settings.lookup_draft == 10
    table = [
        (point.settings.ngram, point.settings.window, point.settings.guesses, point.settings.pool_prompt)
        for point in rows[2:]
    ]
    assert all(point.settings.pool_text == point.settings.pool_prompt for point in rows[2:])
    assert all(point.settings.window_init == "prompt" for point in rows[2:])
    assert table == [
        (10, 1, 3, True), (5, 1, 10, True), (5, 1, 30, False), (5, 1, 30, True), (5, 30, 1, False),
        (5, 15, 15, False), (5, 15, 15, True),
    ]  # fmt: skip


def test_rows_of_the_ablation_that_do_not_fit_into_a_batch_are_left_out_with_their_reasons() -> None:
    found, skipped = table3(model_settings=ModelSettings(batch=40))
    assert [point.label[0] for point in found] == list("123")
    assert [each.label[0] for each in skipped] == list("456789")
    assert all("-b is 40" in each.reason for each in skipped)


JACOBI = DecodeSettings(mode="jacobi", window=4)


class Asked:
    """Remembers the prompts that were decoded."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    def decoder(self, engine: Engine, settings: DecodeSettings) -> Decoder:
        asked = self.prompts

        class Noting(Decoder):
            def _start(self, prompt: Sequence[int], reuse: bool) -> None:
                asked.append(tuple(prompt))
                super()._start(prompt, reuse)

        return Noting(engine, settings)


def exchange(kind: str, *prompt: int) -> Exchange:
    return Exchange(task("1", kind=kind), 0, prompt, 20)


EXCHANGES = [exchange("code", 1, 2, 3), exchange("code", 4, 5, 6), exchange("edit", 7, 8, 7, 8)]


def looked(asked: Asked) -> tuple[list[Contender], dict[int, Details]]:
    ones = [contender(each, FakeClock())[0] for each in (PLAIN, JACOBI, LOOKUP, LOOKAHEAD)]

    def engine(one: Contender) -> Engine:
        assert one.point
        return FakeEngine(sequences=one.point.settings.sequences)

    return ones, dict(look_inside(ones, EXCHANGES, engine, asked.decoder))


def test_the_first_prompt_of_each_class_is_looked_into_in_jacobi_and_lookahead() -> None:
    asked = Asked()
    _, seen = looked(asked)
    assert list(seen) == [1, 3]
    assert asked.prompts == [(1, 2, 3), (7, 8, 7, 8)] * 2


def test_answers_are_longer_here_up_to_the_context() -> None:
    _, seen = looked(Asked())
    matches = seen[3].matches
    assert matches and matches.tokens == (256 - 3) + (256 - 4)


def test_columns_and_tables_say_what_was_seen() -> None:
    ones, seen = looked(Asked())
    columns = as_columns(seen[3])
    assert columns["pool_tokens"] == [row.checkpoint for row in seen[3].growth]
    assert columns["seen_tokens_per_step"] == pytest.approx(seen[3].matches.tokens_per_step, abs=1e-4)  # type: ignore[union-attr]
    assert as_columns(seen[1])["convergence"][-1] == pytest.approx(1.0)
    text = as_lines(seen, [replace(one, memory=1.0) for one in ones])
    for words in ("the pool's growth", "what a match brings", "how blocks converge", "memory"):
        assert words in text


def shown(*arguments: str, stdin: str = "") -> str:
    done = CliRunner().invoke(app, arguments, input=stdin, env=MACHINE)
    if done.exception:
        raise done.exception
    return done.stdout


def test_the_law_is_fitted_to_the_rows_of_a_benchmark() -> None:
    row: dict[str, Any] = {"class": "all", "mode": "lookahead", "rows_per_step": 9.0}
    rows = [
        {**row, "window": size, "ngram": ngram, "guesses": size, "tokens_per_step": PAPER.compression(ngram - 1, size)}
        for ngram in (3, 5)
        for size in (1, 5, 15)
    ]
    others = [{**rows[0], "class": "code"}, {**rows[0], "mode": "plain", "window": None}]
    assert "at alpha 0.425 and f 3.11, with 0.00 tokens" in shown("law", stdin=json.dumps(rows + others))
    assert sweep_points(rows + others)[1] == SweepPoint(5, 3, 5, 9.0, PAPER.compression(2, 5))
    assert law_sentence(sweep_points(rows[:1])).startswith("These settings do not tell")
    for wrong in ("[]", "[1]", "{", '[{"class": "all", "mode": "plain"}]'):
        with pytest.raises(LacliError):
            shown("law", stdin=wrong)


def test_table_3_is_measured_as_any_benchmark() -> None:
    quick = ("--classes", "edit", "--each", "1", "-r", "1", "-n", "4", "-q", "-o", "json")
    found = json.loads(shown("table3", *quick))
    assert [row["setting"][:2] for row in found] == [f"{row}:" for row in range(1, 10)]
    assert [row["mode"] for row in found[:3]] == ["plain", "lookup", "lookahead"]


def test_modes_are_looked_into_by_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.insight.inside.TOKENS", 70)
    monkeypatch.setattr("benchmarks.insight.__main__.TOKENS", 70)
    arguments = ("inside", "--classes", "edit", "-q", "-W", "4", "-N", "4", "-G", "4")
    jacobi, lookahead = json.loads(shown(*arguments, "--json"))
    assert (jacobi["setting"], lookahead["setting"]) == ("jacobi W=4", "lookahead W=4 N=4 G=4")
    assert lookahead["pool_tokens"] == [64]
    assert lookahead["predicted_tokens_per_step"] == pytest.approx(lookahead["seen_tokens_per_step"], abs=1e-3)
    assert jacobi["convergence"] == sorted(jacobi["convergence"])
    assert "what a match brings" in shown(*arguments, "--modes", "lookahead")
