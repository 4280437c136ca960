"""What may be said of an answer, and its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from re import sub
from typing import Any, TypedDict

from lacli.engine.prompts import Messages
from lacli.errors import ModelLoadError, PromptError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.options import flags_of
from lacli.settings import DecodeSettings
from lacli.text.format import did_you_mean


class AnswerOptions(TypedDict, total=False):
    """What may be said of one answer; what is left out, or None, is as `load` was told.

    `max_tokens`: -1 for no limit but the context's. `stop`: a text that ends the answer, or several. `temperature`,
    `top_k`, `top_p`, `min_p`, `seed`, `grammar` (GBNF), `json_schema` (a text, a mapping or a class of pydantic's): as
    in SamplingSettings; `sampling`: all of them at once; options beside it override its fields. `system`: the system
    prompt before a question. `raw`: continue the prompt as it stands, without the chat template. `logprobs`: keep the
    log probability of each token of the answer, and of this number of the most probable ones in its place;
    `drawn_logprobs`: by the distribution that is drawn from, behind all samplers, instead of the model's. `mode`: plain
    for one token a step, otherwise the mode that was loaded. `window`, `ngram`, `guesses`: W, N and G where that is
    lookahead; at most what was loaded, and N as there.
    """

    max_tokens: int | None
    stop: str | Sequence[str] | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    grammar: str | None
    json_schema: str | Mapping[str, object] | type | None
    sampling: SamplingSettings | None
    system: str | None
    raw: bool | None
    logprobs: int | None
    drawn_logprobs: bool | None
    mode: str | None
    window: int | None
    ngram: int | None
    guesses: int | None


SAMPLED = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seed": "seed"}
"""Options of an answer that are numbers of SamplingSettings, with its names of them."""

ELSEWHERE = {
    "model_path": "model",
    "n_ctx": "context",
    "n_gpu_layers": "gpu_layers",
    "n_threads": "threads",
    **dict.fromkeys(("max_new_tokens", "max_completion_tokens", "n_predict"), "max_tokens"),
    "repetition_penalty": "repeat_penalty",
    "temp": "temperature",
    "stop_strings": "stop",
    "system_prompt": "system",
}
"""Options of llama-cpp-python, transformers and OpenAI's client that look like none here, by their names here."""

INSTEAD = {
    "stream": "model.stream(...) gives its text in pieces, in asyncio model.astream(...)",
    "messages": "model.chat(messages) answers a conversation, model.stream(messages) in pieces",
}
"""What there is in place of options that elsewhere turn an answer into something else."""

GROUPS = {"sampling": SamplingSettings, "model_settings": ModelSettings, "decode_settings": DecodeSettings}
"""Options that have further settings inside."""

ROLES = ("system", "user", "assistant", "tool", "function", "developer")
"""Roles of messages in OpenAI's protocol."""

LEAST = {"max_tokens": -1, "logprobs": 0}
"""The least values of the whole numbers among an answer's own options."""


NAMES = {name: option for option, name in SAMPLED.items()}

FLAGS = {
    flag: NAMES.get(name, name) for flag, name in flags_of(DecodeSettings, SamplingSettings, ModelSettings).items()
} | {"--device": "devices", "--parallel": "parallel", "--chat-template": "template"}
"""The options of programs by the flags that name the same settings."""


@contextmanager
def told_to_programs() -> Iterator[None]:
    """Name options where an error of the block about settings, model or prompt names flags of the command line."""
    try:
        yield
    except (UsageError, ModelLoadError, PromptError) as error:
        # A program reads its own files, and needs no quotes of a shell.
        what, hint = (
            sub(r"(?<![\w-])--?[A-Za-z][\w-]*", lambda found: FLAGS.get(found[0], found[0]), words)
            for words in (error.what, sub("( in a shell)?; --?[a-z-]+ FILE reads one$", "", error.hint))
        )
        raise type(error)(what, hint) from error


def unknown_option(of: str, name: str, known: Sequence[str]) -> UsageError:
    """The error about an option that does not exist, with what there is instead, or all `known` ones."""
    meant = ELSEWHERE.get(name, name)
    hint = "" if meant in known else _instead(meant, known)
    return UsageError(f"{of} has no option {name!r}", hint or did_you_mean(meant, known, ", ".join(known)))


def _instead(name: str, known: Sequence[str]) -> str:
    """Where a setting is given that is none of the `known` options; empty where there is none of this name."""
    if name in AnswerOptions.__annotations__:
        return f"it is an option of an answer: model.generate(prompt, {name}=...)"
    for option, kind in GROUPS.items():
        if option in known and name in {field.name for field in fields(kind)}:
            return f"{option}=lacli.{kind.__name__}({name}=...) has it"
    return INSTEAD.get(name, "")


def checked_options(given: AnswerOptions) -> dict[str, Any]:
    """Return the options of an answer without those that are None.

    Raises UsageError for unknown names and impossible values; SamplingSettings checks its own.
    """
    known = AnswerOptions.__annotations__
    if unknown := given.keys() - known.keys():
        raise unknown_option("an answer", min(unknown), [*known])
    # A function that hands its own options on has None for those that it was not given.
    options = {name: value for name, value in given.items() if value is not None}
    for name, least in LEAST.items():
        value = options.get(name, least)
        if type(value) is not int or value < least:
            raise UsageError(f"{name} is {value!r:.60}", f"give a whole number, {least} or more, or leave it out")
    stops = options.get("stop", ())
    if stops == "" or not isinstance(stops, Sequence) or not all(stop and isinstance(stop, str) for stop in stops):
        raise UsageError(f"stop is {stops!r:.60}", "give a text, or several in a list")
    if not isinstance(options.get("system", ""), str):
        raise UsageError(f"system is {options['system']!r:.60}", "give a text")
    if not isinstance(options.get("raw", False), bool):
        raise UsageError(f"raw is {options['raw']!r:.60}", "give True or False")
    if options.get("drawn_logprobs") and "logprobs" not in options:
        raise UsageError("drawn_logprobs says which log probabilities are kept", "logprobs=0 keeps them")
    if not isinstance(options.get("sampling", SamplingSettings()), SamplingSettings):
        raise UsageError(f"sampling is {options['sampling']!r:.60}", "give SamplingSettings")
    return options


def checked_prompts(prompts: Sequence[str]) -> Sequence[str]:
    """Several prompts. Raises UsageError for what is no list of texts."""
    if not isinstance(prompts, Sequence) or not all(isinstance(each, str) for each in prompts):
        raise UsageError(f"the prompt is {prompts!r:.60}", "give a text or a list of texts; chat takes messages")
    return prompts


def checked_messages(messages: Messages) -> Messages:
    """The messages of a conversation. Raises PromptError for none, and for one without a role or a content."""
    form = 'give messages, [{"role": "user", "content": "..."}]'
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise PromptError(f"the conversation is {messages!r:.60}", form)
    if not messages:
        raise PromptError("the conversation is empty", form)
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            hint = "generate takes a list of texts" if isinstance(message, str) else "both are texts"
            raise PromptError(f"message {number} needs a role and a content: {message!r:.80}", hint)
        # A template may know others.
        if (role := message["role"]) not in ROLES and (hint := did_you_mean(role, ROLES, "")):
            raise PromptError(f"message {number} has the role {role!r:.40}", hint)
    return messages


def checked_tokens(tokens: Sequence[int], vocabulary: int) -> list[int]:
    """The tokens of a prompt. Raises PromptError for one that does not exist."""
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise PromptError(f"there is no token {token!r:.20}", f"ids go from 0 to {vocabulary - 1:,}")
    return [*tokens]
