"""The HTTP application: endpoints, streams of events, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from time import monotonic
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Send

from lacli.api.model import Model
from lacli.api.options import AnswerOptions
from lacli.errors import LacliError, in_one_line
from lacli.llamacpp.library import schema_grammar
from lacli.llamacpp.sampling import MOST_SEED, SamplingSettings
from lacli.serve import pages
from lacli.serve.access import CHOICES, AccessLog
from lacli.serve.choices import Choice, Delta, merged
from lacli.serve.forms import ChatForm, Form, PlainForm, Setting, TextForm
from lacli.serve.guard import Guard, GuardSettings, owner_of
from lacli.serve.inspection import Inspection, ServeSettings
from lacli.serve.meter import Meter
from lacli.serve.origins import with_origins
from lacli.serve.protocol import TEXT_ONLY, AnswerRequest, ChatRequest, CompletionRequest, Prompt, PromptObject
from lacli.serve.refusals import (
    BUSY,
    HANDLERS,
    INVALID,
    TOO_LONG,
    Endpoint,
    Refused,
    body_of,
    failure_of,
    parsed,
    refusing,
)
from lacli.serve.replies import error_body
from lacli.serve.sampled import in_their_words
from lacli.serve.tools import CallRules, format_of
from lacli.text.format import counted
from lacli.text.json_schema import grammar_of
from lacli.text.reasoning import ReasoningSplitter, begun_reasoning
from lacli.text.template import MARK, check_variables

NOT_OFFERED = (
    *("/embedding", "/embeddings", "/v1/embeddings", "/v1/images/generations"),
    *("/v1/audio/transcriptions", "/v1/audio/speech"),
)

NO_GAPS = "lacli fills no gap by itself: write the model's own tokens for one into a prompt of /v1/completions"

CHATS_ONLY = "lacli answers conversations at POST /v1/chat/completions only"

PING_S = 25.0
"""The longest silence of a stream, in seconds: nginx closes a connection after 60, other proxies after 30."""

Given = TypeVar("Given")
Prepared = TypeVar("Prepared")

__all__ = ["ServeSettings", "Server"]


class Server:
    """The endpoints over one model."""

    def __init__(self, model: Model, settings: ServeSettings) -> None:
        self._model, self._settings = model, settings
        self._meter = Meter()
        self._preparing = asyncio.Lock()
        # Programs send one schema with all their requests.
        self._grammar_of = lru_cache(maxsize=16)(grammar_of)

    def app(
        self, guard: GuardSettings, origins: Sequence[str] = (), said: Callable[[str], None] = lambda line: None
    ) -> ASGIApp:
        """The application for an ASGI server.

        `guard`: who may ask. `origins`: of pages whose scripts may. `said`: takes a line for each request.
        """
        told = Inspection(self._model, self._settings, self._meter)
        posts: dict[str, Endpoint] = {
            "/chat/completions": self.chat,
            "/v1/chat/completions": self.chat,
            "/chat/completions/input_tokens": self.count_tokens,
            "/v1/chat/completions/input_tokens": self.count_tokens,
            "/v1/completions": self.complete,
            "/completion": self.complete_plainly,
            "/completions": self.complete_plainly,
            "/apply-template": self.apply_template,
            **told.posts,
            **dict.fromkeys(NOT_OFFERED, refusing(TEXT_ONLY)),
            "/infill": refusing(NO_GAPS),
            **dict.fromkeys(("/v1/responses", "/v1/messages"), refusing(CHATS_ONLY)),
        }
        routes = [Route(path, call, methods=["POST"]) for path, call in posts.items()]
        routes += [Route(path, call, methods=["GET"]) for path, call in told.gets.items()]
        routes += pages.routes() if self._settings.page else []
        guarded: ASGIApp = Guard(Starlette(routes=routes, exception_handlers=HANDLERS), guard)
        return AccessLog(with_origins(guarded, origins), self._meter, said, polled=self._settings.verbose)

    async def apply_template(self, request: Request) -> Response:
        asked = parsed(ChatRequest, await body_of(request))
        return JSONResponse({"prompt": (await self._aside(self._rendered, asked)).replace(MARK, "")})

    async def count_tokens(self, request: Request) -> Response:
        """The tokens that the prompt of a chat has."""
        asked = parsed(ChatRequest, await body_of(request))
        rendered = await self._aside(self._rendered, asked)
        tokens = await self._aside(self._model.session.prompts.tokenize, rendered)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})

    async def chat(self, request: Request) -> Response:
        asked = parsed(ChatRequest, await body_of(request))
        prompts = self._model.session.prompts
        rendered, rules = await self._aside(self._rendered, asked), None
        sampling = await self._aside(self._sampling, asked)
        if asked.offered:
            if asked.has_to_call and asked.has_grammar:
                raise Refused(400, INVALID, "an answer that has to call a tool cannot have another grammar")
            schema = "" if asked.has_to_call else sampling.json_schema
            form = format_of(prompts.template)
            rules = CallRules(form, asked.offered, asked.calls_several, asked.has_to_call, schema)
        prompt = await self._aside(prompts.tokenize, rendered)
        logprobs = asked.top_logprobs if asked.logprobs else None
        sampling, warnings = await self._aside(partial(self._with_grammar, rules=rules, prompt=rendered), sampling)
        begin = partial(self._choices, asked, sampling, [prompt], logprobs, raw=False, rules=rules)
        choices = await self._aside(partial(begin, answers_each=asked.n), owner_of(request))
        return await self._answered(request, asked, choices, ChatForm(self._setting_of(asked, sampling, warnings)))

    async def complete(self, request: Request) -> Response:
        asked = parsed(CompletionRequest, await body_of(request))
        prompts = [await self._aside(self._tokens, prompt) for prompt in asked.prompts]
        sampling, warnings = await self._aside(self._with_grammar, await self._aside(self._sampling, asked))
        begin = partial(self._choices, asked, sampling, prompts, asked.logprobs, answers_each=asked.n, raw=True)
        choices = await self._aside(begin, owner_of(request))
        texts = map(self._model.session.text, prompts) if asked.echo else ()
        echoed = [text for text in texts for _ in range(asked.n)]
        return await self._answered(
            request, asked, choices, TextForm(self._setting_of(asked, sampling, warnings), echoed)
        )

    async def complete_plainly(self, request: Request) -> Response:
        asked = parsed(CompletionRequest, await body_of(request))
        prompts = [await self._aside(self._tokens, prompt) for prompt in asked.prompts]
        sampling, warnings = await self._aside(self._with_grammar, await self._aside(self._sampling, asked))
        begin = partial(self._choices, asked, sampling, prompts, asked.n_probs or None, raw=True)
        choices = await self._aside(partial(begin, drawn=asked.post_sampling_probs), owner_of(request))
        return await self._answered(
            request, asked, choices, PlainForm(self._setting_of(asked, sampling, warnings), asked)
        )

    def _setting_of(self, asked: AnswerRequest, sampling: SamplingSettings, warnings: Sequence[str]) -> Setting:
        """What the bodies and events of a request's answers are made of."""
        session, limit = self._model.session, self._limit(asked)
        lengths = {"max_tokens": limit, "n_predict": limit, "stop": [*self._settings.stops, *asked.stop]}
        ends = session.model.ends() if sampling.ignore_eos else ()
        return Setting(
            self._settings.name,
            session.prompts.piece,
            {**in_their_words(sampling, ends), **lengths},
            self._model.context,
            per_token=asked.timings_per_token,
            progress=asked.return_progress,
            verbose=asked.verbose or self._settings.verbose,
            watched=asked.lacli.steps,
            warnings=[*warnings, *asked.slips],
        )

    def _limit(self, asked: AnswerRequest) -> int:
        return self._settings.max_tokens if asked.limit is None else asked.limit

    def _sampling(self, asked: AnswerRequest) -> SamplingSettings:
        """How the tokens of a request are drawn. A bias on a text is on its tokens, which take a while."""
        model = self._model.session.model
        return asked.sampling(self._settings.sampling, lambda text: model.tokenize(text, add_special=False))

    def _with_grammar(
        self, sampling: SamplingSettings, rules: CallRules | None = None, prompt: str = ""
    ) -> tuple[SamplingSettings, list[str]]:
        """The same with a grammar for its schema, and sentences on what of that is not enforced.

        `rules`: functions that an answer to `prompt` may call, or has to.
        """
        if rules and rules.have_grammar:
            grammar, ignored = rules.grammar(prompt, self._grammar_of)
        elif sampling.json_schema:
            grammar, ignored = self._grammar_of(sampling.json_schema, schema_grammar)
        else:
            return sampling, []
        return replace(sampling, grammar=grammar, json_schema=""), ignored

    async def _aside(self, prepare: Callable[[Given], Prepared], given: Given) -> Prepared:
        """Prepare a part of a request in a thread, so that streams go on; one at a time, as templates have a state."""
        async with self._preparing:
            return await run_in_threadpool(prepare, given)

    def _choices(
        self,
        asked: AnswerRequest,
        sampling: SamplingSettings,
        prompts: Sequence[Sequence[int]],
        logprobs: int | None,
        owner: str,
        *,
        raw: bool,
        answers_each: int = 1,
        rules: CallRules | None = None,
        drawn: bool = False,
    ) -> list[Choice]:
        """Begin the answers, without decoding yet. Raises Refused where there is no place for them.

        `answers_each`: answers to each prompt; the first uses the request's seed, each further one the next number, as
        llama-server does. `rules`: what they may call. `drawn`: `logprobs` are of the distribution that tokens are
        drawn from, not of the model's.
        """
        settings, longest = self._settings, max(map(len, prompts))
        self._check_room(answers_each * len(prompts), longest, owner)
        options: AnswerOptions = {
            "stop": (*settings.stops, *asked.stop),
            "max_tokens": self._limit(asked),
            "raw": raw,
            "mode": asked.mode or "",
            "owner": owner,
        }
        if asked.W is not None:
            options["window"] = asked.W
        if asked.N is not None:
            options["ngram"] = asked.N
        if asked.G is not None:
            options["guesses"] = asked.G
        if logprobs is not None:
            options |= {"logprobs": logprobs, "drawn_logprobs": drawn}
        if settings.shifts:
            # llama.cpp's -1 keeps the whole prompt.
            options["n_keep"] = longest if asked.n_keep == -1 else asked.n_keep or 0
        answers = [
            (tokens, _options_of(options, sampling, place)) for tokens in prompts for place in range(answers_each)
        ]
        return [
            Choice(self._model, tokens, place, own, self._meter, rules) for place, (tokens, own) in enumerate(answers)
        ]

    def _check_room(self, wanted: int, longest: int, owner: str) -> None:
        """Raise Refused where an owner's `wanted` answers cannot wait, or a prompt of `longest` tokens does not fit."""
        (running, deferred, waiting), texts = self._model.load_of(owner), self._model.session.texts
        places = texts + self._settings.queue
        if wanted > places:
            room = f"there is room for {places} (-np and --queue of the server)"
            raise Refused(400, INVALID, f"{wanted} answers in one request, and {room}: ask in several requests")
        if running + waiting + wanted > places:
            # Before all that wait have begun, others that were refused would take what gets free.
            seconds = self._meter.seconds_until(max(deferred, running + waiting + wanted - places), texts)
            of_key = " of your key" if waiting < deferred else ""
            full = f"no room for {counted(wanted, 'answer')}: {running} run and {waiting}{of_key} wait (-np, --queue)"
            raise Refused(503, BUSY, f"{full}; try again in {seconds} s", retry_s=seconds)
        if longest > self._model.context:
            raise Refused(
                400,
                TOO_LONG,
                f"the request has {longest:,} tokens and exceeds the available context size of {self._model.context:,}",
                n_prompt_tokens=longest,
                n_ctx=self._model.context,
            )

    def _rendered(self, asked: ChatRequest) -> str:
        """The prompt of a conversation. Raises UsageError for tools where the model's template knows none."""
        prompts = self._model.session.prompts
        if asked.offered or any(message.is_of_tools for message in asked.messages):
            format_of(prompts.template)
        tools = [tool.model_dump() for tool in asked.tools] if asked.offered else []
        messages = [message.for_template for message in asked.messages]
        if self._settings.system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._settings.system})
        variables = check_variables(asked.chat_template_kwargs, "chat_template_kwargs")
        if not asked.is_begun:
            return prompts.render(messages, tools, variables)
        *before, begun = messages
        rendered = prompts.render(before, tools, variables)
        # What the message says is no reasoning, which the template may have begun.
        closer = ReasoningSplitter(begun_reasoning(rendered)).closer
        return rendered + (f"{closer}\n\n" if closer else "") + prompts.marked(begun["content"], "assistant")

    async def _answered(
        self, request: Request, asked: AnswerRequest, choices: Sequence[Choice], form: Form
    ) -> Response:
        request.scope[CHOICES] = choices
        if asked.stream:
            with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
            events = form.events(choices, counted=with_usage)
            return EventStream(_as_sent(events), media_type="text/event-stream")
        deltas: dict[Choice, list[Delta]] = {choice: [] for choice in choices}

        async def read() -> None:
            async for choice, delta in merged(choices):
                if delta:
                    deltas[choice].append(delta)

        await _unless_gone(request, read())
        return JSONResponse(form.whole(deltas))

    def _tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt; of one in parts, the first gets what the model wants at a text's beginning."""
        if isinstance(prompt, PromptObject):
            prompt = prompt.prompt_string
        if isinstance(prompt, str):
            return self._model.session.prompt(prompt, raw=True)
        tokens: list[int] = []
        for place, part in enumerate(prompt):
            if isinstance(part, str):
                tokens += self._model.session.model.tokenize(part, add_special=not place)
            else:
                tokens.append(part)
        if not tokens:
            raise Refused(400, INVALID, "the prompt is empty")
        return tokens


class EventStream(StreamingResponse):
    """A stream of events, with a comment wherever none was sent for `PING_S`: proxies close connections that rest."""

    async def stream_response(self, send: Send) -> None:
        last, ended = monotonic(), False

        async def noted(message: Message) -> None:
            nonlocal last, ended
            last, ended = monotonic(), not message.get("more_body", True)
            await send(message)

        async def ping() -> None:
            while not ended:
                if (wait_s := last + PING_S - monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                else:
                    await noted({"type": "http.response.body", "body": b": waiting\n\n", "more_body": True})

        pinging = asyncio.create_task(ping())
        try:
            await super().stream_response(noted)
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)


def _options_of(options: AnswerOptions, sampling: SamplingSettings, place: int) -> AnswerOptions:
    """The options of the answer at `place` (from 0) among those to one prompt."""
    seed = sampling.seed if sampling.seed < 0 else (sampling.seed + place) % (MOST_SEED + 1)
    return {**options, "sampling": replace(sampling, seed=seed)}


async def _as_sent(events: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Events as a stream carries them; an error in the middle is an event too, and the last."""
    try:
        async for event in events:
            yield b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield b"data: " + json.dumps(error_body(*failure_of(error), in_one_line(error))).encode() + b"\n\n"
        if not isinstance(error, LacliError):
            # For the log.
            raise
    finally:
        await events.aclose()


async def _unless_gone(request: Request, answering: Coroutine[Any, Any, None]) -> None:
    """Finish `answering`, or end it where the client goes away. Raises what it raises, ClientDisconnect then."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(answering), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
