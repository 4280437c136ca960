"""The requests of OpenAI's protocol with llama.cpp's fields, checked, and what they say of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from json import dumps
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings

MOST_CHOICES = 16
"""Answers to one request at most: each takes a place among the texts."""

MOST_STOPS = 16
"""Stop strings of a request at most: each is looked for behind every token."""

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


class Message(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """What the message says."""
        return self.content if isinstance(self.content, str) else "\n\n".join(part.text for part in self.content or ())


class ChatRequest(AnswerRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if any(message.content is None for message in self.messages):
            raise ValueError("a message needs a content")
        return self


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
