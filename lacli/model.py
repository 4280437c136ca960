"""The Python API: a model that answers in whole, in pieces or asynchronously, and decodes all answers together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from json import dumps
from pathlib import Path
from threading import Lock
from typing import Any, TypedDict, TypeVar, Unpack, cast, overload
from weakref import finalize

from lacli.context import Closing
from lacli.engine.answer import Answer, AnswerText, as_stops
from lacli.engine.engine import SequenceOptions
from lacli.engine.load import ModelEngine, open_engine
from lacli.engine.prompt_cache import PromptCache
from lacli.engine.worker import AsyncStream, Request, Stream, Worker
from lacli.errors import PromptError, UsageError
from lacli.hub.download import find_model
from lacli.hub.names import own_aliases
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import PARALLEL, DecodeSettings, ModeName, options_of
from lacli.settings import decode_settings as new_decode_settings
from lacli.terminal.screen import Screen, end_at_abort
from lacli.text.format import did_you_mean
from lacli.text.template import Messages
from lacli.verify import LogprobRecorder, most_probable

Prompt = str | Messages | Sequence[int]
"""A question, or a conversation: its messages, each with `role` and `content`; or the tokens of a prompt."""

AnyStream = TypeVar("AnyStream", bound=Request)

SAMPLED = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seed": "seed"}
"""Numeric options of an answer, with their names in SamplingSettings."""


class AnswerOptions(TypedDict, total=False):
    """Options of one answer. Sampling options that are missing or None have the defaults from `load`.

    `max_tokens`: -1, the default, for as many as the context allows. `stop`: one or several texts; the answer ends
    before them. `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `grammar` (GBNF), `json_schema` (a text, a mapping or
    a pydantic class): as in SamplingSettings. `sampling`: all sampling settings at once; other options override its
    fields. `system`: the system prompt before a question. `raw`: continue the prompt as it stands, without the chat
    template. `logprobs`: N, to keep the log probability of each token and of the N most probable at its position.
    `drawn_logprobs`: keep log probabilities after all samplers, instead of the model's own. `prompt_logprobs`: with
    `logprobs`, also keep the model's own log probabilities of the prompt's tokens, except the first.
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
    prompt_logprobs: bool | None


class Model(Closing):
    """A model that answers. Use it in `with`, or close it. A closed model raises LacliError.

    Threads and tasks can share it. At most `parallel` answers (see `load`) decode together, and further answers wait in
    order. An answer is the same alone and among others, up to rounding. `engine`: the loaded model with its settings
    and prompts. `engine.notes`: sentences about choices made for the user, such as a shorter context.
    """

    def __init__(self, engine: ModelEngine, sampling: SamplingSettings | None = None) -> None:
        """`sampling`: the default for answers; None: the engine's."""
        self.engine = engine
        self._sampling = sampling or engine.sampling
        # Held while llama.cpp's vocabulary is read, so that `close` does not free it.
        self._asking = Lock()
        self.worker = Worker(engine)
        # Until the worker's thread ends, it keeps everything but this object alive.
        finalize(self, self.worker.stop).atexit = False

    @overload
    def generate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompt: Sequence[str], **options: Unpack[AnswerOptions]) -> list[Answer]: ...
    def generate(self, prompt: str | Sequence[str], **options: Unpack[AnswerOptions]) -> Answer | list[Answer]:
        """Return the answer to a prompt, or a list of the answers to several prompts, which decode together.

        `options`: max_tokens, temperature, stop, json_schema and others of `lacli.model.AnswerOptions`. Raises
        PromptError for an empty prompt or a prompt longer than the context. Raises SamplingError if a grammar or biases
        leave no token, UsageError for impossible options.
        """
        if isinstance(prompt, str):
            return self.stream(prompt, **options).answer()
        if not isinstance(prompt, Sequence) or not all(isinstance(each, str) for each in prompt):
            raise UsageError(f"the prompt is {prompt!r:.60}", "give a text or a list of texts; chat takes messages")
        with ExitStack() as asked:
            streams: list[Stream] = []
            for number, each in enumerate(prompt, start=1):
                try:
                    streams.append(asked.enter_context(self.stream(each, **options)))
                except PromptError as error:
                    raise PromptError(f"prompt {number} of {len(prompt)}: {error.what}", error.hint) from error
            for stream in streams:
                stream.begin()
            return [stream.answer() for stream in streams]

    def chat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """Return the answer to a conversation, reusing cached turns. Raises PromptError, UsageError, SamplingError."""
        return self.stream(checked_messages(messages), **options).answer()

    def stream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Stream:
        """Return an answer in progress: iterate it for text as tokens are accepted. Raises PromptError, UsageError."""
        return self.set_up(Stream(self.worker, self), prompt, options)

    async def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """Return the answer to a prompt (several: `asyncio.gather`). Raises PromptError, SamplingError, UsageError."""
        if not isinstance(prompt, str):
            raise UsageError(f"the prompt is {prompt!r:.60}", "agenerate takes a text; asyncio.gather answers several")
        return await self.astream(prompt, **options).answer()

    async def achat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """Return the answer to a conversation, as `chat` does. Raises PromptError, SamplingError, UsageError."""
        return await self.astream(checked_messages(messages), **options).answer()

    def astream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> AsyncStream:
        """Return an answer in progress for `async for`. A thread prepares it; errors are raised at the first await."""
        return AsyncStream(self.worker, self, partial(self.set_up, prompt=prompt, given=options))

    def tokenize(self, prompt: Prompt, *, system: str = "", raw: bool = False) -> list[int]:
        """Return the tokens of a prompt, in the chat template unless `raw`. Raises PromptError or UsageError."""
        with self._asking:
            self.engine.model.check_open()
            return self._prompt_tokens(prompt, system, raw=raw)

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.engine.limit

    def close(self) -> None:
        """End all answers after the current step, and free the memory."""
        self.worker.close()
        with self._asking, self.worker.reading:
            self.engine.close()

    def set_up(self, stream: AnyStream, prompt: Prompt, given: AnswerOptions) -> AnyStream:
        """Return `stream`, prepared to answer `prompt`. Raises PromptError or UsageError for bad arguments."""
        options = checked_options(given)
        engine, raw = self.engine, options.get("raw", False)
        with self._asking:
            engine.model.check_open()
            tokens = self._prompt_tokens(prompt, options.get("system", ""), raw=raw)
            sampling, warnings = engine.complete_sampling(self._sampling_of(options))
            drawn, sampler = engine.make_verifier(sampling)
            stops = (*as_stops(options.get("stop", ())), *(() if raw else engine.prompts.template.stops))
            controls = engine.prompts.control_tokens(stops)
        drawn_from = sampler.preview if sampler else most_probable
        of_draws = drawn_from if options.get("drawn_logprobs") else None
        recorder = LogprobRecorder(drawn, options["logprobs"], of_draws) if "logprobs" in options else None
        text = AnswerText(
            engine,
            engine.prompts.piece,
            tokens,
            stops,
            controls=controls,
            logprobs=recorder.found if recorder else (),
            prompt_logprobs=recorder.of_prompt if recorder else (),
            seed=sampling.drawn_seed,
            warnings=warnings,
        )
        score = recorder.score if recorder and options.get("prompt_logprobs") else None
        wanted = SequenceOptions(options.get("max_tokens", -1), recorder or drawn, score)
        stream.set_up(text, tokens, wanted, sampler)
        return stream

    def _prompt_tokens(self, prompt: Prompt, system: str, *, raw: bool) -> list[int]:
        prompts = self.engine.prompts
        if isinstance(prompt, str):
            return prompts.question(prompt, system, raw=raw)
        if isinstance(prompt, bytes | bytearray | memoryview):
            raise PromptError(f"the prompt is {prompt!r:.60}", "give a text: decode the bytes")
        is_tokens = isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], int)
        if system or (raw and not is_tokens):
            raise UsageError("raw and system need a text as the prompt", "begin a conversation with a system message")
        if is_tokens:
            return checked_tokens(cast("Sequence[int]", prompt), self.engine.model.vocabulary)
        return prompts.conversation(checked_messages(cast("Messages", prompt)))

    def _sampling_of(self, options: Mapping[str, Any]) -> SamplingSettings:
        chosen = {SAMPLED[name]: value for name, value in options.items() if name in SAMPLED}
        schema = options.get("json_schema", "")
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        if isinstance(schema, Mapping):
            schema = dumps(schema)
        form = {"grammar": options.get("grammar", ""), "json_schema": schema}
        if any(form.values()):
            chosen |= form
        sampling: SamplingSettings = options.get("sampling", self._sampling)
        return replace(sampling, **chosen)


def load(
    model: str | Path,
    *,
    mode: ModeName | None = None,
    window: int | None = None,
    ngram: int | None = None,
    guesses: int | None = None,
    strict: bool | None = None,
    context: int | None = None,
    threads: int | None = None,
    gpu_layers: int | None = None,
    parallel: int | None = None,
    model_settings: ModelSettings | None = None,
    decode_settings: DecodeSettings | None = None,
    sampling: SamplingSettings | None = None,
    template: str | None = "",
    template_variables: Mapping[str, object] | None = None,
    prompt_cache: str | Path | None = None,
) -> Model:
    """Load a model: a GGUF file, or a name as for `lacli run`. A hub model that is not in the cache is downloaded.

    `mode`, `window`, `ngram`, `guesses`, `strict`: as in DecodeSettings; W, N or G without a mode means lookahead.
    `context`: cells for all sequences together. By default each of `parallel` sequences has the trained tokens, at most
    8192, or fewer if memory is short. `threads`: 0 for one a core. `gpu_layers`: -1 for all. These arguments override
    the fields of `decode_settings` and `model_settings`. `parallel`: answers decoded at a time; by default four, or one
    with `strict` or devices of other machines. `sampling`: the default for answers.

    `template`: a bundled chat template's name, a file or a Jinja text. "": the model's own, or else a bundled one
    (`engine.notes` says which). None: prompts are continued as they are. `template_variables`: of the template, such as
    {"enable_thinking": False}. `prompt_cache`: a file that keeps decoded prompts, written when the model is closed.

    Raises ModelLoadError if the model does not exist or lacli cannot run its kind, UsageError for bad settings.
    """
    letters = _given(mode=mode, window=window, ngram=ngram, guesses=guesses, strict=strict)
    placing = _given(context=context, threads=threads, gpu_layers=gpu_layers)
    decoding = replace(decode_settings, **letters) if decode_settings else new_decode_settings(**letters)
    model_settings = replace(model_settings or ModelSettings(), **placing)
    if model_settings.rpc:
        end_at_abort(Screen(), "")
    if parallel is not None and parallel < 1:
        raise UsageError(f"parallel is {parallel}", "it must be at least 1")
    sampling = sampling or SamplingSettings()
    engine = open_engine(
        find_model(model, aliases=own_aliases()),
        model_settings,
        decoding,
        sampling,
        template=template,
        template_variables=template_variables,
        slots=parallel or (1 if decoding.strict or model_settings.rpc else PARALLEL),
        often_alone=parallel is None,
    )
    if prompt_cache is not None:
        engine.cache = PromptCache(prompt_cache, engine, engine.notes.append)
    return Model(engine, sampling)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def checked_options(given: AnswerOptions) -> dict[str, Any]:
    """Return the options that are not None. Raises UsageError for unknown names and impossible values."""
    known = [*AnswerOptions.__annotations__]
    if unknown := sorted(given.keys() - known):
        hint = did_you_mean(unknown[0], known, ", ".join(known))
        raise UsageError(f"an answer has no option {unknown[0]!r}", hint)
    # A caller may pass on options of its own, with None for the missing ones.
    options = {name: value for name, value in given.items() if value is not None}
    for name in SAMPLED.keys() & options.keys():
        options_of(SamplingSettings)[SAMPLED[name]].check(options[name], name)
    for name, least in (("max_tokens", -1), ("logprobs", 0)):
        value = options.get(name, least)
        if type(value) is not int or value < least:
            raise UsageError(f"{name} is {value!r:.60}", f"give a whole number, {least} or more, or leave it out")
    stops = options.get("stop", ())
    if stops == "" or not isinstance(stops, Sequence) or not all(stop and isinstance(stop, str) for stop in stops):
        raise UsageError(f"stop is {stops!r:.60}", "give a text, or several in a list")
    for name, kind in (("system", str), ("raw", bool), ("sampling", SamplingSettings)):
        if not isinstance(options.get(name, kind()), kind):
            raise UsageError(f"{name} is {options[name]!r:.60}", f"its type must be {kind.__name__}")
    return options


def checked_messages(messages: Messages) -> Messages:
    """Return the messages unchanged. Raises PromptError unless there are some, each with texts as role and content."""
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
    """Return a prompt's tokens as a list. Raises PromptError for a token that is not in 0 .. `vocabulary`-1."""
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise PromptError(f"there is no token {token!r:.20}", f"ids go from 0 to {vocabulary - 1:,}")
    return [*tokens]
