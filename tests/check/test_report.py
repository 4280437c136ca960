"""What a check found, in words, in tables and as JSON."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import cast

import pytest

from lacli.check.compare import CheckResult
from lacli.check.report import as_json, as_lines, conclusion
from lacli.engine.load import ModelEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from tests.check.test_compare import CELLS, DECODING, run_check
from tests.fakes.context import FakeContext
from tests.fakes.sampler import FakeSampler
from tests.fakes.wrong_contexts import LateCopy, LateRemove, Rounding, WrongMask

GREEDY = SamplingSettings()


def engine_of(sampling: SamplingSettings = GREEDY) -> ModelEngine:
    model = SimpleNamespace(
        path="toy.gguf",
        description="toy",
        devices="CPU",
        offloaded=False,
        piece=lambda token, special: f"<{token}>".encode(),
    )
    engine = SimpleNamespace(
        model=model,
        context=SimpleNamespace(cells=CELLS),
        model_settings=ModelSettings(threads=1, threads_batch=1),
        settings=DECODING,
        sampling=sampling,
    )
    return cast(ModelEngine, engine)


ENGINE = engine_of()


def said(engine: ModelEngine, found: CheckResult) -> str:
    return " ".join(conclusion(engine, found))


def test_json_has_every_difference_and_nothing_that_is_not_json() -> None:
    for found in map(run_check, (Rounding, WrongMask, LateCopy)):
        read = json.loads(json.dumps(as_json(ENGINE, found), allow_nan=False))
        assert read["answers"] == read["identical"] + read["rounding"] + read["bugs"] == 12
        assert len(read["differences"]) == read["rounding"] + read["bugs"]
        assert [mode["mode"] for mode in read["modes"]] == ["jacobi", "lookup", "lookahead", "auto"]
        assert read["summary"] == said(ENGINE, found)
    broken = as_json(ENGINE, run_check(LateRemove))
    assert "null" in json.dumps(broken, allow_nan=False) and broken["bugs"]


@pytest.mark.parametrize("sampler", [None, FakeSampler(1)])
@pytest.mark.parametrize("kind", [Rounding, WrongMask])
def test_the_verdict_comes_first_and_the_table_gives_each_parting_its_numbers(
    kind: type[FakeContext], sampler: FakeSampler | None
) -> None:
    found = run_check(kind, sampler)
    engine = engine_of(SamplingSettings(temp=1, seed=1)) if sampler else ENGINE
    text = as_lines(engine, found)
    assert " ".join(text.split()).startswith(said(engine, found))
    assert said(engine, found).startswith("BUG: ") == bool(found.counts.bugs)
    (table,) = (part for part in text.split("\n\n") if part.startswith("First differences"))
    verdicts = [line.rpartition("  ")[2] for line in table.splitlines() if "'<" in line]
    assert sum(verdict.startswith("BUG: ") for verdict in verdicts) == found.counts.bugs
    assert sum(verdict.startswith("rounding: ") for verdict in verdicts) == found.counts.rounding
    assert all(re.search(r"\d", verdict) for verdict in verdicts)
