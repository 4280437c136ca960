"""Several contexts on the bundled model: the tokens of one, to the last bit with --strict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import llama_cpp as lib
import numpy as np
import pytest

from lacli.check.judge import PLAIN, plain_logits
from lacli.engine.replicas import ReplicaContext
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.gguf import weight_types
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, strict_settings
from lacli.settings import DecodeSettings
from lacli.stats import Step
from lacli.verify import SampleAndMatch
from tests.end_to_end.test_stdlib_7m import asked
from tests.fakes.decoding import Decoding, fixed_clock_decoder
from tests.fakes.talking import QUESTION
from tests.loading import STDLIB_7M

LIMIT = 40
ON_ONE_THREAD = ModelSettings(context=512, gpu_layers=0, threads=1)
CLEAR = 0.2
"""Logits by which a token must lead, that no order of sums can change which one is chosen."""

LOOKAHEAD = DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5)
AUTO = DecodeSettings(mode="auto", window=5, ngram=4)
MODES = [
    PLAIN,
    DecodeSettings(mode="jacobi", window=9),
    DecodeSettings(mode="lookup"),
    LOOKAHEAD,
    DecodeSettings(mode="lookahead", window=0, ngram=3, guesses=9),
    AUTO,
]
NAMES = [*(f"{chosen.mode}" for chosen in MODES[:4]), "no window", "auto"]
QUESTIONS = (
    QUESTION,
    "Show me the source code of `json.dumps`.",
    "Rename the argument `x` to `count` in this function:\n```python\ndef take(x):\n    return [x] * x\n```",
)


def strict(chosen: DecodeSettings) -> tuple[ModelSettings, DecodeSettings]:
    return strict_settings(ON_ONE_THREAD, chosen, weight_types(STDLIB_7M), on_gpu=False)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(STDLIB_7M, strict(PLAIN)[0]) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(model: LlamaModel) -> list[list[int]]:
    return asked(model, QUESTIONS)


class Group:
    """Contexts of a model, and decoders in which they decode together; `with` closes them."""

    def __init__(
        self, model: LlamaModel, model_settings: ModelSettings, chosen: DecodeSettings, count: int = 1
    ) -> None:
        self._stack = ExitStack()
        self._chosen = chosen
        self.engines = [
            self._stack.enter_context(LlamaContext(model, model_settings, chosen, backend_greedy=False))
            for _ in range(count)
        ]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def decoder(self, sampler: LlamaSampler | None = None) -> Decoding:
        verifier = SampleAndMatch(sampler) if sampler else None
        return fixed_clock_decoder(ReplicaContext(self.engines), self._chosen, verifier)

    def answers(self, prompts: Sequence[list[int]], sampler: LlamaSampler | None = None) -> list[list[int]]:
        found = []
        for prompt in prompts:
            decoder = self.decoder(sampler)
            found.append(tokens_of(list(decoder.generate(prompt, LIMIT))))
            assert decoder.tokens == prompt + found[-1]
            assert all(held(engine) < len(decoder.tokens) for engine in self.engines)
            assert max(held(engine) for engine in self.engines) >= len(decoder.tokens) - self._chosen.max_step_tokens
        return found


def held(engine: LlamaContext) -> int:
    """Tokens in the cache of a context, of which no sequence may have more than the text's."""
    ends = [int(lib.llama_memory_seq_pos_max(engine._memory, sequence)) + 1 for sequence in range(engine.sequences)]
    assert ends[0] == max(ends)
    return ends[0]


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.fixture(scope="module")
def strict_plain(model: LlamaModel, prompts: list[list[int]]) -> dict[float, list[list[int]]]:
    """The answers of strict plain decoding in one context, by temperature."""
    with Group(model, *strict(PLAIN)) as one:
        found = {0.0: one.answers(prompts)}
        for temp in (0.8, 1.2):
            with sampler_at(model, temp) as sampler:
                found[temp] = one.answers(prompts, sampler)
        return found


def sampler_at(model: LlamaModel, temp: float) -> LlamaSampler:
    return LlamaSampler(model, SamplingSettings(temp=temp, seed=7, repeat_penalty=1.1))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("chosen", MODES, ids=NAMES)
def test_strict_replicas_give_strict_plains_tokens(
    chosen: DecodeSettings,
    count: int,
    model: LlamaModel,
    prompts: list[list[int]],
    strict_plain: dict[float, list[list[int]]],
) -> None:
    with Group(model, *strict(chosen), count) as group:
        assert group.answers(prompts) == strict_plain[0.0]
        for temp in (0.8, 1.2):
            with sampler_at(model, temp) as sampler:
                assert group.answers(prompts, sampler) == strict_plain[temp]
        if group.engines[0].sequences > 1:
            # One call is each prompt's. A step of few candidates may have none for a third one, nor have auto's chains.
            least = 9 if chosen.mode == "lookahead" else 1
            assert sorted(engine.calls for engine in group.engines)[-2] > least * len(prompts)


def test_samples_differ_from_what_is_most_probable(strict_plain: dict[float, list[list[int]]]) -> None:
    greedy, *warm = strict_plain.values()
    assert all(each != greedy for each in warm)
    assert sum(map(len, greedy)) > LIMIT


@pytest.fixture(scope="module")
def clear_beginnings(model: LlamaModel, prompts: list[list[int]]) -> list[list[int]]:
    """What plain decoding answers, up to where another token is nearly as probable."""
    with Group(model, ON_ONE_THREAD, PLAIN) as one:
        beginnings = []
        for prompt, tokens in zip(prompts, one.answers(prompts), strict=True):
            leads = (lead_of(one.engines[0], prompt, tokens[:place]) for place in range(len(tokens)))
            clear = next((place for place, lead in enumerate(leads) if lead < CLEAR), len(tokens))
            beginnings.append(tokens[:clear])
        return beginnings


def lead_of(engine: LlamaContext, prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """By how much the most probable token leads after these."""
    second, first = np.sort(plain_logits(engine, prompt, tokens))[-2:]
    return float(first - second)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("chosen", MODES, ids=NAMES)
def test_replicas_give_plains_tokens_where_no_other_is_nearly_as_probable(
    chosen: DecodeSettings,
    count: int,
    model: LlamaModel,
    prompts: list[list[int]],
    clear_beginnings: list[list[int]],
) -> None:
    assert sum(map(len, clear_beginnings)) > 30, "the answers part too early: the test has lost its point"
    with Group(model, ON_ONE_THREAD, chosen, count) as group:
        answers = group.answers(prompts)
    assert [answer[: len(clear)] for answer, clear in zip(answers, clear_beginnings, strict=True)] == clear_beginnings


@pytest.mark.parametrize("chosen", [LOOKAHEAD, AUTO, DecodeSettings(mode="lookup")], ids=lambda each: each.mode)
def test_turns_that_are_closed_early_go_on_as_fresh_strict_runs(
    chosen: DecodeSettings, model: LlamaModel, prompts: list[list[int]]
) -> None:
    with Group(model, *strict(chosen), 2) as group, Group(model, *strict(PLAIN)) as one:
        decoder = group.decoder()
        prompt = prompts[0]
        for more in (prompts[1][-9:], prompts[2][-9:], []):
            answer = decoder.generate(prompt, LIMIT)
            steps = [next(answer) for _ in range(4)]
            answer.close()
            expected = tokens_of(list(one.decoder().generate(prompt, LIMIT)))
            assert tokens_of(steps) == expected[: len(tokens_of(steps))]
            assert all(held(engine) < len(decoder.tokens) for engine in group.engines)
            prompt = [*decoder.tokens, *more]
        assert tokens_of(list(decoder.generate(prompt, LIMIT))) == one.answers([prompt])[0]
