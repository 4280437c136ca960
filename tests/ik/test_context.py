"""ik_llama.cpp's context: with llama.cpp in one process, plain decoding's text in every mode, and ends of a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from lacli.auto.mode import FIXED_COST
from lacli.batch import Batch, from_tokens
from lacli.check.compare import Comparison
from lacli.engine.engine import Engine, SequenceOptions
from lacli.engine.step import TokenSequence
from lacli.ik.context import IkContext, IkModel
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.modes import common_prefix
from lacli.settings import DecodeSettings
from tests.fakes import tiny_models
from tests.fakes.decoding import PLAIN, Decoding, bugs
from tests.loading import STDLIB_7M

ONE_THREAD = ModelSettings(context=512, threads=1, engine="ik")
CHAIN = DecodeSettings(mode="lookup", lookup_draft=6)
MODES = (CHAIN, DecodeSettings(window=4, ngram=4, guesses=5), DecodeSettings(mode="auto"))
QUESTION = "def sorted_by_length(words):\n    words = sorted(words)\n    words = sorted(words)\n"

WRITERS: dict[str, Callable[[Path], None]] = {
    "llama": tiny_models.write_llama,
    "qwen2": tiny_models.write_qwen2,
    "qwen3": tiny_models.write_qwen3,
    "qwen3moe": tiny_models.write_qwen3moe,
    "gemma3": partial(tiny_models.write_gemma_swa, architecture="gemma3", layers=6),
}
"""Writers of random models, by architecture."""


class Endless(IkContext):
    """A context without end tokens."""

    def is_end(self, token: int) -> bool:
        return False


@pytest.fixture(scope="module")
def model() -> Iterator[IkModel]:
    with IkModel(STDLIB_7M, ONE_THREAD) as model:
        yield model


@pytest.fixture
def engine(model: IkModel) -> Iterator[IkContext]:
    with IkContext(model, ONE_THREAD, ContextSize.of(CHAIN)) as engine:
        yield engine


def test_the_vocabulary_is_read_by_llama_cpp_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with IkModel(STDLIB_7M, ONE_THREAD, verbose=True):
        kinds = [line.split("= ")[1] for line in capsys.readouterr().err.splitlines() if " vocab type " in line]
    assert len(kinds) == 2 and kinds[0] != "no vocab" == kinds[1]


def plain_tokens(engine: IkContext | LlamaContext, prompt: Sequence[int], count: int) -> list[int]:
    steps = Decoding(engine, PLAIN).generate(prompt, count)
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("architecture", WRITERS)
def test_both_libraries_in_one_process_compute_the_same_but_for_rounding(architecture: str, tmp_path: Path) -> None:
    path, wide = tmp_path / "model.gguf", DecodeSettings(mode="lookup", lookup_draft=31)
    WRITERS[architecture](path)
    with LlamaModel(path, ONE_THREAD) as theirs, IkModel(path, ONE_THREAD) as ours:
        text = theirs.tokenize("the thing and the rest of the section " * 3)[:32]
        rows = Batch(32).set_rows(text, range(len(text)), [[0]] * len(text), [True] * len(text))
        with (
            LlamaContext(theirs, ONE_THREAD, ContextSize.of(wide)) as llama,
            IkContext(ours, ONE_THREAD, ContextSize.of(wide)) as ik,
        ):
            assert llama.decode(rows) and ik.decode(rows)
            assert np.abs(ik.logits() - llama.logits()).max() < 0.01 * np.ptp(llama.logits())


def test_every_mode_gives_plain_decodings_text_but_for_rounding(model: IkModel) -> None:
    with Comparison(lambda decode: Endless(model, ONE_THREAD, ContextSize.of(decode)), 60) as comparison:
        for mode in MODES:
            runs = [*comparison.run(mode, [model.tokenize(QUESTION)])]
            assert bugs(runs) == [], mode
            assert sum(len(step.tokens) for step in runs[0].steps) == 60
            assert len(runs[0].steps) < 60, mode


def test_rows_have_the_same_logits_with_any_number_of_others(model: IkModel) -> None:
    prompt, wide = [*model.tokenize(QUESTION) * 4][:64], DecodeSettings(mode="lookup", lookup_draft=63)
    with IkContext(model, ONE_THREAD, ContextSize.of(wide)) as engine:
        found = []
        for count in (1, 2, 8, 31, 32, 33, 48):
            engine.clear()
            rows = Batch(count).set_rows(prompt[:count], range(count), [[0]] * count, [True] * count)
            assert engine.decode(rows)
            found.append(engine.logits()[0].copy())
        assert max(np.abs(each - found[0]).max() for each in found) < 0.5


def test_a_batch_without_cells_changes_nothing(engine: IkContext, model: IkModel) -> None:
    prompt = model.tokenize(QUESTION)
    text = plain_tokens(engine, prompt, 2)
    engine.clear()
    for begin in range(0, engine.cells - 8, 8):
        assert engine.decode(from_tokens(prompt[:8], begin))
    assert not engine.decode(from_tokens([*prompt * 2][:16], engine.cells - 8))
    engine.clear()
    assert plain_tokens(engine, prompt, 2) == text


def test_a_batch_that_needs_every_free_cell_is_decoded(model: IkModel) -> None:
    prompt = [*model.tokenize(QUESTION) * 20]
    with IkContext(model, replace(ONE_THREAD, context=256), ContextSize.of(CHAIN)) as engine:
        assert engine.decode(from_tokens(prompt[:200], 0))
        engine.remove(0, 150, -1)
        assert engine.decode(from_tokens(prompt[150 : engine.cells], 150)), "the pin gives its cell back"


@pytest.mark.parametrize("slots", [1, 2])
def test_ctrl_c_and_interrupt_end_a_prompt_chunk_and_the_context_goes_on(slots: int, model: IkModel) -> None:
    prompt = model.tokenize(QUESTION)
    piece, over = [*prompt * 20][:400], Event()
    size = replace(ContextSize.of(CHAIN), ids=2, slots=slots)
    with IkContext(model, replace(ONE_THREAD, context=1024), size) as engine:
        text = plain_tokens(engine, prompt, 4)
        engine.clear()
        assert engine.decode(from_tokens(piece, 0, 1))

        def press() -> None:
            while not over.is_set():
                engine.interrupt()

        presses = Thread(target=press)
        presses.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                engine.decode(from_tokens(piece, 0))
        finally:
            over.set()
            presses.join()
        engine.clear()
        assert plain_tokens(engine, prompt, 4) == text


def test_several_sequences_get_what_each_gets_alone_and_the_library_takes_as_many_ids(model: IkModel) -> None:
    auto = DecodeSettings(auto_rows=16).for_slots(4)
    prompts = [model.tokenize(QUESTION[start:]) for start in (0, 4, 9, 15, 20, 30)]
    found: list[list[list[int]]] = []
    for slots, cells in ((4, 512), (1, 512)):
        size = ContextSize.for_slots(auto, slots, 256)
        with Endless(model, replace(ONE_THREAD, context=cells), size) as context:
            engine = Engine(context, auto, slots, cost=FIXED_COST)
            found.append([])
            waiting = list(prompts)
            running: list[TokenSequence] = []
            while waiting or engine.sequences:
                while waiting and not engine.is_full:
                    running.append(engine.add(waiting.pop(0), SequenceOptions(40)))
                engine.step()
            found[-1] += [each.tokens for each in running]
    alike = [common_prefix(*pair) for pair in zip(*found, strict=True)]
    assert all(shared > len(prompt) + 10 for shared, prompt in zip(alike, prompts, strict=True)), "but for rounding"


def wanted(batch: Batch) -> Batch:
    """Request the logits of a batch's last row; return the batch."""
    batch.outputs[batch.rows - 1], batch.wanted = 1, 1
    return batch


def test_a_restore_keeps_the_logits_to_the_bit_and_a_part_of_a_state_is_refused(model: IkModel) -> None:
    prompt, wide = [*model.tokenize(QUESTION) * 9][:200], ContextSize.of(DecodeSettings(mode="lookahead"))
    with IkContext(model, ONE_THREAD, wide) as engine:
        for sequence in (0, 3):
            engine.clear()
            assert engine.decode(from_tokens(prompt[:-1], 0, sequence))
            state = engine.state(sequence)
            last = wanted(from_tokens(prompt[-1:], len(prompt) - 1, sequence))
            assert engine.decode(last)
            before = engine.logits().copy()
            engine.clear()
            assert not engine.set_state(sequence, (ctypes.c_uint8 * (len(state) // 2)).from_buffer(state))
            engine.remove(sequence, 0, -1)
            assert engine.set_state(sequence, state) and engine.decode(last)
            assert (engine.logits() == before).all()


@pytest.mark.parametrize("freed", [(), (1,), (0,), (0, 1)])
def test_a_state_restored_among_other_sequences_has_the_logits_that_it_has_alone(
    freed: tuple[int, ...], model: IkModel
) -> None:
    prompt, wide = [*model.tokenize(QUESTION) * 9][:150], ContextSize.of(DecodeSettings(mode="lookahead"))
    last = wanted(from_tokens(prompt[19:20], 19, 3))
    with IkContext(model, ONE_THREAD, wide) as engine:
        assert engine.decode(from_tokens(prompt[:19], 0, 3))
        state = engine.state(3)
        assert engine.decode(last)
        before = engine.logits().copy()
        engine.clear()
        for sequence in range(3):
            assert engine.decode(from_tokens(prompt[sequence:130], 0, sequence))
        for sequence in freed:
            engine.remove(sequence, 0, -1)
        assert engine.set_state(3, state) and engine.decode(last)
        assert np.abs(engine.logits() - before).max() < 0.5


@pytest.mark.parametrize("cut", [64, 100])
def test_a_prompt_among_others_is_read_alone_and_has_the_logits_that_it_has_alone(cut: int, model: IkModel) -> None:
    text, size = [*model.tokenize(Path(__file__).read_text())], ContextSize(4, 4, ordered=False, slots=4)
    prompt = text[:200]
    with IkContext(model, replace(ONE_THREAD, context=1024), size) as engine:
        assert engine.decode(wanted(from_tokens(prompt, 0, 3)))
        before = engine.logits().copy()
        engine.clear()
        for sequence in range(3):
            assert engine.decode(from_tokens(text[200 * sequence :][:250], 0, sequence))
        engine.remove(0, 190, -1)
        count = engine.calls
        assert engine.decode(from_tokens(prompt[:cut], 0, 3))
        assert engine.calls == count, "the chunk read no other sequence's cells"
        assert not engine.decode(from_tokens(text[:400], cut, 3)), "too few cells are free"
        count = engine.calls
        rows = [*from_tokens([5], 190, 0).read(), *wanted(from_tokens(prompt[cut:], cut, 3)).read()]
        assert engine.decode(Batch(len(rows)).set_rows(*zip(*rows, strict=True)))
        assert engine.calls == count + 1
        assert np.abs(engine.logits() - before).max() < 0.5
        assert engine.decode(from_tokens(text[200:300], 200, 3)) and engine.calls > count + 1, "it passes others"
        for sequence in range(4):
            engine.remove(sequence, 0, -1)
        assert engine.decode(from_tokens(text[:512], 0)) and engine.decode(from_tokens(text[512:1023], 512))
