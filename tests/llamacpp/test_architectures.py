"""Small random models of every kind on real llama.cpp: modes equal plain decoding, or say why they cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from lacli.batch import Batch, from_tokens
from lacli.check.compare import Comparison
from lacli.context import Floats
from lacli.errors import ModelLoadError
from lacli.llamacpp.context import MAX_ROLLBACK, LlamaContext, max_rollback
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import Constraints, DecodeSettings
from tests.engine.test_hybrid import CHAINS
from tests.fakes import tiny_models
from tests.fakes.decoding import PLAIN, bugs, compare
from tests.loading import generate, load

LIMIT = 60
LOOP = "for x in range(10):\n    print(x)\n"
LETTERS = "".join(Random(5).choices("abcdefgh .()\n", k=330))
WARM = SamplingSettings(seed=7, temp=0.9)
ON_ONE_THREAD = ModelSettings(context=512, gpu_layers=0, threads=1)
MODES = {
    "plain": PLAIN,
    "jacobi": DecodeSettings(mode="jacobi", window=6),
    "lookup": DecodeSettings(mode="lookup", lookup_draft=6),
    "lookahead": DecodeSettings(mode="lookahead", window=15, ngram=5, guesses=15),
    "no window": DecodeSettings(mode="lookahead", window=0, ngram=4, guesses=6),
}


TRANSFORMERS: dict[str, Callable[[Path], None]] = {
    "llama": tiny_models.write_llama,
    "gemma2 with a sliding window": tiny_models.write_gemma_swa,
    "qwen2 with biases": tiny_models.write_qwen2,
}


@pytest.fixture(scope="module", params=TRANSFORMERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    TRANSFORMERS[request.param](path)
    with LlamaModel(path, ON_ONE_THREAD) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(model: LlamaModel) -> list[list[int]]:
    """Return short and long prompts, with and without repetition; all but the first exceed the sliding window."""
    texts = ["the thing", "and the rest of the section " * 4, LOOP * 6, LETTERS]
    prompts = [model.tokenize(text) for text in texts]
    assert min(map(len, prompts[1:])) > tiny_models.SLIDING_WINDOW
    assert 300 < len(prompts[3]) < 400
    return prompts


@pytest.mark.parametrize(("batch", "modes"), [(512, MODES), (32, ("plain", "lookahead"))])
def test_every_mode_equals_plain_but_for_rounding(
    batch: int, modes: Iterable[str], model: LlamaModel, prompts: list[list[int]]
) -> None:
    """With the small -b a prompt takes several calls, and a step has at most 32 rows; larger trees are cut."""
    with compare(model, replace(ON_ONE_THREAD, batch=batch), LIMIT) as comparison:
        for name in modes:
            runs = [*comparison.run(MODES[name], prompts)]
            assert bugs(runs) == [], name
            for run in runs:
                assert len(run.tokens) == LIMIT or model.is_end(run.tokens[-1]), name


def test_a_model_that_cannot_go_back_decodes_plainly_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tiny_models.write_mamba(path)
    answers = []
    for chosen in (PLAIN, DecodeSettings(), DecodeSettings(mode="lookahead")):
        with load(path, model_settings=ON_ONE_THREAD, decode_settings=chosen) as engine:
            assert engine.settings.mode == "plain"
            assert engine.context.ids == 1
            assert len(engine.notes) == (chosen != PLAIN)
            assert all("recurrent" in note and note.startswith("decoding plainly") for note in engine.notes)
            answers.append(
                [generate(engine, prompt, max_tokens=40, raw=True) for prompt in ("the thing", "and so on\n" * 20)]
            )
    for again in answers[1:]:
        assert [answer.tokens for answer in again] == [answer.tokens for answer in answers[0]]
        assert [answer.text for answer in again] == [answer.text for answer in answers[0]]
    assert all(answer.statistics.steps == len(answer.tokens) for answer in answers[1])


def test_a_split_model_opens_from_any_part_and_answers_as_the_whole_one(tmp_path: Path, tiny: Path) -> None:
    parts = tiny_models.write_llama_split(tmp_path)
    assert len(parts) == 2
    texts = []
    for path, opened in ((tiny, tiny), (parts[0], parts[0]), (parts[1], parts[0])):
        with load(path, model_settings=ON_ONE_THREAD) as engine:
            assert engine.model.path == opened
            texts.append(generate(engine, "the thing", max_tokens=20, raw=True).tokens)
    assert texts[0] == texts[1] == texts[2]
    parts[1].unlink()
    with pytest.raises(ModelLoadError, match=parts[1].name):
        load(parts[0], model_settings=ON_ONE_THREAD)


@pytest.fixture(scope="module")
def lfm2_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lfm2") / "model.gguf"
    tiny_models.write_lfm2(path)
    return path


@pytest.fixture(scope="module")
def lfm2(lfm2_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(lfm2_path, ON_ONE_THREAD) as model:
        yield model


@pytest.fixture(scope="module")
def asked(lfm2: LlamaModel) -> list[list[int]]:
    return [lfm2.tokenize(text) for text in ("the thing", LOOP * 6, LETTERS)]


@pytest.fixture(scope="module")
def beside(lfm2: LlamaModel) -> Iterator[Comparison]:
    with compare(lfm2, ON_ONE_THREAD, LIMIT) as comparison:
        yield comparison


@pytest.fixture(scope="module")
def sampled(lfm2: LlamaModel) -> Iterator[Comparison]:
    with (
        LlamaSampler(lfm2, WARM) as sampler,
        Comparison(
            lambda decode: LlamaContext(lfm2, ON_ONE_THREAD, ContextSize.of(decode)), LIMIT, sampler=sampler
        ) as comparison,
    ):
        yield comparison


@pytest.mark.parametrize("mode", CHAINS)
@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "sampled"])
def test_every_drafting_mode_of_a_hybrid_model_equals_plain_but_for_rounding(
    mode: str, drawn: bool, beside: Comparison, sampled: Comparison, asked: list[list[int]]
) -> None:
    chosen = DecodeSettings(mode=mode, window=6, constraints=Constraints(MAX_ROLLBACK))  # type: ignore[arg-type]
    runs = [*(sampled if drawn else beside).run(chosen, asked)]
    assert bugs(runs) == []
    accepted = {len(step.tokens) - 1 for run in runs for step in run.steps if step.drafted}
    assert {0, 1} <= accepted, "too few chains were taken back"


def fed(engine: LlamaContext, tokens: Sequence[int], past: int) -> Floats:
    """Decode tokens in one batch after `past` cells; return the last row's logits, (vocabulary,)."""
    rows = len(tokens)
    wanted = [*[False] * (rows - 1), True]
    assert engine.decode(Batch(rows).set_rows(tokens, range(past, past + rows), [[0]] * rows, wanted))
    logits: Floats = engine.logits()[0].copy()
    return logits


@pytest.mark.parametrize("sizes", [(1,), (6,), (3, 3), (12,)])
def test_a_state_that_was_taken_back_is_a_fresh_contexts_or_stays(
    sizes: tuple[int, ...], lfm2: LlamaModel, asked: list[list[int]]
) -> None:
    text = asked[2]
    chosen = DecodeSettings(mode="lookup").constrained(max_rollback=MAX_ROLLBACK)
    with (
        LlamaContext(lfm2, ON_ONE_THREAD, ContextSize.of(chosen)) as engine,
        LlamaContext(lfm2, ON_ONE_THREAD, ContextSize.of(PLAIN)) as fresh,
    ):
        for back in range(1, MAX_ROLLBACK + 2):
            assert engine.decode(from_tokens(text[:20], 0))
            past = 20
            for size in sizes:
                fed(engine, text[past : past + size], past)
                past += size
            gone = engine.remove(0, past - back, -1)
            assert gone == (back <= min(sizes[-1] - 1, MAX_ROLLBACK))
            if gone:
                past -= back
                assert not engine.remove(0, past - 1, -1), "a step can be taken back only once"
            assert engine.remove(0, past, -1), "removing nothing must succeed"
            assert fresh.decode(from_tokens(text[:past], 0))
            after = [fed(each, [text[-1]], past) for each in (engine, fresh)]
            np.testing.assert_allclose(after[0], after[1], atol=1e-3)
            assert all(each.remove(0, 0, -1) for each in (engine, fresh)), "removing everything must succeed"


@pytest.mark.parametrize(("batch", "back"), [(2, 0), (3, 1), (10, 8), (11, 8)])
def test_small_batches_hold_shorter_chains_and_llama_cpp_survives_them(
    batch: int, back: int, lfm2_path: Path, beside: Comparison, asked: list[list[int]]
) -> None:
    model_settings = replace(ON_ONE_THREAD, batch=batch)
    chosen = DecodeSettings(mode="lookup", lookup_draft=1)
    with load(lfm2_path, model_settings=model_settings, decode_settings=chosen) as engine:
        assert max_rollback(engine.model, model_settings) == back
        assert (engine.settings.mode, max(engine.settings.constraints.max_rollback, 0)) == (
            "lookup" if back else "plain",
            back,
        )
        text, pieces = engine.generate(asked[1], 20)
        assert list(pieces)
        assert list(text.answer().tokens) == beside.plain(asked[1])[:20]
