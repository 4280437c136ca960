"""A small random LFM2 on real llama.cpp: every chain that its state is taken back by leaves plain's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from lacli import generate, load
from lacli.batch import Batch, from_tokens
from lacli.check.compare import Comparison
from lacli.check.replay import Recorder
from lacli.decode import Decoder
from lacli.engine import Floats
from lacli.llamacpp.context import MOST_BACK, LlamaEngine, most_back
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.fakes import tiny_models
from tests.fakes.margins import PLAIN, bugs, compare
from tests.test_hybrid import CHAINS, Prophet

LIMIT = 60
LOADING = ModelSettings(context=512, gpu_layers=0, threads=1)
WARM = SamplingSettings(seed=7, temp=0.9)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lfm2") / "model.gguf"
    tiny_models.write_lfm2(path)
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(path, LOADING) as model:
        yield model


@pytest.fixture(scope="module")
def asked(model: LlamaModel) -> list[list[int]]:
    draw = Random(5)
    letters = "".join(draw.choice("abcdefgh .()\n") for _ in range(330))
    return [model.tokenize(text) for text in ("the thing", "for x in range(10):\n    print(x)\n" * 6, letters)]


@pytest.fixture(scope="module")
def comparison(model: LlamaModel) -> Iterator[Comparison]:
    with compare(model, LOADING, LIMIT) as comparison:
        yield comparison


@pytest.fixture(scope="module")
def sampled(model: LlamaModel) -> Iterator[Comparison]:
    with (
        LlamaSampler(model, WARM) as sampler,
        Comparison(lambda decode: LlamaEngine(model, LOADING, decode), LIMIT, sampler=sampler) as comparison,
    ):
        yield comparison


@pytest.mark.parametrize("mode", CHAINS)
@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "sampled"])
def test_every_drafting_mode_of_a_hybrid_model_equals_plain_but_for_rounding(
    mode: str, drawn: bool, comparison: Comparison, sampled: Comparison, asked: list[list[int]]
) -> None:
    chosen = DecodeSettings(mode=mode, window=6, back=MOST_BACK)  # type: ignore[arg-type]
    runs = (sampled if drawn else comparison).run(chosen, asked)
    assert bugs(runs) == []
    accepted = {len(step.tokens) - 1 for run in runs for step in run.steps if step.drafted}
    assert {0, 1} <= accepted, "hardly a chain was taken back"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "sampled"])
def test_a_hybrid_models_text_is_plains_whatever_is_accepted_of_its_chains(
    seed: int, drawn: bool, model: LlamaModel, comparison: Comparison, sampled: Comparison, asked: list[list[int]]
) -> None:
    chosen = DecodeSettings(mode="lookup", back=MOST_BACK)
    beside = sampled if drawn else comparison
    with LlamaEngine(model, LOADING, chosen) as opened:
        assert opened.back == MOST_BACK
        for prompt in asked:
            engine = Recorder(opened)
            future = [*prompt, *beside.plain(prompt)]
            prophet = partial(Prophet, future, MOST_BACK, seed)
            run = beside.one(beside.decoder(engine, chosen, prophet), engine, prompt)
            assert bugs([run]) == []
            depths = {len(step.tokens) - 1 for step in run.steps}
            assert max(depths) > MOST_BACK // 2 and 0 in depths


class Endless(LlamaEngine):
    """Has no end tokens."""

    def is_end(self, token: int) -> bool:
        return False


@pytest.mark.parametrize("keep", [None, 4], ids=["it ends", "it is shifted"])
def test_a_full_context_of_a_hybrid_model_is_as_in_plain_decoding(
    keep: int | None, model: LlamaModel, asked: list[list[int]]
) -> None:
    loading = replace(LOADING, context=256)
    texts = []
    for chosen in (PLAIN, DecodeSettings(mode="lookup", back=MOST_BACK), DecodeSettings(mode="jacobi", back=5)):
        with Endless(model, loading, chosen) as engine:
            steps = Decoder(engine, chosen).generate(asked[1], 300, keep=keep)
            texts.append([token for step in steps for token in step.tokens])
    assert texts[1] == texts[2] == texts[0]
    assert len(texts[0]) == (300 if keep else 256 - len(asked[1]) + 1)


def fed(engine: LlamaEngine, tokens: Sequence[int], past: int) -> Floats:
    """The last row's logits, (vocabulary,), of tokens decoded in one batch."""
    rows = len(tokens)
    wanted = [*[False] * (rows - 1), True]
    assert engine.decode(Batch(rows).set_rows(tokens, range(past, past + rows), [[0]] * rows, wanted))
    logits: Floats = engine.logits()[0].copy()
    return logits


@pytest.mark.parametrize("sizes", [(1,), (1, 1, 1, 1), (6,), (3, 3), (9,), (12,), (5, 2)])
@pytest.mark.parametrize("back", range(1, MOST_BACK + 2))
def test_a_state_that_was_taken_back_is_a_fresh_contexts_or_stays(
    sizes: tuple[int, ...], back: int, model: LlamaModel, asked: list[list[int]]
) -> None:
    text = asked[2]
    chosen = DecodeSettings(mode="lookup", back=MOST_BACK)
    with LlamaEngine(model, LOADING, chosen) as engine, LlamaEngine(model, LOADING, PLAIN) as fresh:
        assert engine.decode(from_tokens(text[:20], 0))
        past = 20
        for size in sizes:
            fed(engine, text[past : past + size], past)
            past += size
        gone = engine.remove(0, past - back, -1)
        assert gone == (back <= min(sizes[-1] - 1, MOST_BACK))
        if gone:
            past -= back
            assert not engine.remove(0, past - 1, -1), "there is one way back a step"
        assert engine.remove(0, past, -1), "nothing is behind the end"
        assert fresh.decode(from_tokens(text[:past], 0))
        after = [fed(each, [text[-1]], past) for each in (engine, fresh)]
        np.testing.assert_allclose(after[0], after[1], atol=1e-3)
        assert engine.remove(0, 0, -1), "the whole can always be forgotten"


@pytest.mark.parametrize("warm", [SamplingSettings(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", CHAINS)
def test_a_hybrid_session_stops_is_cut_back_and_answers_as_a_fresh_one(
    mode: str, warm: SamplingSettings, path: Path
) -> None:
    question = "for x in range(10):\n    print(x)\n" * 4
    chosen = DecodeSettings(mode=mode)  # type: ignore[arg-type]
    with load(path, model_settings=LOADING, sampling=warm, decode_settings=PLAIN) as plain:
        whole = generate(plain, question, max_tokens=40, raw=True)
        with load(path, model_settings=LOADING, sampling=warm, decode_settings=chosen) as session:
            assert session.settings.back == session.engine.back == MOST_BACK
            assert generate(session, question, max_tokens=40, raw=True).tokens == whole.tokens
            stop = whole.text[len(whole.text) // 2 :][:3]
            cut = generate(session, question, max_tokens=40, stops=[stop], raw=True)
            assert (cut.text, cut.finish_reason) == (whole.text[: whole.text.find(stop)], "stop")
            for kept in (len(session.decoder.text), 60, 3):
                session.plain_tokens_per_second()
                prompt = [*session.decoder.text[:kept], *session.model.tokenize(" and then")]
                fresh, again = plain.generate(prompt, 20), session.generate(prompt, 20, reuse=True)
                for generation in (fresh, again):
                    assert list(generation)
                assert again.answer().tokens == fresh.answer().tokens


def test_a_tree_mode_becomes_auto_and_a_longer_chain_shorter_and_both_are_said(path: Path) -> None:
    with load(path, model_settings=LOADING) as session:
        assert (session.settings.mode, session.settings.back) == ("auto", MOST_BACK)
        assert session.notes == [], "mode auto is as it was asked for"
    with load(path, model_settings=LOADING, decode_settings=DecodeSettings(mode="lookahead")) as session:
        assert (session.settings.mode, session.settings.back) == ("auto", MOST_BACK)
        assert "mode auto instead of lookahead" in session.notes[0]
        session.notes.clear()
        assert not session.adapt(DecodeSettings(mode="lookup", lookup_draft=MOST_BACK), session.sampling)
        assert session.notes == []
        assert not session.adapt(DecodeSettings(mode="jacobi", window=MOST_BACK + 1), session.sampling)
        assert [f"at most {MOST_BACK} guesses" in note for note in session.notes] == [True]
        assert session.settings.most_tokens == session.settings.most_rows == 1 + MOST_BACK
        assert session.engine.sequences == 1


def test_a_plain_session_keeps_no_copies_of_the_state_and_makes_them_when_it_drafts(path: Path) -> None:
    with load(path, model_settings=LOADING, decode_settings=PLAIN) as session:
        assert session.engine.back == 0
        assert session.notes == []
        before = generate(session, "the thing", max_tokens=30, raw=True).tokens
        assert session.adapt(DecodeSettings(mode="jacobi", window=4), session.sampling), "it takes a new context"
        assert session.engine.back == MOST_BACK
        assert generate(session, "the thing", max_tokens=30, raw=True).tokens == before


def test_strict_decodes_a_hybrid_model_plainly(path: Path) -> None:
    with load(path, model_settings=LOADING, decode_settings=DecodeSettings(strict=True)) as session:
        assert session.settings.mode == "plain"
        assert any(note.startswith("decoding plainly: --strict") for note in session.notes)


@pytest.mark.parametrize(("batch", "back"), [(2, 0), (3, 1), (9, 7), (10, 8), (11, 8)])
def test_small_batches_hold_shorter_chains_and_llama_cpp_survives_them(
    batch: int, back: int, path: Path, comparison: Comparison, asked: list[list[int]]
) -> None:
    loading = replace(LOADING, batch=batch)
    chosen = DecodeSettings(mode="lookup", lookup_draft=1)
    with load(path, model_settings=loading, decode_settings=chosen) as session:
        assert most_back(session.model, loading) == back
        assert (session.settings.mode, max(session.settings.back, 0)) == ("lookup" if back else "plain", back)
        answer = session.generate(asked[1], 20)
        assert list(answer)
        assert list(answer.answer().tokens) == comparison.plain(asked[1])[:20]


def test_other_models_have_no_such_limit(tmp_path: Path) -> None:
    for write, back in ((tiny_models.write_llama, -1), (tiny_models.write_mamba, 0), (tiny_models.write_hybrid, 0)):
        write(tmp_path / "model.gguf")
        with LlamaModel(tmp_path / "model.gguf", LOADING) as model:
            assert most_back(model, LOADING) == back
