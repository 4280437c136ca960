"""Eight answers of the 7M model at once: each is plain decoding's, but for what rounding explains."""

from __future__ import annotations

import numpy as np
import pytest

from lacli import ModelSettings, load
from lacli.check.judge import Difference, parting, plain_logits, within
from lacli.context import Floats
from lacli.engine.answer import Answer
from lacli.llamacpp.context import LlamaContext
from lacli.settings import ModeName
from tests.end_to_end.test_stdlib_7m import QUESTIONS
from tests.fakes.decoding import PLAIN, auto_decoder
from tests.loading import STDLIB_7M

TOGETHER, LIMIT = 8, 40
SETTINGS = ModelSettings(context=2048, gpu_layers=0, threads=1)


def log_probabilities(logits: Floats) -> Floats:
    shifted = logits.astype(np.float64) - logits.max()
    found: Floats = shifted - np.log(np.exp(shifted).sum())
    return found


def difference(engine: LlamaContext, prompt: list[int], expected: list[int], answer: Answer) -> Difference | None:
    """Where an answer parts from plain's, held against what rounding moved the probabilities of both tokens by."""
    if (at := parting(expected, answer.tokens)) is None:
        return None
    plain, other = expected[at], answer.tokens[at]
    own, theirs = log_probabilities(plain_logits(engine, prompt, expected[:at])), dict(answer.logprobs[at].best)
    rounding = max(abs(own[token] - theirs[token]) for token in (plain, other))
    margin = own[plain] - own[other]
    return Difference(at, plain, other, margin, rounding, "rounding" if within(margin, rounding) else "bug")


@pytest.mark.parametrize("mode", ["auto", "lookup"])
def test_eight_answers_at_once_are_plains_but_for_rounding(mode: ModeName) -> None:
    questions = QUESTIONS[:TOGETHER]
    with load(STDLIB_7M, mode=mode, parallel=TOGETHER, model_settings=SETTINGS) as model:
        answers = model.generate(questions, max_tokens=LIMIT, logprobs=5)
        steps = [answer.statistics.steps for answer in answers]
        assert isinstance(model.engine.context, LlamaContext)
        assert max(steps) <= model.engine.context.calls < sum(steps) / 2, "they share steps"
        engine = model.engine
        with LlamaContext(engine.model, SETTINGS, PLAIN, backend_greedy=False) as context:
            for question, answer in zip(questions, answers, strict=True):
                prompt = engine.prompt(question)
                taken = auto_decoder(context, PLAIN).generate(prompt, LIMIT)
                expected = [token for step in taken for token in step.tokens]
                found = difference(context, prompt, expected, answer)
                assert found is None or found.verdict != "bug", found
