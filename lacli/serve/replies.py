"""The replies of all protocols, and the details of OpenAI's chats and completions and llama.cpp's completions."""

from __future__ import annotations

import asyncio
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from math import exp, isnan, nan
from time import time
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import uuid4

from pydantic_core import to_json

from lacli import __version__
from lacli.engine.worker import AsyncStream
from lacli.llamacpp.sampling import SamplingSettings
from lacli.model import AnswerOptions, Model
from lacli.report import counts
from lacli.serve.protocol import AnswerRequest
from lacli.stats import RunStatistics
from lacli.text.calls import Call, CallRules, CallSplitter
from lacli.text.reasoning import ReasoningSplitter, begun_reasoning
from lacli.text.stream import Piece
from lacli.verify import TokenLogprob


def rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def timings(run: RunStatistics) -> dict[str, Any]:
    """Return an answer's token counts, milliseconds and tokens a second, named as in llama-server's `timings`."""
    read = run.prompt_tokens - run.reused_tokens
    # llama.cpp counts the first token as the prompt's. The rates over the later tokens are rather too low here.
    later = max(run.tokens - 1, 0)
    found = counts(run)
    prompt_ms, predicted_ms = found["prompt_ms"], found["predicted_ms"]
    return found | {
        "prompt_n": read,
        "prompt_per_token_ms": prompt_ms / max(read, 1),
        "prompt_per_second": 1e3 * rate(read, prompt_ms),
        "predicted_per_token_ms": rate(predicted_ms, later),
        "predicted_per_second": 1e3 * rate(later, predicted_ms),
    }


class Delta(NamedTuple):
    """What a step added to an answer, or, before the first step, the `progress` of the prefill.

    `logprobs`: of each token, once a part of its text has been returned. `calls`: calls' indices, each with a new part:
    first the call's name and id, then pieces of its arguments. `echoed`: log probabilities of the prompt's tokens, NaN
    for the first. `pieces`: text, reasoning and the text of calls in order. `ended`: the last delta; it adds nothing.
    """

    text: str = ""
    reasoning: str = ""
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    calls: Sequence[tuple[int, Call]] = ()
    echoed: Sequence[TokenLogprob] = ()
    pieces: Sequence[Piece] = ()
    progress: RunStatistics | None = None
    ended: bool = False


ALIVE = Delta()
"""Comes every PAUSE_S seconds, so that a client can tell a slow stream from a broken one."""

PAUSE_S = 10.0


class Usage(NamedTuple):
    """Numbers of tokens: of prompts, of prompt tokens from the KV cache, of answers, and of reasoning in answers."""

    prompt: int
    cached: int
    predicted: int
    thought: int


class Choice:
    """One answer of a request, decoded when `deltas` is iterated."""

    def __init__(
        self,
        model: Model,
        count: Callable[[AsyncStream], None],
        prompt: Sequence[int],
        index: int,
        options: AnswerOptions,
        rules: CallRules | None,
        stops: Sequence[str],
    ) -> None:
        """Prepare the answer to `prompt`. Raises PromptError if it is empty or too long, UsageError for bad options.

        `count`: gets the ended stream. `index`: of the answer in its request. `stops`: ignored if `rules` is None.
        """
        self.index, self._count, self.rules = index, count, rules
        self.stream = model.set_up(AsyncStream(model.worker, model), prompt, options)
        self.prompt_text = text = model.engine.text(prompt, special=True)
        self._reasoning = None if options.get("raw") else ReasoningSplitter(begun_reasoning(text), bare=True)
        self._splitter = CallSplitter(rules, stops) if rules else None
        self.has_logprobs = options.get("logprobs") is not None
        self.thought = 0
        self._echoes = options.get("prompt_logprobs", False)
        # Characters of the tokens that are already listed, and a decoder for characters of several tokens.
        self.listed, self.decoder = 0, getincrementaldecoder("utf-8")("replace")

    @property
    def finish_reason(self) -> str:
        """Why the answer has ended, in the words of OpenAI's chats: "length", "tool_calls" or "stop"."""
        if self.stream.text.answer().finish_reason == "length":
            return "length"
        return "tool_calls" if self.calls else "stop"

    @property
    def calls(self) -> Sequence[Call]:
        return self._splitter.calls if self._splitter else ()

    @property
    def stop(self) -> str | None:
        """The stop text that ended the answer; None or "" if none did."""
        return self._splitter.stop if self._splitter else self.stream.text.answer().stop

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Decode the answer. Yields deltas with the prefill's `progress`, then one a step, at last one with `ended`."""
        seen = 0
        try:
            async with aclosing(self.stream.steps()) as steps:
                async for step, pieces in steps:
                    if isinstance(step, RunStatistics):
                        yield Delta(progress=step)
                        continue
                    if self._echoes:
                        first = TokenLogprob(self.stream.prompt[0], nan, ())
                        yield Delta(self.prompt_text, echoed=[first, *self.stream.text.prompt_logprobs])
                        self._echoes = False
                    logprobs = self.stream.text.logprobs_from(seen)
                    seen += len(logprobs)
                    yield self._delta(pieces)._replace(tokens=step.tokens if step else (), logprobs=logprobs)
                    if self._splitter and self._splitter.stop:
                        break
        finally:
            self._count(self.stream)
        yield self._delta((), final=True)
        yield Delta(ended=True)

    def _delta(self, pieces: Sequence[Piece], *, final: bool = False) -> Delta:
        if self._reasoning:
            pieces = self._reasoning.finish() if final else self._reasoning.feed(pieces)
        text, reasoning = ("".join(each.text for each in pieces if each.reasoning is kind) for kind in (False, True))
        self.thought += sum(each.reasoning for each in pieces)
        calls: Sequence[tuple[int, Call]] = ()
        if self._splitter:
            text = self._splitter.feed(text, final=final)
            calls, self._splitter.parts = self._splitter.parts, []
        return Delta(text, reasoning, calls=calls, pieces=pieces)


async def merged(choices: Sequence[Choice]) -> AsyncGenerator[tuple[Choice, Delta]]:
    """Yield each new delta with its answer, and (choices[0], ALIVE) every PAUSE_S seconds. Raises an answer's error."""
    news: asyncio.Queue[tuple[Choice, Delta | Exception]] = asyncio.Queue()

    async def read(choice: Choice) -> None:
        try:
            async for delta in choice.deltas():
                news.put_nowait((choice, delta))
        except Exception as error:
            news.put_nowait((choice, error))

    async def live() -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            news.put_nowait((choices[0], ALIVE))

    tasks = [asyncio.create_task(each) for each in (*map(read, choices), live())]
    try:
        left = len(choices)
        while left:
            choice, found = await news.get()
            if isinstance(found, Exception):
                raise found
            left -= found.ended
            yield choice, found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, eq=False)
class Reply:
    """The reply to a request; each protocol has a subclass. `name`: the model's name in the reply.

    `sampling`: of the answers. `limit`: most tokens of an answer, -1 for no limit. `id`: the unique part of ids in the
    reply. `created`: when the reply was made, in seconds since 1970.
    """

    end: ClassVar[bytes] = b"data: [DONE]\n\n"
    ends_with_timings: ClassVar[bool] = True
    asked: AnswerRequest
    choices: Sequence[Choice]
    model: Model
    name: str
    sampling: SamplingSettings
    limit: int
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time()))

    async def whole(self) -> Any:
        """Decode all answers and return the JSON body."""
        deltas: dict[Choice, list[Delta]] = {choice: [] for choice in self.choices}
        async for choice, delta in merged(self.choices):
            deltas[choice].append(delta)
        answers = []
        for choice, parts in deltas.items():
            text, reasoning, *lists = zip(*parts, strict=True)
            tokens, logprobs, _, echoed = ([*chain(*each)] for each in lists[:4])
            calls = [*enumerate(choice.calls)]
            whole = Delta("".join(text), "".join(reasoning), tokens, logprobs, calls, echoed, ended=True)
            answers.append((choice, whole))
        return self._body(answers)

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        """Decode all answers and yield the events of the stream as the answers grow."""
        asked = self.asked
        for event in self._first():
            yield event
        async for choice, delta in merged(self.choices):
            if delta is ALIVE:
                yield self._alive()
                continue
            run = delta.progress or choice.stream.text.statistics
            is_timed = asked.timings_per_token or (delta.ended and self.ends_with_timings)
            more: dict[str, Any] = {"timings": timings(run)} if is_timed else {}
            if delta.ended:
                more |= self._notes
            elif delta.progress:
                if not asked.return_progress:
                    continue
                more["prompt_progress"] = {"total": len(choice.stream.prompt), "cache": run.reused_tokens}
                more["prompt_progress"] |= {"processed": run.prompt_tokens, "time_ms": round(1e3 * run.prompt_s)}
            elif asked.lacli.get("steps"):
                shown = [{"text": p.text, "origin": p.origin.value, "reasoning": p.reasoning} for p in delta.pieces]
                more["lacli"] = {"pieces": shown, "tokens": len(delta.tokens)}
            elif not (delta.text or delta.reasoning or delta.logprobs or delta.calls):
                continue
            *events, last = self._events(choice, delta)
            for event in events:
                yield event
            yield {**last, **more}
        for event in self._last():
            yield event

    def frame(self, event: Mapping[str, Any]) -> bytes:
        """Return the bytes of an event in the stream. An empty event becomes a comment, which clients ignore."""
        return b"data: " + to_json(event) + b"\n\n" if event else b": keep-alive\n\n"

    def failure(self, error: dict[str, Any]) -> dict[str, Any]:
        """Return the last event of a stream that an error ends. `error`: from `error_body`."""
        return error

    def _body(self, answers: Sequence[tuple[Choice, Delta]]) -> Any:
        """Return the JSON body. `answers`: all answers, each with one delta that holds the whole answer."""
        raise NotImplementedError

    def _first(self) -> Iterable[dict[str, Any]]:
        """Return the events that precede all answers."""
        return ()

    def _alive(self) -> dict[str, Any]:
        """Return the event that keeps an idle stream open; one is sent at least every PAUSE_S seconds."""
        return {}

    def _events(self, choice: Choice, delta: Delta) -> Iterable[dict[str, Any]]:
        """Return the events, at least one, for what `delta` adds to an answer."""
        raise NotImplementedError

    def _last(self) -> Iterable[dict[str, Any]]:
        """Return the events that follow all answers."""
        return ()

    @property
    def _notes(self) -> dict[str, Any]:
        """Fields of a body or last event: warnings of ignored schema parts, and the first prompt if `asked.verbose`."""
        first = self.choices[0]
        warnings = [*first.stream.text.answer().warnings, *(first.rules.warnings if first.rules else ())]
        found: dict[str, Any] = {"warnings": warnings} if warnings else {}
        return found | ({"__verbose": {"prompt": first.prompt_text}} if self.asked.verbose else {})

    @property
    def _usage(self) -> Usage:
        """The numbers of tokens of all answers and prompts. A prompt with several answers counts once."""
        runs = [choice.stream.text.statistics for choice in self.choices]
        first, thought = runs[:: self.asked.n], sum(choice.thought for choice in self.choices)
        prompt, cached = sum(run.prompt_tokens for run in first), sum(run.reused_tokens for run in first)
        return Usage(prompt, cached, sum(run.tokens for run in runs), thought)


@dataclass
class Block:
    """A part of an answer. `call`: None for text and reasoning. `text`: so far; of a call, its arguments as JSON."""

    index: int
    kind: Literal["reasoning", "text", "call"]
    call: Call | None
    text: str = ""


@dataclass(frozen=True, eq=False)
class BlockReply(Reply):
    """A reply with one answer, split into `blocks`. Each block has events when it begins, grows and ends."""

    end: ClassVar[bytes] = b""
    blocks: list[Block] = field(default_factory=list)

    def frame(self, event: Mapping[str, Any]) -> bytes:
        return f"event: {event['type']}\n".encode() + super().frame(event)

    def _body(self, answers: Sequence[tuple[Choice, Delta]]) -> dict[str, Any]:
        for _ in self._events(*answers[0]):
            pass
        return self._ended

    def _events(self, choice: Choice, delta: Delta) -> Iterable[dict[str, Any]]:
        blocks = self.blocks
        parts = [Block(0, "reasoning", None, delta.reasoning), Block(0, "text", None, delta.text)]
        parts += [Block(0, "call", call, call.arguments) for _, call in delta.calls]
        for part in parts:
            is_named = part.call is not None and bool(part.call.name)
            if is_named or (part.text and (not blocks or blocks[-1].kind != part.kind)):
                for block in blocks[-1:]:
                    yield from self._end(block)
                blocks.append(Block(len(blocks), part.kind, part.call))
                yield from self._begin(blocks[-1])
            if part.text:
                blocks[-1].text += part.text
                yield self._grow(blocks[-1], part.text)
        if delta.ended:
            for block in blocks[-1:]:
                yield from self._end(block)
            yield from self._close()
        elif not any(part.text or part.call for part in parts):
            yield self._alive()

    @property
    def _ended(self) -> dict[str, Any]:
        """The JSON body after the end of the answer."""
        raise NotImplementedError

    def _begin(self, block: Block) -> Iterable[dict[str, Any]]:
        raise NotImplementedError

    def _grow(self, block: Block, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _end(self, block: Block) -> Iterable[dict[str, Any]]:
        raise NotImplementedError

    def _close(self) -> Iterable[dict[str, Any]]:
        """Return the events after the last block."""
        raise NotImplementedError


class OpenAIReply(Reply):
    """A reply with a list `choices`. `kind`: the field `object` of a whole body. `chunk`: the same of an event."""

    kind: ClassVar[str]
    chunk: ClassVar[str]

    def _body(self, answers: Sequence[tuple[Choice, Delta]]) -> Any:
        entries = [self._entry(*answer) for answer in answers]
        return self._object(self.kind, entries, **self._counts(), **self._notes)

    def _events(self, choice: Choice, delta: Delta) -> Iterable[dict[str, Any]]:
        yield self._object(self.chunk, [self._entry(choice, delta)])

    def _last(self) -> Iterable[dict[str, Any]]:
        if self.asked.stream_options.get("include_usage"):
            yield self._object(self.chunk, [], **self._counts())

    def _object(self, kind: str, entries: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        prefix = "chatcmpl" if self.kind.startswith("chat") else "cmpl"
        head = {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.name}
        # llama.cpp's fingerprint begins with a b too.
        return {**head, "system_fingerprint": f"b-lacli-{__version__}", "choices": entries, **more}

    def _entry(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the entry in `choices` for what `delta` adds. Without a stream, `delta` holds the whole answer."""
        raise NotImplementedError

    def _head_of(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the index of an answer, why it ended (None before), and log probabilities of `delta`'s tokens."""
        reason = choice.finish_reason if delta.ended else None
        logprobs = {"content": [*map(self._logprob, delta.logprobs)]} if choice.has_logprobs else None
        return {"index": choice.index, "finish_reason": reason, "logprobs": logprobs}

    def _logprob(self, found: TokenLogprob) -> dict[str, Any]:
        """Return a token and the most probable tokens, with log probabilities or, if requested, probabilities."""
        drawn = self.asked.post_sampling_probs

        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self.model.engine.prompts.piece(token)
            told = {"id": token, "token": text.decode("utf-8", "replace"), "bytes": [*text]}
            return told | ({"prob": exp(logprob)} if drawn else {"logprob": logprob})

        best = [entry(*each) for each in found.best]
        return {**entry(found.token, found.logprob), "top_probs" if drawn else "top_logprobs": best}

    def _counts(self) -> dict[str, Any]:
        """Return two fields of the reply: `usage` of all answers, and `timings` of the first answer."""
        prompt, cached, predicted, _ = self._usage
        usage = {"prompt_tokens": prompt, "completion_tokens": predicted, "total_tokens": prompt + predicted}
        told = timings(self.choices[0].stream.text.statistics)
        return {"usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}, "timings": told}


class ChatReply(OpenAIReply):
    """The reply to POST /v1/chat/completions."""

    kind, chunk = "chat.completion", "chat.completion.chunk"

    def _body(self, answers: Sequence[tuple[Choice, Delta]]) -> Any:
        body = super()._body(answers)
        for entry in body["choices"]:
            told = entry.pop("delta")
            entry["message"] = {"role": "assistant", "content": None if "tool_calls" in told else "", **told}
        return body

    def _first(self) -> Iterable[dict[str, Any]]:
        for choice in self.choices:
            told = {"role": "assistant", "content": None}
            yield self._object(self.chunk, [{"index": choice.index, "delta": told, "finish_reason": None}])

    def _events(self, choice: Choice, delta: Delta) -> Iterable[dict[str, Any]]:
        yield from super()._events(choice, delta._replace(calls=delta.calls[:1]))
        for part in delta.calls[1:]:
            yield from super()._events(choice, Delta(calls=[part]))

    def _entry(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        calls: list[dict[str, Any]] = []
        for number, call in delta.calls:
            named = {"id": call.id, "type": "function"} if call.name else {}
            function = {"name": call.name} if call.name else {}
            calls.append({"index": number, **named, "function": {**function, "arguments": call.arguments}})
        parts = {"reasoning_content": delta.reasoning, "content": delta.text, "tool_calls": calls}
        return {**self._head_of(choice, delta), "delta": {name: part for name, part in parts.items() if part}}


class TextReply(OpenAIReply):
    """The reply to POST /v1/completions."""

    kind = chunk = "text_completion"

    def _entry(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        entry = {"text": delta.text, **self._head_of(choice, delta)}
        if choice.has_logprobs:
            entry["logprobs"] |= self._lists(choice, delta)
        return entry

    def _lists(self, choice: Choice, delta: Delta) -> dict[str, list[Any]]:
        """Return four lists about a delta's tokens: texts, log probabilities, likeliest tokens, character offsets."""
        model, prompts = self.model.engine.model, self.model.engine.prompts
        printed = [*(model.piece(each.token, special=True) for each in delta.echoed)]
        printed += [prompts.piece(each.token) for each in delta.logprobs]
        rows = list[tuple[Any, ...]]()
        for (token, logprob, best), piece in zip([*delta.echoed, *delta.logprobs], printed, strict=True):
            top = dict[str, float]()
            for each, score in (*best, (token, logprob)):
                top.setdefault(_name(model.piece(each, special=True)), score)
            known = (None, None) if isnan(logprob) else (logprob, top)
            rows.append((_name(model.piece(token, special=True)), *known, choice.listed))
            choice.listed += len(choice.decoder.decode(piece))
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _name(piece: bytes) -> str:
    """Return a token's text, or "bytes:" and hex codes, as OpenAI does, if its bytes are no valid UTF-8."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class PlainReply(OpenAIReply):
    """The reply to llama.cpp's POST /completion."""

    kind = chunk = "completion"

    def _body(self, answers: Sequence[tuple[Choice, Delta]]) -> Any:
        entries = [self._entry(*answer) for answer in answers]
        return entries if entries[1:] else entries[0]

    def _events(self, choice: Choice, delta: Delta) -> Iterable[dict[str, Any]]:
        yield self._entry(choice, delta)

    def _entry(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        run = choice.stream.text.statistics
        entry = {
            "index": choice.index,
            "content": delta.text,
            "tokens": delta.tokens,
            "stop": delta.ended,
            "tokens_predicted": run.tokens,
            "tokens_evaluated": run.prompt_tokens,
        }
        if delta.logprobs:
            entry["completion_probabilities"] = [*map(self._logprob, delta.logprobs)]
        if not delta.ended:
            return entry
        answer, sequence, sampling = choice.stream.text.answer(), choice.stream.sequence, self.sampling
        forbidden = dict.fromkeys(self.model.engine.model.ends if sampling.ignore_eos else (), float("-inf"))
        # JSON has no infinity: a bias that forbids a token is null.
        biases = [
            {"token": token, "bias": None if bias == float("-inf") else bias}
            for token, bias in (*forbidden.items(), *sampling.logit_bias)
        ]
        drawn = {"seed": sampling.seed, "temperature": sampling.temp, "logit_bias": biases}
        return entry | {
            "id_slot": sequence.cells.first_id // self.model.engine.settings.ids if sequence else -1,
            "model": self.name,
            "prompt": choice.prompt_text,
            "generation_settings": {"n_predict": self.limit, **drawn},
            "truncated": answer.filled_context(self.limit),
            "stop_type": {"eog": "eos", "stop": "word", "length": "limit"}.get(answer.finish_reason, "none"),
            "stopping_word": answer.stop,
            "timings": timings(run),
            **self._notes,
        }
