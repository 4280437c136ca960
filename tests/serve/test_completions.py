"""POST /v1/completions and /infill: echoed prompts, log probabilities in OpenAI's lists, and texts with a hole."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import lacli
from lacli.batch import Batch
from lacli.engine import libraries
from lacli.ik.context import version as ik_version
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings
from tests.loading import STDLIB_7M
from tests.serve.conftest import app_of
from tests.serve.test_app import post
from tests.serve.test_fields import events

LOADING = ModelSettings(threads=1, gpu_layers=0, context=512)


def log_probabilities(context: LlamaContext, tokens: list[int]) -> list[float]:
    """Return the log probability of each token but the first, from the logits of one llama_decode."""
    rows = len(tokens)
    context.clear()
    context.decode(Batch(rows).set_rows(tokens, range(rows), [[0]] * rows, [True] * rows))
    logits = context.logits()[:-1].astype(np.float64)
    return [float(row[token] - np.log(np.exp(row).sum())) for row, token in zip(logits, tokens[1:], strict=True)]


@pytest.mark.parametrize("engine", ["llama", "ik"])
def test_multiple_choice_is_answered_as_by_the_models_own_logits(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests are lm-eval's, and the test reads the same fields of the replies."""
    if engine == "ik":
        if not ik_version():
            pytest.skip("ik_llama.cpp is not installed")
        monkeypatch.setattr(libraries, "version", ik_version)
    random, settings = np.random.default_rng(1), ModelSettings(threads=1, gpu_layers=0, engine=engine)
    with (
        lacli.load(STDLIB_7M, model_settings=settings, parallel=2) as model,
        LlamaModel(STDLIB_7M, LOADING) as weights,
        LlamaContext(weights, LOADING, ContextSize(1, 128, ordered=False), backend_greedy=False) as context,
    ):
        assert model.engine.model_settings.engine == engine
        client = TestClient(app_of(model))
        for number in range(20):
            question = random.integers(1, model.engine.model.vocabulary, 5 + 10 * (number % 9)).tolist()
            prompts: list[list[int]] = [
                question + random.integers(1, model.engine.model.vocabulary, 3).tolist() for _ in range(4)
            ]
            asked = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
            choices = client.post("/v1/completions", json=asked).json()["choices"]
            found: list[dict[str, list[Any]]] = [each["logprobs"] for each in choices]
            own = [sum(log_probabilities(context, prompt)[len(question) - 1 :]) for prompt in prompts]
            sums = [sum(each["token_logprobs"][len(question) : -1]) for each in found]
            # Batches of other sizes round differently, by up to 0.1 a token.
            assert sums == pytest.approx(own, abs=0.3)
            second, best = np.sort(own)[-2:]
            assert np.argmax(sums) == np.argmax(own) or best - second < 0.3
            for each, prompt in zip(found, prompts, strict=True):
                assert {len(each[name]) for name in each if name != "content"} == {len(prompt) + 1}
                places = zip(each["token_logprobs"][1:], each["top_logprobs"][1:], each["tokens"][1:], strict=True)
                assert all(top[token] == score <= max(top.values()) for score, top, token in places)


@pytest.mark.parametrize("most", [0, 4])
def test_an_echoed_prompt_comes_first_with_its_tokens(address: str, most: int) -> None:
    asked: dict[str, Any] = {
        "prompt": "def näme(a): # €\n",
        "max_tokens": most,
        "logprobs": 2,
        "echo": True,
        "stop": "zz",
    }
    whole = post(f"{address}/v1/completions", asked)["choices"][0]
    lists = whole["logprobs"]
    assert whole["text"].startswith(asked["prompt"]) and (len(whole["text"]) > len(asked["prompt"])) == bool(most)
    assert lists["token_logprobs"][0] is None is lists["top_logprobs"][0]
    assert len(lists["content"]) == most and any(each.startswith("bytes:\\x") for each in lists["tokens"])
    ends = [*lists["text_offset"][1:], len(whole["text"])]
    for token, begin, end in zip(lists["tokens"], lists["text_offset"], ends, strict=True):
        assert whole["text"][begin:end] == token or token.startswith("bytes:")
    parts = [each["choices"][0] for each in events(f"{address}/v1/completions", asked)]
    assert "".join(each["text"] for each in parts) == whole["text"]
    for name, found in lists.items():
        streamed = [*chain.from_iterable(each["logprobs"][name] for each in parts)]
        assert (
            streamed == found
            or name == "content"
            or streamed == [pytest.approx(each, abs=0.01) if each is not None else None for each in found]
        )
    del asked["logprobs"]
    silent = post(f"{address}/v1/completions", asked)["choices"][0]
    assert silent["text"] == whole["text"] and silent["logprobs"] is None


MARKS = {"pre": 300, "suf": 301, "mid": 302, "rep": 303, "sep": 304}
"""Tokens of the 7M model that replace the infill tokens that it lacks."""

HOLE = {"input_prefix": "def f(a):\n", "input_suffix": "    return b\n", "n_predict": 2}


@pytest.mark.parametrize("lacks", [(), ("rep", "sep"), ("pre",)])
def test_infill_puts_the_texts_around_a_hole_in_llama_servers_order(
    lacks: tuple[str, ...], address: str, model: lacli.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {name: token for name, token in MARKS.items() if name not in lacks}
    monkeypatch.setitem(vars(model.engine.model), "infill_tokens", marks)
    name = {each: model.engine.text([token], special=True) for each, token in MARKS.items()}
    asked = {**HOLE, "prompt": "    b = ", "input_extra": [{"filename": "a.py", "text": "b = 1\n"}, {"text": "c"}]}
    found = post(f"{address}/infill", asked)
    completed = post(
        f"{address}/v1/completions", {"prompt": "x = ", "suffix": " + 1", "max_tokens": 2, "verbose": True}
    )
    if "pre" in lacks:
        assert found["error"] == completed["error"] and found["error"]["code"] == 400
        assert "no tokens for infilling" in found["error"]["message"]
        return
    snippet = "\n\n--- snippet ---\n\n"
    files = f"{snippet}b = 1\n{snippet}c"
    if not lacks:
        files = f"{name['rep']}myproject\n{name['sep']}a.py\nb = 1\n{name['sep']}tmp\nc{name['sep']}filename\n"
    hole = f"{name['pre']}def f(a):\n    b = {name['suf']}    return b\n{name['mid']}"
    assert found["prompt"] == files + hole
    assert completed["__verbose"]["prompt"] == f"{name['pre']}x = {name['suf']} + 1{name['mid']}"


def test_what_lies_far_from_a_hole_is_cut(address: str, model: lacli.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(model.engine.model), "infill_tokens", MARKS)
    far = "x = 1\n" * model.context
    asked = {**HOLE, "input_prefix": f"{far}y = ", "input_suffix": f"z{far}", "input_extra": [{"text": far}]}
    found = post(f"{address}/infill", asked)
    mark = model.engine.text([301], special=True)
    assert found["tokens_evaluated"] == 3 * model.context // 4 and f"y = {mark}z" in found["prompt"]
