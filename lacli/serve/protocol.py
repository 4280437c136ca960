"""Requests of OpenAI's protocol with llama.cpp's fields, checked by pydantic, and the errors that they get."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from re import fullmatch
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    create_model,
    model_validator,
)

from lacli.errors import UsageError
from lacli.llamacpp.sampling import MOST_SEED, SamplingSettings
from lacli.settings import options_of
from lacli.text.json_schema import without_null

if TYPE_CHECKING:
    from starlette.requests import Request

REFUSED = {
    *("functions", "function_call", "suffix", "audio", "web_search_options", "echo", "format", "samplers", "lora"),
    *("guided_json", "guided_choice", "guided_regex", "guided_grammar", "structured_outputs", "regex", "ebnf"),
    *("min_tokens", "bad_words", "allowed_token_ids", "stop_token_ids", "use_beam_search", "chat_template"),
    *("thinking_budget_tokens", "t_max_predict_ms", "dry_sequence_breakers", "response_fields"),
    *("mirostat", "dynatemp_range", "top_n_sigma"),
}
"""Fields of OpenAI's, llama.cpp's and vLLM's that would change the answer and are not offered."""

NUMBERS = {
    each.request or name: each for name, each in options_of(SamplingSettings).items() if each.kind in (int, float, bool)
}
"""Settings of sampling that are one field of a request, by its name."""


def error_body(status: int, message: str, kind: str = "", **more: Any) -> dict[str, Any]:
    """The body of an error in OpenAI's shape, which is Anthropic's too by its type."""
    kind = kind or ("not_found_error" if status == 404 else "invalid_request_error" if status < 500 else "server_error")
    return {"type": "error", "error": {"code": status, "message": message, "type": kind, **more}}


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises UsageError for anything else."""
    try:
        found = json.loads(await request.body())
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError("the body is not a JSON object")
    return found


class WithoutNull(BaseModel):
    """An object whose null fields count as left out."""

    _without_null = model_validator(mode="before")(without_null)


FORMAT = AliasChoices(
    "response_format", "output_format", AliasPath("text", "format"), AliasPath("output_config", "format")
)
EFFORT = AliasChoices("reasoning_effort", AliasPath("reasoning", "effort"), AliasPath("output_config", "effort"))
LIMIT = AliasChoices("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict")
"""Names of the same field in chats, responses, messages and completions."""


class ResponseFormat(WithoutNull):
    """The form of an answer, as OpenAI and llama.cpp write it."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    form: dict[str, Any] | None = Field(
        None, validation_alias=AliasChoices("schema", AliasPath("json_schema", "schema"))
    )

    @property
    def schema_text(self) -> str:
        if self.type == "text":
            return ""
        if self.type == "json_schema" and self.form is None:
            raise UsageError("response_format: it has no schema", 'give {"json_schema": {"schema": {...}}}')
        return json.dumps({"type": "object"} if self.form is None else self.form)


if TYPE_CHECKING:
    _Numbers = WithoutNull
else:
    _Numbers = create_model(
        "_Numbers",
        __base__=WithoutNull,
        **{
            field: (each.kind | None, Field(None, ge=each.least or -1, le=each.most)) for field, each in NUMBERS.items()
        },
    )


class Sampled(_Numbers):
    """How the tokens of an answer are drawn, with the fields of NUMBERS; None is as the server's flags say."""

    seed: int | None = None
    repetition_penalty: float | None = None  # vLLM's name of repeat_penalty
    logit_bias: dict[str, float | None] | list[tuple[int | str, float | bool | None]] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    response_format: ResponseFormat | None = Field(None, validation_alias=FORMAT)

    def sampling(self, defaults: SamplingSettings, tokens_of: Callable[[str], Sequence[int]]) -> SamplingSettings:
        """Return the settings of the request, the others from `defaults`. Raises UsageError for impossible ones.

        `tokens_of`: the tokens of a text that has a bias.
        """
        given = [(each, getattr(self, field)) for field, each in NUMBERS.items()]
        # llama-server takes -1 for 0 if numbers begin at 0.
        chosen = {each.name: value if each.least else max(value, 0) for each, value in given if value is not None}
        if self.repetition_penalty is not None:
            chosen.setdefault("repeat_penalty", self.repetition_penalty)
        if seed := chosen.get("seed"):
            # OpenAI's seeds have 64 bits, llama.cpp's 32; its largest one is a random one, as -1 is.
            chosen["seed"] = -1 if seed in (-1, MOST_SEED + 1) else seed % (MOST_SEED + 1)
        if self.logit_bias:
            biases = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
            chosen["logit_bias"] = tuple(
                # llama.cpp's false forbids a token.
                (token, float("-inf") if bias is False else float(bias))
                for what, bias in biases
                if bias is not None
                for token in ([int(what)] if str(what).isdecimal() else tokens_of(str(what)))
            )
        schema = json.dumps(self.json_schema) if self.json_schema is not None else ""
        if not schema and self.response_format:
            schema = self.response_format.schema_text
        if schema or self.grammar:
            chosen |= {"json_schema": schema, "grammar": self.grammar or ""}
        return replace(defaults, **chosen)


def as_stops(given: object) -> object:
    """Put a single stop text in a list, and pass over empty ones."""
    found = [given] if isinstance(given, str) else given
    return [each for each in found if each not in ("", None)] if isinstance(found, list) else found


Stops = Annotated[list[str], BeforeValidator(as_stops)]


class AnswerRequest(Sampled):
    """What chats and completions have in common; `lacli`: {"steps": true} for events that tell of their steps."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    stream: bool = False
    stream_options: dict[str, bool | None] = {}
    n: int = Field(1, ge=1, le=16)
    stop: Stops = Field(default=[], max_length=64, validation_alias=AliasChoices("stop", "stop_sequences"))
    max_tokens: int | None = Field(None, ge=-1, validation_alias=LIMIT)
    timings_per_token: bool = False
    return_progress: bool = False
    verbose: bool = False
    post_sampling_probs: bool = False
    lacli: dict[Literal["steps"], bool] = {}

    @model_validator(mode="after")
    def _check_extra(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name in REFUSED and value not in (None, False, 0, -1, "", [], {}):
                raise ValueError(f"{name} is not offered")
        return self


class Part(BaseModel):
    """A text of a message, by the names that it has in chats, responses and messages."""

    type: Literal["text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal"]
    text: str = Field(validation_alias=AliasChoices("text", "refusal"))


def text_of(content: str | Sequence[Part] | None) -> str:
    return content if isinstance(content, str) else "\n\n".join(part.text for part in content or ())


class Function(WithoutNull):
    """A function that the model may call; `parameters`: the JSON schema of its arguments.

    `type`: of a tool in the protocols whose tools are functions themselves.
    """

    model_config = ConfigDict(extra="allow")

    type: str = Field("", exclude=True)
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    # Some templates fail without one of these.
    description: str = ""
    parameters: dict[str, Any] = Field(
        {"type": "object", "properties": {}}, validation_alias=AliasChoices("parameters", "input_schema")
    )

    @property
    def tool(self) -> dict[str, Any]:
        """The function as a tool of a chat."""
        return {"type": "function", "function": self}


class Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


def short_id(name: str) -> str:
    """The id of a call as nine letters and digits, which Mistral's templates ask for."""
    return name if fullmatch("[a-zA-Z0-9]{9}", name) else sha256(name.encode()).hexdigest()[:9]


def as_object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """The arguments of a call for a template; arguments that are no object, or were cut, as the model wrote them."""
    return arguments if isinstance(arguments, dict) else {"arguments": arguments} if arguments else {}


class CalledFunction(BaseModel):
    """A function and the arguments that an earlier answer gave it."""

    name: str
    arguments: Annotated[
        Json[dict[str, Any]] | dict[str, Any] | str, Field(union_mode="left_to_right"), AfterValidator(as_object)
    ]


class ToolCall(BaseModel):
    id: Annotated[str, AfterValidator(short_id)] = Field("", validate_default=True)
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(WithoutNull):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    reasoning_content: str = Field("", validation_alias=AliasChoices("reasoning_content", "reasoning"))
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def for_template(self) -> dict[str, Any]:
        # OpenAI's later name of the role, which templates do not know.
        role = "system" if self.role == "developer" else self.role
        found: dict[str, Any] = {"role": role, "content": text_of(self.content)}
        found |= {"reasoning_content": self.reasoning_content} if self.reasoning_content else {}
        if self.tool_calls:
            found["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.role == "tool":
            found["tool_call_id"] = short_id(self.tool_call_id or "")
            found |= {"name": self.name} if self.name else {}
        return found


class ChatRequest(AnswerRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=-1, le=20)
    tools: list[Tool] = Field(default=[], max_length=128)
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = Field(None, validation_alias=EFFORT)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for place, message in enumerate(self.messages):
            # A refusal of OpenAI's has none.
            if message.content is None and not message.tool_calls and message.role != "assistant":
                raise ValueError(f"messages.{place}: a message needs a content")
        begun, before = self.is_begun, self.messages[:-1]
        goes_on = self.continue_final_message or self.add_generation_prompt is False
        wrong = {
            "tool_choice: tools has no such function": self.has_to_call and not self.offered,
            "top_logprobs: it needs logprobs: true": self.top_logprobs and not self.logprobs,
            "messages: two answers are at the end": begun and before and before[-1].role == "assistant",
            "messages: an answer is continued after a question, and there is none": begun and not before,
            "continue_final_message, add_generation_prompt: only an assistant's last message is continued": (
                goes_on and not begun
            ),
        }
        for why, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(why)
        return self

    @property
    def is_begun(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        last = self.messages[-1]
        return last.role == "assistant" and not last.tool_calls and not self.add_generation_prompt

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        """The functions that the answer may call, by name, with the JSON schemas of their arguments."""
        functions = [tool.function for tool in self.tools if self.tool_choice != "none"]
        if isinstance(self.tool_choice, Tool):
            functions = [each for each in functions if each.name == self.tool_choice.function.name]
        return {each.name: each.parameters for each in functions}

    @property
    def has_to_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, Tool)


Prompt = str | dict[Literal["prompt_string"], str] | list[int | str]
"""A text, an object of llama.cpp's with one, or parts that are texts or token ids."""


def as_prompts(given: object) -> object:
    """Put a single prompt in a list. A list with a token id in it is one prompt, and so is an empty one."""
    is_several = isinstance(given, list) and given and not any(isinstance(each, int) for each in given)
    return given if is_several else [given]


class CompletionRequest(AnswerRequest):
    """POST /v1/completions, and llama.cpp's /completion."""

    prompt: Annotated[list[Prompt], BeforeValidator(as_prompts)]
    logprobs: int | None = Field(None, ge=-1, le=20)
    n_probs: int = Field(0, ge=-1, le=100)
    echo: bool = False
    suffix: str = ""


class InfillFile(WithoutNull):
    text: str
    filename: str = "tmp"


class InfillRequest(CompletionRequest):
    """POST /infill, as llama.cpp's server has it; the prompt, which may be left out, is the hole's first part."""

    prompt: Annotated[list[str], BeforeValidator(as_prompts), Field(max_length=1)] = [""]  # type: ignore[assignment]
    input_prefix: str
    input_suffix: str
    input_extra: list[InfillFile] = []
