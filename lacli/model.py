"""The model that programs use: answers whole, in pieces or asynchronous, all decoded together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeVar, Unpack, cast, overload
from weakref import finalize

from lacli.answer_options import (
    SAMPLED,
    AnswerOptions,
    checked_messages,
    checked_options,
    checked_prompts,
    checked_tokens,
    told_to_programs,
)
from lacli.engine.answer import Answer, AnswerText, as_stops
from lacli.engine.engine import Progress, SequenceOptions
from lacli.engine.load import ModelEngine
from lacli.engine.prompts import Messages
from lacli.engine.worker import Request, Worker
from lacli.errors import PromptError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import LETTERS, DecodeSettings
from lacli.streams import Answering, AsyncStream, Stream
from lacli.text.files import Closing
from lacli.verify import MostProbable, Recorder

Prompt = str | Messages | Sequence[int]
"""A question, or a conversation: its messages, each with `role` and `content`; or the tokens of a prompt."""

AnyStream = TypeVar("AnyStream", bound=Answering)


class Model(Closing):
    """A model that answers; use it in `with`, or close it. A closed one raises LacliError.

    Safe to use from several threads and tasks: what they ask is decoded together, as many answers at a time as `load`
    made places for, and further ones wait in their order. An answer is the same alone and among others, up to rounding.
    `engine`: the loaded model with its settings and prompts; `engine.notes` has sentences about what was chosen for
    the user, such as a shorter context.
    """

    def __init__(self, engine: ModelEngine, sampling: SamplingSettings | None = None) -> None:
        """`sampling`: for answers that say nothing else; by default the engine's. Raises UsageError for a name."""
        if not isinstance(engine, ModelEngine):
            raise UsageError(f"a Model is made of an engine, not of {engine!r:.60}", f"lacli.load({engine!r:.60})")
        self.engine = engine
        self._sampling = sampling or engine.sampling
        # A grammar is made of a schema once, and llama.cpp's vocabulary is not freed while it is asked.
        self._asking = Lock()
        # Held for the pieces of a step only: steps are read while a prompt is prepared elsewhere.
        self._reading = Lock()
        self._worker = Worker(engine)
        # The worker's thread keeps all but this object, and lets go of it once it has ended.
        finalize(self, self._worker.stop).atexit = False

    def __repr__(self) -> str:
        own = self.engine
        return f"<lacli.Model {own.model.path.name}: {self.context:,} tokens, mode {own.settings.mode}>"

    @overload
    def generate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompt: Sequence[str], **options: Unpack[AnswerOptions]) -> list[Answer]: ...
    # Types ask for a prompt; without one `checked_options` says what is meant by `messages=`.
    def generate(self, prompt: str | Sequence[str] = "", **options: Unpack[AnswerOptions]) -> Answer | list[Answer]:
        """Answer a prompt; of several, all answers in the order of the prompts, decoded together.

        `options`: max_tokens, temperature, stop, json_schema and the others of `lacli.answer_options.AnswerOptions`.
        Raises PromptError for an empty prompt or one longer than the context, SamplingError where a grammar or biases
        leave no token, UsageError for options that cannot be.
        """
        if isinstance(prompt, str):
            return self.stream(prompt, **options).answer()
        streams = self._each(Stream, prompt, options)
        arrived: SimpleQueue[tuple[Stream, Progress]] = SimpleQueue()
        going = set(streams)
        try:
            for stream in streams:
                stream._begin(lambda progress, stream=stream: arrived.put((stream, progress)))  # type: ignore[misc]
            while going:
                stream, progress = arrived.get()
                stream._take(progress)
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
    async def agenerate(
        self, prompt: str | Sequence[str] = "", **options: Unpack[AnswerOptions]
    ) -> Answer | list[Answer]:
        """The same as `generate`, for a task among others."""
        if isinstance(prompt, str):
            return await self.astream(prompt, **options).answer()
        streams = self._each(AsyncStream, prompt, options)
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

    def tokenize(self, prompt: Prompt, *, system: str = "", raw: bool = False) -> list[int]:
        """Tokens of a prompt or a conversation as `stream` decodes them, the chat template's included.

        `system`, `raw`: as an answer takes them. Raises PromptError and UsageError as `stream` does.
        """
        with self._asking:
            self.engine.model.check_open()
            return self._prompt_tokens(prompt, system, raw=raw)

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have."""
        return self.engine.limit

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of answers that are decoded and that wait for a place, without those that were left."""
        return self._worker.load

    @property
    def failure(self) -> Exception | None:
        """What ended all answers and ends every later one, None while it answers."""
        return self._worker.failure

    def take_no_more(self, why: str, retry_s: int = 0) -> None:
        """Let the answers that are decoded end; those that wait and later ones raise Unavailable(why).

        `retry_s`: seconds after which another process may answer, 0 where that is not known.
        """
        self._worker.take_no_more(why, retry_s)

    def stop(self, why: str) -> None:
        """End all answers after the current step, without waiting for it; they and later ones raise LacliError(why)."""
        self._worker.stop(why)

    def close(self) -> None:
        """End all answers at their last step, and give the memory back."""
        self._worker.close()
        # A prompt may be cut into tokens just now.
        with self._asking, self._reading:
            self.engine.close()

    def _each(self, kind: type[AnyStream], prompts: Sequence[str], options: AnswerOptions) -> list[AnyStream]:
        """Ask for an answer to each prompt; an error says which of them it is about."""
        streams: list[AnyStream] = []
        for number, prompt in enumerate(checked_prompts(prompts), start=1):
            try:
                streams.append(self._asked(kind, prompt, options))
            except PromptError as error:
                raise PromptError(f"prompt {number} of {len(prompts)}: {error.what}", error.hint) from error
        return streams

    def _asked(self, kind: type[AnyStream], prompt: Prompt, given: AnswerOptions) -> AnyStream:
        options = checked_options(given)
        prompts, raw = self.engine.prompts, options.get("raw", False)
        with self._asking:
            self.engine.model.check_open()
            tokens = self._prompt_tokens(prompt, options.get("system", ""), raw=raw)
            own = self._own_settings(options)
            with told_to_programs():
                sampling, warnings = self.engine.completed(self._sampling_of(options))
                drawn, sampler = self.engine.own_verifier(sampling)
            stops = (*as_stops(options.get("stop", ())), *(() if raw else prompts.turn_ends))
            controls = prompts.control_tokens(stops)
        behind = (sampler or MostProbable()) if options.get("drawn_logprobs") else None
        recorder = Recorder(drawn, options["logprobs"], behind) if "logprobs" in options else None
        wanted = SequenceOptions(
            options.get("max_tokens", -1),
            recorder or drawn,
            drafts=not self._is_plain(options.get("mode", "")),
            settings=own,
        )
        with told_to_programs():
            request = Request(self._worker, tokens, wanted, sampler)
        text = AnswerText(
            self.engine,
            prompts.piece,
            tokens,
            stops,
            controls=controls,
            logprobs=recorder.found if recorder else (),
            seed=sampling.drawn_seed,
            warnings=warnings,
        )
        return kind(self, text, request)

    def _prompt_tokens(self, prompt: Prompt, system: str, *, raw: bool) -> list[int]:
        prompts = self.engine.prompts
        if isinstance(prompt, str):
            return prompts.question(prompt, system, (), raw=raw)
        if isinstance(prompt, bytes | bytearray):
            raise UsageError(f"the prompt is {prompt!r:.60}", "give a text; bytes have decode()")
        is_tokens = isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], int)
        if system or (raw and not is_tokens):
            raise UsageError("raw and system are for a prompt that is a text", "write a system message in front")
        if is_tokens:
            return checked_tokens(cast("Sequence[int]", prompt), self.engine.model.vocabulary)
        return prompts.conversation(checked_messages(cast("Messages", prompt)))

    def _is_plain(self, mode: str) -> bool:
        """True for an answer of one token a step. Raises UsageError for a mode that the model was not loaded for."""
        own = self.engine.settings.mode
        if mode not in ("", "plain", own):
            raise UsageError(f"the model was loaded for mode {own}, not {mode}", f"an answer's mode is plain or {own}")
        return mode == "plain"

    def _own_settings(self, options: Mapping[str, Any]) -> DecodeSettings | None:
        """How an answer with W, N or G of its own is decoded. Raises UsageError where that cannot be."""
        chosen = {name: options[name] for name in LETTERS if name in options}
        if not chosen:
            return None
        loaded = self.engine.settings
        if loaded.mode != "lookahead":
            what = f"W, N and G are of mode lookahead, and the model was loaded for mode {loaded.mode}"
            raise UsageError(what, "leave them out, or load it in mode lookahead")
        own = replace(loaded, **chosen)
        if own.window > loaded.window or own.guesses > loaded.guesses or own.ngram != loaded.ngram:
            what = f"W={own.window} N={own.ngram} G={own.guesses} does not fit what the model was loaded with"
            raise UsageError(what, f"W up to {loaded.window}, N of {loaded.ngram}, G up to {loaded.guesses}")
        return own

    def _sampling_of(self, options: Mapping[str, Any]) -> SamplingSettings:
        chosen = {SAMPLED[name]: value for name, value in options.items() if name in SAMPLED}
        schema = options.get("json_schema", "")
        if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        if not isinstance(schema, str | Mapping):
            raise UsageError(f"json_schema is {schema!r:.60}", "give a mapping, a text of JSON or a class of pydantic")
        try:
            schema = dumps(schema) if isinstance(schema, Mapping) else schema
        except TypeError as error:
            raise UsageError(
                f"json_schema is no JSON: {error}", "give a mapping of texts, numbers and lists"
            ) from error
        form = {"grammar": options.get("grammar", ""), "json_schema": schema}
        if any(form.values()):
            chosen |= form
        sampling: SamplingSettings = options.get("sampling", self._sampling)
        return replace(sampling, **chosen)
