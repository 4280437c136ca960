"""One seed gives one text on the bundled model: exactly with strict decoding, otherwise except for rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lacli.check.compare import Comparison
from lacli.engine.load import open_engine
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.template import as_messages, choose_template
from tests.fakes.decoding import bugs
from tests.loading import STDLIB_7M, generate

QUESTIONS = ("Show me the source code of `queue.Queue.put`.", "Explain the function os.path.commonprefix.")
LIMIT = 40
ON_ONE_THREAD = ModelSettings(context=512, gpu_layers=0, threads=1)
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "tags": {"items": {"enum": ["a", "b"]}}}}'
WARM = SamplingSettings(seed=7, temp=0.8)
SAMPLINGS = {
    "temperature 0.8": WARM,
    "temperature 1.5": replace(WARM, temp=1.5),
    "all candidates": replace(WARM, top_k=0, top_p=1.0, min_p=0.0),
    "typical": replace(WARM, typical=0.7),
    "penalties": replace(WARM, repeat_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1),
    "penalties at temperature 0": replace(WARM, temp=0.0, repeat_penalty=1.3),
    "DRY": replace(WARM, dry_multiplier=0.8, dry_allowed_length=1),
    "XTC": replace(WARM, xtc_probability=0.5),
    "a bias": replace(WARM, logit_bias=((300, 2.0), (301, -2.0))),
    "a grammar": replace(WARM, grammar='root ::= ("a" | "the" | [b-z]+ | " ")+ "."'),
    "a JSON schema": replace(WARM, json_schema=SCHEMA),
}
MODES = (
    DecodeSettings(mode="jacobi", window=6),
    DecodeSettings(mode="lookup"),
    DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5),
)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_strict_texts_are_the_same_in_every_mode(name: str) -> None:
    plain, *others = (replace(mode, strict=True) for mode in (DecodeSettings(mode="plain"), *MODES))
    with open_engine(STDLIB_7M, ON_ONE_THREAD, plain, SAMPLINGS[name]) as engine:
        texts = [generate(engine, question, max_tokens=LIMIT).tokens for question in QUESTIONS]
    assert all(texts)
    with open_engine(STDLIB_7M, ON_ONE_THREAD, others[-1], SAMPLINGS[name]) as engine:
        for mode in others:
            engine.adapt(mode, SAMPLINGS[name])
            assert [generate(engine, question, max_tokens=LIMIT).tokens for question in QUESTIONS] == texts


@pytest.mark.parametrize("name", ["temperature 0.8", "penalties", "XTC", "a grammar"])
def test_other_texts_part_by_rounding_only(name: str, small: LlamaModel) -> None:
    sampling = SAMPLINGS[name]
    template, _ = choose_template("", small)
    prompts = [small.tokenize(template.render(as_messages(question))) for question in QUESTIONS]

    def opened(decode: DecodeSettings) -> LlamaContext:
        return LlamaContext(small, ON_ONE_THREAD, ContextSize.of(decode), backend_greedy=False)

    with LlamaSampler(small, sampling) as sampler, Comparison(opened, LIMIT, sampler=sampler) as comparison:
        for mode in MODES:
            runs = [*comparison.run(mode, prompts)]
            assert len(runs) == len(QUESTIONS)
            assert bugs(runs) == []
