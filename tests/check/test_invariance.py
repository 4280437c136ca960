"""The probe of batch sizes on fake engines whose logits depend on the rows of a batch, or do not."""

from __future__ import annotations

import numpy as np

from lacli.batch import Batch
from lacli.check.invariance import PROBE, PROBED, SIZES, Probe, probe
from tests.fakes.engine import FakeEngine

TOKENS = [1, 2, 3, 5, 8, 4, 1, 6]


class Uneven(FakeEngine):
    """From `rows` on all logits are larger by `by`."""

    rows = 2
    by = 0.25

    def decode(self, batch: Batch) -> bool:
        fits = super().decode(batch)
        if len(batch) >= self.rows:
            self._logits = [logits + self.by for logits in self._logits]
        return fits


class Forgetful(FakeEngine):
    """A recurrent model: it takes no step back."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return not any(cell.position >= start for cell in self._cells) and super().remove(sequence, start, end)


def test_an_engine_that_does_not_care_gives_the_same_bits() -> None:
    found = probe(FakeEngine(cells=200), TOKENS)
    assert [one.context for one in found] == [32, 200 - PROBED]
    for one in found:
        assert one == Probe(one.context, dict.fromkeys(SIZES[1:], 0.0), [list(SIZES)])
        assert one.exact and one.largest == 0


def test_the_sizes_that_agree_are_found() -> None:
    engine = Uneven(cells=200)
    short, long = probe(engine, TOKENS)
    assert short.groups == long.groups == [[1], list(SIZES[1:])]
    assert set(short.differences.values()) == {0.25}
    assert not short.exact and short.largest == 0.25
    engine.rows = 16
    short, _ = probe(engine, TOKENS)
    assert short.groups == [[1, 2, 4, 8], [16, 32, 64]]
    assert short.differences == {2: 0, 4: 0, 8: 0, 16: 0.25, 32: 0.25, 64: 0.25}


def test_sizes_stop_at_the_largest_batch() -> None:
    (found,) = probe(FakeEngine(cells=PROBED + 20, batch_rows=10), TOKENS)
    assert found.context == 20
    assert found.groups == [[1, 2, 4, 8]]


def test_a_context_without_room_is_not_probed() -> None:
    assert probe(FakeEngine(cells=PROBED), TOKENS) == []


def test_a_model_that_takes_no_step_back_is_probed_from_the_start() -> None:
    assert all(one.exact for one in probe(Forgetful(cells=120), TOKENS))


def test_the_probe_leaves_sequence_0_alone_in_use_and_the_batches_it_says() -> None:
    sizes = []

    class Counting(FakeEngine):
        def decode(self, batch: Batch) -> bool:
            if batch.wanted:
                assert batch.wanted == len(batch) == batch.sequence_counts[: len(batch)].sum()
                sizes.append(len(batch))
            return super().decode(batch)

    probe(Counting(cells=PROBED + 8, sequences=PROBE.sequences, max_outputs=PROBE.max_outputs), TOKENS)
    assert sizes == [size for size in SIZES for _ in range(PROBED // size)]


def test_logits_that_are_not_numbers_are_a_difference() -> None:
    class Broken(Uneven):
        by = np.nan

    assert not probe(Broken(cells=100), TOKENS)[0].exact


def test_where_steps_have_two_rows_at_least_one_row_is_not_probed() -> None:
    for found in probe(Uneven(cells=200), TOKENS, least=2):
        assert found.exact and found.groups == [list(SIZES[1:])]
        assert list(found.differences) == list(SIZES[2:])
