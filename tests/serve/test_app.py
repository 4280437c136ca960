"""The endpoints, used with OpenAI's own client."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from openai import APIStatusError, NotFoundError, OpenAI

import lacli
from lacli.llamacpp.sampling import SamplingSettings
from tests.loading import STDLIB_7M
from tests.serve.conftest import NAME, app_of, serving

QUESTION: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]
"""Messages of type Any, since the client's own types are narrower than its requests."""

BEGUN = [*QUESTION, {"role": "assistant", "content": "def add(a"}]


def function(name: str, parameters: Any = None) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def post(url: str, body: Mapping[str, Any]) -> Any:
    """Return the JSON reply to a POST request, even if it is an error's."""
    return get(Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}))


def get(asked: str | Request) -> Any:
    """Return the JSON reply to a GET request, even if it is an error's."""
    try:
        with urlopen(asked) as reply:
            return json.load(reply)
    except HTTPError as error:
        return json.load(error)


def test_a_chat_is_answered_as_the_model_answers_it(client: OpenAI, model: lacli.Model) -> None:
    expected = model.chat(QUESTION, max_tokens=40)
    reply = client.chat.completions.create(model="any", messages=QUESTION, max_tokens=40)
    assert reply.model == NAME and reply.choices[0].message.content == expected.text
    assert reply.usage and reply.usage.completion_tokens == len(expected.tokens)


def test_the_events_of_a_stream_make_the_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="any", messages=QUESTION, max_tokens=40)
    options: Any = {"include_usage": True}
    events = [*client.chat.completions.create(
        model="any", messages=QUESTION, max_tokens=40, stream=True, stream_options=options
    )]  # fmt: skip
    first, *middle, last, usage = events
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content is None
    assert "".join(event.choices[0].delta.content or "" for event in middle) == whole.choices[0].message.content
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert not usage.choices and usage.usage and whole.usage
    assert usage.usage.completion_tokens == whole.usage.completion_tokens
    assert len({event.id for event in events}) == 1


def test_each_of_several_answers_has_its_place(client: OpenAI) -> None:
    reply = client.completions.create(model="any", prompt=["def f(", "class A"], max_tokens=8, n=2)
    texts = [choice.text for choice in reply.choices]
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    alone = [client.completions.create(model="any", prompt=each, max_tokens=1).usage for each in ("def f(", "class A")]
    assert reply.usage and reply.usage.prompt_tokens == sum(each.prompt_tokens for each in alone if each)


def test_each_token_has_its_log_probability(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any", messages=QUESTION, max_tokens=5, logprobs=True, top_logprobs=3
    ).choices[0]
    assert reply.logprobs and reply.logprobs.content
    none = client.chat.completions.create(model="any", messages=QUESTION, max_tokens=0, logprobs=True).choices[0]
    assert none.logprobs and none.logprobs.content == []
    assert "".join(each.token for each in reply.logprobs.content) == reply.message.content
    for each in reply.logprobs.content:
        assert each.logprob == max(best.logprob for best in each.top_logprobs)


WRONG: Any = {"properties": {"a": {"type": "whole"}}}
CHAT, RESPONSES, MESSAGES = "v1/chat/completions", "v1/responses", "v1/messages"
COMPLETIONS = ("v1/completions", "completion")
ASKED: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys((CHAT, MESSAGES), {"messages": QUESTION, "max_tokens": 9}),
    RESPONSES: {"input": "Hi"},
    "infill": {"input_prefix": "def f(a):\n", "input_suffix": "    return b\n"},
    **dict.fromkeys(COMPLETIONS, {}),
}
"""A valid request of each path; tests add a wrong field."""


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (CHAT, {"messages": [{"role": "user"}]}, "content"),
        (CHAT, {"temperature": -2}, "temperature: "),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, "messages.0.content.0.type: "),
        (CHAT, {"messages": None}, "messages: Field required"),
        *((CHAT, {"n": number}, "n: Input should be") for number in (0, 99)),
        (CHAT, {"stop": ["a"] * 99}, "stop: List should have at most 64"),
        (CHAT, {"logit_bias": {"99999999": 1}}, "99999999"),
        (CHAT, {"messages": [*BEGUN, BEGUN[-1]]}, "two answers"),
        (CHAT, {"continue_final_message": True}, "assistant's last message"),
        (CHAT, {"messages": BEGUN[1:]}, "after a question"),
        (CHAT, {"top_logprobs": 2}, "it needs logprobs"),
        (CHAT, {"tools": [function("a b")]}, "name"),
        (CHAT, {"tool_choice": "required"}, "no such function"),
        (CHAT, {"tools": [function("f")], "tool_choice": function("x")}, "no such function"),
        (CHAT, {"tools": [function("f")], "tool_choice": "required", "grammar": 'root ::= "a"'}, "another grammar"),
        (CHAT, {"tools": [function("f", {"type": "string"})], "tool_choice": "required"}, "parameters of f"),
        (
            CHAT,
            {"tools": [function("f", {"properties": {"a": {"type": "whole"}}})], "tool_choice": "required"},
            "whole",
        ),
        (MESSAGES, {"messages": []}, "messages: "),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.type: "),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type: "),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "f"}}, "no such function"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id: this server keeps no answers"),
        (RESPONSES, {"conversation": "conv_1"}, "conversation: "),
        (RESPONSES, {"background": True}, "background: "),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools.0.type: "),
        (RESPONSES, {"tool_choice": {"type": "function", "name": "f"}}, "no such function"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "a"}}}, "no schema"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type: "),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "a"}]}, "input.0.type: "),
        (RESPONSES, {"input": []}, "messages: "),
        *(("infill", {"input_extra": [extra]}, "input_extra") for extra in ({}, {"filename": 1, "text": "a"})),
        ("infill", {"input_suffix": None}, "input_suffix"),
        ("infill", {"prompt": ["a", "b"]}, "prompt"),
        *((path, {"prompt": ["a"] * 9, "n": 16}, "128 answers") for path in COMPLETIONS),
        *((path, {"prompt": ["a"] * 129}, "128 answers") for path in COMPLETIONS),
        *((path, {"prompt": [["a", 1]] * 129}, "128 answers") for path in COMPLETIONS),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(qwen: str, path: str, body: Mapping[str, Any], words: str) -> None:
    found = post(f"{qwen}/{path}", {**ASKED[path], **body})
    assert (found["type"], found["error"]["code"], found["error"]["type"]) == ("error", 400, "invalid_request_error")
    assert words in found["error"]["message"]


def test_a_prompt_beyond_the_context_is_refused_with_its_size(client: OpenAI, model: lacli.Model) -> None:
    with pytest.raises(APIStatusError) as raised:
        client.completions.create(model="any", prompt="a b " * model.context, stream=True)
    error = raised.value.body
    assert raised.value.status_code == 400 and isinstance(error, dict)
    assert error["type"] == "exceed_context_size_error" and error["n_ctx"] == model.context < error["n_prompt_tokens"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "v1/chat/completions", 405), ("POST", "v1/embeddings", 404), ("GET", "v1/models/other", 404)],
)
def test_a_wrong_method_or_path_is_an_error_in_openais_shape(address: str, method: str, path: str, status: int) -> None:
    error = get(Request(f"{address}/{path}", method=method))["error"]
    assert error["code"] == status and error["message"].startswith(f"{method} /{path}: ")


def test_the_model_is_found_by_each_of_its_names(model: lacli.Model) -> None:
    names = ("b", "owner/a")
    with (
        serving(app_of(model, names=names)) as address,
        OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        (listed,) = client.models.list()
        assert listed.id == "b"
        for name in names:
            assert client.models.retrieve(name) == listed
        with pytest.raises(NotFoundError):
            client.models.retrieve("c")


def test_tokens_go_there_and_back(address: str) -> None:
    tokens = post(f"{address}/tokenize", {"content": "def f(x): pass"})["tokens"]
    assert post(f"{address}/detokenize", {"tokens": tokens})["content"] == "def f(x): pass"
    said = "<|im_start|>user\nhello<|im_end|>\n"
    pieces = post(f"{address}/tokenize", {"content": said, "with_pieces": True})["tokens"]
    assert "".join(each["piece"] for each in pieces) == said
    assert post(f"{address}/detokenize", {"tokens": [each["id"] for each in pieces]})["content"] == said
    by_tokens, by_text = (
        post(f"{address}/completion", {"prompt": prompt, "n_predict": 2}) for prompt in (tokens, "def f(x): pass")
    )
    assert by_tokens["content"] == by_text["content"]
    marks = [post(f"{address}/tokenize", {"content": "<|im_end|>", "parse_special": each})["tokens"] for each in (1, 0)]
    assert len(marks[0]) == 1 < len(marks[1])
    assert (by_text["stop_type"], by_text["timings"]["predicted_n"]) == ("limit", 2)


def test_the_rates_of_a_reply_follow_from_its_milliseconds(address: str) -> None:
    """llama.cpp's own server tests check this; the first token comes from the prefill and takes no step."""
    timings = post(f"{address}/completion", {"prompt": "def f(x): pass", "n_predict": 5})["timings"]
    assert abs(timings["predicted_per_second"] - 1e3 / timings["predicted_ms"] * (timings["predicted_n"] - 1)) < 1e-6
    assert abs(timings["prompt_per_second"] - 1e3 / timings["prompt_ms"] * timings["prompt_n"]) < 1e-6


def test_counters_count(address: str) -> None:
    def predicted() -> float:
        with urlopen(f"{address}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith("llamacpp:tokens_predicted_total")).split()[1])

    before = predicted()
    post(f"{address}/completion", {"prompt": "def f(", "n_predict": 7})
    assert predicted() == before + 7


def test_the_docs_say_of_each_parameter_of_the_client_whether_it_is_done(client: OpenAI) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    names = {name for call in (client.chat, client) for name in signature(call.completions.create).parameters}
    names -= {"extra_headers", "extra_query", "extra_body", "timeout"}
    assert len(names) > 30 and not {name for name in names if not re.search(rf"[|,] {name}[ ,;]", docs)}


def test_answers_to_one_prompt_have_a_seed_each_counted_on_from_the_one_that_is_given() -> None:
    """The model is strict; otherwise other sequences would change the rounding."""
    with (
        lacli.load(STDLIB_7M, threads=1, strict=True) as model,
        serving(app_of(model, sampling=SamplingSettings(temp=1.5), max_tokens=8)) as address,
        OpenAI(base_url=f"{address}/v1", api_key="none") as client,
    ):

        def texts(seed: int, n: int) -> list[str]:
            reply = client.completions.create(model="any", prompt="def f(", seed=seed, n=n)
            return [choice.text for choice in reply.choices]

        together, last = texts(7, 3), 2**32 - 2
        assert len({*together}) == 3 and together == [*texts(7, 1), *texts(8, 1), *texts(9, 1)]
        assert texts(last, 2)[1:] == texts(0, 1)
