"""The tokens that a backend chooses, and the threads that decode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from lacli.batch import Batch, from_tokens
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.decoding import OBSERVED_S, RETRY_S, ThreadsInUse
from lacli.llamacpp.library import lib
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree

LOADING = ModelSettings(context=512, gpu_layers=0, threads=1)
AUTO, LOOKAHEAD = DecodeSettings(mode="auto"), DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=2)


def batches(model: LlamaModel) -> list[Batch]:
    """A prompt, then steps of one row, of a tree, and of a few rows whose choices are not all read."""
    text = model.tokenize("def find(path, name):\n    return os.path.join(path, name)\n" * 3)
    tree = Tree(text[21])
    for sequence, path in enumerate(([5, 6, 7], [5, 6, 9], [11, 12], [40]), start=1):
        tree.add_path(path, sequence, Origin.POOL)
    some = [place % 3 != 1 for place in range(12)]
    return [
        from_tokens(text[:20], 0),
        Batch(1).set_tree(Tree(text[20]), 20),
        Batch(len(tree)).set_tree(tree, 21),
        Batch(12).set_rows(text[22:34], range(22, 34), [[0]] * 12, some),
    ]


def decoded(engine: LlamaContext, model: LlamaModel) -> Iterator[Batch]:
    """Each batch after it was decoded; all sequences own the prompt, and a tree's guesses are gone after it."""
    for before, batch in pairwise([None, *batches(model)]):
        assert batch
        if before and before.rows == 1:
            for sequence in range(1, 5):
                engine.copy(0, sequence, 0, 21)
        assert engine.decode(batch)
        if batch.wanted:
            yield batch
        engine.remove(-1, 22, -1)


@pytest.mark.parametrize("unable", [False, True], ids=["a sampler", "none that the device can run"])
@pytest.mark.parametrize("chosen", [AUTO, LOOKAHEAD], ids=lambda chosen: chosen.mode)
def test_a_backend_chooses_what_raw_logits_have(
    chosen: DecodeSettings, unable: bool, small: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unable:
        # Llama.cpp has no form of this sampler for a backend at all.
        monkeypatch.setattr(lib, "llama_sampler_init_temp", lambda temp: lib.llama_sampler_init_typical(0.5, 1))
    with (
        LlamaContext(small, LOADING, chosen, backend_greedy=True) as choosing,
        LlamaContext(small, LOADING, chosen, backend_greedy=False) as raw,
    ):
        for _, _ in zip(decoded(choosing, small), decoded(raw, small), strict=True):
            np.testing.assert_array_equal(choosing.greedy(), raw.logits().argmax(axis=1))
            there = lib.llama_get_sampled_logits_count_ith(choosing._handle, choosing._first)
            assert there == (raw.vocabulary if unable else 1), "the others stay on the device"


@pytest.mark.parametrize(("cores", "left"), [(4.0, 4), (3.3, 4), (3.1, 3), (1.9, 1), (0.1, 1)])
def test_as_many_threads_decode_as_had_a_core(cores: float, left: int) -> None:
    threads = ThreadsInUse(4)
    for step in range(4):
        assert threads.count == 4, "a step alone decides nothing"
        threads.note(OBSERVED_S / 3.9, cores * OBSERVED_S / 3.9, step * OBSERVED_S)
    assert threads.count == left


def test_all_threads_are_tried_again_after_a_while() -> None:
    threads = ThreadsInUse(2)
    for begin_s in (0.0, 100.0):
        threads.note(OBSERVED_S, OBSERVED_S, begin_s)
        threads.note(9.0, 9.0, begin_s + 0.9 * RETRY_S)
        assert threads.count == 1
        threads.note(0.1, 0.1, begin_s + RETRY_S)
        assert threads.count == 2
