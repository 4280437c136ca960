"""The HTTP application: the endpoints that answer, streams of events, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lacli.answer_options import AnswerOptions
from lacli.errors import LacliError, PromptError, SamplingError, UsageError, in_one_line
from lacli.llamacpp.sampling import MOST_SEED, SamplingSettings
from lacli.model import Model
from lacli.serve.protocol import AnswerRequest, ChatRequest, CompletionRequest, Prompt, body_of, error_body
from lacli.serve.replies import ChatReply, Choice, PlainReply, Reply, TextReply
from lacli.serve.status import ServeSettings, Status
from lacli.serve.tools import CallRules, format_of
from lacli.text.checked import checked
from lacli.text.reasoning import ReasoningSplitter, begun_reasoning
from lacli.text.template import MARK

Asked = TypeVar("Asked", ChatRequest, CompletionRequest)

__all__ = ["ServeSettings", "Server"]


class TooLong(PromptError):
    """A prompt of `tokens` tokens that is longer than the context."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(f"the request has {tokens:,} tokens and exceeds the available context size of {context:,}")
        self.sizes = {"n_prompt_tokens": tokens, "n_ctx": context}


class Server:
    """The endpoints over one model."""

    def __init__(self, model: Model, settings: ServeSettings) -> None:
        self._model, self._settings = model, settings
        self._status = Status(model, settings)
        self._preparing = asyncio.Lock()

    def app(self, layers: Sequence[Middleware] = ()) -> Starlette:
        """Return the application for an ASGI server. `layers`: say who may ask, the outermost first."""
        chat = partial(self._answer, ChatRequest, self._chat)
        complete = partial(self._answer, CompletionRequest, partial(self._complete, TextReply))
        plain = partial(self._answer, CompletionRequest, partial(self._complete, PlainReply))
        posts: dict[str, Callable[[Request], Any]]
        posts = {"/v1/chat/completions": chat, "/chat/completions": chat, "/v1/completions": complete}
        posts |= {"/completion": plain, "/completions": plain, "/apply-template": self._apply_template}
        routes = [*(Route(path, call, methods=["POST"]) for path, call in posts.items()), *self._status.routes()]
        return Starlette(routes=routes, middleware=layers, exception_handlers=HANDLERS, max_body_size=8 * 2**20)

    async def _apply_template(self, request: Request) -> Response:
        asked = checked(ChatRequest, await body_of(request))
        return JSONResponse({"prompt": (await run_in_threadpool(self._rendered, asked)).replace(MARK, "")})

    async def _answer(self, kind: type[Asked], begin: Callable[[Asked], Reply], request: Request) -> Response:
        """Answer a request: whole, or event by event."""
        asked = checked(kind, await body_of(request))
        asked.verbose |= self._settings.verbose
        # In a thread, so that streams go on; one at a time, so that they have the processor too.
        async with self._preparing:
            reply = await run_in_threadpool(begin, asked)
        if asked.stream:
            return StreamingResponse(_as_sent(reply.events()), media_type="text/event-stream")
        return JSONResponse(await _unless_gone(request, reply.whole()))

    def _chat(self, asked: ChatRequest) -> Reply:
        prompts, rules = self._model.engine.prompts, None
        rendered, sampling, forced = self._rendered(asked), self._sampling(asked), asked.has_to_call
        if asked.offered:
            # A response_format is that of a text; these are of the whole answer.
            if forced and (asked.grammar or asked.json_schema is not None):
                raise UsageError("an answer that has to call a tool cannot have another grammar")
            form, schema = format_of(prompts.template), "" if forced else sampling.json_schema
            rules = CallRules(form, asked.offered, asked.parallel_tool_calls, forced, schema)
            if forced or schema:
                sampling = replace(sampling, grammar=rules.grammar(rendered), json_schema="")
        logprobs = asked.top_logprobs if asked.logprobs else None
        options = AnswerOptions(logprobs=logprobs, drawn_logprobs=asked.post_sampling_probs)
        return self._reply(ChatReply, asked, sampling, [prompts.tokenize(rendered)], options, rules)

    def _complete(self, shape: type[Reply], asked: CompletionRequest) -> Reply:
        logprobs = asked.n_probs or None if asked.logprobs is None else asked.logprobs
        options = AnswerOptions(raw=True, logprobs=logprobs, drawn_logprobs=asked.post_sampling_probs)
        return self._reply(shape, asked, self._sampling(asked), [*map(self._tokens, asked.prompt)], options)

    def _sampling(self, asked: AnswerRequest) -> SamplingSettings:
        """How the tokens of a request are drawn. A bias on a text is on its tokens, which take a while."""
        model = self._model.engine.model
        return asked.sampling(self._settings.sampling, lambda text: model.tokenize(text, add_special=False))

    def _reply(
        self,
        shape: type[Reply],
        asked: AnswerRequest,
        sampling: SamplingSettings,
        prompts: Sequence[Sequence[int]],
        options: AnswerOptions,
        rules: CallRules | None = None,
    ) -> Reply:
        """Begin the answers, without decoding yet. Raises TooLong for a prompt longer than the context.

        The first answer to a prompt has the request's seed, each further one the next number, as llama-server does.
        """
        longest, context = max(map(len, prompts)), self._model.context
        if longest > context:
            raise TooLong(longest, context)
        limit = self._settings.max_tokens if asked.max_tokens is None else asked.max_tokens
        options |= {"stop": (*self._settings.stops, *asked.stop), "max_tokens": limit}
        choices: list[Choice] = []
        for tokens in prompts:
            for place in range(asked.n):
                seed = sampling.seed if sampling.seed < 0 else (sampling.seed + place) % (MOST_SEED + 1)
                options["sampling"] = replace(sampling, seed=seed)
                choices.append(Choice(self._model, self._status, tokens, len(choices), options, rules))
        return shape(asked, choices, self._model, self._settings.name, sampling, limit)

    def _rendered(self, asked: ChatRequest) -> str:
        """The prompt of a conversation. Raises UsageError for tools where the model's template knows none."""
        prompts = self._model.engine.prompts
        if asked.offered or any(message.role == "tool" or message.tool_calls for message in asked.messages):
            format_of(prompts.template)
        tools = [tool.model_dump() for tool in asked.tools] if asked.offered else []
        messages = [message.for_template for message in asked.messages]
        if self._settings.system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._settings.system})
        variables = asked.chat_template_kwargs
        if not asked.is_begun:
            return prompts.render(messages, tools, variables)
        *before, begun = messages
        rendered = prompts.render(before, tools, variables)
        # What the message says is no reasoning, which the template may have begun.
        closer = ReasoningSplitter(begun_reasoning(rendered)).closer
        return rendered + (f"{closer}\n\n" if closer else "") + prompts.marked(begun["content"], "assistant")

    def _tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt; of one in parts, the first gets what the model wants at a text's beginning."""
        if isinstance(prompt, dict):
            prompt = prompt.get("prompt_string", "")
        if isinstance(prompt, str):
            return self._model.engine.prompts.question(prompt, raw=True)
        tokenize, tokens = self._model.engine.model.tokenize, list[int]()
        for index, part in enumerate(prompt):
            tokens += tokenize(part, add_special=not index) if isinstance(part, str) else [part]
        if not tokens:
            raise UsageError("the prompt is empty")
        return tokens


async def _as_sent(events: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Events as a stream carries them; an error in the middle is an event too, and the last."""
    try:
        async for event in events:
            yield b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield b"data: " + json.dumps(_failure(error)[1]).encode() + b"\n\n"
        if not isinstance(error, LacliError):
            # For the log.
            raise
    finally:
        await events.aclose()


async def _unless_gone(request: Request, answering: Coroutine[Any, Any, Any]) -> Any:
    """Return what `answering` does, or end it and raise ClientDisconnect if the client goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watching = asyncio.ensure_future(answering), asyncio.ensure_future(gone())
    watching.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        raise ClientDisconnect from None
    finally:
        watching.cancel()


def _failure(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body of an error: what a request asks for is its fault, the rest is not."""
    said = str(error) if isinstance(error, LacliError) else in_one_line(error)
    if isinstance(error, TooLong):
        return 400, error_body(400, said, "exceed_context_size_error", **error.sizes)
    if isinstance(error, RecursionError):
        return 400, error_body(400, "the request is nested too deeply")
    status = 400 if isinstance(error, UsageError | PromptError | SamplingError) else 500
    return status, error_body(status, said)


async def _refuse(request: Request, error: Exception) -> Response:
    """Say in OpenAI's shape what was wrong; Starlette raises an unknown error again, for the log."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    if isinstance(error, HTTPException):
        said = f"{request.method} {request.url.path}: {error.detail.lower()}"
        return JSONResponse(error_body(error.status_code, said), error.status_code, error.headers)
    status, body = _failure(error)
    return JSONResponse(body, status)


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Any]] = dict.fromkeys(
    (LacliError, HTTPException, ClientDisconnect, RecursionError, Exception), _refuse
)
"""What answers for each kind of error."""
