"""llama.cpp's samplers on the bundled model: its own draws, the default order, each flag, grammars and schemas."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import llama_cpp as lib
import numpy as np
import pytest

from lacli.batch import Batch
from lacli.context import Floats
from lacli.errors import SamplingError, UsageError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler, captured_stderr, open_grammar
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.json_schema import grammar_of
from lacli.tree import Tree
from lacli.verify import Rejection, SampleAndMatch

WARM = SamplingSettings(seed=7, temp=1.0)
BARE = replace(WARM, top_k=0, top_p=1.0, min_p=0.0)
"""Settings without samplers other than the draw."""

GRAMMAR = 'root ::= "yes" | "no"'


@pytest.fixture(scope="module")
def model(small: LlamaModel) -> LlamaModel:
    return small


@pytest.fixture(scope="module")
def logits(model: LlamaModel) -> Floats:
    return np.random.default_rng(1).normal(0, 4, model.vocabulary).astype(np.float32)


@pytest.fixture(scope="module")
def context(model: LlamaModel) -> Iterator[Any]:
    """Yield a llama_context with one output row, whose logits tests overwrite."""
    settings = ModelSettings(gpu_layers=0, threads=1, context=256)
    with LlamaContext(model, settings, ContextSize.of(DecodeSettings(mode="plain")), backend_greedy=False) as engine:
        assert engine.decode(Batch(1).set_tree(Tree(1), 0))
        yield engine._handle


HOT = [*range(500, 512)]
PROMPT = [*HOT[:6], *HOT[:6], *HOT[:3]]
BIASES = ((500, 4.0), (501, -np.inf))


def random_rows(count: int) -> Iterator[Floats]:
    """Yield `count` rows of logits. A dozen tokens have nearly all probability, so that draws repeat."""
    random = np.random.default_rng(3)
    for _ in range(count):
        row = random.normal(0, 1, 4096).astype(np.float32)
        row[HOT] += random.normal(7, 2, len(HOT)).astype(np.float32)
        yield row


def bias() -> Any:
    array = (lib.llama_logit_bias * len(BIASES))(*(lib.llama_logit_bias(*each) for each in BIASES))
    return lib.llama_sampler_init_logit_bias(4096, len(BIASES), array)


def dry(vocabulary: Any) -> Any:
    breakers = (ctypes.c_char_p * 4)(b"\n", b":", b'"', b"*")
    return lib.llama_sampler_init_dry(vocabulary, 5.0, 1.5, 1, 32, breakers, 4)


SAMPLERS: dict[str, tuple[SamplingSettings, Callable[[Any], list[Any]]]] = {
    "a raised token at temperature 0": (
        replace(BARE, temp=0.0, logit_bias=BIASES), lambda _: [bias(), lib.llama_sampler_init_temp(0.0)],
    ),
    "XTC at temperature 0": (
        replace(BARE, temp=0.0, xtc_probability=1.0, xtc_threshold=0.2),
        lambda _: [lib.llama_sampler_init_xtc(1.0, 0.2, 0, 7), lib.llama_sampler_init_temp(0.0)],
    ),
    "all of them": (
        replace(BARE, logit_bias=BIASES, repeat_penalty=1.1, dry_multiplier=5.0, dry_base=1.5, dry_allowed_length=1,
                dry_penalty_last_n=32, top_k=40, typical=0.95, top_p=0.95, min_p=0.1, xtc_probability=0.5, temp=0.8),
        lambda vocabulary: [
            bias(),
            lib.llama_sampler_init_penalties(4096, 64, 1.1, 0.0, 0.0),
            dry(vocabulary),
            lib.llama_sampler_init_top_k(40),
            lib.llama_sampler_init_typical(0.95, 0),
            lib.llama_sampler_init_top_p(0.95, 0),
            lib.llama_sampler_init_min_p(0.1, 0),
            lib.llama_sampler_init_xtc(0.5, 0.1, 0, 7),
            lib.llama_sampler_init_temp(0.8),
        ],
    ),
}  # fmt: skip
"""Settings, and the same samplers of llama.cpp without the draw, whose seed is 7."""


@contextmanager
def llama_cpps(samplers: Sequence[Any], text: Sequence[int] = ()) -> Iterator[Any]:
    """Yield llama.cpp's chain of these samplers, which has accepted the tokens `text`."""
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in samplers:
        lib.llama_sampler_chain_add(chain, sampler)
    for each in text:
        lib.llama_sampler_accept(chain, each)
    yield chain
    lib.llama_sampler_free(chain)


def sampled(chain: Any, context: Any, row: Floats) -> int:
    """Return llama.cpp's choice of a token from the logits `row`."""
    np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), row.shape)[:] = row
    return int(lib.llama_sampler_sample(chain, context, -1))


def drawn(model: LlamaModel, settings: SamplingSettings, logits: Floats, count: int, text: list[int]) -> list[int]:
    with LlamaSampler(model, settings) as sampler:
        sampler.begin(text)
        return [sampler.draw(logits) for _ in range(count)]


def token(model: LlamaModel, text: str) -> int:
    (found,) = model.tokenize(text, add_special=False)
    return found


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_draws_what_llama_cpp_draws(model: LlamaModel, context: Any, name: str) -> None:
    settings, samplers = SAMPLERS[name]
    with (
        LlamaSampler(model, settings) as sampler,
        llama_cpps([*samplers(model.vocabulary_handle), lib.llama_sampler_init_dist(7)], PROMPT) as own,
        llama_cpps([lib.llama_sampler_init_dist(7)]) as bare,
    ):
        sampler.begin(PROMPT)
        rows = list(random_rows(60))
        expected = [sampled(own, context, row) for row in rows]
        assert [sampler.draw(row) for row in rows] == expected
        assert expected != [sampled(bare, context, row) for row in rows], "this sampler has no effect in the test"


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_distribution_is_what_llama_cpps_samplers_leave(model: LlamaModel, name: str) -> None:
    settings, samplers = SAMPLERS[name]
    with LlamaSampler(model, settings) as sampler, llama_cpps(samplers(model.vocabulary_handle), PROMPT) as own:
        sampler.begin(PROMPT)
        for row in random_rows(6):
            candidates = (lib.llama_token_data * len(row))()
            for each, (candidate, logit) in enumerate(zip(candidates, row.tolist(), strict=True)):
                candidate.id, candidate.logit = each, logit
            left = lib.llama_token_data_array(candidates, len(row), -1, False)
            lib.llama_sampler_apply(own, ctypes.byref(left))
            tokens = [int(left.data[place].id) for place in range(left.size)]
            weights = np.exp([left.data[place].logit for place in range(left.size)])
            for found in (sampler.preview(row), sampler.distribution(row)):
                assert found.tokens.tolist() == tokens
                assert found.probabilities == pytest.approx(weights / weights.sum())
            sampler.accept(tokens[0])
            lib.llama_sampler_accept(own, tokens[0])


@pytest.mark.parametrize(
    "settings",
    [
        replace(BARE, temp=0.0),
        replace(WARM, top_k=200),
        replace(BARE, top_k=300, xtc_probability=0.5, xtc_threshold=0.01),
    ],
)
def test_with_a_grammar_llama_cpp_draws_again_among_what_it_allows(
    model: LlamaModel, context: Any, settings: SamplingSettings
) -> None:
    """llama.cpp's programs keep the first draw if the grammar allows it."""
    allowed = np.array([bool(re.fullmatch(rb"[a-z]+", model.piece(token))) for token in range(model.vocabulary)])
    samplers = [
        lib.llama_sampler_init_top_k(settings.top_k),
        lib.llama_sampler_init_top_p(settings.top_p, 0),
        lib.llama_sampler_init_min_p(settings.min_p, 0),
        lib.llama_sampler_init_xtc(settings.xtc_probability, settings.xtc_threshold, 0, 7),
        lib.llama_sampler_init_temp(settings.temp),
        lib.llama_sampler_init_dist(7),
    ]
    again = 0
    with LlamaSampler(model, replace(settings, grammar="root ::= [a-z]+")) as sampler, llama_cpps(samplers) as own:
        sampler.begin(PROMPT)
        for row in np.random.default_rng(5).normal(0, 4, (40, model.vocabulary)).astype(np.float32):
            row[model.ends] = -20.0
            token = sampled(own, context, row)
            if not allowed[token]:
                again += 1
                token = sampled(own, context, np.where(allowed, row, -np.inf))
            assert sampler.draw(row) == token
    assert 0 < again < 40


def test_the_distribution_with_a_grammar_equals_the_draws(model: LlamaModel) -> None:
    settings = replace(WARM, top_k=6, min_p=0.0, grammar='root ::= [a-z "=()]+')
    logits = np.full(model.vocabulary, -5.0, np.float32)
    for place, text in enumerate((" self", "\n", "A", " return", "(", "_", " the", "7")):
        logits[token(model, text)] = 2 - 0.3 * place
    count = 1000
    seen: Counter[int] = Counter()
    with LlamaSampler(model, settings) as sampler:
        tokens, probabilities = sampler.distribution(logits)
    for seed in range(count):
        seen.update(drawn(model, replace(settings, seed=seed), logits, 1, []))
    assert probabilities.sum() == pytest.approx(1)
    for each, chance in zip(tokens.tolist(), probabilities.tolist(), strict=True):
        # The bound is 5 standard deviations: with random seeds a token would exceed it once in 1.7 million times.
        assert abs(seen.pop(each, 0) - count * chance) <= 5 * np.sqrt(count * chance * (1 - chance)) + 1e-6
    assert not seen


def test_ignoring_the_end_forbids_every_end_token(model: LlamaModel) -> None:
    logits = np.zeros(model.vocabulary, np.float32)
    logits[model.ends] = 9.0
    assert model.is_end(drawn(model, SamplingSettings(seed=1, repeat_penalty=1.1), logits, 1, [])[0])
    assert not model.is_end(drawn(model, SamplingSettings(seed=1, ignore_eos=True), logits, 1, [])[0])


def test_a_bias_for_a_token_that_is_not_there_is_refused(model: LlamaModel) -> None:
    for bad in (-1, 4096, 10**9):
        with pytest.raises(UsageError, match=f"token {bad}, and the model has 4096"):
            LlamaSampler(model, SamplingSettings(seed=1, logit_bias=((bad, 1.0),)))


def test_a_grammar_is_followed_to_its_end_and_knows_nothing_of_the_prompt(model: LlamaModel) -> None:
    logits = np.random.default_rng(3).normal(0, 4, model.vocabulary).astype(np.float32)
    prompt = model.tokenize("maybe")
    tokens: list[int] = []
    with LlamaSampler(model, SamplingSettings(seed=3, temp=1.5, grammar=GRAMMAR)) as sampler:
        sampler.begin(prompt)
        while not tokens or not model.is_end(tokens[-1]):
            tokens.append(sampler.draw(logits))
    assert b"".join(map(model.piece, tokens)) in (b"yes", b"no")


@pytest.mark.parametrize("verify", ["match", "rejection"])
def test_a_grammar_that_waits_for_a_marker_leaves_all_before_it_free(model: LlamaModel, verify: Any) -> None:
    settings = SamplingSettings(seed=3, grammar=GRAMMAR, grammar_after="</think>", verify=verify)
    thought = model.tokenize("no {maybe}\n</think>", add_special=False)
    joined = next(token for token in range(model.vocabulary) if model.piece(token) == b'>"')
    with LlamaSampler(model, settings) as sampler:
        verifier = SampleAndMatch(sampler) if verify == "match" else Rejection(sampler, 3)

        def chosen(wanted: int) -> int:
            logits = np.zeros(model.vocabulary, np.float32)
            logits[wanted] = 99
            return verifier.choose(logits, [])

        for _ in range(2):
            verifier.begin([])
            assert not model.is_end(first := chosen(model.ends[-1])), "the answer must not end before it begins"
            verifier.begin([])
            assert first and [chosen(token) for token in thought[:-1]] == thought[:-1]
            assert chosen(joined) != joined, "this token has the marker and the answer's beginning"
            verifier.begin([])
            assert [chosen(token) for token in thought] == thought
            tokens = [chosen(thought[0])]
            while not model.is_end(tokens[-1]):
                tokens.append(chosen(thought[0]))
            assert b"".join(map(model.piece, tokens)) in (b"yes", b"no")


@pytest.mark.parametrize("drawing", ["draw", "distribution", "preview"])
@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(seed=1, grammar="root ::= <[5]>", logit_bias=((5, -np.inf),)),
        SamplingSettings(seed=1, logit_bias=tuple((token, -np.inf) for token in range(4096))),
    ],
)
def test_if_nothing_may_come_next_there_is_one_line_and_no_token(
    model: LlamaModel, logits: Floats, settings: SamplingSettings, drawing: str
) -> None:
    with LlamaSampler(model, settings) as sampler:
        sampler.begin([])
        with pytest.raises(SamplingError) as raised:
            getattr(sampler, drawing)(logits)
    assert "\n" not in str(raised.value) and raised.value.hint


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("root = [a]", "expecting ::="),
        ('start ::= "a"', "'root' symbol"),
        ('root ::= one\none ::= ("x" | two)\ntwo ::= one "y"', "left recursion"),
        ("root ::= " + "(" * 2000 + ")" * 2000, "too many rules or parentheses"),
    ],
)
def test_a_grammar_that_cannot_be_parsed_is_refused_in_one_line(
    model: LlamaModel, grammar: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as raised:
        LlamaSampler(model, SamplingSettings(seed=1, grammar=grammar))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("grammar", [GRAMMAR, "root = [a]"])
def test_lines_that_others_write_while_a_grammar_compiles_are_neither_lost_nor_its_fault(
    model: LlamaModel, grammar: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*arguments: Any) -> Any:
        os.write(2, b"a line before\n")
        sampler = parse(*arguments)
        os.write(2, b"a line after\n")
        return sampler

    parse = lib.llama_sampler_init_grammar
    monkeypatch.setattr(lib, "llama_sampler_init_grammar", compiled)
    with nullcontext() if grammar == GRAMMAR else pytest.raises(UsageError, match="used: expecting ::= at"):
        LlamaSampler(model, SamplingSettings(seed=1, grammar=grammar)).close()
    assert capfd.readouterr() == ("", "a line before\na line after\n")


def test_two_captures_of_stderr_at_a_time_leave_it_as_it_was() -> None:
    inside, left = Event(), Event()

    def second() -> None:
        with captured_stderr("begin", "end"):
            inside.set()
            left.wait(10)

    before, thread = os.fstat(2).st_ino, Thread(target=second)
    with captured_stderr("begin", "end"):
        thread.start()
        # The second capture has to wait; without the lock it would enter at once.
        assert not inside.wait(0.05)
    left.set()
    thread.join()
    assert inside.is_set() and os.fstat(2).st_ino == before


INTEGER = {"type": "integer"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "value": INTEGER}}
A, B = ({"type": "object", "properties": {name: INTEGER}, "required": [name]} for name in "ab")
DEFINED = {"$defs": {"a": A, "list[a]": {"oneOf": [{"$ref": "#/$defs/a"}]}}}
"""Definitions that other schemas refer to."""


def fits(model: LlamaModel, schema: Any, text: str) -> bool:
    """Whether the schema's grammar allows the text as a whole answer."""
    grammar = open_grammar(model, grammar_of(json.dumps(schema))[0])
    assert grammar
    for token in [*model.tokenize(text, add_special=False), model.ends[0]]:
        if not grammar.allowed([token])[0]:
            return False
        grammar.accept(token)
    return True


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"const": 'say "hi" \\ 😀'}, [r'"say \"hi\" \\ 😀"'], ['"say hi"']),
        ({"type": "string", "maxLength": 3}, ['""', '"aé😀"'], ['"abcd"', '"a\nb"', '"', "a"]),
        (
            {"properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False},
            ['{"a": 1}'],
            ["{}", '{"b": 1}'],
        ),
        ({"allOf": [{"properties": {"a": INTEGER}}, {"required": ["a"]}], "type": "object"}, ['{"a":1}'], ["{}"]),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, ['{"next": {"next": {"value": 1}}}'], ['{"next": 1}']),
        ({"type": "object"}, ["{}", '{\n    "a": [1, {"b": null}]\n}'], ["[]", "", '{"a":' + " " * 99 + "1}"]),
        ({}, ["1", "{}", '"x"'], ["x", ""]),
        (A, ['{"a":1}', '{ "a" : 1 }', '{\n    "a": 1\n}'], ['{"a":  1}', '{ \n"a": 1}', '{"a": 1\n\n}', '{\t"a": 1}']),
        (A, [], ["{\n" + 33 * " " + '"a": 1}']),
        ({"allOf": [A, B]}, ['{"a": 1, "b": 2}'], ['{"a": 1}']),
        ({"properties": {"x": A}, "allOf": [B]}, ['{"x": {"a": 1}, "b": 2}'], ['{"x": {"a": 1, "b": 1}, "b": 2}']),
        ({"$ref": "#/$defs/list%5Ba%5D/oneOf/0", **B, **DEFINED}, ['{"a": 1, "b": 2}'], ['{"b": 2}']),
        ({"allOf": [{"$ref": "#/$defs/a"}, B], **DEFINED}, ['{"a": 1, "b": 2}'], ['{"b": 2}']),
        ({"allOf": [{"anyOf": [A, B]}, {"properties": {"x": INTEGER}}]}, ['{"b": 1, "x": 2}'], ['{"x": 2}']),
        ({"properties": {"x": A}, "oneOf": [A, B]}, ['{"x": {"a": 1}, "b": 2}'], ['{"x": {"a": 1, "b": 2}, "b": 2}']),
        ({**A, "required": ["a", "b"]}, ['{"a": 1, "b": "c"}'], ['{"a": 1}']),
        ({"anyOf": [A, {"type": "array", "items": A}]}, ['[{"a": 1}]'], ['{"a": 1, "b": 2}', '[{"a": 1, "b": 2}]']),
        ({"items": {"$ref": "#/$defs/a", "title": "An A"}, **DEFINED}, ['[{"a": 1}]'], ['[{"a": 1, "b": 2}]']),
        ({"allOf": [{"$ref": "#/$defs/a"}], "title": "An A", **DEFINED}, ['{"a": 1}'], ['{"a": 1, "b": 2}']),
        ({"properties": {"properties": A}}, ['{"properties": {"a": 1}}'], ['{"properties": {"a": 1, "b": 2}}']),
    ],
    ids=str,
)
def test_an_answer_keeps_to_its_schema(small: LlamaModel, schema: Any, inside: list[str], outside: list[str]) -> None:
    assert [text for text in inside if not fits(small, schema, text)] == []
    assert [text for text in outside if fits(small, schema, text)] == []


def test_a_dead_end_of_a_schema_is_an_error_each_time_and_the_next_answer_goes_on(small: LlamaModel) -> None:
    text = {"type": "string"}
    schema: Any = {"properties": {"a": text}, "patternProperties": {"^a$": text}, "required": ["a"]}
    schema["additionalProperties"] = False
    grammar = open_grammar(small, grammar_of(json.dumps(schema))[0])
    assert grammar
    for _ in range(2):
        for token in small.tokenize('{"a": "", ', add_special=False):
            assert grammar.allowed([token])[0]
            grammar.accept(token)
        # The engine asks twice: for the draft of a step, and in the next step.
        for _ in range(2):
            with pytest.raises(SamplingError, match="no text may come next"):
                grammar.allowed([small.ends[0]])
        grammar.reset()
