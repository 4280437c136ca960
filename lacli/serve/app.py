"""The HTTP application: endpoints, streams of events, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from lacli import __version__
from lacli.api.model import AnswerOptions, Model
from lacli.auto.mode import Auto
from lacli.errors import LacliError, PromptError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve import pages
from lacli.serve.choices import Choice, Delta, merged
from lacli.serve.forms import ChatForm, Form, PlainForm, TextForm
from lacli.serve.guard import Guard, GuardSettings
from lacli.serve.meter import Meter
from lacli.serve.protocol import AnswerRequest, ChatRequest, CompletionRequest, in_words
from lacli.serve.replies import error_body
from lacli.serve.tools import CallRules, format_of

INVALID, TOO_LONG, BUSY, FAILED = (
    "invalid_request_error",
    "exceed_context_size_error",
    "unavailable_error",
    "server_error",
)
NOT_OFFERED = ("/v1/embeddings", "/v1/images/generations", "/v1/audio/transcriptions", "/v1/audio/speech")

Asked = TypeVar("Asked", bound=BaseModel)


class Refused(Exception):
    """A request that gets an error and no answer."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.body = status, error_body(status, kind, message, **more)


@dataclass(frozen=True)
class ServeSettings:
    """How requests are answered. `name`: of the model. `sampling`: for requests that say nothing else.

    `max_tokens`: of an answer where a request has no limit, -1 for none. `queue`: requests that may wait for a place.
    """

    name: str
    sampling: SamplingSettings
    max_tokens: int = -1
    stops: tuple[str, ...] = ()
    queue: int = 32


class Server:
    """The endpoints over one model."""

    def __init__(self, model: Model, settings: ServeSettings) -> None:
        self._model, self._settings = model, settings
        self._meter = Meter()

    def app(self, guard: GuardSettings) -> ASGIApp:
        """The application for an ASGI server. `guard`: who may ask."""
        posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/chat/completions": self.chat,
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.complete,
            "/completion": self.complete_plainly,
            "/completions": self.complete_plainly,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/apply-template": self.apply_template,
        }
        gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/health": self.health,
            "/v1/health": self.health,
            "/v1/models": self.models,
            "/models": self.models,
            "/props": self.props,
            "/slots": self.slots,
            "/metrics": self.metrics,
            "/lacli/steps": self.steps,
        }
        routes = [Route(path, call, methods=["POST"]) for path, call in posts.items()]
        routes += [Route(path, call, methods=["GET"]) for path, call in gets.items()]
        routes += pages.routes()
        routes += [Route(path, self.not_offered, methods=["POST"]) for path in NOT_OFFERED]
        refusals = {
            Refused: refuse,
            LacliError: refuse_ours,
            HTTPException: refuse_http,
            ClientDisconnect: answer_nobody,
            RecursionError: refuse_depth,
        }
        return Guard(Starlette(routes=routes, exception_handlers=refusals), guard)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        model = self._model.session.model
        meta = {
            "n_vocab": model.vocabulary,
            "n_ctx_train": model.context,
            "n_params": model.parameters,
            "size": model.size,
        }
        data = {"id": self._settings.name, "object": "model", "created": 0, "owned_by": "lacli", "meta": meta}
        return JSONResponse({"object": "list", "data": [data]})

    async def props(self, request: Request) -> Response:
        session = self._model.session
        template = session.prompts.template
        return JSONResponse(
            {
                "default_generation_settings": {
                    "n_ctx": self._model.context,
                    "params": {"seed": self._settings.sampling.seed, "temperature": self._settings.sampling.temp},
                },
                "total_slots": session.texts,
                "model_path": str(session.model.path),
                "chat_template": template.source if template else "",
                "build_info": f"lacli {__version__}",
            }
        )

    async def tokenize(self, request: Request) -> Response:
        asked = await body_of(request)
        content = asked.get("content", "")
        if not isinstance(content, str):
            raise Refused(400, INVALID, "content: give a text")
        tokens = self._model.session.model.tokenize(content, add_special=bool(asked.get("add_special", False)))
        if not asked.get("with_pieces"):
            return JSONResponse({"tokens": tokens})
        pieces = [{"id": token, "piece": _piece(self._model.session.prompts.piece(token))} for token in tokens]
        return JSONResponse({"tokens": pieces})

    async def detokenize(self, request: Request) -> Response:
        tokens = (await body_of(request)).get("tokens", [])
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise Refused(400, INVALID, "tokens: give a list of token ids")
        self._check_tokens(tokens)
        return JSONResponse({"content": self._model.session.text(tokens)})

    async def apply_template(self, request: Request) -> Response:
        asked = parsed(ChatRequest, await body_of(request))
        return JSONResponse({"prompt": self._rendered(asked)})

    async def not_offered(self, request: Request) -> Response:
        raise Refused(501, "not_supported_error", "lacli answers with text only: no embeddings, images or audio")

    async def chat(self, request: Request) -> Response:
        asked = parsed(ChatRequest, await body_of(request))
        prompts = self._model.session.prompts
        rendered, rules = self._rendered(asked), None
        if asked.offered:
            rules = CallRules(format_of(prompts.template), asked.offered, asked.calls_several, asked.has_to_call)
        grammar = rules.grammar(rendered) if rules else ""
        prompt = prompts.tokenize(rendered)
        logprobs = asked.top_logprobs if asked.logprobs else None
        choices = self._choices(asked, [prompt] * asked.n, logprobs, raw=False, rules=rules, grammar=grammar)
        return await self._answered(request, asked, choices, ChatForm(self._settings.name, prompts.piece))

    async def complete(self, request: Request) -> Response:
        asked = parsed(CompletionRequest, await body_of(request))
        prompts = [self._tokens(prompt) for prompt in asked.prompts for _ in range(asked.n)]
        choices = self._choices(asked, prompts, asked.logprobs, raw=True)
        form = TextForm(self._settings.name, self._model.session.prompts.piece)
        return await self._answered(request, asked, choices, form)

    async def complete_plainly(self, request: Request) -> Response:
        asked = parsed(CompletionRequest, await body_of(request))
        prompts = [self._tokens(prompt) for prompt in asked.prompts]
        choices = self._choices(asked, prompts, asked.n_probs or None, raw=True)
        limit = self._settings.max_tokens if asked.limit is None else asked.limit
        told = {"n_predict": limit, **self._told(asked.sampling(self._settings.sampling))}
        form = PlainForm(self._settings.name, self._model.session.prompts.piece, asked, told)
        return await self._answered(request, asked, choices, form)

    def _told(self, sampling: SamplingSettings) -> dict[str, Any]:
        """How tokens are drawn, in llama.cpp's words."""
        ends = self._model.session.model.ends() if sampling.ignore_eos else ()
        biases = [(token, None) for token in ends] + [*sampling.logit_bias]
        return {
            "seed": sampling.seed,
            "temperature": sampling.temp,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "logit_bias": [{"token": token, "bias": bias} for token, bias in biases],
        }

    async def slots(self, request: Request) -> Response:
        return JSONResponse(self._meter.slots(self._model.session.texts, self._model.context))

    async def metrics(self, request: Request) -> Response:
        text = self._meter.text(*self._model.load)
        return Response(text, media_type="text/plain; version=0.0.4", headers=self._meter.headers)

    async def steps(self, request: Request) -> Response:
        """Milliseconds of steps of 1, 2, ... rows, as mode auto takes them for now; none before its first step."""
        mode = self._model.mode
        cost = mode.experience.cost_model if isinstance(mode, Auto) else None
        costs = [1e3 * cost.plain_s * each for each in cost.relative[1:]] if cost and cost.plain_s else []
        return JSONResponse({"mode": self._model.session.settings.mode, "ms": costs})

    def _choices(
        self,
        asked: AnswerRequest,
        prompts: Sequence[Sequence[int]],
        logprobs: int | None,
        *,
        raw: bool,
        rules: CallRules | None = None,
        grammar: str = "",
    ) -> list[Choice]:
        """Begin the answers, without decoding yet. Raises Refused where there is no place for them.

        `rules`: what they may call. `grammar`: that of calls which they have to make.
        """
        settings, busy = self._settings, sum(self._model.load)
        if busy + len(prompts) > self._model.session.texts + settings.queue:
            raise Refused(503, BUSY, "all places are taken, and so are those that wait: try again", retry=True)
        longest = max(map(len, prompts))
        if longest > self._model.context:
            raise Refused(
                400,
                TOO_LONG,
                f"the request has {longest:,} tokens and exceeds the available context size of {self._model.context:,}",
                n_prompt_tokens=longest,
                n_ctx=self._model.context,
            )
        limit = asked.limit
        sampling = asked.sampling(settings.sampling)
        if grammar:
            if asked.has_form:
                raise Refused(400, INVALID, "an answer that has to call a tool cannot have another grammar or format")
            sampling = replace(sampling, grammar=grammar, json_schema="")
        options: AnswerOptions = {
            "sampling": sampling,
            "stop": (*settings.stops, *asked.stop),
            "max_tokens": settings.max_tokens if limit is None else limit,
            "raw": raw,
            "mode": asked.mode or "",
        }
        if logprobs is not None:
            options["logprobs"] = logprobs
        return [Choice(self._model, tokens, place, options, self._meter, rules) for place, tokens in enumerate(prompts)]

    def _rendered(self, asked: ChatRequest) -> str:
        """The prompt of a conversation. Raises UsageError for tools where the model's template knows none."""
        prompts = self._model.session.prompts
        if asked.offered or any(message.is_of_tools for message in asked.messages):
            format_of(prompts.template)
        tools = [tool.model_dump() for tool in asked.tools] if asked.offered else []
        return prompts.render([message.for_template for message in asked.messages], tools)

    async def _answered(
        self, request: Request, asked: AnswerRequest, choices: Sequence[Choice], form: Form
    ) -> Response:
        if asked.stream:
            counted = bool(asked.stream_options and asked.stream_options.include_usage)
            events = form.events(choices, counted=counted, watched=asked.lacli.steps)
            return StreamingResponse(_as_sent(events), media_type="text/event-stream")
        deltas: dict[Choice, list[Delta]] = {choice: [] for choice in choices}

        async def read() -> None:
            async for choice, delta in merged(choices):
                if delta:
                    deltas[choice].append(delta)

        await _unless_gone(request, read())
        return JSONResponse(form.whole(deltas))

    def _tokens(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return self._model.session.prompt(prompt, raw=True)
        self._check_tokens(prompt)
        return prompt

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        vocabulary = self._model.session.model.vocabulary
        if wrong := [token for token in tokens if not 0 <= token < vocabulary]:
            raise Refused(400, INVALID, f"there is no token {wrong[0]}: the vocabulary has {vocabulary:,}")


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises Refused where it is none."""
    try:
        found = json.loads(await request.body())
    except ValueError as error:
        raise Refused(400, INVALID, f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(400, INVALID, "the body is no JSON object")
    return found


def parsed(kind: type[Asked], body: dict[str, Any]) -> Asked:
    """A request checked. Raises Refused with the first thing that is wrong."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise Refused(400, INVALID, in_words(error)) from error


async def refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JSONResponse(error.body, error.status, headers)


async def refuse_ours(request: Request, error: Exception) -> Response:
    """Say what lacli's own errors say: what a request asks for is its fault, and the rest the server's."""
    asked = isinstance(error, UsageError | PromptError)
    return JSONResponse(
        error_body(400 if asked else 500, INVALID if asked else FAILED, str(error)), 400 if asked else 500
    )


async def refuse_depth(request: Request, error: Exception) -> Response:
    """Refuse JSON in JSON in JSON, deeper than Python goes."""
    return JSONResponse(error_body(400, INVALID, "the request is nested too deeply"), 400)


async def answer_nobody(request: Request, error: Exception) -> Response:
    """Answer a client that has gone away, which is no error to log."""
    return Response(status_code=499)


async def refuse_http(request: Request, error: Exception) -> Response:
    """Say in OpenAI's shape what the library refuses: an unknown path, a method, a body that is too large."""
    assert isinstance(error, HTTPException)
    return JSONResponse(error_body(error.status_code, INVALID, error.detail.lower()), error.status_code, error.headers)


async def _as_sent(events: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Events as a stream carries them; an error in the middle is an event too, and the last."""
    try:
        async for event in events:
            yield b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"
    except LacliError as error:
        yield b"data: " + json.dumps(error_body(500, FAILED, str(error))).encode() + b"\n\n"
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


def _piece(text: bytes) -> str | list[int]:
    """A piece as a text, or its bytes where they are part of a character."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return [*text]
