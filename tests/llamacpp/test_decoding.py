"""The best tokens of rows of logits, those that a backend selects, and the threads that decode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lacli.batch import Batch, from_tokens
from lacli.context import Floats
from lacli.llamacpp.context import CANDIDATES, LlamaContext
from lacli.llamacpp.decoding import MAX_RETRY_S, OBSERVED_S, RETRY_S, ThreadsInUse, ranked
from lacli.llamacpp.library import lib
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree

LOADING = ModelSettings(context=512, gpu_layers=0, threads=1)
AUTO = DecodeSettings(mode="auto")


@given(
    st.integers(1, 5).flatmap(
        lambda rows: st.integers(1, 80).flatmap(
            lambda columns: arrays(np.float32, (rows, columns), elements=st.integers(-3, 3).map(float))
        )
    ),
    st.integers(1, 12),
)
@settings(max_examples=40, deadline=None)
def test_tokens_are_ranked_as_by_a_sort_and_of_equal_logits_the_lower_one_is_first(logits: Floats, most: int) -> None:
    before = logits.copy()
    found = ranked(logits, most)
    expected = np.argsort(-before, axis=1, kind="stable")[:, :most]
    np.testing.assert_array_equal(found.tokens, expected)
    np.testing.assert_array_equal(found.logits, np.take_along_axis(before, expected, axis=1))
    np.testing.assert_array_equal(logits, before)


@pytest.fixture(scope="module")
def model(small: LlamaModel) -> LlamaModel:
    return small


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


@pytest.mark.parametrize(
    "chosen", [AUTO, Capacity.of([AUTO, DecodeSettings(mode="lookahead")])], ids=["auto", "auto and lookahead"]
)
def test_a_backend_keeps_the_candidates_that_raw_logits_have(
    chosen: DecodeSettings | Capacity, model: LlamaModel
) -> None:
    with (
        LlamaContext(model, LOADING, chosen, backend_greedy=True) as kept,
        LlamaContext(model, LOADING, chosen, backend_greedy=False) as raw,
    ):
        for batch, _ in zip(decoded(kept, model), decoded(raw, model), strict=True):
            assert lib.llama_get_sampled_candidates_count_ith(kept._handle, 0) == CANDIDATES
            np.testing.assert_array_equal(kept.greedy(), raw.logits().argmax(axis=1))
            for most in (1, 3, CANDIDATES):
                found, expected = kept.successors(most), ranked(raw.logits(), most)
                assert found.tokens.shape == (batch.wanted, most)
                np.testing.assert_array_equal(found.tokens, expected.tokens)
                np.testing.assert_array_equal(found.logits, expected.logits)
            assert kept.successors(20).tokens.shape == (batch.wanted, CANDIDATES)


def test_a_backend_that_keeps_no_candidates_has_whole_rows_to_rank(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that cannot run the sampler runs none; greedy chains leave the logits as they are."""
    # Llama.cpp has no form of this sampler for a backend at all.
    monkeypatch.setattr(lib, "llama_sampler_init_top_k", lambda count: lib.llama_sampler_init_typical(0.5, 1))
    several = DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=2)
    with LlamaContext(model, LOADING, AUTO, backend_greedy=False) as raw:
        for chosen in (AUTO, several):
            with LlamaContext(model, LOADING, chosen, backend_greedy=True) as unable:
                raw.clear()
                for batch, _ in zip(decoded(unable, model), decoded(raw, model), strict=True):
                    np.testing.assert_array_equal(unable.greedy(), raw.logits().argmax(axis=1))
                    found, expected = unable.successors(8), ranked(raw.logits(), 8)
                    assert found.tokens.shape == (batch.wanted, 8)
                    np.testing.assert_array_equal(found.tokens, expected.tokens)


@pytest.mark.parametrize(("cores", "left"), [(4.0, 4), (3.3, 4), (3.1, 3), (1.9, 1), (0.1, 1)])
def test_as_many_threads_decode_as_had_a_core(cores: float, left: int) -> None:
    threads = ThreadsInUse(4)
    for step in range(4):
        assert threads.count == 4, "a step alone decides nothing"
        threads.note(OBSERVED_S / 3.9, cores * OBSERVED_S / 3.9, step * OBSERVED_S)
    assert threads.count == left


def test_all_threads_are_tried_again_ever_later_while_that_fails() -> None:
    threads, now_s, pauses = ThreadsInUse(2), 0.0, list[float]()
    for _ in range(7):
        begin_s = now_s
        while threads.count == 2:
            now_s += OBSERVED_S
            threads.note(OBSERVED_S, OBSERVED_S, now_s)
        begin_s = now_s
        while threads.count == 1:
            now_s += 0.125
            threads.note(0.125, 0.125, now_s)
        pauses.append(now_s - begin_s)
    assert pauses == [RETRY_S * 2**each for each in range(5)] + [MAX_RETRY_S] * 2
    threads.note(OBSERVED_S, 2 * OBSERVED_S, now_s)
    threads.note(OBSERVED_S, OBSERVED_S, now_s)
    assert threads.count == 1 and threads._until_s == now_s + RETRY_S, "a try that succeeds begins anew"
