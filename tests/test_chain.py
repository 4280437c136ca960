"""llama.cpp's samplers on the bundled model: the default order, what each flag does, and grammars that end nowhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import llama_cpp as lib
import numpy as np
import pytest

from lacli.chain import LlamaSampler
from lacli.engine import Floats
from lacli.errors import SamplingError, UsageError
from lacli.llama import LlamaModel
from lacli.resolve import demo_model
from lacli.sampling import SamplingSettings
from lacli.settings import ModelSettings

WARM = SamplingSettings(seed=7, temp=1.0)
GRAMMAR = 'root ::= "yes" | "no"'


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(demo_model(), ModelSettings(gpu_layers=0, threads=1)) as model:
        yield model


@pytest.fixture(scope="module")
def logits(model: LlamaModel) -> Floats:
    return np.random.default_rng(1).normal(0, 4, model.vocabulary).astype(np.float32)


def names(sampler: LlamaSampler) -> list[str]:
    chain = sampler._samplers.chain
    parts = [lib.llama_sampler_chain_get(chain, index) for index in range(lib.llama_sampler_chain_n(chain))]
    parts.append(sampler._samplers.last)
    return [lib.llama_sampler_name(part).decode() for part in parts]


def drawn(model: LlamaModel, settings: SamplingSettings, logits: Floats, count: int, text: list[int]) -> list[int]:
    with LlamaSampler(model, settings) as sampler:
        sampler.begin(text)
        return [sampler.draw(logits) for _ in range(count)]


def token(model: LlamaModel, text: str) -> int:
    (found,) = model.tokenize(text, add_special=False)
    return found


def test_the_chain_has_llama_cpps_default_order(model: LlamaModel) -> None:
    everything = SamplingSettings(
        seed=1,
        temp=0.8,
        logit_bias=((1, 1.0),),
        repeat_penalty=1.1,
        dry_multiplier=0.8,
        top_nsigma=2.0,
        typical=0.9,
        xtc_probability=0.5,
        dynatemp_range=0.1,
    )
    with LlamaSampler(model, everything) as sampler:
        assert names(sampler) == [
            *("logit-bias", "penalties", "dry", "top-n-sigma", "top-k", "typical", "top-p", "min-p"),
            *("xtc", "temp-ext", "dist"),
        ]


@pytest.mark.parametrize(("version", "name"), [(1, "mirostat"), (2, "mirostat-v2")])
def test_mirostat_stands_behind_the_temperature_alone(model: LlamaModel, version: int, name: str) -> None:
    with LlamaSampler(model, replace(WARM, temp=0.8, mirostat=version)) as sampler:
        assert names(sampler) == ["temp", name]


def test_a_seed_repeats_its_draws_and_another_one_does_not(model: LlamaModel, logits: Floats) -> None:
    first = drawn(model, WARM, logits, 20, [])
    assert drawn(model, WARM, logits, 20, []) == first
    assert drawn(model, replace(WARM, seed=8), logits, 20, []) != first


@pytest.mark.parametrize(
    "settings", [WARM, replace(WARM, xtc_probability=0.5), replace(WARM, mirostat=2), replace(WARM, grammar=GRAMMAR)]
)
def test_begin_starts_anew(model: LlamaModel, logits: Floats, settings: SamplingSettings) -> None:
    with LlamaSampler(model, settings) as sampler:
        sampler.begin([])
        first = sampler.draw(logits), sampler.draw(logits)
        sampler.begin([])
        assert (sampler.draw(logits), sampler.draw(logits)) == first


@pytest.mark.parametrize(
    "settings",
    [
        WARM,
        replace(WARM, top_k=0, top_p=1.0, min_p=0.0),
        replace(WARM, temp=0.0, repeat_penalty=1.5),
        replace(WARM, typical=0.6),
        replace(WARM, dynatemp_range=0.5),
    ],
)
def test_a_draw_is_where_its_number_falls_in_the_preview(
    model: LlamaModel, logits: Floats, settings: SamplingSettings
) -> None:
    with LlamaSampler(model, settings) as sampler:
        sampler.begin([])
        for _ in range(30):
            number = sampler.uniform()
            tokens, probabilities = sampler.preview(logits)
            assert number is not None
            here = int(np.searchsorted(probabilities.cumsum(), number))
            peeked = sampler.peek(logits)
            assert sampler.draw(logits) == peeked == tokens[here]


@pytest.mark.parametrize(
    "settings",
    [
        replace(WARM, top_k=6, min_p=0.0),
        replace(WARM, top_k=6, min_p=0.0, xtc_probability=1.0, xtc_threshold=0.2),
        replace(WARM, top_k=6, min_p=0.0, grammar='root ::= [a-z "=()]+'),
    ],
)
def test_the_distribution_is_that_of_the_draws(model: LlamaModel, settings: SamplingSettings) -> None:
    logits = np.full(model.vocabulary, -5.0, np.float32)
    for place, text in enumerate((" self", "\n", "A", " return", "(", "_", " the", "7")):
        logits[token(model, text)] = 2 - 0.3 * place
    count = 3000
    seen: Counter[int] = Counter()
    with LlamaSampler(model, settings) as sampler:
        tokens, probabilities = sampler.distribution(logits)
    for seed in range(count):
        seen.update(drawn(model, replace(settings, seed=seed), logits, 1, []))
    assert probabilities.sum() == pytest.approx(1)
    for each, chance in zip(tokens.tolist(), probabilities.tolist(), strict=True):
        # 5 standard deviations: with seeds chosen at random one token would miss it once in 1.7 million times.
        assert abs(seen.pop(each, 0) - count * chance) <= 5 * np.sqrt(count * chance * (1 - chance)) + 1e-6
    assert not seen


def test_penalties_know_the_prompt_and_what_was_drawn(model: LlamaModel, logits: Floats) -> None:
    best, second = (int(token) for token in np.argsort(-logits)[:2])
    penalised = SamplingSettings(seed=1, presence_penalty=100.0)
    assert drawn(model, penalised, logits, 2, []) == [best, second]
    assert drawn(model, penalised, logits, 1, [best]) == [second]
    assert drawn(model, replace(penalised, repeat_last_n=2), logits, 1, [best, 1, 2]) == [best]


def test_a_drawn_token_is_counted_once(model: LlamaModel) -> None:
    logits = np.zeros(model.vocabulary, np.float32)
    logits[500], logits[600] = 10.0, 9.0
    assert drawn(model, SamplingSettings(seed=1, frequency_penalty=0.7), logits, 3, []) == [500, 500, 600]


def test_dry_knows_the_prompt(model: LlamaModel) -> None:
    *passage, last, other = (token(model, text) for text in (" the", " in", " return", " self", " is"))
    logits = np.zeros(model.vocabulary, np.float32)
    logits[last], logits[other] = 3.0, 2.0
    dry = SamplingSettings(seed=1, dry_multiplier=5.0)
    assert drawn(model, dry, logits, 1, [*passage, last, *passage]) == [other]
    assert drawn(model, dry, logits, 1, passage) == [last]


def test_a_bias_forbids_or_forces_a_token(model: LlamaModel, logits: Floats) -> None:
    best = int(logits.argmax())
    assert drawn(model, SamplingSettings(seed=1, logit_bias=((best, -np.inf),)), logits, 1, []) != [best]
    assert drawn(model, SamplingSettings(seed=1, logit_bias=((5, 1000.0),)), logits, 1, []) == [5]


def test_ignoring_the_end_forbids_every_end_token(model: LlamaModel) -> None:
    logits = np.zeros(model.vocabulary, np.float32)
    logits[model.ends()] = 9.0
    assert model.is_end(drawn(model, SamplingSettings(seed=1, repeat_penalty=1.1), logits, 1, [])[0])
    assert not model.is_end(drawn(model, SamplingSettings(seed=1, ignore_eos=True), logits, 1, [])[0])


@pytest.mark.parametrize("bad", [-1, 4096, 10**9])
def test_a_bias_for_a_token_that_is_not_there_is_refused(model: LlamaModel, bad: int) -> None:
    with pytest.raises(UsageError, match=f"token {bad}, and the model has 4096"):
        LlamaSampler(model, SamplingSettings(seed=1, logit_bias=((bad, 1.0),)))


@pytest.mark.parametrize("temp", [0.0, 1.5])
def test_a_grammar_is_followed_to_its_end_and_knows_nothing_of_the_prompt(model: LlamaModel, temp: float) -> None:
    logits = np.random.default_rng(3).normal(0, 4, model.vocabulary).astype(np.float32)
    prompt = model.tokenize("maybe")
    tokens: list[int] = []
    with LlamaSampler(model, SamplingSettings(seed=3, temp=temp, grammar=GRAMMAR)) as sampler:
        sampler.begin(prompt)
        while not tokens or not model.is_end(tokens[-1]):
            tokens.append(sampler.draw(logits))
    assert b"".join(map(model.piece, tokens)) in (b"yes", b"no")


@pytest.mark.parametrize("drawing", ["draw", "distribution", "peek", "preview"])
@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(seed=1, grammar="root ::= <[5]>", logit_bias=((5, -np.inf),)),
        SamplingSettings(seed=1, logit_bias=tuple((token, -np.inf) for token in range(4096))),
        SamplingSettings(seed=1, temp=0.8, mirostat=1, logit_bias=tuple((token, -np.inf) for token in range(4096))),
        SamplingSettings(seed=1, temp=0.8, mirostat=2, logit_bias=tuple((token, -np.inf) for token in range(4096))),
    ],
)
def test_where_nothing_may_come_next_there_is_one_line_and_no_token(
    model: LlamaModel, logits: Floats, settings: SamplingSettings, drawing: str
) -> None:
    with LlamaSampler(model, settings) as sampler:
        sampler.begin([])
        with pytest.raises(SamplingError) as raised:
            getattr(sampler, drawing)(logits)
    assert "\n" not in str(raised.value) and raised.value.hint


def test_a_finished_grammar_whose_end_is_forbidden_is_a_dead_end(model: LlamaModel, logits: Floats) -> None:
    with LlamaSampler(model, SamplingSettings(seed=1, grammar='root ::= "a"', ignore_eos=True)) as sampler:
        sampler.begin([])
        sampler.draw(logits)
        with pytest.raises(SamplingError, match="the grammar allows no token"):
            sampler.draw(logits)
