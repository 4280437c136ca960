"""Several contexts on the bundled model give the tokens of one, to the last bit with --strict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import llama_cpp as lib
import pytest

from lacli.check.judge import PLAIN
from lacli.engine.replicas import ReplicaContext
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.gguf import weight_types
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, strict_settings
from lacli.settings import DecodeSettings
from lacli.verify import SampleAndMatch
from tests.end_to_end.test_stdlib_7m import asked, tokens_of
from tests.fakes.decoding import fixed_clock_decoder
from tests.fakes.talking import QUESTION
from tests.loading import STDLIB_7M

LIMIT = 40
MODES = {
    "jacobi": DecodeSettings(mode="jacobi", window=9),
    "lookup": DecodeSettings(mode="lookup"),
    "lookahead": DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5),
    "no window": DecodeSettings(mode="lookahead", window=0, ngram=3, guesses=9),
    "auto": DecodeSettings(mode="auto", window=5, ngram=4),
}
QUESTIONS = (
    QUESTION,
    "Show me the source code of `json.dumps`.",
    "Rename the argument `x` to `count` in this function:\n```python\ndef take(x):\n    return [x] * x\n```",
)
WARM = SamplingSettings(temp=0.8, seed=7, repeat_penalty=1.1)


def strict(chosen: DecodeSettings) -> tuple[ModelSettings, DecodeSettings]:
    settings = ModelSettings(context=512, gpu_layers=0, threads=1)
    return strict_settings(settings, chosen, weight_types(STDLIB_7M), on_gpu=False)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(STDLIB_7M, strict(PLAIN)[0]) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(model: LlamaModel) -> list[list[int]]:
    return asked(model, QUESTIONS)


def answers(contexts: Sequence[LlamaContext], chosen: DecodeSettings, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Greedy answers to all prompts, then sampled ones."""
    found = []
    with LlamaSampler(contexts[0]._model, WARM) as sampler:
        for verifier in (None, SampleAndMatch(sampler)):
            for prompt in prompts:
                decoder = fixed_clock_decoder(ReplicaContext(contexts), chosen, verifier)
                found.append(tokens_of(list(decoder.generate(prompt, LIMIT))))
                assert max(map(held, contexts)) >= len(decoder.tokens) - chosen.max_step_tokens
                assert all(held(context) < len(decoder.tokens) for context in contexts)
    return found


def held(context: LlamaContext) -> int:
    """Tokens in the cache of a context, of which no sequence may have more than the first one."""
    ends = [int(lib.llama_memory_seq_pos_max(context._memory, sequence)) + 1 for sequence in range(context.sequences)]
    assert ends[0] == max(ends)
    return ends[0]


@pytest.fixture(scope="module")
def expected(model: LlamaModel, prompts: list[list[int]]) -> list[list[int]]:
    """What strict plain decoding answers in one context."""
    model_settings, chosen = strict(PLAIN)
    with LlamaContext(model, model_settings, chosen, backend_greedy=False) as context:
        found = answers([context], chosen, prompts)
    assert found[: len(prompts)] != found[len(prompts) :]
    return found


@pytest.mark.parametrize(("name", "count"), [*((name, 2) for name in MODES), ("lookahead", 3)])
def test_strict_replicas_give_strict_plains_tokens(
    name: str, count: int, model: LlamaModel, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    model_settings, chosen = strict(MODES[name])
    with ExitStack() as stack:
        contexts = [
            stack.enter_context(LlamaContext(model, model_settings, chosen, backend_greedy=False)) for _ in range(count)
        ]
        assert answers(contexts, chosen, prompts) == expected
        if chosen.mode == "lookahead":
            # One call is each prompt's. A step of few candidates may have none for a third context.
            assert sorted(context.calls for context in contexts)[-2] > 6 * len(prompts)
