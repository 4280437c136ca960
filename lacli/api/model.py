"""The model that programs use: answers whole, in pieces or asynchronous, all decoded together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from json import dumps
from queue import SimpleQueue
from threading import Lock
from typing import TypedDict, TypeVar, Unpack, cast, overload
from weakref import WeakValueDictionary, finalize

from lacli.api.loop import Arrival, PromptProgress, Request, SharedLoop
from lacli.errors import PromptError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.modes import Mode
from lacli.session.generation import Answer, PartialAnswer, as_stops
from lacli.session.prompt import Messages
from lacli.session.session import Session
from lacli.settings import LETTERS, DecodeSettings
from lacli.stats import RunStatistics, Step
from lacli.text.files import Closing
from lacli.text.format import did_you_mean
from lacli.text.stream import Piece
from lacli.verify import MostProbable, Recorder

Prompt = str | Messages | Sequence[int]
"""A question, or a conversation: its messages, each with `role` and `content`; or the tokens of a prompt."""


class AnswerOptions(TypedDict, total=False):
    """What may be said of one answer; what is left out is as `load` was told.

    `max_tokens`: -1 for no limit but the context's. `stop`: a text that ends the answer, or several. `temperature`,
    `top_k`, `top_p`, `min_p`, `seed`, `grammar` (GBNF), `json_schema` (a text or a mapping): as in SamplingSettings;
    `sampling`: all of them at once. `system`: the system prompt before a question. `raw`: continue the prompt as it
    stands, without the chat template. `logprobs`: keep the log probability of each token of the answer, and of this
    number of the most probable ones in its place; `drawn_logprobs`: by the distribution that is drawn from, behind all
    samplers, instead of the model's. `n_keep`: a full context loses half of what is behind its first
    `n_keep` tokens, and the answer goes on. `mode`: plain for one token a step, otherwise the mode that was loaded.
    `window`, `ngram`, `guesses`: W, N and G where that is lookahead; at most what was loaded, and N as there.
    `owner`: a name; only answers of the same owner share cells of the cache, n-grams and what was learned of texts.
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
    drawn_logprobs: bool
    n_keep: int
    mode: str
    window: int
    ngram: int
    guesses: int
    owner: str


AnyStream = TypeVar("AnyStream", bound="Answering")

SAMPLED = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seed": "seed"}
"""Options of an answer that are numbers of SamplingSettings, with its names of them."""

ELSEWHERE = {
    "model_path": "model",
    "n_ctx": "context",
    "n_gpu_layers": "gpu_layers",
    "n_threads": "threads",
    **dict.fromkeys(("max_new_tokens", "n_predict"), "max_tokens"),
    "temp": "temperature",
    "stop_strings": "stop",
    "system_prompt": "system",
}
"""Options of llama-cpp-python and transformers that look like none here, by their names here."""

LEAST = {"max_tokens": -1, "logprobs": 0, "n_keep": 0}
"""The least values of the whole numbers among an answer's own options."""


class Model(Closing):
    """A model that answers; use it in `with`, or close it. A closed one raises LacliError.

    Safe to use from several threads and tasks: what they ask is decoded together, as many answers at a time as `load`
    made places for, and further ones wait in their order. An answer is the same alone and among others, up to rounding.
    `session`: the loaded model with its settings and prompts; `session.notes` has sentences about what was chosen for
    the user, such as a shorter context.
    """

    def __init__(self, session: Session, sampling: SamplingSettings | None = None) -> None:
        """`sampling`: for answers that say nothing else; by default the session's."""
        self.session = session
        self._sampling = sampling or session.sampling
        # A grammar is made of a schema once, and llama.cpp's vocabulary is not freed while it is asked.
        self._asking = Lock()
        # Held for the pieces of a step only: steps are read while a prompt is prepared elsewhere.
        self._reading = Lock()
        self._mailboxes: WeakValueDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakValueDictionary()
        self._begin_loop()

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
        streams = [self.stream(each, **options) for each in checked_prompts(prompt)]
        arrivals: SimpleQueue[tuple[Stream, Arrival]] = SimpleQueue()
        going = set(streams)
        try:
            for stream in streams:
                stream._begin(lambda arrival, stream=stream: arrivals.put((stream, arrival)))  # type: ignore[misc]
            while going:
                stream, arrival = arrivals.get()
                stream._take(arrival)
                if stream._ended:
                    going.discard(stream)
        finally:
            for stream in going:
                stream.close()
        return [stream.answer() for stream in streams]

    def chat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """Answer a conversation. What was decoded of it before, in an earlier turn, is not decoded again."""
        return self.stream(checked_messages(messages), **options).answer()

    def stream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Stream:
        """Ask for an answer to a prompt or a conversation: iterate it for its text as it is accepted."""
        return self._asked(Stream, prompt, options)

    @overload
    async def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    async def agenerate(self, prompt: Sequence[str], **options: Unpack[AnswerOptions]) -> list[Answer]: ...
    async def agenerate(self, prompt: str | Sequence[str], **options: Unpack[AnswerOptions]) -> Answer | list[Answer]:
        """The same as `generate`, for a task among others."""
        if isinstance(prompt, str):
            return await self.astream(prompt, **options).answer()
        streams = [self.astream(each, **options) for each in checked_prompts(prompt)]
        try:
            return await asyncio.gather(*(stream.answer() for stream in streams))
        finally:
            for stream in streams:
                stream.close()

    async def achat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """The same as `chat`, for a task among others."""
        return await self.astream(checked_messages(messages), **options).answer()

    def astream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> AsyncStream:
        """The same as `stream`, for `async for`."""
        return self._asked(AsyncStream, prompt, options)

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have."""
        return self._loop.context

    @property
    def mode(self) -> Mode | None:
        """The mode of the latest answer, None before the first."""
        return self._loop.mode

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of answers that are decoded and that wait for a place."""
        return self._loop.load

    @property
    def failure(self) -> Exception | None:
        """What ended all answers and ends every later one, None while it answers."""
        return self._loop.failure

    def close(self) -> None:
        """End all answers at their last step, and give the memory back."""
        self._loop.close()
        # A prompt may be cut into tokens just now.
        with self._asking, self._reading:
            self.session.close()

    def _begin_loop(self) -> None:
        self._loop = SharedLoop(self.session.alone(), self.session.texts)
        # The loop's thread keeps all but this object, and lets go of it once it has ended.
        finalize(self, self._loop.stop).atexit = False

    def _asked(self, kind: type[AnyStream], prompt: Prompt, options: AnswerOptions) -> AnyStream:
        check_options(options)
        prompts, raw = self.session.prompts, options.get("raw", False)
        with self._asking:
            self.session.model.check_open()
            if self._loop.has_lost:
                self._loop.close()
                self.session.reopen()
                self._begin_loop()
            if isinstance(prompt, str):
                tokens = prompts.question(prompt, options.get("system", ""), (), raw=raw)
            elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], int):
                tokens = checked_tokens(cast("Sequence[int]", prompt), self.session.model.vocabulary)
            elif raw or options.get("system"):
                what = "raw and system are for a prompt that is a text"
                raise UsageError(what, "write a system message in front")
            else:
                tokens = prompts.conversation(checked_messages(cast("Messages", prompt)))
            own = self._own_settings(options)
            drawn, sampler = self.session.text_verifier(self._sampling_of(options))
            stops = (*as_stops(options.get("stop", ())), *(() if raw else prompts.turn_ends))
            controls = prompts.control_tokens(stops)
        behind = (sampler or MostProbable()) if options.get("drawn_logprobs") else None
        recorder = Recorder(drawn, options["logprobs"], behind) if "logprobs" in options else None
        limit, n_keep = options.get("max_tokens", -1), options.get("n_keep")
        plain = self._is_plain(options.get("mode", ""))
        request = Request(
            self._loop,
            tokens,
            limit,
            n_keep=n_keep,
            verifier=recorder or drawn,
            sampler=sampler,
            plain=plain,
            own=own,
            owner=options.get("owner", ""),
        )
        found = recorder.found if recorder else ()
        return kind(
            self, PartialAnswer(request, prompts.piece, tokens, stops, controls=controls, logprobs=found), request
        )

    def _mailbox(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        with self._reading:
            return self._mailboxes.setdefault(loop, Mailbox(loop))

    def _is_plain(self, mode: str) -> bool:
        """True for an answer of one token a step. Raises UsageError for a mode that the model was not loaded for."""
        own = self.session.settings.mode
        if mode not in ("", "plain", own):
            raise UsageError(f"the model was loaded for mode {own}, not {mode}", f"an answer's mode is plain or {own}")
        return mode == "plain"

    def _own_settings(self, options: AnswerOptions) -> DecodeSettings | None:
        """How an answer with W, N or G of its own is decoded. Raises UsageError where that cannot be."""
        chosen = {name: options[name] for name in LETTERS if name in options}  # type: ignore[literal-required]
        if not chosen:
            return None
        loaded = self._loop.decoder.settings
        if loaded.mode != "lookahead":
            what = f"W, N and G are of mode lookahead, and the model was loaded for mode {loaded.mode}"
            raise UsageError(what, "leave them out, or load it with --mode lookahead")
        own = replace(loaded, **chosen)
        if own.window > loaded.window or own.guesses > loaded.guesses or own.ngram != loaded.ngram:
            what = f"W={own.window} N={own.ngram} G={own.guesses} does not fit what the model was loaded with"
            raise UsageError(what, f"W up to {loaded.window}, N of {loaded.ngram}, G up to {loaded.guesses}")
        return own

    def _sampling_of(self, options: AnswerOptions) -> SamplingSettings:
        chosen = {SAMPLED[name]: value for name, value in options.items() if name in SAMPLED}
        schema = options.get("json_schema", "")
        try:
            schema = dumps(schema) if isinstance(schema, Mapping) else schema
        except TypeError as error:
            raise UsageError(
                f"json_schema is no JSON: {error}", "give a mapping of texts, numbers and lists"
            ) from error
        form = {"grammar": options.get("grammar", ""), "json_schema": schema}
        if any(form.values()):
            chosen |= form
        return replace(options.get("sampling", self._sampling), **chosen)  # type: ignore[arg-type]  # names of its fields


def unknown_option(of: str, name: str, known: Sequence[str]) -> UsageError:
    """The error about an option that does not exist, with the `known` one that was meant, or all of them."""
    return UsageError(f"{of} has no option {name!r}", did_you_mean(ELSEWHERE.get(name, name), known, ", ".join(known)))


def check_options(options: AnswerOptions) -> None:
    """Raise UsageError for options of an answer that do not exist or cannot be; SamplingSettings checks its own."""
    known = AnswerOptions.__annotations__
    if unknown := options.keys() - known.keys():
        raise unknown_option("an answer", min(unknown), [*known])
    for name, least in LEAST.items():
        value = options.get(name, least)
        if type(value) is not int or value < least:
            raise UsageError(f"{name} is {value!r:.60}", f"give a whole number, {least} or more, or leave it out")
    stops = options.get("stop", ())
    if stops == "" or not isinstance(stops, Sequence) or not all(stop and isinstance(stop, str) for stop in stops):
        raise UsageError(f"stop is {stops!r:.60}", "give a text, or several in a list")
    for name in ("system", "owner"):
        if not isinstance(options.get(name, ""), str):
            raise UsageError(f"{name} is {options[name]!r:.60}", "give a text")  # type: ignore[literal-required]
    if not isinstance(options.get("raw", False), bool):
        raise UsageError(f"raw is {options['raw']!r:.60}", "give True or False")
    if not isinstance(options.get("sampling", SamplingSettings()), SamplingSettings):
        raise UsageError(f"sampling is {options['sampling']!r:.60}", "give SamplingSettings")


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
    for message in messages:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise PromptError(f"a message needs a role and a content: {message!r:.80}", "both are texts")
    return messages


def checked_tokens(tokens: Sequence[int], vocabulary: int) -> list[int]:
    """The tokens of a prompt. Raises PromptError for one that does not exist."""
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise PromptError(f"there is no token {token!r:.20}", f"ids go from 0 to {vocabulary - 1:,}")
    return [*tokens]


class Answering(Closing):
    """An answer on its way to one reader."""

    def __init__(self, model: Model, partial: PartialAnswer, request: Request) -> None:
        """`model`: kept as long as this is."""
        self._model, self._partial, self._request = model, partial, request
        self._begun = self._iterated = self._ended = False

    @property
    def prompt(self) -> Sequence[int]:
        """The prompt's tokens."""
        return self._request.prompt

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self._request.owner

    @property
    def statistics(self) -> RunStatistics:
        """What the answer has cost by now."""
        return self._partial.statistics

    def partial_answer(self) -> Answer:
        """What there is of the answer by now."""
        return self._partial.answer()

    def close(self) -> None:
        """End it at the last step that was read; another thread or task that iterates it comes to its end."""
        self._ended = True
        self._request.end()

    def _begin(
        self, deliver: Callable[[Arrival], None], *, wake: Callable[[], None] | None = None, max_unread: int = 0
    ) -> None:
        if not (self._begun or self._ended):
            self._begun = True
            self._partial.begin()
            self._request.begin(deliver, wake=wake, max_unread=max_unread)

    def _take(self, arrival: Arrival) -> list[Piece]:
        """The text that an arrival makes certain. Raises what ended the answer."""
        self._request.read()
        if self._ended:
            return []
        if arrival.error is not None:
            self._ended = True
            raise arrival.error
        step, partial = arrival.step, self._partial
        with self._model._reading:
            pieces = partial.take(step) if step else []
            if partial.stopped:
                self.close()
            elif step is None or step.finish:
                self._ended = True
                pieces += partial.end()
        return pieces


class Stream(Answering):
    """An answer on its way: iterate it, once, for its text as it is accepted; then, or at any time, read `answer()`."""

    def __init__(self, model: Model, partial: PartialAnswer, request: Request) -> None:
        super().__init__(model, partial, request)
        self._arrivals: SimpleQueue[Arrival] = SimpleQueue()

    def __iter__(self) -> Iterator[str]:
        if self._iterated:
            return
        self._iterated = True
        self.begin()
        try:
            while not self._ended:
                for piece in self._take(self._arrivals.get()):
                    yield piece.text
        finally:
            self.close()

    def begin(self) -> None:
        """Let it be decoded from now on; otherwise that begins with the first piece that is asked for."""
        self._begin(self._arrivals.put)

    def answer(self) -> Answer:
        """The whole answer; where its iteration was left early, what there is of it."""
        for _ in self:
            pass
        return self.partial_answer()


class AsyncStream(Answering):
    """The same for `async for`; other tasks go on in the meantime."""

    async def __aiter__(self) -> AsyncIterator[str]:
        async for _, pieces in self.steps():
            for piece in pieces:
                yield piece.text

    def watch_prompt(self, tell: Callable[[PromptProgress], None]) -> None:
        """Have `tell` called in this task's loop whenever more of the prompt is read; first with what is reused."""
        loop = asyncio.get_running_loop()

        def watch(progress: PromptProgress) -> None:
            # A loop that is closed has nobody who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, progress)

        self._request.watch = watch

    async def steps(self, *, max_unread: int = 0) -> AsyncGenerator[tuple[Step | None, list[Piece]]]:
        """Yield each step with the text that it makes certain; None for an end without a step.

        `max_unread`: steps that may wait to be read. With more the answer is held until half of them are read, and it
        raises LacliError where nothing is for 20 seconds. 0: no limit.
        """
        if self._iterated:
            return
        self._iterated = True
        arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        mailbox = self._model._mailbox(asyncio.get_running_loop())
        self._begin(partial(mailbox.post, self._request, arrivals), wake=mailbox.wake, max_unread=max_unread)
        try:
            while not self._ended:
                arrival = await arrivals.get()
                yield arrival.step, self._take(arrival)
        finally:
            self.close()

    async def answer(self) -> Answer:
        """The whole answer; where its iteration was left early, what there is of it."""
        async for _ in self:
            pass
        return self.partial_answer()


class Mailbox:
    """Carries arrivals to the readers of one event loop, and wakes it once for all of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[tuple[Request, asyncio.Queue[Arrival], Arrival]] = deque()

    def post(self, request: Request, reader: asyncio.Queue[Arrival], arrival: Arrival) -> None:
        """Keep an arrival for `reader` until the event loop is awake; from any thread."""
        self._letters.append((request, reader, arrival))

    def wake(self) -> None:
        """Let the event loop hand out what was posted; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._hand_out)
        except RuntimeError:
            # A loop that is closed has nobody who waits.
            for request, _, _ in self._letters:
                request.end()
            self._letters.clear()

    def _hand_out(self) -> None:
        while self._letters:
            _, reader, arrival = self._letters.popleft()
            reader.put_nowait(arrival)
