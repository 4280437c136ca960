"""The 7M model on real llama.cpp: every mode gives plain decoding's text; steps, calls and cells are counted right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import llama_cpp as lib
import numpy as np
import pytest

from lacli.check.compare import Comparison, Run
from lacli.check.judge import BatchRecorder
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.template import as_messages, choose_template
from tests.engine.test_engine import tokens_of
from tests.fakes.decoding import PLAIN, Decoding, bugs, compare

LIMIT = 48

ON_ONE_THREAD = ModelSettings(context=512, gpu_layers=0, threads=1)
"""One CPU thread, so that the tests stay fast on a busy machine; logits are on the host."""

CODE_QUESTIONS = (
    "Show me the source code of `json.dumps`.",
    "Show me the source code of `queue.Queue.put`.",
    "How is shutil.copyfile implemented?",
    "Write a Python function `is_prime`: Return True if the number has no divisor but itself.",
    "Write a Python function `close`: Close the connection and forget the socket.",
    'Remove the docstring from this function:\n```python\ndef add(self, value):\n    """Add a value to the set."""\n'
    "    self._values[value] = None\n```",
    'Remove the docstring from this function:\n```python\ndef clamp(value, low, high):\n    """\n    Keep a value'
    ' between two others.\n\n    Raises ValueError if low is above high.\n    """\n    if low > high:\n'
    "        raise ValueError('low is above high')\n    if value < low:\n        return low\n    if value > high:\n"
    "        return high\n    return value\n```",
    "Rename the argument `x` to `count` in this function:\n```python\ndef take(iterable, x):\n    result = []\n"
    "    for item in iterable:\n        if x == 0:\n            break\n        result.append(item)\n        x -= 1\n"
    "    return result\n```",
)
QUESTIONS = (*CODE_QUESTIONS, "Explain threading.Barrier.wait.", "What does `random.Random.shuffle` do?")
LONG = 6
"""The index of a question whose answer has steps with several accepted drafts."""

LOOKAHEAD = DecodeSettings(mode="lookahead", window=15, ngram=5, guesses=15)
MODES = {
    "plain": PLAIN,
    "jacobi": DecodeSettings(mode="jacobi", window=4),
    "lookup": DecodeSettings(mode="lookup"),
    "lookahead": LOOKAHEAD,
    "no window": DecodeSettings(mode="lookahead", window=0, ngram=5, guesses=15),
    "all sequences": DecodeSettings(mode="lookahead", window=3, ngram=3, guesses=252),
    "hundreds of rows": DecodeSettings(mode="lookahead", window=200, ngram=2, guesses=55),
}
LOOPS = ("plain", "jacobi", "lookup", "lookahead")


@pytest.fixture(scope="module")
def prompts(small: LlamaModel) -> list[list[int]]:
    return asked(small, QUESTIONS)


def asked(small: LlamaModel, questions: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each question in the model's own template."""
    template, _ = choose_template("", small)
    return [small.tokenize(template.render(as_messages(question))) for question in questions]


@pytest.fixture(scope="module")
def comparison(small: LlamaModel) -> Iterator[Comparison]:
    with compare(small, ON_ONE_THREAD, LIMIT) as comparison:
        yield comparison


@pytest.fixture(scope="module")
def lookahead_runs(comparison: Comparison, prompts: list[list[int]]) -> list[Run]:
    return [*comparison.run(LOOKAHEAD, prompts)]


def last_position(engine: LlamaContext, sequence: int) -> int:
    return int(lib.llama_memory_seq_pos_max(engine._memory, sequence))


def test_plain_equals_a_bare_loop_of_decode_and_argmax(small: LlamaModel, comparison: Comparison) -> None:
    prompt = small.tokenize("def read(self, size=-1):\n")
    parameters = lib.llama_context_default_params()
    parameters.n_ctx, parameters.n_threads = ON_ONE_THREAD.context, 1
    parameters.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = lib.llama_init_from_model(small.handle, parameters)
    tokens: list[int] = []
    text = [prompt[:-1], prompt[-1:]]
    while len(tokens) < LIMIT and not (tokens and small.is_end(tokens[-1])):
        for part in text:
            rows = (lib.llama_token * len(part))(*part)
            assert lib.llama_decode(context, lib.llama_batch_get_one(rows, len(part))) == 0
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (small.vocabulary,))
        tokens.append(int(logits.argmax()))
        text = [tokens[-1:]]
    lib.llama_free(context)
    assert comparison.plain(prompt) == tokens


@pytest.mark.parametrize("name", MODES)
def test_every_mode_equals_plain_but_for_rounding(
    name: str, small: LlamaModel, comparison: Comparison, prompts: list[list[int]], lookahead_runs: list[Run]
) -> None:
    if name == "lookahead":
        runs = lookahead_runs
    else:
        asked_ones = prompts if name in LOOPS else prompts[:1] if name == "hundreds of rows" else prompts[::4]
        runs = [*comparison.run(MODES[name], asked_ones)]
    assert bugs(runs) == []
    for run in runs:
        assert len(run.tokens) == LIMIT or small.is_end(run.tokens[-1])


def test_lookahead_brings_more_than_one_and_a_half_tokens_a_step_on_code(lookahead_runs: list[Run]) -> None:
    runs = lookahead_runs[: len(CODE_QUESTIONS)]
    assert sum(len(run.tokens) for run in runs) / sum(len(run.steps) for run in runs) > 1.5


@pytest.mark.parametrize("name", ["lookup", "lookahead"])
def test_an_answer_that_is_closed_early_leaves_exactly_the_accepted_tokens_in_the_cache(
    name: str, small: LlamaModel, comparison: Comparison, prompts: list[list[int]]
) -> None:
    chosen, prompt = MODES[name], prompts[LONG]
    with LlamaContext(small, ON_ONE_THREAD, ContextSize.of(chosen)) as engine:
        decoder = Decoding(engine, chosen)
        steps = decoder.generate(prompt, LIMIT)
        taken = [next(steps), next(steps)]
        steps.close()
        assert decoder.tokens == prompt + tokens_of(taken)
        held = [last_position(engine, sequence) + 1 for sequence in range(engine.ids)]
        assert held[0] == max(held) == len(decoder.tokens) - 1, "id 0 has all tokens but the last"
        assert bugs([comparison.one(BatchRecorder(engine), chosen, prompt)]) == []
