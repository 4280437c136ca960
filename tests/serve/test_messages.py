"""Anthropic's messages, used with Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, APIStatusError

from tests.serve.conftest import NAME, saying
from tests.serve.test_app import BEGUN, QUESTION, post
from tests.serve.test_reasoning import SCHEMA
from tests.serve.test_responses import SAID
from tests.serve.test_tools import CLOCK, HISTORY, WEATHER

TOOLS: Any = [
    {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
    for each in (CLOCK["function"], WEATHER["function"])
]
SYSTEM: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]


@pytest.fixture(scope="module")
def claude(address: str) -> Iterator[Anthropic]:
    with Anthropic(api_key="none", base_url=address, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def caller(qwen: str) -> Iterator[Anthropic]:
    with Anthropic(api_key="none", base_url=qwen, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("begun", [False, True])
def test_a_message_is_the_answer_of_a_chat(claude: Anthropic, address: str, begun: bool) -> None:
    messages = BEGUN if begun else QUESTION
    system = {"role": "system", "content": "Be brief."}
    chat = post(f"{address}/v1/chat/completions", {"messages": [system, *messages], "max_tokens": 9})
    reply = claude.messages.create(model="any", max_tokens=9, system=SYSTEM, messages=messages)
    (block,) = reply.content
    assert block.type == "text" and block.text == chat["choices"][0]["message"]["content"]
    assert (reply.model, reply.stop_reason, reply.stop_sequence) == (NAME, "max_tokens", None)
    usage, count = reply.usage, claude.messages.count_tokens(model="any", system="Be brief.", messages=messages)
    assert usage.cache_read_input_tokens and usage.output_tokens == 9
    read = usage.input_tokens + usage.cache_read_input_tokens
    assert count.to_dict() == {"input_tokens": read} and read == chat["usage"]["prompt_tokens"]


def test_the_events_of_a_message_come_in_order_and_make_it(caller: Anthropic) -> None:
    asked: Any = {"model": "any", "max_tokens": 99, "messages": QUESTION, "tools": TOOLS, "extra_body": saying(SAID)}
    whole = caller.messages.create(**asked)
    events = [*caller.messages.create(**asked, stream=True)]
    assert not any("timings" in event.to_dict() for event in events)
    names = [event.type for event in events]
    assert [name for place, name in enumerate(names) if name != names[place - 1]] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop") * 3,
        *("message_delta", "message_stop"),
    ]
    with caller.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for reply in (whole, streamed):
        content: Any = reply.content
        thinking, text, call = content
        assert thinking.type == "thinking" and "hm" in thinking.thinking
        assert text.type == "text" and text.text == "So."
        assert call.type == "tool_use" and (call.name, call.input) == ("clock", {}) and call.id
        assert reply.stop_reason == "tool_use"
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def test_a_stop_sequence_is_named(claude: Anthropic, caller: Anthropic) -> None:
    asked: Any = {"model": "any", "max_tokens": 9, "messages": QUESTION}
    for client, tools in ((claude, []), (caller, TOOLS)):
        given: Any = {"tools": tools, "stop_sequences": ["b c"], "extra_body": saying("a b c")}
        reply = client.messages.create(**asked, **given)
        assert (reply.stop_reason, reply.stop_sequence, reply.content[0].text.strip()) == ("stop_sequence", "b c", "a")
    ended = claude.messages.create(**asked, extra_body=saying("a"))
    assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_call_and_its_result_go_back_as_blocks(caller: Anthropic, qwen: str, choice: Any) -> None:
    said: Any = [{"role": "user", "content": "Rain in Bonn?"}]
    reply = caller.messages.create(model="any", max_tokens=200, messages=said, tools=TOOLS, tool_choice=choice)
    (call,) = reply.content
    assert call.type == "tool_use" and reply.stop_reason == "tool_use"
    said += [{"role": "assistant", "content": [{**call.to_dict(), "name": "weather", "input": {"city": "Bonn"}}]}]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "no"}]}
    said += [{"role": "user", "content": [result, {"type": "text", "text": "So?"}]}]
    more: Any = {"verbose": True}
    again = caller.messages.create(model="any", max_tokens=1, messages=said, tools=TOOLS, extra_body=more).to_dict()
    chat = {"messages": [*HISTORY, {"role": "user", "content": "So?"}], "tools": [CLOCK, WEATHER]}
    told: Any = again["__verbose"]
    assert told["prompt"] == post(f"{qwen}/apply-template", chat)["prompt"]


def test_a_message_keeps_to_a_schema(claude: Anthropic) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    reply: Any = claude.messages.create(model="any", max_tokens=99, messages=QUESTION, output_config=form)
    assert type(json.loads(reply.content[0].text)["yes"]) is bool


@pytest.mark.usefixtures("breaks")
def test_an_error_in_the_middle_is_an_event(claude: Anthropic) -> None:
    with pytest.raises(APIStatusError, match="it broke"):
        [*claude.messages.create(model="any", max_tokens=9, messages=QUESTION, stream=True)]
