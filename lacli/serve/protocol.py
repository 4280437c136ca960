"""Request bodies of OpenAI's protocol with llama.cpp's fields, checked by pydantic, and the bodies of errors."""

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
"""Fields of OpenAI, llama.cpp and vLLM that would change the answer but are not supported: a request with one fails."""

NUMBERS = {
    each.request or name: each for name, each in options_of(SamplingSettings).items() if each.kind in (int, float, bool)
}
"""Sampling settings that are a number or a bool, by the name of their field in a request."""


def error_body(status: int, message: str, kind: str = "", **error_fields: Any) -> dict[str, Any]:
    """Return an error's JSON body in OpenAI's and Anthropic's shape. `kind`: the error's type; "": from `status`."""
    kind = kind or ("not_found_error" if status == 404 else "invalid_request_error" if status < 500 else "server_error")
    return {"type": "error", "error": {"code": status, "message": message, "type": kind, **error_fields}}


async def body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request. Raises UsageError if the body is anything else."""
    try:
        found = json.loads(await request.body())
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError("the body is not a JSON object", "it must begin with {")
    return found


class WithoutNull(BaseModel):
    """A JSON object in a request. A field with the value null counts as missing."""

    _without_null = model_validator(mode="before")(without_null)


FORMAT = AliasChoices(
    "response_format", "output_format", AliasPath("text", "format"), AliasPath("output_config", "format")
)
EFFORT = AliasChoices("reasoning_effort", AliasPath("reasoning", "effort"), AliasPath("output_config", "effort"))
LIMIT = AliasChoices("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict")
"""Names of the field for the limit of tokens, in chats, responses, messages and completions."""


class ResponseFormat(WithoutNull):
    """The value of OpenAI's or llama.cpp's field `response_format`. `form`: the JSON schema; None: none is given."""

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
    """The sampling fields of a request: the fields named in NUMBERS, and these. None means the server's default."""

    seed: int | None = None
    repetition_penalty: float | None = None  # vLLM's name of repeat_penalty
    logit_bias: dict[str, float | None] | list[tuple[int | str, float | bool | None]] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    response_format: ResponseFormat | None = Field(None, validation_alias=FORMAT)

    def sampling(self, defaults: SamplingSettings, tokenize: Callable[[str], Sequence[int]]) -> SamplingSettings:
        """Return `defaults`, changed by the request's sampling fields. Raises UsageError if the result is impossible.

        `tokenize`: gives the tokens of a text in `logit_bias`, each of which gets the bias.
        """
        given = [(each, getattr(self, field)) for field, each in NUMBERS.items()]
        # As in llama-server, -1 means 0 for a setting whose least value is 0.
        chosen = {each.name: value if each.least else max(value, 0) for each, value in given if value is not None}
        if self.repetition_penalty is not None:
            chosen.setdefault("repeat_penalty", self.repetition_penalty)
        if seed := chosen.get("seed"):
            # OpenAI's seeds have 64 bits, llama.cpp's 32. llama.cpp's largest seed means a random seed, as -1 does.
            chosen["seed"] = -1 if seed in (-1, MOST_SEED + 1) else seed % (MOST_SEED + 1)
        if self.logit_bias:
            biases = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
            chosen["logit_bias"] = tuple(
                # llama.cpp's false forbids a token.
                (token, float("-inf") if bias is False else float(bias))
                for what, bias in biases
                if bias is not None
                for token in ([int(what)] if str(what).isdecimal() else tokenize(str(what)))
            )
        schema = json.dumps(self.json_schema) if self.json_schema is not None else ""
        if not schema and self.response_format:
            schema = self.response_format.schema_text
        if schema or self.grammar:
            chosen |= {"json_schema": schema, "grammar": self.grammar or ""}
        return replace(defaults, **chosen)


def as_stops(given: object) -> object:
    """Return stop texts as a list without empty texts. A value that is no text and no list is returned unchanged."""
    found = [given] if isinstance(given, str) else given
    return [each for each in found if each not in ("", None)] if isinstance(found, list) else found


Stops = Annotated[list[str], BeforeValidator(as_stops)]


class AnswerRequest(Sampled):
    """Fields of all requests for answers. `lacli`: {"steps": true} adds to events what drafted each piece of text."""

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
                raise ValueError(f"{name}: this field is not supported, leave it out")
        return self


class Part(BaseModel):
    """A text in a message. `type`: what chats, responses or Anthropic's messages call such a text."""

    type: Literal["text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal"]
    text: str = Field(validation_alias=AliasChoices("text", "refusal"))


def text_of(content: str | Sequence[Part] | None) -> str:
    return content if isinstance(content, str) else "\n\n".join(part.text for part in content or ())


class Function(WithoutNull):
    """A function that the model may call. `parameters`: the JSON schema of its arguments.

    `type`: only in responses and Anthropic's messages, whose tools are functions with a type.
    """

    model_config = ConfigDict(extra="allow")

    type: str = Field("", exclude=True)
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    # Some templates fail if a function has no description or no parameters.
    description: str = ""
    parameters: dict[str, Any] = Field(
        {"type": "object", "properties": {}}, validation_alias=AliasChoices("parameters", "input_schema")
    )

    @property
    def tool(self) -> dict[str, Any]:
        """The function as an entry of a chat's `tools`."""
        return {"type": "function", "function": self}


class Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


def short_id(call_id: str) -> str:
    """Return `call_id` if it is nine letters or digits, otherwise nine hex digits of its hash: Mistral needs nine."""
    return call_id if fullmatch("[a-zA-Z0-9]{9}", call_id) else sha256(call_id.encode()).hexdigest()[:9]


def as_object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """Return `arguments` if they are an object. A text becomes {"arguments": text}, and "" becomes {}."""
    return arguments if isinstance(arguments, dict) else {"arguments": arguments} if arguments else {}


class CalledFunction(BaseModel):
    """A function that an earlier answer called. `arguments`: a JSON object, or its text, which is parsed."""

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
        # "developer" is OpenAI's later name of the role; templates have only "system".
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
    """The body of POST /v1/chat/completions."""

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
            # An assistant's refusal in OpenAI's form has no content.
            if message.content is None and not message.tool_calls and message.role != "assistant":
                raise ValueError(f"messages.{place}: a message needs a content")
        begun, before = self.is_begun, self.messages[:-1]
        goes_on = self.continue_final_message or self.add_generation_prompt is False
        wrong = {
            "tool_choice: tools has no such function": self.has_to_call and not self.offered,
            "top_logprobs: it needs logprobs: true": self.top_logprobs and not self.logprobs,
            "messages: two answers are at the end": begun and before and before[-1].role == "assistant",
            "messages: an answer can be continued only after a question": begun and not before,
            "continue_final_message, add_generation_prompt: only an assistant's last message can be continued": (
                goes_on and not begun
            ),
        }
        for why, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(why)
        return self

    @property
    def is_begun(self) -> bool:
        """Whether the last message is an assistant's, which the answer continues."""
        last = self.messages[-1]
        return last.role == "assistant" and not last.tool_calls and not self.add_generation_prompt

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        """The JSON schemas of the arguments of all functions that the answer may call, by the functions' names."""
        functions = [tool.function for tool in self.tools if self.tool_choice != "none"]
        if isinstance(self.tool_choice, Tool):
            functions = [each for each in functions if each.name == self.tool_choice.function.name]
        return {each.name: each.parameters for each in functions}

    @property
    def has_to_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, Tool)


Prompt = str | dict[Literal["prompt_string"], str] | list[int | str]
"""A text, llama.cpp's {"prompt_string": text}, or a list of texts and token ids."""


def as_prompts(given: object) -> object:
    """Return the field `prompt` as a list of prompts. A text, an empty list or a list with a token id is one prompt."""
    is_several = isinstance(given, list) and given and not any(isinstance(each, int) for each in given)
    return given if is_several else [given]


class CompletionRequest(AnswerRequest):
    """The body of POST /v1/completions, and of llama.cpp's POST /completion."""

    prompt: Annotated[list[Prompt], BeforeValidator(as_prompts)]
    logprobs: int | None = Field(None, ge=-1, le=20)
    n_probs: int = Field(0, ge=-1, le=100)
    echo: bool = False
    suffix: str = ""


class InfillFile(WithoutNull):
    text: str
    filename: str = "tmp"


class InfillRequest(CompletionRequest):
    """The body of llama.cpp's POST /infill. `prompt`: at most one text, with which the text to fill in begins."""

    prompt: Annotated[list[str], BeforeValidator(as_prompts), Field(max_length=1)] = [""]  # type: ignore[assignment]
    input_prefix: str
    input_suffix: str
    input_extra: list[InfillFile] = []
