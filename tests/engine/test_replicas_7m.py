"""Several contexts on the bundled model give one context's tokens, exactly with --strict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import llama_cpp as lib
import pytest

from lacli.check.judge import PLAIN
from lacli.engine import replicas
from lacli.engine.load import ModelEngine, open_engine
from lacli.engine.replicas import AnyContext, ReplicaContext, plan_replicas
from lacli.errors import UsageError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.devices import Device
from lacli.llamacpp.gguf import architecture_and_types
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ContextSize, ModelSettings, strict_settings
from lacli.settings import DecodeSettings
from lacli.verify import SampleAndMatch
from tests.end_to_end.test_stdlib_7m import asked
from tests.engine.test_engine import tokens_of
from tests.fakes.decoding import fixed_clock_decoder
from tests.fakes.talking import QUESTION
from tests.fakes.tiny_models import write_lfm2
from tests.loading import STDLIB_7M, generate
from tests.program import call

LIMIT = 40
MODES = {
    "lookahead": DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5),
    "auto": DecodeSettings(mode="auto"),
}
QUESTIONS = (
    QUESTION,
    "Show me the source code of `json.dumps`.",
    "Rename the argument `x` to `count` in this function:\n```python\ndef take(x):\n    return [x] * x\n```",
)
WARM = SamplingSettings(temp=0.8, seed=7, repeat_penalty=1.1)


def strict(chosen: DecodeSettings) -> tuple[ModelSettings, DecodeSettings]:
    settings = ModelSettings(context=512, gpu_layers=0, threads=1)
    return strict_settings(settings, chosen, architecture_and_types(STDLIB_7M)[1], on_gpu=False)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(STDLIB_7M, strict(PLAIN)[0]) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(model: LlamaModel) -> list[list[int]]:
    return asked(model, QUESTIONS)


def answers(contexts: Sequence[LlamaContext], chosen: DecodeSettings, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Return the greedy answers to all prompts, then the sampled answers."""
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
    """Return the number of tokens of id 0 in the cache; check that no other id has more."""
    ends = [int(lib.llama_memory_seq_pos_max(context._memory, sequence)) + 1 for sequence in range(context.ids)]
    assert ends[0] == max(ends)
    return ends[0]


@pytest.fixture(scope="module")
def expected(model: LlamaModel, prompts: list[list[int]]) -> list[list[int]]:
    """Return the answers of strict plain decoding in one context."""
    model_settings, chosen = strict(PLAIN)
    with LlamaContext(model, model_settings, ContextSize.of(chosen), backend_greedy=False) as context:
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
            stack.enter_context(LlamaContext(model, model_settings, ContextSize.of(chosen), backend_greedy=False))
            for _ in range(count)
        ]
        assert answers(contexts, chosen, prompts) == expected
        if chosen.mode == "lookahead":
            # Each prompt takes one call. A step with few candidates may have none for a third context.
            assert sorted(context.calls for context in contexts)[-2] > 6 * len(prompts)


LOADING = ModelSettings(context=512, gpu_layers=0, threads=2)
BRANCHES = DecodeSettings(mode="lookahead", window=5, ngram=3, guesses=4)
TWO = replace(LOADING, devices=("CPU",), replicas=2)
SERVED = replace(LOADING, rpc=("a:1", "b:2"))
IS_EMPTY = "Write a Python function is_empty: Return true if the queue is empty."


def engine_of(decode_settings: DecodeSettings = BRANCHES, wanted: ModelSettings = TWO) -> ModelEngine:
    return open_engine(STDLIB_7M, wanted, decode_settings, SamplingSettings())


def test_replicas_on_the_processor_share_its_threads() -> None:
    assert plan_replicas(LOADING) == [LOADING]
    two = plan_replicas(replace(TWO, threads=5))
    assert [(plan.threads, plan.devices) for plan in two] == [(2, ("CPU",))] * 2


def contexts_of(opened: AnyContext) -> list[LlamaContext]:
    assert isinstance(opened, ReplicaContext)
    return [each.context for each in opened._replicas]


def test_a_mode_without_branches_opens_one_context_and_another_mode_opens_the_rest() -> None:
    with engine_of(PLAIN) as engine:
        assert isinstance(engine.context, LlamaContext)
        plain = generate(engine, IS_EMPTY, max_tokens=40)
        assert engine.adapt(BRANCHES, SamplingSettings())
        assert generate(engine, IS_EMPTY, max_tokens=40).tokens == plain.tokens
        assert all(context.calls > 10 for context in contexts_of(engine.context))


def test_a_model_that_takes_no_trees_is_decoded_by_one_copy(tmp_path: Path) -> None:
    write_lfm2(tmp_path / "model.gguf")
    with open_engine(tmp_path / "model.gguf", TWO, DecodeSettings(), SamplingSettings()) as engine:
        assert len(engine.weights.plans) == 1 and not engine.weights.names
        assert any("CPU decodes alone" in note for note in engine.notes)
        assert generate(engine, "the cat sat on", max_tokens=10, raw=True).tokens


def test_strict_is_refused_if_other_machines_compute() -> None:
    with pytest.raises(UsageError, match="--rpc uses other machines"):
        engine_of(replace(BRANCHES, strict=True), replace(LOADING, rpc=("192.0.2.1:50052",)))


def test_the_programs_answer_is_one_copys_and_names_them() -> None:
    sizes = ("-W", "5", "-N", "3", "-G", "4", "-n", "40", "-q")
    alone = call("run", "-p", IS_EMPTY, *sizes)
    shared = call("run", "-p", IS_EMPTY, *sizes, "--replicas", "2", "--stats", "full")
    assert shared.code == 0 and shared.out == alone.out and "CPU, CPU" in shared.err
    answer = json.loads(call("run", "-p", IS_EMPTY, *sizes, "--replicas", "2", "--json").out)
    assert answer["replicas"] == ["CPU", "CPU"]
    assert json.loads(call("run", "-p", IS_EMPTY, *sizes, "--json").out)["replicas"] == []


def test_two_copies_on_one_server_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = [Device(f"RPC{number}", server, True) for number, server in enumerate(("a:1", "a:1", "b:2"))]
    monkeypatch.setattr(replicas, "devices", lambda: [Device("CPU", "a processor", False), *remote])
    for name in ("check_servers", "register"):
        monkeypatch.setattr(f"lacli.llamacpp.rpc.{name}", lambda *_: remote)
    with pytest.raises(UsageError, match="a:1, which does one thing at a time"):
        plan_replicas(replace(SERVED, devices=("RPC0", "RPC1"), replicas=2))
    (both,) = plan_replicas(replace(SERVED, devices=("RPC2", "RPC1")))
    assert both.devices == ("RPC2", "RPC1")
    far, near = plan_replicas(replace(SERVED, devices=("RPC2", "CPU"), replicas=2))
    assert (far.devices, near.devices) == (("RPC2",), ("CPU",))
