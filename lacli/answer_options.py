"""What may be said of an answer, and its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from lacli.errors import PromptError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.text.format import did_you_mean
from lacli.text.template import Messages


class AnswerOptions(TypedDict, total=False):
    """What may be said of one answer; what is left out, or None, is as `load` was told.

    `max_tokens`: -1 for no limit but the context's. `stop`: a text that ends the answer, or several. `temperature`,
    `top_k`, `top_p`, `min_p`, `seed`, `grammar` (GBNF), `json_schema` (a text, a mapping or a class of pydantic's): as
    in SamplingSettings; `sampling`: all of them at once; options beside it override its fields. `system`: the system
    prompt before a question. `raw`: continue the prompt as it stands, without the chat template. `logprobs`: keep the
    log probability of each token of the answer, and of this number of the most probable ones in its place;
    `drawn_logprobs`: by the distribution that is drawn from, behind all samplers, instead of the model's.
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


LEAST = {"max_tokens": -1, "logprobs": 0}
"""The least values of the whole numbers among an answer's own options."""


def checked_options(given: AnswerOptions) -> dict[str, Any]:
    """Return the options of an answer without those that are None.

    Raises UsageError for unknown names and impossible values; SamplingSettings checks its own.
    """
    known = [*AnswerOptions.__annotations__]
    if unknown := sorted(given.keys() - known):
        hint = did_you_mean(unknown[0], known, ", ".join(known))
        raise UsageError(f"an answer has no option {unknown[0]!r}", hint)
    # A function that hands its own options on has None for those that it was not given.
    options = {name: value for name, value in given.items() if value is not None}
    for name, least in LEAST.items():
        value = options.get(name, least)
        if type(value) is not int or value < least:
            raise UsageError(f"{name} is {value!r:.60}", f"give a whole number, {least} or more, or leave it out")
    stops = options.get("stop", ())
    if stops == "" or not isinstance(stops, Sequence) or not all(stop and isinstance(stop, str) for stop in stops):
        raise UsageError(f"stop is {stops!r:.60}", "give a text, or several in a list")
    for name, kind in (("system", str), ("raw", bool), ("sampling", SamplingSettings)):
        if not isinstance(options.get(name, kind()), kind):
            raise UsageError(f"{name} is {options[name]!r:.60}", f"give a {kind.__name__}")
    return options


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
            raise PromptError(f"message {number} needs a role and a content: {message!r:.80}", "both are texts")
    return messages


def checked_tokens(tokens: Sequence[int], vocabulary: int) -> list[int]:
    """The tokens of a prompt. Raises PromptError for one that does not exist."""
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise PromptError(f"there is no token {token!r:.20}", f"ids go from 0 to {vocabulary - 1:,}")
    return [*tokens]
