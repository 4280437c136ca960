"""The Python API on the 7M model: whole answers, streams, asynchronous answers, and several at a time."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from threading import Thread, current_thread
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from pydantic import BaseModel

import lacli
from lacli import AsyncStream, LacliError, Model, ModelSettings, SamplingSettings, Stream
from lacli.check.judge import PLAIN, plain_logits
from lacli.engine.engine import Progress
from lacli.errors import PromptError, UsageError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.settings import ContextSize
from lacli.settings import Switch
from tests.loading import STDLIB_7M

QUESTIONS = ["How do I make a path?", "How do I make the parser?", "Show me a generator."]
TOKENS = 12
"""The length of answers that rounding cannot change: in 13 tokens the second choice is at least 0.57 nats lower."""

SIDE_BY_SIDE: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 7},
    {"grammar": 'root ::= "yes" | "no"'},
    {"json_schema": {"type": "integer"}},
    {"sampling": SamplingSettings(temp=0.7, seed=3, repeat_penalty=1.3)},
    {"logprobs": 3},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "seed": 1},
    {"stop": "a", "raw": True},
]


ENDLESS = SamplingSettings(ignore_eos=True)
"""Settings of answers that only a full context ends."""


def ends_of(model: Model, streams: Sequence[Stream | AsyncStream]) -> set[str | None]:
    """Return the reasons why answers ended, after all decoding; None stands for answers that never had a slot."""
    while model.worker.running or model.worker.waiting:
        model.generate("A stack?", max_tokens=1)
    return {text.finish if (text := stream.sequence) else None for stream in streams}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with lacli.load(STDLIB_7M, threads=1, gpu_layers=0, context=1024) as model:
        yield model


def test_a_text_gives_an_answer_and_a_list_the_same_ones_in_order(model: Model) -> None:
    one_by_one = [model.generate(question, max_tokens=TOKENS) for question in QUESTIONS]
    together = model.generate(QUESTIONS, max_tokens=TOKENS)
    assert [answer.text for answer in together] == [answer.text for answer in one_by_one]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in one_by_one]
    assert len({answer.text for answer in together}) == len(QUESTIONS)
    assert model.generate([]) == []


def test_pieces_joined_are_the_text_and_come_once(model: Model) -> None:
    expected = model.generate(QUESTIONS[0], max_tokens=TOKENS)
    stream = model.stream(QUESTIONS[0], max_tokens=TOKENS)
    assert "".join(stream) == expected.text == stream.answer().text
    with pytest.raises(UsageError, match="iterated only once"):
        next(iter(stream))
    assert stream.answer().finish_reason == "length"


def test_an_answer_tells_its_seed_and_what_of_its_own_schema_it_does_not_keep_to(model: Model) -> None:
    kept, not_kept = {"type": "boolean"}, {"type": "array", "uniqueItems": True}
    answers = [model.generate("A number.", json_schema=each, max_tokens=4) for each in (kept, not_kept, kept)]
    assert [len(each.warnings) for each in answers] == [0, 1, 0] and "uniqueItems" in answers[1].warnings[0]
    assert model.engine.warnings == [] and answers[0].seed is None
    drawn = model.generate(QUESTIONS[0], temperature=1.0, max_tokens=TOKENS)
    assert drawn.seed is not None
    assert model.generate(QUESTIONS[0], temperature=1.0, seed=drawn.seed, max_tokens=TOKENS).text == drawn.text


def test_an_answer_begins_after_the_tokens_of_its_conversation(model: Model) -> None:
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    assert model.tokenize(messages) == model.tokenize(QUESTIONS[0]) == [*model.stream(messages).prompt]
    assert len(model.tokenize(QUESTIONS[0], raw=True)) < len(model.tokenize(QUESTIONS[0]))
    assert len(model.tokenize(QUESTIONS[0], system="Be short.")) > len(model.tokenize(QUESTIONS[0]))
    with pytest.raises(PromptError):
        model.tokenize([])


def test_stops_end_an_answer_across_pieces_alone_and_in_lists(model: Model) -> None:
    whole = model.generate(QUESTIONS[0], max_tokens=TOKENS).text
    stop = whole[4:9]
    for stops in (stop, [stop], ("never in it", stop)):
        stream = model.stream(QUESTIONS[0], max_tokens=TOKENS, stop=stops)
        assert "".join(stream) == whole[:4] and stream.answer().finish_reason == "stop"
    again = model.generate(QUESTIONS[:2], max_tokens=TOKENS, stop=stop)
    assert again[0].text == whole[:4]


def test_an_answer_that_is_left_early_ends_with_the_step_that_was_read(model: Model) -> None:
    stream = model.stream(QUESTIONS[0], sampling=ENDLESS)
    piece = next(iter(stream))
    text = stream.answer().text
    assert text.startswith(piece) and stream.answer().finish_reason == "interrupt"
    assert ends_of(model, [stream]) == {"interrupt"} and stream.answer().text == text
    unread = model.stream(QUESTIONS[0])
    unread.close()
    assert [*unread] == []


def test_a_closed_stream_ends_its_reader_in_another_thread(model: Model) -> None:
    stream = model.stream(QUESTIONS[0], sampling=ENDLESS)
    with ThreadPoolExecutor(1) as threads:
        pieces = iter(stream)
        next(pieces)
        rest = threads.submit(list, pieces)
        stream.close()
        rest.result()
    assert stream._take(Progress(None)) == [], "progress after closing is ignored"
    assert stream.answer().finish_reason == "interrupt" and ends_of(model, [stream]) == {"interrupt"}


def test_tasks_share_a_model(model: Model) -> None:
    expected = [answer.text for answer in model.generate(QUESTIONS, max_tokens=TOKENS)]

    async def read(question: str) -> str:
        return "".join([piece async for piece in model.astream(question, max_tokens=TOKENS)])

    async def ask() -> None:
        assert await asyncio.gather(*map(read, QUESTIONS)) == expected
        assert (await model.agenerate(QUESTIONS[0], max_tokens=TOKENS)).text == expected[0]
        with pytest.raises(UsageError, match=r"asyncio\.gather answers several"):
            await model.agenerate(QUESTIONS, max_tokens=TOKENS)  # type: ignore[arg-type]  # as generate takes them
        messages = [{"role": "user", "content": QUESTIONS[1]}]
        assert (await model.achat(messages, max_tokens=TOKENS)).text == expected[1]
        async with model.astream(QUESTIONS[0], sampling=ENDLESS) as stream:
            await anext(aiter(stream))
        assert (await stream.answer()).finish_reason == "interrupt"
        stream = model.astream(QUESTIONS[0], max_tokens=TOKENS)
        async for _ in stream:
            break
        with pytest.raises(UsageError, match="iterated only once"):
            await anext(aiter(stream))
        assert expected[0].startswith((await stream.answer()).text)

    asyncio.run(ask())


def test_a_task_that_asks_leaves_the_event_loop_free_and_gets_errors_at_its_await(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[Thread] = []

    def completed(sampling: SamplingSettings) -> Any:
        threads.append(current_thread())
        return complete(sampling)

    complete = model.engine.complete_sampling
    monkeypatch.setattr(model.engine, "complete_sampling", completed)

    async def ask() -> None:
        wrong: dict[str, Any] = {"grammar": "root ::= ("}
        async with model.astream(QUESTIONS[0], max_tokens=2) as entered:
            assert entered.prompt
        unread, refused, together = (
            model.astream(QUESTIONS[0], **options) for options in ({}, wrong, {"max_tokens": 2})
        )
        unread.close()
        assert [piece async for piece in unread] == []
        for _ in range(2):
            with pytest.raises(UsageError, match="the grammar cannot be used"):
                await refused.answer()
        first, second = await asyncio.gather(together.answer(), together.answer())
        assert first.text.startswith(second.text) and first.text

    asyncio.run(ask())
    assert len(threads) == 5 and current_thread() not in threads


def test_tasks_that_are_cancelled_or_leave_free_their_slots(model: Model) -> None:
    async def ask() -> None:
        streams = [model.astream(question, sampling=ENDLESS) for question in QUESTIONS * 2]
        tasks = [asyncio.create_task(stream.answer()) for stream in streams[1:]]
        async for _ in streams[0]:
            break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert all(task.cancelled() for task in tasks)
        assert ends_of(model, streams) <= {"interrupt", None}

    asyncio.run(ask())


def test_answers_of_all_kinds_share_steps_and_are_as_alone(model: Model) -> None:
    # The answers are so short that rounding decides no draw.
    alone = [model.generate("A list of", max_tokens=8, **options) for options in SIDE_BY_SIDE]
    streams = [model.stream("A list of", max_tokens=8, **options) for options in SIDE_BY_SIDE]
    for stream in streams:
        stream.begin()
    assert [stream.answer().text for stream in streams] == [answer.text for answer in alone]
    texts = [answer.text for answer in alone]
    assert texts[2] in ("yes", "no") and texts[3].lstrip("-").isdigit() and len({*texts}) > 5


def test_without_a_seed_each_answer_draws_its_own_text(model: Model) -> None:
    assert len({answer.text for answer in model.generate(["Once"] * 6, temperature=1.5, max_tokens=TOKENS)}) > 1
    seeded = model.generate(["Once"] * 3, temperature=1.5, seed=4, max_tokens=4)
    assert len({answer.text for answer in seeded}) == 1


def plain_logprobs(model: Model, tokens: tuple[int, ...]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the log probabilities of all tokens at the place of each of `tokens`, by plain decoding."""
    prompt = model.engine.prompts.question(QUESTIONS[0], raw=True)
    settings = ModelSettings(threads=1, gpu_layers=0, context=256)
    with LlamaContext(model.engine.model, settings, ContextSize.of(PLAIN), backend_greedy=False) as engine:
        for place in range(len(tokens)):
            logits = plain_logits(engine, prompt, tokens[:place]).astype(np.float64)
            yield logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 1.0, "seed": 5}, {"sampling": SamplingSettings(repeat_penalty=1.5, presence_penalty=1.0)}],
)
def test_logprobs_are_the_models_own_whatever_draws(model: Model, options: dict[str, Any]) -> None:
    answer = model.generate(QUESTIONS[0], max_tokens=TOKENS, raw=True, logprobs=4, **options)
    assert len(answer.logprobs) == len(answer.tokens)
    for found, token, expected in zip(
        answer.logprobs, answer.tokens, plain_logprobs(model, answer.tokens), strict=True
    ):
        assert found.token == token and len(found.best) == 4
        assert found.logprob == pytest.approx(expected[token], abs=0.05)
        assert [score for _, score in found.best] == pytest.approx(np.sort(expected)[::-1][:4], abs=0.05)
        assert sum(np.exp(score) for _, score in found.best) <= 1 + 1e-6
    assert model.generate(QUESTIONS[0], max_tokens=2, logprobs=0).logprobs[0].best == ()
    assert model.generate(QUESTIONS[0], max_tokens=2).logprobs == ()


def test_a_class_of_pydantic_is_its_schema_and_an_answer_prints_as_its_text(model: Model) -> None:
    class Truth(BaseModel):
        yes: bool

    answer = model.generate("Is it?", json_schema=Truth, max_tokens=40)
    assert [*json.loads(str(answer))] == ["yes"]
    assert re.match(r"Answer\(text='\{.*\}', finish_reason='eog', ", repr(answer))


LOAD: Any = partial(lacli.load, STDLIB_7M)
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        (lambda model: model.generate(["a", " "]), PromptError, "prompt 2 of 2: the prompt is empty"),
        (lambda model: model.generate(["word " * 5000, "b"]), PromptError, "prompt 1 of 2"),
        (lambda model: model.generate(5), UsageError, "the prompt is 5"),
        (lambda model: model.generate(MESSAGES), UsageError, "chat takes messages"),
        (lambda model: model.chat([]), PromptError, "the conversation is empty"),
        (lambda model: model.chat("A list?"), PromptError, "the conversation is 'A list\\?'"),
        (lambda model: model.stream(MESSAGES, raw=True), UsageError, "raw and system"),
        (lambda model: model.stream(b"Hello"), PromptError, "the prompt is b'Hello'"),
        (lambda model: model.stream(memoryview(b"a")), PromptError, "the prompt is <memory"),
        (lambda model: model.stream("a", max_tokens=-2), UsageError, "max_tokens is -2"),
        (lambda model: model.stream("a", temperature="hot"), UsageError, "^temperature is 'hot' .it must be"),
        (lambda model: model.stream("a", temperature=-1), UsageError, "^temperature is -1 .temperature must be"),
        (lambda model: model.stream("a", temperature=1e-9), UsageError, "^a temperature of 1e-09 is too small"),
        (lambda model: model.stream("a", stop=["a", 5]), UsageError, "stop"),
        (lambda model: model.stream("a", grammar="root ::= ("), UsageError, "cannot be used: .* describes GBNF"),
        (lambda model: model.stream("a", grammar="a", json_schema="{}"), UsageError, "a grammar and a JSON schema"),
        (lambda model: model.generate("x", max_token=1), UsageError, "did you mean max_tokens"),
        (lambda model: LOAD(mode="fast"), UsageError, "^mode cannot be 'fast'"),
        (lambda model: LOAD(parallel=1000), UsageError, "--parallel 128 fits"),
        (
            lambda model: LOAD(model_settings=ModelSettings(replicas=2)),
            UsageError,
            "only one answer is decoded at a time",
        ),
        (lambda model: LOAD(strict=True, parallel=2), UsageError, "--strict decodes one answer at a time"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(
    ask: Callable[[Any], object], kind: type[LacliError], words: str, model: Model
) -> None:
    with pytest.raises(kind, match=words) as raised:
        ask(model)
    assert raised.value.hint and "\n" not in str(raised.value)


def test_a_closed_model_raises_one_error_everywhere(tiny: Path) -> None:
    model = lacli.load(tiny, context=256, threads=1, gpu_layers=0)
    begun, unread, late = model.stream("the thing", raw=True), model.stream("the", raw=True), model.astream("the")
    next(pieces := iter(begun))
    model.close()
    model.close()
    asks: list[Callable[[], object]] = [
        lambda: [*pieces],
        lambda: [*unread],
        lambda: asyncio.run(late.answer()),
        lambda: model.generate("the"),
        lambda: asyncio.run(model.astream("the").answer()),
    ]
    for ask in asks:
        with pytest.raises(LacliError, match="closed"):
            ask()


@pytest.mark.parametrize("attention", ["on", "off"])
def test_a_token_without_numbers_ends_its_answer_and_no_other(tmp_path: Path, tiny: Path, attention: Switch) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny.read_bytes())
    tensors = {each.name: each.data for each in gguf.GGUFReader(damaged, "r+").tensors}
    tensors["token_embd.weight"][BAD := 7] = np.nan
    settings = ModelSettings(context=512, threads=1, gpu_layers=0, flash_attention=attention)
    with lacli.load(damaged, model_settings=settings) as model:
        alone = [model.stream([*range(9, 29), end], max_tokens=TOKENS).answer().tokens for end in (30, 31)]
        streams = [model.stream([*range(9, 29), end], max_tokens=TOKENS) for end in (30, BAD, 31)]
        for stream in streams:
            stream.begin()
        with pytest.raises(LacliError, match="NaN or infinite"):
            streams[1].answer()
        assert [stream.answer().tokens for stream in (streams[0], streams[2])] == alone
        assert model.stream([*range(9, 29), 30], max_tokens=TOKENS).answer().tokens == alone[0]


def test_the_first_tokens_time_is_the_engines_and_not_the_readers(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = model.stream(QUESTIONS[0], max_tokens=TOKENS)
    late.begin()
    assert ends_of(model, [late]) == {"length"}
    monkeypatch.setattr("lacli.engine.answer.perf_counter", lambda: inf)
    assert 0 < late.answer().statistics.first_token_s < inf


def test_a_dropped_model_gives_its_memory_back_before_python_looks_for_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        model = lacli.load(STDLIB_7M, threads=1, gpu_layers=0)
        model.generate(QUESTIONS, max_tokens=5)
        next(iter(model.stream("A list?")))
        weights, thread = weakref.ref(model.engine.model), model.worker._thread
        del model
        thread.join(10)
        assert weights() is None
    finally:
        gc.enable()


def test_every_public_name_is_found() -> None:
    assert all(getattr(lacli, name) for name in lacli.__all__)
