"""The shapes of answers: OpenAI's chats and completions, and the completions of llama.cpp's server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from time import time
from typing import Any
from uuid import uuid4

from lacli import __version__
from lacli.engine.worker import PromptProgress
from lacli.serve.choices import Choice, Delta, merged
from lacli.serve.meter import timings
from lacli.serve.protocol import CompletionRequest
from lacli.serve.tools import Call
from lacli.stats import Finish, RunStatistics
from lacli.verify import TokenLogprob

FINGERPRINT = f"b-lacli-{__version__}"
"""What clients are told of the program; llama.cpp's begin with a b too."""

REASONS: dict[Finish, str] = {"eog": "stop", "stop": "stop", "length": "length", "interrupt": "stop"}
"""OpenAI's words for what ended an answer."""

STOP_TYPES: dict[Finish, str] = {"eog": "eos", "stop": "word", "length": "limit", "interrupt": "none"}
"""llama.cpp's words for what ended an answer."""


@dataclass(frozen=True)
class Setting:
    """What the answers of a request are told with.

    `model`: its name. `piece`: gives the bytes of a token's text. `generation`: how answers are decoded, in llama.cpp's
    words. `context`: tokens of a text at most. `per_token`: each event has the timings so far. `progress`: events tell
    how far a prompt is read. `verbose`: bodies in OpenAI's shape have llama.cpp's inside. `watched`: each event tells
    of its step, and each step has one.
    """

    model: str
    piece: Callable[[int], bytes]
    generation: Mapping[str, Any]
    context: int
    per_token: bool = False
    progress: bool = False
    verbose: bool = False
    watched: bool = False


class Form:
    """The shape of an endpoint's answers: whole, and as events."""

    kind = ""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._head = {
            "id": f"{'chatcmpl' if self.kind.startswith('chat') else 'cmpl'}-{uuid4().hex}",
            "created": int(time()),
            "model": setting.model,
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, deltas: Mapping[Choice, Sequence[Delta]]) -> Any:
        """The body of answers that have ended."""
        found = [self._choice(choice, parts) for choice, parts in deltas.items()]
        choices = [*deltas]
        return self._body(self.kind, found, **_counts(choices), **self._told(choices[0]))

    async def events(self, choices: Sequence[Choice], *, counted: bool) -> AsyncGenerator[dict[str, Any]]:
        """The events of answers as they come; `counted`: the last one counts their tokens."""
        setting = self._setting
        for choice in choices:
            for event in self._first(choice):
                yield self._event(event)
        async for choice, delta in merged(choices, progress=setting.progress):
            if delta is None:
                yield self._event(self._last(choice), timings=timings(choice.statistics), **self._told(choice))
                continue
            run = delta.progress.statistics if delta.progress else choice.statistics
            more = {"timings": timings(run)} if setting.per_token else {}
            if delta.progress:
                blank = self._next(choice, Delta("", "", (), ()))
                yield self._event(blank, prompt_progress=progress(delta.progress), **more)
            elif setting.watched:
                yield self._event(self._next(choice, delta), lacli=step_record(delta), **more)
            elif delta.text or delta.reasoning or delta.logprobs or delta.calls:
                yield self._event(self._next(choice, delta), **more)
        if counted:
            yield self._body(self._chunk, [], **_counts(choices))

    @property
    def _chunk(self) -> str:
        """The name of an event."""
        return self.kind + ".chunk" * self.kind.startswith("chat")

    def _body(self, kind: str, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "object": kind, "choices": [*choices], **more}

    def _event(self, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self._body(self._chunk, [choice], **more)

    def _told(self, choice: Choice) -> dict[str, Any]:
        if not self._setting.verbose:
            return {}
        return {"__verbose": native_body(choice, self._setting) | {"content": choice.answer.text}}

    def _choice(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]:
        """An answer that has ended."""
        raise NotImplementedError

    def _first(self, choice: Choice) -> Sequence[dict[str, Any]]:
        """What begins a stream."""
        return ()

    def _next(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """What a step added."""
        raise NotImplementedError

    def _last(self, choice: Choice) -> dict[str, Any]:
        """What ends a stream."""
        raise NotImplementedError

    def _logprobs(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any] | None:
        """The log probabilities of an answer's deltas; None if they were not asked for."""
        found = [token_logprob(each, self._setting.piece) for delta in deltas for each in delta.logprobs]
        return {"content": found} if choice.has_logprobs else None


class ChatForm(Form):
    """POST /v1/chat/completions."""

    kind = "chat.completion"

    def _choice(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(delta.text for delta in deltas)}
        if choice.calls:
            message |= {"content": message["content"] or None, "tool_calls": [*map(_called, choice.calls)]}
        if reasoning := "".join(delta.reasoning for delta in deltas):
            message["reasoning_content"] = reasoning
        return {**_ended(choice), "message": message, "logprobs": self._logprobs(choice, deltas)}

    def _first(self, choice: Choice) -> Sequence[dict[str, Any]]:
        return [{"index": choice.index, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]

    def _next(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        calls = [{"index": number, **_called(call)} for number, call in delta.calls]
        parts = {"reasoning_content": delta.reasoning, "content": delta.text, "tool_calls": calls}
        told = {name: part for name, part in parts.items() if part}
        logprobs = {"logprobs": self._logprobs(choice, [delta])} if delta.logprobs else {}
        return {"index": choice.index, "delta": told, "finish_reason": None, **logprobs}

    def _last(self, choice: Choice) -> dict[str, Any]:
        return {**_ended(choice), "delta": {}}


def _called(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _ended(choice: Choice) -> dict[str, Any]:
    """Which answer ended, and why."""
    reason = REASONS[choice.answer.finish_reason]
    return {"index": choice.index, "finish_reason": "tool_calls" if choice.has_called and reason == "stop" else reason}


class TextForm(Form):
    """POST /v1/completions."""

    kind = "text_completion"

    def _choice(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas)
        return {**_ended(choice), "text": text, "logprobs": self._logprobs(choice, deltas)}

    def _next(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        return self._choice(choice, [delta]) | {"finish_reason": None}

    def _last(self, choice: Choice) -> dict[str, Any]:
        return {**_ended(choice), "text": "", "logprobs": None}


class PlainForm(Form):
    """POST /completion, as llama.cpp's server has it."""

    kind = "completion"

    def __init__(self, setting: Setting, asked: CompletionRequest) -> None:
        super().__init__(setting)
        self._asked = asked

    def whole(self, deltas: Mapping[Choice, Sequence[Delta]]) -> Any:
        bodies = [self._fields(self._choice(choice, parts)) for choice, parts in deltas.items()]
        return bodies if self._asked.is_batch else bodies[0]

    def _event(self, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
        return choice | more

    def _told(self, choice: Choice) -> dict[str, Any]:
        return {}

    def _choice(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]:
        content = "".join(delta.text for delta in deltas)
        body = self._last(choice) | {"content": content, "has_new_line": "\n" in content, **self._probabilities(deltas)}
        if self._asked.return_tokens:
            body["tokens"] = [token for delta in deltas for token in delta.tokens]
        return body

    def _next(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        return {
            "index": choice.index,
            "content": delta.text,
            "tokens": [*delta.tokens],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": choice.statistics.tokens,
            "tokens_evaluated": len(choice.prompt),
            **self._probabilities([delta]),
        }

    def _last(self, choice: Choice) -> dict[str, Any]:
        return native_body(choice, self._setting)

    def _fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """The fields that the request names, or all; a slash leads into an object."""
        found: dict[str, Any] = {}
        for name in self._asked.response_fields:
            value: Any = body
            for part in name.split("/"):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found[name] = value
        return found or body

    def _probabilities(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        entry = token_probability if self._asked.post_sampling_probs else token_logprob
        found = [entry(each, self._setting.piece) for delta in deltas for each in delta.logprobs]
        return {"completion_probabilities": found} if found else {}


def _counts(choices: Sequence[Choice]) -> dict[str, Any]:
    """The tokens of all answers of a request, and what the first one took."""
    return {"usage": usage(choices), "timings": timings(choices[0].statistics)}


def native_body(choice: Choice, setting: Setting) -> dict[str, Any]:
    """An answer as llama.cpp's own endpoint ends its stream: without its text."""
    answer = choice.answer
    run = answer.statistics
    cut = answer.finish_reason == "length" and run.tokens != setting.generation["n_predict"]
    return {
        "index": choice.index,
        "content": "",
        "tokens": [],
        "id_slot": -1,
        "stop": True,
        "model": setting.model,
        "tokens_predicted": run.tokens,
        "tokens_evaluated": run.prompt_tokens,
        "generation_settings": setting.generation,
        "prompt": choice.prompt_text,
        "has_new_line": "\n" in answer.text,
        "truncated": cut or run.prompt_tokens + run.tokens > setting.context,
        "stop_type": STOP_TYPES[answer.finish_reason],
        "stopping_word": answer.stop,
        "tokens_cached": run.prompt_tokens + run.tokens,
        "timings": timings(run),
    }


def progress(found: PromptProgress) -> dict[str, Any]:
    """How far a prompt is read, in llama.cpp's words."""
    return {
        "total": found.total,
        "cache": found.reused,
        "processed": found.read,
        "time_ms": round(1e3 * found.seconds),
    }


def step_record(delta: Delta) -> dict[str, Any]:
    """A step as the page shows it: pieces of text with their origins, tokens, rows of the batch, and milliseconds."""
    pieces = [{"text": each.text, "origin": each.origin.value, "reasoning": each.reasoning} for each in delta.pieces]
    if delta.step is None:
        return {"pieces": pieces}
    return {
        "pieces": pieces,
        "tokens": len(delta.step.tokens),
        "rows": delta.step.rows,
        "ms": 1e3 * delta.step.seconds,
    }


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Tokens of a request; each of its prompts counts once, however many answers it has."""
    # The answers to a prompt share one list of its tokens.
    by_prompt: defaultdict[int, list[RunStatistics]] = defaultdict(list)
    for choice in choices:
        by_prompt[id(choice.prompt)].append(choice.statistics)
    prompt = sum(runs[0].prompt_tokens for runs in by_prompt.values())
    # The further answers to a prompt find it decoded by the first one.
    cached = sum(min(run.reused_tokens for run in runs) for runs in by_prompt.values())
    predicted = sum(choice.statistics.tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": predicted,
        "total_tokens": prompt + predicted,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def token_logprob(found: TokenLogprob, piece: Any) -> dict[str, Any]:
    """The log probabilities in a token's place; `piece` gives the bytes of a token."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text: bytes = piece(token)
        return {
            "id": token,
            "token": text.decode("utf-8", "replace"),
            "bytes": [*text],
            "logprob": logprob,
        }

    best = [entry(token, logprob) for token, logprob in found.best]
    return {**entry(found.token, found.logprob), "top_logprobs": best}


def token_probability(found: TokenLogprob, piece: Any) -> dict[str, Any]:
    """The same with probabilities, as llama.cpp tells those behind the samplers."""
    told = token_logprob(found, piece)
    told["top_probs"] = told.pop("top_logprobs")
    for entry in (told, *told["top_probs"]):
        entry["prob"] = exp(entry.pop("logprob"))
    return told
