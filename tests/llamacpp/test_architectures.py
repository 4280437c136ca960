"""Small random models of other kinds on real llama.cpp: those that can equal plain, the others say why they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lacli import generate, load
from lacli.check.compare import Comparison
from lacli.decode import Decoder
from lacli.errors import ModelLoadError
from lacli.hub.download import find_model
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import MODES as ALL_MODES
from lacli.settings import DecodeSettings
from tests.fakes import tiny_models
from tests.fakes.margins import PLAIN, bugs, compare

LIMIT = 60
ON_ONE_THREAD = ModelSettings(context=512, gpu_layers=0, threads=1)
MODES = {
    "plain": PLAIN,
    "jacobi": DecodeSettings(mode="jacobi", window=6),
    "lookup": DecodeSettings(mode="lookup", lookup_draft=6),
    "lookahead": DecodeSettings(mode="lookahead", window=15, ngram=5, guesses=15),
    "small lookahead": DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=5),
    "no window": DecodeSettings(mode="lookahead", window=0, ngram=4, guesses=6),
    "bigrams": DecodeSettings(mode="lookahead", window=6, ngram=2, guesses=4),
    "no candidates": DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=0),
}


def write_llama_split(path: Path) -> None:
    """The llama model in two files, found through the name of the second."""
    tiny_models.write_llama_split(path.parent)


TRANSFORMERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "llama": (tiny_models.write_llama, "model.gguf"),
    "split llama": (write_llama_split, "tiny-00002-of-00002.gguf"),
    "gemma2 with a sliding window": (tiny_models.write_gemma_swa, "model.gguf"),
    "qwen2 with biases": (tiny_models.write_qwen2, "model.gguf"),
}


@pytest.fixture(scope="module", params=TRANSFORMERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    write, name = TRANSFORMERS[request.param]
    path = tmp_path_factory.mktemp("model") / name
    write(path)
    with LlamaModel(find_model(path), ON_ONE_THREAD) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(model: LlamaModel) -> list[list[int]]:
    """Short and long, with and without repetition; all but the first are longer than the sliding window."""
    draw = Random(5)
    letters = "".join(draw.choice("abcdefgh .()\n") for _ in range(330))
    texts = ["the thing", "and the rest of the section " * 4, "for x in range(10):\n    print(x)\n" * 6, letters]
    prompts = [model.tokenize(text) for text in texts]
    assert min(map(len, prompts[1:])) > tiny_models.SLIDING_WINDOW
    assert 300 < len(prompts[3]) < 400
    return prompts


@pytest.fixture(scope="module", params=[512, 32], ids=["one prefill call", "prefill by 32"])
def comparison(request: pytest.FixtureRequest, model: LlamaModel) -> Iterator[Comparison]:
    """With the small -b, steps have at most 32 rows as well: larger trees are cut."""
    with compare(model, replace(ON_ONE_THREAD, batch=request.param), LIMIT) as comparison:
        yield comparison


@pytest.mark.parametrize("name", MODES)
def test_every_mode_equals_plain_but_for_rounding(
    name: str, model: LlamaModel, comparison: Comparison, prompts: list[list[int]]
) -> None:
    runs = comparison.run(MODES[name], prompts)
    assert bugs(runs) == []
    for run in runs:
        assert len(run.tokens) == LIMIT or model.is_end(run.tokens[-1])


def test_a_long_prompt_takes_as_many_calls_as_it_has_batches(model: LlamaModel, prompts: list[list[int]]) -> None:
    with LlamaEngine(model, replace(ON_ONE_THREAD, batch=32), PLAIN) as engine:
        next(Decoder(engine, PLAIN).generate(prompts[3], 1))
        assert engine.calls == -(-(len(prompts[3]) - 1) // 32) + 1


@pytest.mark.parametrize("name", MODES)
def test_a_full_context_holds_as_many_tokens_in_every_mode(
    name: str, model: LlamaModel, prompts: list[list[int]]
) -> None:
    class Endless(LlamaEngine):
        def is_end(self, token: int) -> bool:
            return False

    with Endless(model, replace(ON_ONE_THREAD, context=256), MODES[name]) as engine:
        steps = list(Decoder(engine, MODES[name]).generate(prompts[3][:200]))
        assert sum(len(step.tokens) for step in steps) == engine.cells - 200 + 1
        assert steps[-1].finish == "length"


@pytest.mark.parametrize(
    ("write", "why"), [(tiny_models.write_mamba, "recurrent"), (tiny_models.write_hybrid, "hybrid")]
)
def test_a_model_that_cannot_go_back_decodes_plainly_and_says_why(
    write: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write(path)
    answers = []
    drafting = [DecodeSettings(mode=mode) for mode in ALL_MODES if mode != "plain"]
    for chosen in (PLAIN, *drafting):
        with load(path, model_settings=ON_ONE_THREAD, decode_settings=chosen) as session:
            assert session.settings.mode == "plain"
            assert session.engine.sequences == 1
            assert len(session.notes) == (chosen != PLAIN)
            assert all(why in note and note.startswith("decoding plainly") for note in session.notes)
            answers.append(
                [generate(session, prompt, max_tokens=40, raw=True) for prompt in ("the thing", "and so on\n" * 20)]
            )
    for again in answers[1:]:
        assert [answer.tokens for answer in again] == [answer.tokens for answer in answers[0]]
        assert [answer.text for answer in again] == [answer.text for answer in answers[0]]
    assert all(answer.statistics.steps == len(answer.tokens) for answer in answers[1])


@pytest.mark.parametrize("write", [tiny_models.write_mamba, tiny_models.write_hybrid])
def test_a_model_that_cannot_go_back_stops_at_a_stop_string_and_answers_again(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write(path)
    with load(path, model_settings=ON_ONE_THREAD) as session:
        whole = generate(session, "the thing", max_tokens=40, raw=True)
        stop = whole.text[len(whole.text) // 2 :][:3]
        cut = generate(session, "the thing", max_tokens=40, stops=[stop], raw=True)
        assert cut.text == whole.text[: whole.text.find(stop)]
        assert cut.finish_reason == "stop"
        assert generate(session, "the thing", max_tokens=40, raw=True).tokens == whole.tokens
        assert session.plain_tokens_per_second() == 0, "no step can be taken back to be timed again"


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (tiny_models.write_bert, "embedding model"),
        (tiny_models.write_t5, "encoder"),
        (tiny_models.write_diffusion, "diffusion model"),
        (tiny_models.write_unknown_architecture, "unknown model architecture: 'nonesuch'"),
    ],
)
def test_a_model_that_does_not_generate_is_refused(write: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path)
    with pytest.raises(ModelLoadError, match=why) as refusal:
        load(path, model_settings=ON_ONE_THREAD)
    assert "model.gguf" in refusal.value.what
    assert refusal.value.hint
    assert "\n" not in str(refusal.value)


def test_a_split_model_opens_from_any_part(tmp_path: Path) -> None:
    parts = tiny_models.write_llama_split(tmp_path)
    assert len(parts) == 2
    texts = []
    for part in parts:
        with load(part, model_settings=ON_ONE_THREAD) as session:
            assert session.model.path == parts[0]
            texts.append(generate(session, "the thing", max_tokens=20, raw=True).tokens)
    assert texts[0] == texts[1]
    parts[1].unlink()
    with pytest.raises(ModelLoadError, match=parts[1].name):
        load(parts[0], model_settings=ON_ONE_THREAD)
