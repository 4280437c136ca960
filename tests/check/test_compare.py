"""Modes compared with plain decoding on fake engines: planted mistakes are called bugs, and rounding is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lacli.batch import Batch
from lacli.check.compare import CheckResult, check_modes
from lacli.check.judge import PLAIN, largest_difference, plain_logits
from lacli.context import Context, Sampler
from lacli.engine.engine import Engine, SequenceOptions
from lacli.errors import BatchRefused
from lacli.settings import MODES, DecodeSettings
from tests.fakes.context import FakeContext
from tests.fakes.sampler import FakeSampler
from tests.fakes.wrong_contexts import WRONG, FaintMask, LateCopy, Rounding, Tied, WrongMask

PROMPTS = [
    [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 7, 1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2],
    [4, 4, 4, 5, 6, 4, 4, 4, 5, 7, 4, 4, 4, 5, 6, 4, 4, 1, 4, 4, 4, 5, 6, 4, 4, 4],
    [9, 1, 9, 2, 9, 3, 9, 1, 9, 2, 9, 4, 9, 1, 9, 2, 9, 3, 9, 1, 9, 2, 9, 3, 9, 1],
]
LIMIT = 30
CELLS = 96
DECODING = DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=4)


def run_check(kind: type[FakeContext], sampler: Sampler | None = None, **more: Any) -> CheckResult:
    """A check on engines of a kind. modes: as `check` takes them; the four that guess otherwise."""
    modes = more.pop("modes", [replace(DECODING, mode=mode) for mode in MODES[1:]])

    @contextmanager
    def opened(settings: DecodeSettings) -> Iterator[Context]:
        yield kind(CELLS, CELLS, settings.ids, max_outputs=max(settings.ids, settings.max_outputs))

    return check_modes(opened, PROMPTS, modes, LIMIT, sampler=sampler, **more)


@pytest.mark.parametrize("kind", [FakeContext, Tied])
@pytest.mark.parametrize("sampler", [None, FakeSampler(7), FakeSampler(7, 0.5, 0.3)])
def test_an_exact_engine_gives_identical_texts(kind: type[FakeContext], sampler: FakeSampler | None) -> None:
    found = run_check(kind, sampler)
    assert (found.counts.answers, found.counts.identical, found.verdict) == (12, 12, "identical")
    assert [mode.settings.mode for mode in found.modes] == ["jacobi", "lookup", "lookahead", "auto"]


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("sampler", [None, FakeSampler(3)])
def test_a_planted_mistake_is_a_bug(kind: type[FakeContext], sampler: FakeSampler | None) -> None:
    found = run_check(kind, sampler)
    assert found.counts.bugs
    assert found.verdict == "bug"


def test_if_a_replay_need_not_repeat_a_run_a_small_margin_is_unclear() -> None:
    assert "unclear" in {run.verdict for _, _, run in run_check(FaintMask, repeats=False).differing}
    differences = [run.difference for _, _, run in run_check(FaintMask).differing if run.difference]
    bugs = [each for each in differences if each.verdict == "bug"]
    assert any(each.margin <= 2 * each.rounding for each in bugs), "a replay that repeats a run shows the mistake"
    assert run_check(WrongMask, repeats=False).verdict == "bug"


@pytest.mark.parametrize("samplers", [[None], [FakeSampler(0, 1.0, 0.1), FakeSampler(1, 1.0, 0.1)]])
def test_what_a_batch_rounds_is_no_bug(samplers: list[FakeSampler | None]) -> None:
    results = [run_check(Rounding, sampler) for sampler in samplers]
    assert sum(found.counts.bugs for found in results) == 0
    differing = [run.difference for found in results for _, _, run in found.differing if run.difference]
    assert differing, "all texts are equal: the test has lost its point"
    if samplers == [None]:
        (found,) = results
        assert found.verdict == "rounding"
        assert all(0 <= each.margin <= 2 * each.rounding < 0.1 for each in differing)


def test_a_text_that_is_plains_up_to_a_refused_step_has_no_other_difference() -> None:
    class Refusing(FakeContext):
        def decode(self, batch: Batch) -> bool:
            if self.ids > 1 and batch.wanted and len(self._cells) > 40:
                raise BatchRefused("llama_decode failed (-1)")
            return super().decode(batch)

    found = run_check(Refusing)
    assert [mode.counts.bugs for mode in found.modes] == [0, 0, 3, 3]
    for _, _, run in found.differing:
        assert (run.failure, run.difference) == ("llama_decode failed (-1)", None)
        assert run.tokens
    assert any("llama_decode failed (-1)" in run.failure for _, _, run in run_check(LateCopy).differing)


def test_equal_infinite_logits_do_not_differ() -> None:
    assert largest_difference(np.array([-np.inf, 1.0]), np.array([-np.inf, 1.5])) == 0.5
    assert largest_difference(np.array([-np.inf, 1.0]), np.array([0.0, 1.0])) == np.inf


def test_plain_logits_are_the_ones_that_plain_decoding_chose_from() -> None:
    prompt = [1, 2, 3, 1, 2]
    tokens = [
        token for step in Engine(FakeContext(), PLAIN).steps(prompt, SequenceOptions(20)) for token in step.tokens
    ]
    for count, token in enumerate(tokens):
        assert plain_logits(FakeContext(), prompt, tokens[:count]).argmax() == token
