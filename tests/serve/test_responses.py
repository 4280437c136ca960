"""OpenAI's responses, used with OpenAI's own client."""

from __future__ import annotations

from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.serve.conftest import NAME, saying
from tests.serve.test_app import QUESTION, post
from tests.serve.test_reasoning import Yes
from tests.serve.test_tools import CLOCK, HISTORY, WEATHER

TOOLS: Any = [{"type": "function", **each["function"]} for each in (CLOCK, WEATHER)]
SAID = '<think>\nhm\n</think>\n\nSo.<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
"""An answer with reasoning, a text and a call."""

ITEM = ["output_item.added", "content_part.added"]
ENDS = ["content_part.done", "output_item.done"]


def test_a_response_is_the_answer_of_a_chat(client: OpenAI) -> None:
    question = QUESTION[0]["content"]
    chat = client.chat.completions.create(
        model="any", messages=[{"role": "system", "content": "Be brief."}, *QUESTION], max_tokens=9
    )
    reply = client.responses.create(model="any", input=question, instructions="Be brief.", max_output_tokens=9)
    assert reply.output_text == chat.choices[0].message.content and reply.model == NAME
    assert reply.status == "incomplete" and reply.incomplete_details
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert (reply.instructions, reply.max_output_tokens, reply.tools, reply.error) == ("Be brief.", 9, [], None)
    assert reply.usage and chat.usage and reply.usage.total_tokens == chat.usage.total_tokens
    assert reply.usage.output_tokens == 9 and not reply.usage.output_tokens_details.reasoning_tokens
    count = client.responses.input_tokens.count(model="any", input=question, instructions="Be brief.")
    assert count.input_tokens == reply.usage.input_tokens == chat.usage.prompt_tokens
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": question}]}]
    again = client.responses.create(model="any", input=parts, instructions="Be brief.", max_output_tokens=9)
    assert again.usage and again.usage.input_tokens_details.cached_tokens and again.output_text == reply.output_text


def test_the_events_of_a_response_come_in_order_and_make_it(caller: OpenAI) -> None:
    asked: Any = {"model": "any", "input": "Hi", "tools": TOOLS, "extra_body": saying(SAID)}
    whole = caller.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert whole.output_text == "So." and whole.status == "completed" and whole.usage
    assert whole.usage.output_tokens_details.reasoning_tokens
    events = [*caller.responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    names = [event.type.removeprefix("response.") for event in events]
    assert [name for place, name in enumerate(names) if name != names[place - 1]] == [
        *("created", "in_progress"),
        *(*ITEM, "reasoning_text.delta", "reasoning_text.done", *ENDS),
        *(*ITEM, "output_text.delta", "output_text.done", *ENDS),
        *(ITEM[0], "function_call_arguments.delta", "function_call_arguments.done", ENDS[1]),
        "completed",
    ]
    last: Any = events[-1]
    streamed, expected = ([item.to_dict() for item in each.output] for each in (last.response, whole))
    assert streamed == [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    for item in (*streamed, *expected):
        assert item.pop("id")
        item.pop("call_id", None)
    assert streamed == expected
    with caller.responses.stream(model="any", input="Hi", extra_body=saying("So.")) as stream:
        assert stream.get_final_response().output_text == "So."


def test_a_call_and_its_result_go_back_as_items(caller: OpenAI, qwen: str) -> None:
    choice: Any = {"type": "function", "name": "weather"}
    said: Any = [{"role": "user", "content": "Rain in Bonn?"}]
    (call,) = caller.responses.create(model="any", input=said, tools=TOOLS, tool_choice=choice).output
    assert call.type == "function_call" and call.name == "weather"
    said += [{**call.to_dict(), "arguments": '{"city": "Bonn"}'}]
    said += [{"type": "function_call_output", "call_id": call.call_id, "output": "no"}]
    reply: Any = caller.responses.create(
        model="any", input=said, tools=TOOLS, max_output_tokens=1, extra_body={"verbose": True}
    )
    prompt = post(f"{qwen}/apply-template", {"messages": HISTORY, "tools": [CLOCK, WEATHER]})["prompt"]
    assert reply.to_dict()["__verbose"]["prompt"] == prompt


def test_reasoning_a_text_and_a_call_that_follow_each_other_are_one_message(caller: OpenAI, qwen: str) -> None:
    said: Any = caller.responses.create(model="any", input="Hi", tools=TOOLS, extra_body=saying(SAID)).output
    items = [{"role": "user", "content": "Hi"}, *(item.to_dict() for item in said)]
    after: Any = {"role": "assistant", "content": "Done."}
    reply: Any = caller.responses.create(
        model="any", input=[*items, after], max_output_tokens=1, extra_body={"verbose": True}
    )
    calls = [{"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]
    messages: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So.", "tool_calls": calls}]
    chat = {"messages": [*messages, after], "add_generation_prompt": True}
    assert reply.to_dict()["__verbose"]["prompt"] == post(f"{qwen}/apply-template", chat)["prompt"]


def test_a_response_keeps_to_a_schema(client: OpenAI) -> None:
    reply = client.responses.parse(model="any", input="Is it?", text_format=Yes, reasoning={"effort": "low"})
    assert isinstance(reply.output_parsed, Yes)


@pytest.mark.usefixtures("breaks")
def test_an_error_in_the_middle_is_the_last_event(client: OpenAI) -> None:
    *_, last = client.responses.create(model="any", input="Hi", stream=True)
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error and last.response.error.message == "it broke"


@pytest.mark.parametrize(("path", "what"), [("embeddings", "embeddings"), ("images/generations", "images")])
def test_a_route_of_openais_that_is_not_here_says_so(client: OpenAI, path: str, what: str) -> None:
    with pytest.raises(NotFoundError, match=f"POST /v1/{path}: this server has no {what}"):
        client.post(f"/{path}", body={}, cast_to=object)
