"""Anthropic's messages: requests are converted to chat requests, and answers to content blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, model_validator

from lacli.serve.protocol import CalledFunction, ChatRequest, Function, Part, WithoutNull
from lacli.serve.replies import Block, BlockReply
from lacli.text.json_schema import checked

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""The tool_choice of a chat for each type of Anthropic's tool_choice, except the type `tool`, which names a tool."""


class ContentBlock(WithoutNull):
    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    tool_use_id: str = ""
    content: str | list[Part] = ""


class Turn(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]

    @property
    def for_chat(self) -> Iterator[dict[str, Any]]:
        """Yield the turn as messages of a chat: one for each tool result, then one for all other blocks."""
        content = self.content
        blocks = [ContentBlock(type="text", text=content)] if isinstance(content, str) else content
        others = [block for block in blocks if block.type != "tool_result"]
        for block in blocks:
            if block.type == "tool_result":
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.content}
        if others or not blocks:
            calls = [
                {"id": block.id, "function": {"name": block.name, "arguments": block.input}}
                for block in others
                if block.type == "tool_use"
            ]
            texts = [{"type": "text", "text": block.text} for block in others if block.type == "text"]
            reasoning = "".join(block.thinking for block in others)
            yield {"role": self.role, "content": texts, "reasoning_content": reasoning, "tool_calls": calls or None}


class Tool(Function):
    type: Literal["custom"] = "custom"


class ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str = ""
    disable_parallel_tool_use: bool = False


class GivenMessage(WithoutNull, extra="allow"):
    """The body of POST /v1/messages: the fields that differ from a chat's. Other fields go into the chat unchanged."""

    messages: list[Turn]
    system: str | list[Part] = ""
    tools: list[Tool] = []
    tool_choice: ToolChoice = ToolChoice()
    thinking: dict[str, Any] = {}


class MessagesRequest(ChatRequest):
    """The body of POST /v1/messages, converted to a chat request."""

    @model_validator(mode="before")
    @classmethod
    def _as_chat(cls, body: dict[str, Any]) -> dict[str, Any]:
        given = checked(GivenMessage, body)
        choice, system = given.tool_choice, [{"role": "system", "content": given.system}] if given.system else []
        named = {"type": "function", "function": {"name": choice.name}}
        thinks = {"enable_thinking": given.thinking.get("type") != "disabled"} if given.thinking else {}
        extra = given.model_extra or {}
        return {
            **extra,
            "n": 1,
            "messages": [*system, *(message for turn in given.messages for message in turn.for_chat)],
            "tools": [tool.tool for tool in given.tools],
            "tool_choice": CHOICES.get(choice.type, named),
            "parallel_tool_calls": not choice.disable_parallel_tool_use,
            "chat_template_kwargs": {**thinks, **extra.get("chat_template_kwargs", {})},
        }


class MessagesReply(BlockReply):
    """The reply to POST /v1/messages: a message in one body, or as events."""

    ends_with_timings = False

    def _first(self) -> Iterable[dict[str, Any]]:
        usage = {"input_tokens": len(self.choices[0].stream.prompt), "output_tokens": 0}
        yield {"type": "message_start", "message": self._message(stop_reason=None, stop_sequence=None, usage=usage)}

    def _alive(self) -> dict[str, Any]:
        return {"type": "ping"}

    def _close(self) -> Iterable[dict[str, Any]]:
        message = self._ended
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        yield {"type": "message_delta", "delta": delta, "usage": message["usage"]}
        yield {"type": "message_stop"}

    @property
    def _ended(self) -> dict[str, Any]:
        prompt, cached, predicted, _ = self._usage
        usage = {"input_tokens": prompt - cached, "output_tokens": predicted}
        usage |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
        choice = self.choices[0]
        reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(choice.finish_reason)
        stop = None if reason else choice.stop or None
        reason = reason or ("stop_sequence" if stop else "end_turn")
        return self._message(stop_reason=reason, stop_sequence=stop, usage=usage, **self._notes)

    def _message(self, **more: Any) -> dict[str, Any]:
        head = {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "model": self.name}
        return {**head, "content": [*map(self._content, self.blocks)], **more}

    def _content(self, block: Block) -> dict[str, Any]:
        if not block.call:
            text = {"type": "text", "text": block.text}
            thinking = {"type": "thinking", "thinking": block.text, "signature": ""}
            return text if block.kind == "text" else thinking
        called = CalledFunction.model_validate({"name": block.call.name, "arguments": block.text})
        return {"type": "tool_use", "id": block.call.id, "name": called.name, "input": called.arguments}

    def _begin(self, block: Block) -> Iterable[dict[str, Any]]:
        yield {"type": "content_block_start", "index": block.index, "content_block": self._content(block)}

    def _grow(self, block: Block, text: str) -> dict[str, Any]:
        kind, name = {
            "reasoning": ("thinking_delta", "thinking"),
            "text": ("text_delta", "text"),
            "call": ("input_json_delta", "partial_json"),
        }[block.kind]
        return {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, name: text}}

    def _end(self, block: Block) -> Iterable[dict[str, Any]]:
        yield {"type": "content_block_stop", "index": block.index}
