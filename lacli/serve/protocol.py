"""The requests of OpenAI's protocol with llama.cpp's fields, checked, and what they say of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from json import dumps, loads
from re import fullmatch
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings

MOST_CHOICES = 16
"""Answers to one request at most: each takes a place among the texts."""

MOST_STOPS = 16
"""Stop strings of a request at most: each is looked for behind every token."""

MOST_TOOLS = 128
"""Functions that a request may offer, as OpenAI has it."""

SAMPLED = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repeat_penalty",
    "ignore_eos": "ignore_eos",
}
"""Fields of a request that are fields of SamplingSettings, with its names."""


class StreamOptions(BaseModel):
    """What a stream says besides the answer."""

    include_usage: bool = False


class Watching(BaseModel):
    """What the page asks for besides: `steps`, the pieces of each step with their origins, its rows and its time."""

    steps: bool = False


class ResponseFormat(BaseModel):
    """The form of an answer, as OpenAI and llama.cpp write it."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    # pydantic's models have a method of this name.
    own_schema: Any = Field(None, alias="schema")
    json_schema: dict[str, Any] | None = None

    @property
    def schema_text(self) -> str:
        """The JSON schema that the answer keeps to, "" for none."""
        if self.type == "text":
            return ""
        schema = self.own_schema if self.own_schema is not None else (self.json_schema or {}).get("schema")
        if schema is None:
            schema = {"type": "object"}
        if not isinstance(schema, Mapping):
            raise UsageError("response_format: the schema is no object", 'give {"type": "object", ...}')
        return dumps(schema)


class AnswerRequest(BaseModel):
    """What chats and completions have in common; unknown fields are left alone."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stop: list[str] = Field(default=[], max_length=MOST_STOPS)
    max_tokens: int | None = Field(None, ge=-1)
    max_completion_tokens: int | None = Field(None, ge=-1)
    n_predict: int | None = Field(None, ge=-1)
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | list[tuple[int | str, float | bool]] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    timings_per_token: bool = False
    return_progress: bool = False
    mode: str | None = None
    lacli: Watching = Watching()

    @field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, stop: object) -> object:
        return [] if stop is None else [stop] if isinstance(stop, str) else stop

    @property
    def limit(self) -> int | None:
        """Tokens of the answer at most, -1 for no limit, None where nothing is said."""
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        return next((each for each in given if each is not None), None)

    @property
    def has_form(self) -> bool:
        """Whether the request gives its answer a form."""
        formatted = self.response_format is not None and self.response_format.type != "text"
        return bool(self.grammar or self.json_schema is not None or formatted)

    def sampling(self, defaults: SamplingSettings) -> SamplingSettings:
        """How tokens are drawn: as the request says, otherwise by `defaults`. Raises UsageError for what cannot be."""
        chosen: dict[str, Any] = {}
        for field, name in SAMPLED.items():
            if (value := getattr(self, field)) is not None:
                chosen[name] = value
        if self.logit_bias:
            chosen["logit_bias"] = tuple(_biases(self.logit_bias))
        schema = dumps(self.json_schema) if self.json_schema is not None else ""
        if not schema and self.response_format:
            schema = self.response_format.schema_text
        if schema or self.grammar:
            chosen |= {"json_schema": schema, "grammar": self.grammar or ""}
        return replace(defaults, **chosen)


def _biases(given: Mapping[str, float] | list[tuple[int | str, float | bool]]) -> list[tuple[int, float]]:
    found = []
    for token, bias in given.items() if isinstance(given, Mapping) else given:
        if not str(token).isdecimal():
            raise UsageError(f"logit_bias: {token!r} is no token id", "POST /tokenize tells the ids of a text")
        # llama.cpp's false forbids a token.
        found.append((int(token), float("-inf") if bias is False else float(bias)))
    return found


class Part(BaseModel):
    """A part of a message; only texts are offered."""

    type: Literal["text"]
    text: str


class Function(BaseModel):
    """A function that the model may call; `parameters`: the JSON schema of its arguments, an object."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    # Some templates fail where one of these is missing.
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: object) -> object:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, Mapping) else given


class Tool(BaseModel):
    """A tool; only functions are offered."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


class NamedTool(BaseModel):
    """The function that an answer has to call."""

    type: Literal["function"]
    function: Function


class CalledFunction(BaseModel):
    """A function and the arguments that an earlier answer gave it."""

    name: str
    arguments: dict[str, Any]

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_object(cls, arguments: object) -> object:
        # OpenAI's protocol writes them as a text of JSON, and templates want the object.
        try:
            return loads(arguments or "{}") if isinstance(arguments, str) else arguments
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


class ToolCall(BaseModel):
    """A call of an earlier answer."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction

    @field_validator("id")
    @classmethod
    def _short(cls, name: str) -> str:
        return short_id(name)


class Message(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """What the message says."""
        return self.content if isinstance(self.content, str) else "\n\n".join(part.text for part in self.content or ())

    @property
    def is_of_tools(self) -> bool:
        """Whether it has calls or the result of one."""
        return bool(self.role == "tool" or self.tool_calls)

    @property
    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it."""
        found: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.tool_calls:
            found["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.role == "tool":
            found["tool_call_id"] = short_id(self.tool_call_id or "")
            found |= {"name": self.name} if self.name else {}
        return found


def short_id(name: str) -> str:
    """The id of a call with the nine letters and digits that Mistral's templates ask for."""
    return name if fullmatch("[a-zA-Z0-9]{9}", name) else sha256(name.encode()).hexdigest()[:9]


class ChatRequest(AnswerRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    tools: list[Tool] = Field(default=[], max_length=MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True

    @field_validator("tools", mode="before")
    @classmethod
    def _no_tools(cls, tools: object) -> object:
        return [] if tools is None else tools

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if any(message.content is None and not message.tool_calls for message in self.messages):
            raise ValueError("a message needs a content")
        known = [tool.function.name for tool in self.tools]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in known:
            raise ValueError(f"tool_choice: there is no function {self.tool_choice.function.name!r} in tools")
        if self.tool_choice == "required" and not self.tools:
            raise ValueError("tool_choice: required needs tools")
        return self

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        """The functions that the answer may call, by name, with the JSON schemas of their arguments."""
        if self.tool_choice == "none":
            return {}
        functions = [tool.function for tool in self.tools]
        if isinstance(self.tool_choice, NamedTool):
            functions = [each for each in functions if each.name == self.tool_choice.function.name]
        return {each.name: each.parameters for each in functions}

    @property
    def calls_several(self) -> bool:
        """Whether the answer may have more than one call."""
        return self.parallel_tool_calls and not isinstance(self.tool_choice, NamedTool)

    @property
    def has_to_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)


class CompletionRequest(AnswerRequest):
    """POST /v1/completions, and llama.cpp's /completion."""

    prompt: str | list[int] | list[str | list[int]]
    logprobs: int | None = Field(None, ge=0, le=20)
    n_probs: int = Field(0, ge=0, le=100)
    return_tokens: bool = False
    response_fields: list[str] = []

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, str) or all(isinstance(each, int) for each in self.prompt):
            return [self.prompt]  # type: ignore[list-item]  # one text, or one list of ids
        return self.prompt  # type: ignore[return-value]


def in_words(error: ValidationError) -> str:
    """The first complaint about a request in one sentence."""
    first = error.errors()[0]
    place = ".".join(str(each) for each in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
