"""A context on real llama.cpp: its limits, the cells that rows of a batch see, and its errors."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import llama_cpp as lib
import numpy as np
import pytest

from lacli.batch import Batch, from_tokens
from lacli.errors import LacliError, ModelLoadError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.library import Log
from lacli.llamacpp.machine import OBSERVED_S
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from tests.fakes.decoding import PLAIN, Logits

SETTINGS = ModelSettings(context=256, gpu_layers=0, threads=1)
LOOKAHEAD = DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=4)


@pytest.fixture
def engine(toy: LlamaModel) -> Iterator[LlamaContext]:
    with LlamaContext(toy, SETTINGS, ContextSize.of(LOOKAHEAD)) as engine:
        yield engine


def input_at(token: int, past: int) -> Batch:
    return Batch(1).set_tree(Tree(token), past)


def last_row(engine: LlamaContext, tokens: list[int]) -> Logits:
    """Empty the cache, decode the tokens, and return the last token's logits."""
    engine.clear()
    assert engine.decode(from_tokens(tokens[:-1], 0))
    assert engine.decode(input_at(tokens[-1], len(tokens) - 1))
    logits: Logits = engine.logits()[-1].copy()
    return logits


def test_three_slots_have_three_times_the_default_cells_or_as_many_as_memory_allows(
    toy: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, one, room = lib.llama_init_from_model, toy.default_limit, 0

    def bounded(handle: Any, parameters: Any) -> Any:
        return make(handle, parameters) if parameters.n_ctx <= room else None

    monkeypatch.setattr(lib, "llama_init_from_model", bounded)
    capacity = ContextSize.for_slots(PLAIN, 3, SETTINGS.batch)
    for room in (one, 3 * one // 2, 3 * one):
        with LlamaContext(toy, replace(SETTINGS, context=0), capacity) as engine:
            assert engine.cells == room
    with pytest.raises(ModelLoadError):
        LlamaContext(toy, replace(SETTINGS, context=4 * one), capacity)


def test_samplers_are_freed_once_if_a_context_needs_a_second_try(
    toy: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # frees other tests' samplers before this test counts
    make, free, freed = lib.llama_init_from_model, lib.llama_sampler_free, list[object]()

    def bounded(handle: Any, parameters: Any) -> Any:
        return make(handle, parameters) if parameters.n_ctx <= toy.default_limit else None

    def noted(sampler: Any) -> None:
        freed.append(sampler)
        if freed.count(sampler) == 1:
            free(sampler)

    monkeypatch.setattr(lib, "llama_init_from_model", bounded)
    monkeypatch.setattr(lib, "llama_sampler_free", noted)
    capacity = ContextSize.for_slots(PLAIN, 3, SETTINGS.batch)
    with LlamaContext(toy, replace(SETTINGS, context=0), capacity, backend_greedy=True) as engine:
        made = [*engine._samplers]
    del engine
    gc.collect()
    assert freed == made and len(made) == capacity.ids


def test_a_node_of_a_tree_sees_the_path_to_it_and_no_other(engine: LlamaContext) -> None:
    prefix = [30, 31, 32, 33]
    assert engine.decode(from_tokens(prefix, 0))
    tree = Tree(20)
    tree.add_path([21, 22], 1, Origin.POOL)
    tree.add_path([21, 23], 2, Origin.POOL)
    tree.add_path([24, 25], 3, Origin.POOL)
    for sequence in (1, 2, 3):
        engine.copy(0, sequence, 0, len(prefix))
    assert engine.decode(Batch(len(tree)).set_tree(tree, len(prefix)))
    rows = engine.logits().copy()
    for row, path in enumerate([[20], [20, 21], [20, 21, 22], [20, 21, 23], [20, 24], [20, 24, 25]]):
        np.testing.assert_allclose(rows[row], last_row(engine, prefix + path), atol=1e-2)


def test_a_batch_without_free_cells_is_refused_and_changes_nothing(engine: LlamaContext) -> None:
    text = [3 + position % 250 for position in range(engine.cells)]
    expected = last_row(engine, text)
    engine.clear()
    assert engine.decode(from_tokens(text[:-1], 0))
    two = Tree(text[-1])
    two.add_path([7], 0, Origin.CHAIN)
    assert not engine.decode(Batch(len(two)).set_tree(two, len(text) - 1))
    assert lib.llama_memory_seq_pos_max(engine._memory, 0) == len(text) - 2
    assert engine.decode(input_at(text[-1], len(text) - 1))
    np.testing.assert_array_equal(engine.logits()[0], expected)
    assert not engine.decode(input_at(7, len(text)))


def test_a_decode_that_fails_says_why(engine: LlamaContext) -> None:
    assert engine.decode(from_tokens([5, 6], 0))
    with pytest.raises(LacliError, match="sequence 0 .*inconsistent sequence positions"):
        engine.decode(from_tokens([7], 9))
    with pytest.raises(LacliError, match="invalid token"):
        engine.decode(input_at(engine.vocabulary, 2))


def before_each_operation(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let llama.cpp call `act` each time before it asks whether to continue a prompt chunk."""
    set_callback, kept = lib.llama_set_abort_callback, list[object]()

    def acting(handle: Any, callback: Any, data: Any) -> None:
        def act_and_ask(data: Any) -> bool:
            act()
            return bool(callback(data))

        kept.append(lib.ggml_abort_callback(act_and_ask) if callback else callback)
        set_callback(handle, kept[-1], data)

    patch.setattr(lib, "llama_set_abort_callback", acting)


def test_a_prompt_chunk_in_another_thread_is_ended_too(toy: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with LlamaContext(toy, SETTINGS, ContextSize.of(PLAIN)) as engine, ThreadPoolExecutor(1) as thread:
        with monkeypatch.context() as patched:
            before_each_operation(patched, engine.interrupt)
            ended = thread.submit(engine.decode, from_tokens([*range(3, 103)], 0)).exception()
        assert isinstance(ended, KeyboardInterrupt)
        engine.clear()
        assert thread.submit(engine.decode, from_tokens([*range(3, 103)], 0)).result(), "it ends only one call"


def test_ctrl_c_while_a_context_is_made_is_raised_after_it(toy: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def press_once(log: Log, level: int, text: bytes) -> None:
        if not heard:
            heard.append("a line")
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Log, "receive", press_once)
    with pytest.raises(KeyboardInterrupt):
        LlamaContext(toy, SETTINGS, ContextSize.of(PLAIN))
    assert heard and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_a_prompt_chunk_in_the_middle_and_the_next_one_is_whole(
    toy: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def press_once() -> None:
        if not calls:
            signal.raise_signal(signal.SIGINT)
        calls.append(1)

    before_each_operation(monkeypatch, press_once)
    with LlamaContext(toy, SETTINGS, ContextSize.of(PLAIN)) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.decode(from_tokens([*range(3, 103)], 0))
        assert len(calls) == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        engine.clear()
        assert engine.decode(from_tokens([*range(3, 103)], 0))
        operations = len(calls)
        assert operations > 2
        assert engine.decode(Batch(1).set_tree(Tree(5), 100))
        assert len(calls) == operations


def test_fewer_threads_decode_while_other_programs_take_the_cores_and_the_logits_stay_the_same(
    toy: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.llamacpp.context.process_time", lambda: 0.0)
    monkeypatch.setattr("lacli.llamacpp.context.perf_counter", count(step=OBSERVED_S).__next__)
    busy = replace(SETTINGS, threads=2, threads_batch=2, gives_way=True)
    decode, threads = lib.llama_decode, list[tuple[object, int]]()

    def recorded(handle: Any, batch: object) -> Any:
        threads.append((handle, lib.llama_n_threads(handle)))
        return decode(handle, batch)

    with (
        LlamaContext(toy, busy, ContextSize.of(PLAIN)) as easy,
        LlamaContext(toy, replace(busy, gives_way=False), ContextSize.of(PLAIN)) as fixed,
    ):
        monkeypatch.setattr(lib, "llama_decode", recorded)
        logits = [last_row(each, [5, 6, 7]) for each in (easy, easy, fixed, fixed)]
        by_easy, by_fixed = ([count for handle, count in threads if handle == each._handle] for each in (easy, fixed))
    assert by_easy == [2] + [1] * (len(by_easy) - 1) and {*by_fixed} == {2}
    assert all(np.array_equal(each, logits[0]) for each in logits)


def batches(model: LlamaModel) -> list[Batch]:
    """Return a prompt's batch, then steps of one row, of a tree, and of twelve rows, some without outputs."""
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
    """Decode all batches, and yield each with outputs. Ids 1 to 4 get the prompt's cells; drafts are removed."""
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
@pytest.mark.parametrize("chosen", [DecodeSettings(mode="auto"), LOOKAHEAD], ids=lambda chosen: chosen.mode)
def test_a_backend_chooses_what_raw_logits_have(
    chosen: DecodeSettings, unable: bool, small: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unable:
        # llama.cpp cannot run this sampler on any backend.
        monkeypatch.setattr(lib, "llama_sampler_init_temp", lambda temp: lib.llama_sampler_init_typical(0.5, 1))
    with (
        LlamaContext(small, SETTINGS, ContextSize.of(chosen), backend_greedy=True) as choosing,
        LlamaContext(small, SETTINGS, ContextSize.of(chosen), backend_greedy=False) as raw,
    ):
        for _, _ in zip(decoded(choosing, small), decoded(raw, small), strict=True):
            np.testing.assert_array_equal(choosing.greedy(), raw.logits().argmax(axis=1))
            there = lib.llama_get_sampled_logits_count_ith(choosing._handle, choosing._first)
            assert there == (raw.vocabulary if unable else 1), "other logits stay on the device"
