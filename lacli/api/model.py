"""The model that programs use: answers whole, in pieces or asynchronous, all decoded together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from json import dumps
from threading import Lock
from typing import TypedDict, Unpack, cast, overload

from lacli.api.loop import Arrival, Request, SharedLoop
from lacli.errors import PromptError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.session.generation import Answer, Generation, as_stops
from lacli.session.prompt import Messages
from lacli.session.session import Session
from lacli.stats import Step
from lacli.text.files import Closing
from lacli.text.format import did_you_mean
from lacli.text.stream import Piece
from lacli.verify import Recorder

Prompt = str | Messages | Sequence[int]
"""A question, or a conversation: its messages, each with `role` and `content`; or the tokens of a prompt."""


class AnswerOptions(TypedDict, total=False):
    """What may be said of one answer; what is left out is as `load` was told.

    `max_tokens`: -1 for no limit but the context's. `stop`: a text that ends the answer, or several. `temperature`,
    `top_k`, `top_p`, `min_p`, `seed`, `grammar` (GBNF), `json_schema` (a text or a mapping): as in SamplingSettings;
    `sampling`: all of them at once. `system`: the system prompt before a question. `raw`: continue the prompt as it
    stands, without the chat template. `logprobs`: keep the log probability of each token of the answer, and of this
    number of the most probable ones in its place. `n_keep`: a full context loses half of what is behind its first
    `n_keep` tokens, and the answer goes on.
    """

    max_tokens: int
    stop: str | Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    grammar: str
    json_schema: str | Mapping[str, object]
    sampling: SamplingSettings
    system: str
    raw: bool
    logprobs: int
    n_keep: int


SAMPLED = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seed": "seed"}
"""Options of an answer that are numbers of SamplingSettings, with its names of them."""


class Model(Closing):
    """A model that answers; use it in `with`, or close it. A closed one raises LacliError.

    Safe to use from several threads and tasks: what they ask is decoded together, as many answers at a time as `load`
    made places for, and further ones wait in their order. An answer is the same alone and among others, up to rounding.
    `session`: the loaded model with its settings, notes and prompts.
    """

    def __init__(self, session: Session, sampling: SamplingSettings | None = None) -> None:
        """`sampling`: for answers that say nothing else; by default the session's."""
        self.session = session
        self._sampling = sampling or session.sampling
        # A grammar is made of a schema once, and llama.cpp's vocabulary is asked by one thread at a time.
        self._making = Lock()
        self._loop = SharedLoop(session.alone(), session.texts)

    @overload
    def generate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompt: Sequence[str], **options: Unpack[AnswerOptions]) -> list[Answer]: ...
    def generate(self, prompt: str | Sequence[str], **options: Unpack[AnswerOptions]) -> Answer | list[Answer]:
        """Answer a prompt; of several, all answers in the order of the prompts, decoded together.

        Raises PromptError for an empty prompt or one longer than the context, SamplingError where a grammar or biases
        leave no token, UsageError for options that cannot be.
        """
        if isinstance(prompt, str):
            return self.stream(prompt, **options).answer()
        streams = [self.stream(each, **options) for each in prompt]
        try:
            for stream in streams:
                stream.begin()
            return [stream.answer() for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def chat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """Answer a conversation. What was decoded of it before, in an earlier turn, is not decoded again."""
        return self.stream(messages, **options).answer()

    def stream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Stream:
        """Begin an answer to a prompt or a conversation; iterate it for the text as it is accepted."""
        return Stream(*self._asked(prompt, options))

    async def agenerate(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Answer:
        """The same as `generate` of one prompt or `chat`, for a task among others."""
        stream = self.astream(prompt, **options)
        async for _ in stream:
            pass
        return stream.answer()

    def astream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> AsyncStream:
        """The same as `stream`, for `async for`."""
        return AsyncStream(*self._asked(prompt, options))

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have."""
        return self._loop.context

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of answers that are decoded and that wait for a place."""
        return self._loop.load

    def close(self) -> None:
        """End all answers at their last step, and give the memory back."""
        self._loop.close()
        self.session.close()

    def _asked(self, prompt: Prompt, options: AnswerOptions) -> tuple[Generation, Request]:
        if unknown := options.keys() - AnswerOptions.__annotations__.keys():
            name = min(unknown)
            known = [*AnswerOptions.__annotations__]
            raise UsageError(f"an answer has no option {name!r}", did_you_mean(name, known, ", ".join(known)))
        prompts = self.session.prompts
        raw = options.get("raw", False)
        with self._making:
            self.session.model.check_open()
            if isinstance(prompt, str):
                tokens = prompts.question(prompt, options.get("system", ""), (), raw=raw)
            elif prompt and isinstance(prompt[0], int):
                tokens = [*cast("Sequence[int]", prompt)]
            else:
                tokens = prompts.conversation(checked_messages(cast("Messages", prompt), options))
            drawn, sampler = self.session.text_verifier(self._sampling_of(options))
            ends = () if raw else prompts.turn_ends
            stops = (*as_stops(options.get("stop", ())), *ends)
            controls = prompts.control_tokens(stops)
        recorder = Recorder(drawn, options["logprobs"]) if "logprobs" in options else None
        limit, n_keep = options.get("max_tokens", -1), options.get("n_keep")
        request = Request(self._loop, tokens, limit, n_keep=n_keep, verifier=recorder or drawn, sampler=sampler)
        generation = Generation(
            request,
            prompts.piece,
            tokens,
            limit,
            stops,
            controls=controls,
            n_keep=n_keep,
            logprobs=recorder.found if recorder else (),
        )
        return generation, request

    def _sampling_of(self, options: AnswerOptions) -> SamplingSettings:
        chosen = {SAMPLED[name]: value for name, value in options.items() if name in SAMPLED}
        schema = options.get("json_schema", "")
        form = {
            "grammar": options.get("grammar", ""),
            "json_schema": schema if isinstance(schema, str) else dumps(schema),
        }
        if any(form.values()):
            chosen |= form
        return replace(options.get("sampling", self._sampling), **chosen)  # type: ignore[arg-type]  # names of its fields


def checked_messages(messages: Messages, options: AnswerOptions) -> Messages:
    """Messages of a conversation. Raises PromptError for none or one without role or content, UsageError for `raw`."""
    if options.get("raw") or options.get("system"):
        raise UsageError("raw and system are for a prompt that is a text", "write a system message in front")
    if not messages:
        raise PromptError("the conversation is empty", 'give messages, [{"role": "user", "content": "..."}]')
    for message in messages:
        if not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise PromptError(f"a message needs a role and a content: {message!r:.80}", "both are texts")
    return messages


class Stream(Closing):
    """An answer on its way: iterate it, once, for its text as it is accepted; then, or at any time, read `answer()`."""

    def __init__(self, generation: Generation, request: Request) -> None:
        self._generation, self._request = generation, request

    def __iter__(self) -> Iterator[str]:
        for piece in self._generation:
            yield piece.text

    def begin(self) -> None:
        """Let it be decoded from now on; otherwise that begins with the first piece that is asked for."""
        self._request.begin()

    def answer(self) -> Answer:
        """The whole answer; where its iteration was left early, what there is of it."""
        for _ in self._generation:
            pass
        return self._generation.answer()

    def close(self) -> None:
        """End it at the last step that was taken."""
        self._generation.close()
        self._request.end()


class AsyncStream:
    """The same for `async for`; other tasks go on in the meantime."""

    def __init__(self, generation: Generation, request: Request) -> None:
        self._generation, self._request = generation, request
        self._begun = False

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts()

    async def _texts(self) -> AsyncGenerator[str]:
        async for _, pieces in self.steps():
            for piece in pieces:
                yield piece.text

    async def steps(self) -> AsyncGenerator[tuple[Step | None, list[Piece]]]:
        """Yield each step with the text that it makes certain, and at the end None with the rest of the text."""
        if self._begun:
            return
        self._begun = True
        arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        self._request.deliver = partial(_into, asyncio.get_running_loop(), arrivals)
        self._generation.begin()
        self._request.begin()
        try:
            finished = False
            while not finished:
                step, error = await arrivals.get()
                if error is not None:
                    raise error
                if step is None:
                    break
                yield step, self._generation.take(step)
                if self._generation.stopped:
                    return
                finished = step.finish is not None
            yield None, self._generation.end()
        finally:
            self._request.end()

    def answer(self) -> Answer:
        """What there is of the answer by now; all of it behind the iteration."""
        return self._generation.answer()


def _into(loop: asyncio.AbstractEventLoop, arrivals: asyncio.Queue[Arrival], arrival: Arrival) -> None:
    # A loop that is closed has nobody who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(arrivals.put_nowait, arrival)
