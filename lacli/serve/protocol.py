"""The requests of OpenAI's protocol with llama.cpp's fields, checked, and what they say of an answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from json import loads
from re import fullmatch
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

from lacli.serve.sampled import Sampled
from lacli.text.checked import WithoutNull
from lacli.text.format import printable

MOST_CHOICES = 16
"""Answers to one request at most: each takes a slot."""

MOST_STOPS = 64
"""Stop strings of a request at most: each is looked for behind every token.

An editor may send its template's control tokens and a word for each kind of definition of a language.
"""

LONGEST_NAME = 40
"""Characters of an unknown field's name in the log."""

MOST_TOOLS = 128
"""Functions that a request may offer, as OpenAI has it."""


REFUSED = {
    *("functions", "function_call", "suffix", "audio", "web_search_options", "echo", "format", "samplers", "lora"),
    *("guided_json", "guided_choice", "guided_regex", "guided_grammar", "structured_outputs", "regex", "ebnf"),
    *("min_tokens", "bad_words", "allowed_token_ids", "stop_token_ids", "use_beam_search", "chat_template"),
    *("thinking_budget_tokens", "t_max_predict_ms", "dry_sequence_breakers"),
}
"""Fields of OpenAI's, llama.cpp's and vLLM's that would change the answer and are not offered."""

TAKEN = {
    *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "reasoning_effort"),
    *("verbosity", "reasoning_format", "modalities", "prediction", "min_keep", "parse_tool_calls", "cache_prompt"),
    *("id_slot", "n_keep", "generation_prompt", "best_of", "n_discard", "max_tokens", "n_predict"),
}
"""Fields of OpenAI's and llama.cpp's that change nothing here."""

NOTHING: tuple[object, ...] = (None, False, 0, -1, "", [], {})
"""Values with which clients say that they ask for nothing."""

log = logging.getLogger(__name__)


@lru_cache(maxsize=256)
def _note_unknown(field: str) -> None:
    """Name a field in the log, once."""
    log.warning("a field that nobody knows is ignored: %s", field)


class StreamOptions(BaseModel):
    """What a stream says besides the answer."""

    include_usage: bool = False


class Watching(BaseModel):
    """What the page asks for besides: `steps`, the pieces of each step with their origins, its rows and its time."""

    steps: bool = False


class AnswerRequest(Sampled):
    """What chats and completions have in common. `mode`: plain for one token a step."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default=[], max_length=MOST_STOPS)
    max_tokens: int | None = Field(
        None, ge=-1, validation_alias=AliasChoices("max_completion_tokens", "max_tokens", "n_predict")
    )
    timings_per_token: bool = False
    return_progress: bool = False
    verbose: bool = False
    mode: str | None = None
    lacli: Watching = Watching()

    @model_validator(mode="after")
    def _check_extra(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name in REFUSED and value not in NOTHING:
                raise ValueError(f"{name} is not offered")
            if name not in TAKEN | REFUSED:
                _note_unknown(printable(name[:LONGEST_NAME]))
        return self

    @field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, stop: object) -> object:
        return [stop] if isinstance(stop, str) else stop


class Part(BaseModel):
    """A part of a message; only texts are offered."""

    type: Literal["text"]
    text: str


class Function(WithoutNull):
    """A function that the model may call; `parameters`: the JSON schema of its arguments, an object."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    # Some templates fail where one of these is missing.
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}


class Tool(BaseModel):
    """A tool that an answer may call, or has to; only functions are offered."""

    model_config = ConfigDict(extra="allow")

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
        if not isinstance(arguments, str):
            return arguments
        try:
            found = loads(arguments or "{}")
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        except ValueError:
            found = None
        # The model gets to see what it wrote, where that was cut or is no object.
        return found if isinstance(found, dict) else {"arguments": arguments}


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

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
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
        # OpenAI's later name, which templates do not know.
        role = "system" if self.role == "developer" else self.role
        found: dict[str, Any] = {"role": role, "content": self.text}
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
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    tools: list[Tool] = Field(default=[], max_length=MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        for place, message in enumerate(self.messages):
            # A refusal of OpenAI's has none.
            if message.content is None and not message.tool_calls and message.role != "assistant":
                raise ValueError(f"messages.{place}: a message needs a content")
        chosen = self.tool_choice.function.name if isinstance(self.tool_choice, Tool) else ""
        *before, last = self.messages
        begun, goes_on = self.is_begun, self.continue_final_message
        wrong = {
            f"tool_choice: there is no function {chosen!r} in tools": chosen
            and chosen not in {tool.function.name for tool in self.tools},
            "tool_choice: required needs tools": self.tool_choice == "required" and not self.tools,
            "top_logprobs: it needs logprobs: true": self.top_logprobs and not self.logprobs,
            "messages: two answers are at the end": begun and before and before[-1].role == "assistant",
            "messages: the calls of the last one need messages of role tool": begun and last.tool_calls,
            "messages: an answer is continued behind another message": begun and not before,
            "continue_final_message: add_generation_prompt begins another": goes_on and self.add_generation_prompt,
            "continue_final_message: the last message is not the assistant's": goes_on and not begun,
            "add_generation_prompt: false is for a begun answer": self.add_generation_prompt is False and not begun,
        }
        for why, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(why)
        return self

    @property
    def is_begun(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].role == "assistant" and not self.add_generation_prompt

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        """The functions that the answer may call, by name, with the JSON schemas of their arguments."""
        if self.tool_choice == "none":
            return {}
        functions = [tool.function for tool in self.tools]
        if isinstance(self.tool_choice, Tool):
            functions = [each for each in functions if each.name == self.tool_choice.function.name]
        return {each.name: each.parameters for each in functions}

    @property
    def calls_several(self) -> bool:
        """Whether the answer may have more than one call."""
        return self.parallel_tool_calls and not isinstance(self.tool_choice, Tool)

    @property
    def has_to_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, Tool)


class PromptObject(BaseModel):
    """A prompt as llama.cpp's server takes it with media, which are not offered."""

    prompt_string: str
    multimodal_data: list[str] = Field(default=[], max_length=0)


Prompt = str | PromptObject | list[int | str]
"""A text, or parts that are texts or token ids."""


class CompletionRequest(AnswerRequest):
    """POST /v1/completions, and llama.cpp's /completion."""

    prompt: str | PromptObject | list[int] | list[str | PromptObject | list[int | str]] | list[int | str]
    logprobs: int | None = Field(None, ge=0, le=20)
    n_probs: int = Field(0, ge=0, le=100)
    post_sampling_probs: bool = False
    return_tokens: bool = False
    response_fields: list[str] = []

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The prompts. A list with a token id in it is one prompt, and so is an empty one."""
        given = self.prompt
        if isinstance(given, list) and given and not any(isinstance(each, int) for each in given):
            return given  # type: ignore[return-value]
        return [given]  # type: ignore[list-item]

    @property
    def is_batch(self) -> bool:
        """Whether several prompts are given, whose answers are a list."""
        return len(self.prompts) > 1
