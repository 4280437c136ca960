"""The shapes of replies, whole and in events: OpenAI's chats and completions, and llama.cpp's completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from math import exp
from time import time
from typing import Any
from uuid import uuid4

from lacli import __version__
from lacli.model import Model
from lacli.serve.answers import Choice, Delta, merged
from lacli.serve.protocol import AnswerRequest, CompletionRequest
from lacli.serve.status import timings
from lacli.stats import Finish
from lacli.verify import TokenLogprob

REASONS: dict[Finish, tuple[str, str]] = {
    "eog": ("stop", "eos"),
    "stop": ("stop", "word"),
    "length": ("length", "limit"),
    "interrupt": ("stop", "none"),
}
"""What ended an answer, in OpenAI's words and in llama.cpp's."""


class Reply:
    """The reply to a request. `kind`: OpenAI's name of its shape."""

    kind = ""

    def __init__(self, asked: AnswerRequest, choices: Sequence[Choice], model: Model, name: str) -> None:
        """`name`: the model's."""
        self._asked, self._choices, self._model, self._name = asked, choices, model, name
        self._head = {
            "id": f"{'chatcmpl' if self.kind.startswith('chat') else 'cmpl'}-{uuid4().hex}",
            "created": int(time()),
            "model": name,
            # llama.cpp's begins with a b too.
            "system_fingerprint": f"b-lacli-{__version__}",
        }

    async def whole(self) -> Any:
        """Decode the answers and return the body."""
        deltas: dict[Choice, list[Delta]] = {choice: [] for choice in self._choices}
        async for choice, delta in merged(self._choices):
            deltas[choice] += [delta] if delta else []
        return self._joined([self._entry(choice, _sum(parts), whole=True) for choice, parts in deltas.items()])

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events as the answers come."""
        asked = self._asked
        for entry in self._first():
            yield self._event(entry)
        async for choice, delta in merged(self._choices, progress=asked.return_progress):
            if delta is None:
                more = {"timings": timings(choice.statistics), **self._verbose()}
                yield self._event(self._entry(choice, Delta(), ended=True), **more)
                continue
            run = delta.progress.statistics if delta.progress else choice.statistics
            more = {"timings": timings(run)} if asked.timings_per_token else {}
            if delta.progress:
                more["prompt_progress"] = _progress(delta)
            elif asked.lacli.get("steps"):
                more["lacli"] = _step(delta)
            elif not (delta.text or delta.reasoning or delta.logprobs or delta.calls):
                continue
            yield self._event(self._entry(choice, delta), **more)
        if asked.stream_options.get("include_usage"):
            yield self._body(self._chunk, [], **self._counts())

    @property
    def _chunk(self) -> str:
        """The name of an event's shape."""
        return self.kind + ".chunk" * self.kind.startswith("chat")

    def _body(self, kind: str, entries: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "object": kind, "choices": [*entries], **more}

    def _event(self, entry: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self._body(self._chunk, [entry], **more)

    def _joined(self, entries: Sequence[dict[str, Any]]) -> Any:
        """The body of answers that have ended."""
        return self._body(self.kind, entries, **self._counts(), **self._verbose())

    def _first(self) -> Iterable[dict[str, Any]]:
        """What begins a stream."""
        return ()

    def _entry(self, choice: Choice, delta: Delta, *, ended: bool = False, whole: bool = False) -> dict[str, Any]:
        """An answer in the body, or what `delta` adds to it. `ended`: nothing follows."""
        raise NotImplementedError

    def _logprobs(self, choice: Choice, delta: Delta) -> dict[str, Any] | None:
        return {"content": [*map(self._logprob, delta.logprobs)]} if choice.has_logprobs else None

    def _logprob(self, found: TokenLogprob) -> dict[str, Any]:
        """The log probabilities in a token's place."""

        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self._model.engine.prompts.piece(token)
            return {"id": token, "token": text.decode("utf-8", "replace"), "bytes": [*text], "logprob": logprob}

        return {**entry(found.token, found.logprob), "top_logprobs": [entry(*best) for best in found.best]}

    def _verbose(self) -> dict[str, Any]:
        """The prompt of the first answer, where that is asked for."""
        return {"__verbose": {"prompt": self._choices[0].prompt_text}} if self._asked.verbose else {}

    def _counts(self) -> dict[str, Any]:
        """The tokens of all answers, each prompt's once, and what the first answer took."""
        runs = [choice.statistics for choice in self._choices]
        first = runs[:: self._asked.n]
        prompt, predicted = sum(run.prompt_tokens for run in first), sum(run.tokens for run in runs)
        usage = {"prompt_tokens": prompt, "completion_tokens": predicted, "total_tokens": prompt + predicted}
        cached = {"cached_tokens": sum(run.reused_tokens for run in first)}
        return {"usage": {**usage, "prompt_tokens_details": cached}, "timings": timings(runs[0])}


class ChatReply(Reply):
    """POST /v1/chat/completions."""

    kind = "chat.completion"

    def _first(self) -> Iterable[dict[str, Any]]:
        for choice in self._choices:
            yield {"index": choice.index, "delta": {"role": "assistant", "content": None}, "finish_reason": None}

    def _entry(self, choice: Choice, delta: Delta, *, ended: bool = False, whole: bool = False) -> dict[str, Any]:
        reason = _reason(choice) if ended or whole else None
        calls = [
            {
                **({} if whole else {"index": number}),
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in delta.calls
        ]
        parts = {"reasoning_content": delta.reasoning, "content": delta.text, "tool_calls": calls}
        told: dict[str, Any] = {name: part for name, part in parts.items() if part}
        if whole:
            told = {"role": "assistant", "content": None if calls else "", **told}
        finish = "tool_calls" if reason == "stop" and choice.calls else reason
        head = {"index": choice.index, "finish_reason": finish, "logprobs": self._logprobs(choice, delta)}
        return {**head, "message" if whole else "delta": told}


class TextReply(Reply):
    """POST /v1/completions."""

    kind = "text_completion"

    def _entry(self, choice: Choice, delta: Delta, *, ended: bool = False, whole: bool = False) -> dict[str, Any]:
        reason = _reason(choice) if ended or whole else None
        logprobs = self._logprobs(choice, delta)
        return {"index": choice.index, "finish_reason": reason, "text": delta.text, "logprobs": logprobs}


class PlainReply(Reply):
    """POST /completion, as llama.cpp's server has it."""

    kind = "completion"

    def __init__(
        self, asked: CompletionRequest, choices: Sequence[Choice], model: Model, name: str, settings: Mapping[str, Any]
    ) -> None:
        """`settings`: how the answers are decoded, in llama.cpp's words."""
        super().__init__(asked, choices, model, name)
        self._settings, self._drawn = settings, asked.post_sampling_probs

    def _joined(self, entries: Sequence[dict[str, Any]]) -> Any:
        return entries if entries[1:] else entries[0]

    def _event(self, entry: dict[str, Any], **more: Any) -> dict[str, Any]:
        return entry | more

    def _verbose(self) -> dict[str, Any]:
        return {}

    def _entry(self, choice: Choice, delta: Delta, *, ended: bool = False, whole: bool = False) -> dict[str, Any]:
        run = choice.statistics
        entry = {
            "index": choice.index,
            "content": delta.text,
            "tokens": [*delta.tokens],
            "stop": ended or whole,
            "tokens_predicted": run.tokens,
            "tokens_evaluated": run.prompt_tokens,
        }
        if delta.logprobs:
            entry["completion_probabilities"] = [*map(self._logprob, delta.logprobs)]
        return entry | self._end(choice) if ended or whole else entry

    def _end(self, choice: Choice) -> dict[str, Any]:
        answer = choice.answer
        return {
            "model": self._name,
            "prompt": choice.prompt_text,
            "generation_settings": self._settings,
            "truncated": answer.filled_context(self._settings["n_predict"]),
            "stop_type": REASONS[answer.finish_reason][1],
            "stopping_word": answer.stop,
            "timings": timings(answer.statistics),
        }

    def _logprob(self, found: TokenLogprob) -> dict[str, Any]:
        """The same with probabilities behind the samplers, where these are asked for."""
        told = super()._logprob(found)
        if self._drawn:
            told["top_probs"] = told.pop("top_logprobs")
            for entry in (told, *told["top_probs"]):
                entry["prob"] = exp(entry.pop("logprob"))
        return told


def _reason(choice: Choice) -> str:
    return REASONS[choice.answer.finish_reason][0]


def _sum(deltas: Sequence[Delta]) -> Delta:
    """All of an answer."""
    return Delta(
        "".join(delta.text for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        [token for delta in deltas for token in delta.tokens],
        [each for delta in deltas for each in delta.logprobs],
        [call for delta in deltas for call in delta.calls],
    )


def _progress(delta: Delta) -> dict[str, Any]:
    """How much of a prompt is read, in llama.cpp's words."""
    assert delta.progress
    total, reused, read, seconds = delta.progress
    return {"total": total, "cache": reused, "processed": read, "time_ms": round(1e3 * seconds)}


def _step(delta: Delta) -> dict[str, Any]:
    """A step as the page shows it: pieces of text with their origins, and the number of tokens."""
    pieces = [{"text": each.text, "origin": each.origin.value, "reasoning": each.reasoning} for each in delta.pieces]
    return {"pieces": pieces, "tokens": len(delta.tokens)}
