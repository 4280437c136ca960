"""OpenAI's responses: requests are converted to chat requests, and answers to items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from pydantic import AliasChoices, Field, model_validator

from lacli.serve.protocol import ChatRequest, Function, Part, WithoutNull, text_of
from lacli.serve.replies import Block, BlockReply
from lacli.text.json_schema import checked

KINDS = {
    "reasoning": ("rs", "reasoning_text"),
    "text": ("msg", "output_text"),
    "call": ("fc", "function_call_arguments"),
}
"""For each kind of block: the first letters of its item's id, and what its text is called in events."""


class Item(WithoutNull):
    """An item of a conversation: a message, a function call, the output of a call, or reasoning."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: str | list[Part] | None = Field(None, validation_alias=AliasChoices("content", "output"))
    summary: list[Part] = []
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class Tool(Function):
    type: Literal["function"]


class GivenResponse(WithoutNull, extra="allow"):
    """The body of POST /v1/responses: the fields that differ from a chat's. Other fields go into the chat unchanged."""

    input: str | list[Item]
    instructions: str = ""
    tools: list[Tool] = []
    tool_choice: Literal["none", "auto", "required"] | Tool = "auto"


class ResponsesRequest(ChatRequest):
    """The body of POST /v1/responses, converted to a chat request. `repeated`: fields that the reply repeats."""

    repeated: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _as_chat(cls, body: dict[str, Any]) -> dict[str, Any]:
        for name in ("previous_response_id", "conversation", "background", "prompt"):
            if body.get(name):
                raise ValueError(f"{name}: this server keeps no answers, so send the whole conversation as input")
        given = checked(GivenResponse, body)
        choice = given.tool_choice
        return {
            **(given.model_extra or {}),
            "n": 1,
            "messages": [*_messages(given)],
            # An assistant's message at the end is no beginning of the answer.
            "add_generation_prompt": True,
            "tools": [tool.tool for tool in given.tools],
            "tool_choice": choice.tool if isinstance(choice, Tool) else choice,
            "repeated": {k: v for k, v in body.items() if k not in ("input", "stream") and v is not None},
        }


def _messages(given: GivenResponse) -> Iterator[dict[str, Any]]:
    """Yield the request's items as messages of a chat. Successive reasoning, text and calls become one message."""
    if given.instructions:
        yield {"role": "system", "content": given.instructions}
    said: dict[str, Any] = {}
    for item in [Item.model_validate({"content": given.input})] if isinstance(given.input, str) else given.input:
        added: dict[str, Any] = {}
        if item.type == "function_call":
            function = {"name": item.name, "arguments": item.arguments}
            added["tool_calls"] = [*said.get("tool_calls", ()), {"id": item.call_id, "function": function}]
        elif item.type == "reasoning":
            added["reasoning_content"] = text_of(item.content or item.summary)
        elif item.type == "message" and item.role == "assistant":
            added["content"] = item.content
        if said and (not added or ("tool_calls" not in added and said.keys() & {*added, "tool_calls"})):
            yield said
            said = {}
        if added:
            said = {"role": "assistant", **said, **added}
        else:
            head = {"role": item.role} if item.type == "message" else {"role": "tool", "tool_call_id": item.call_id}
            yield {**head, "content": item.content}
    if said:
        yield said


@dataclass(frozen=True, eq=False)
class ResponsesReply(BlockReply):
    """The reply to POST /v1/responses, in one body or as events. `numbers`: the sequence numbers of the events."""

    asked: ResponsesRequest
    numbers: Iterator[int] = field(default_factory=count)

    def failure(self, error: dict[str, Any]) -> dict[str, Any]:
        said = {"code": "server_error", "message": error["error"]["message"]}
        return self._event("failed", response=self._response("failed", error=said))

    def _first(self) -> Iterable[dict[str, Any]]:
        yield self._event("created", response=self._response("in_progress"))
        yield self._alive()

    def _alive(self) -> dict[str, Any]:
        return self._event("in_progress", response=self._response("in_progress"))

    def _close(self) -> Iterable[dict[str, Any]]:
        yield self._event(self._status, response=self._ended)

    @property
    def _ended(self) -> dict[str, Any]:
        prompt, cached, predicted, thought = self._usage
        usage = {"input_tokens": prompt, "output_tokens": predicted, "total_tokens": prompt + predicted}
        more = {
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens_details": {"reasoning_tokens": thought},
        }
        why = {"reason": "max_output_tokens"} if self._status == "incomplete" else None
        return self._response(self._status, usage={**usage, **more}, incomplete_details=why, **self._notes)

    @property
    def _status(self) -> str:
        return "incomplete" if self.choices[0].finish_reason == "length" else "completed"

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        needed: dict[str, Any] = {"metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        head = {"id": f"resp_{self.id}", "object": "response", "created_at": self.created, "model": self.name}
        drawn = {"temperature": self.sampling.temp, "top_p": self.sampling.top_p}
        output = {"max_output_tokens": self.asked.max_tokens, "output": [*map(self._item, self.blocks)]}
        empty: dict[str, Any] = dict.fromkeys(("error", "incomplete_details", "usage"))
        return {**needed, **self.asked.repeated, **head, "status": status, **drawn, **output, **empty, **more}

    def _event(self, name: str, block: Block | None = None, /, **more: Any) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id(block), "output_index": block.index} if block else {}
        place |= {"content_index": 0} if block and not block.call else {}
        return {"type": f"response.{name}", "sequence_number": next(self.numbers), **place, **more}

    def _begin(self, block: Block) -> Iterable[dict[str, Any]]:
        empty: dict[str, Any] = {} if block.call else {"content": []}
        yield self._event("output_item.added", block, item={**self._item(block), "status": "in_progress", **empty})
        if not block.call:
            yield self._event("content_part.added", block, part=self._part(block))

    def _grow(self, block: Block, text: str) -> dict[str, Any]:
        return self._event(f"{KINDS[block.kind][1]}.delta", block, delta=text, logprobs=[])

    def _end(self, block: Block) -> Iterable[dict[str, Any]]:
        said = {"name": block.call.name, "arguments": block.text} if block.call else self._part(block)
        yield self._event(f"{KINDS[block.kind][1]}.done", block, **{k: v for k, v in said.items() if k != "type"})
        if not block.call:
            yield self._event("content_part.done", block, part=said)
        yield self._event("output_item.done", block, item=self._item(block))

    def _id(self, block: Block) -> str:
        return f"{KINDS[block.kind][0]}_{self.id}{block.index}"

    def _part(self, block: Block) -> dict[str, Any]:
        more: dict[str, Any] = {"annotations": [], "logprobs": []} if block.kind == "text" else {}
        return {"type": KINDS[block.kind][1], "text": block.text, **more}

    def _item(self, block: Block) -> dict[str, Any]:
        head = {"id": self._id(block), "status": self._status if block is self.blocks[-1] else "completed"}
        if block.call:
            told = {"call_id": block.call.id, "name": block.call.name, "arguments": block.text}
            return {**head, "type": "function_call", **told}
        content = {"content": [self._part(block)]}
        if block.kind == "reasoning":
            return {**head, "type": "reasoning", "summary": [], **content}
        return {**head, "type": "message", "role": "assistant", **content}
