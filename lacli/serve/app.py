"""The HTTP application: endpoints, streams of events, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lacli.answer_options import AnswerOptions
from lacli.errors import LacliError, in_one_line
from lacli.llamacpp.sampling import MOST_SEED, SamplingSettings
from lacli.model import Model
from lacli.serve import pages
from lacli.serve.choices import Choice, Delta, merged
from lacli.serve.forms import ChatForm, Form, PlainForm, Setting, TextForm
from lacli.serve.inspection import Inspection, ServeSettings
from lacli.serve.meter import Meter
from lacli.serve.protocol import AnswerRequest, ChatRequest, CompletionRequest, Prompt, PromptObject
from lacli.serve.refusals import HANDLERS, INVALID, TOO_LONG, Endpoint, Refused, body_of, error_body, failure_of
from lacli.serve.run import Access, middleware
from lacli.serve.sampled import in_their_words
from lacli.serve.tools import CallRules, format_of
from lacli.text.checked import checked
from lacli.text.json_schema import grammar_of
from lacli.text.reasoning import ReasoningSplitter, begun_reasoning
from lacli.text.template import MARK

MAX_BODY = 8 * 2**20
"""Bytes of a request."""

log = logging.getLogger(__name__)

Asked = TypeVar("Asked", ChatRequest, CompletionRequest)

__all__ = ["ServeSettings", "Server"]


class Server:
    """The endpoints over one model."""

    def __init__(self, model: Model, settings: ServeSettings) -> None:
        self._model, self._settings = model, settings
        self._meter = Meter()
        self._preparing = asyncio.Lock()

    def app(self, access: Access) -> Starlette:
        """Return the application for an ASGI server. `access`: who may ask."""
        told = Inspection(self._model, self._settings, self._meter)
        posts: dict[str, Endpoint] = {
            **dict.fromkeys(
                ("/chat/completions", "/v1/chat/completions"), partial(self._answer, ChatRequest, self._chat)
            ),
            "/v1/completions": partial(self._answer, CompletionRequest, self._complete),
            **dict.fromkeys(
                ("/completion", "/completions"), partial(self._answer, CompletionRequest, self._complete_plainly)
            ),
            "/apply-template": self.apply_template,
            **told.posts,
        }
        routes = [Route(path, call, methods=["POST"]) for path, call in posts.items()]
        routes += [Route(path, call, methods=["GET"]) for path, call in told.gets.items()]
        routes += pages.routes() if self._settings.page else []
        return Starlette(
            routes=routes, middleware=middleware(access), exception_handlers=HANDLERS, max_body_size=MAX_BODY
        )

    async def apply_template(self, request: Request) -> Response:
        asked = checked(ChatRequest, await body_of(request))
        return JSONResponse({"prompt": (await run_in_threadpool(self._rendered, asked)).replace(MARK, "")})

    async def _answer(
        self, kind: type[Asked], begin: Callable[[Asked], tuple[list[Choice], Form]], request: Request
    ) -> Response:
        """Answer a request: whole, or event by event."""
        asked = checked(kind, await body_of(request))
        # In a thread, so that streams go on; one at a time, so that they have the processor too.
        async with self._preparing:
            choices, form = await run_in_threadpool(begin, asked)
        if asked.stream:
            with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
            events = form.events(choices, counted=with_usage)
            return StreamingResponse(_as_sent(events), media_type="text/event-stream")
        deltas: dict[Choice, list[Delta]] = {choice: [] for choice in choices}

        async def read() -> None:
            async for choice, delta in merged(choices):
                if delta:
                    deltas[choice].append(delta)

        await _unless_gone(request, read())
        return JSONResponse(form.whole(deltas))

    def _chat(self, asked: ChatRequest) -> tuple[list[Choice], Form]:
        prompts, rules = self._model.engine.prompts, None
        rendered, sampling = self._rendered(asked), self._sampling(asked)
        if asked.offered:
            if asked.has_to_call and asked.has_grammar:
                raise Refused(400, INVALID, "an answer that has to call a tool cannot have another grammar")
            schema = "" if asked.has_to_call else sampling.json_schema
            form = format_of(prompts.template)
            rules = CallRules(form, asked.offered, asked.calls_several, asked.has_to_call, schema)
        sampling = _with_grammar(sampling, rules, rendered)
        options = self._options(asked, asked.top_logprobs if asked.logprobs else None, raw=False)
        choices = self._choices(options, sampling, [prompts.tokenize(rendered)], asked.n, rules)
        return choices, ChatForm(self._setting_of(asked, sampling))

    def _complete(self, asked: CompletionRequest) -> tuple[list[Choice], Form]:
        sampling, prompts = _with_grammar(self._sampling(asked)), [*map(self._tokens, asked.prompts)]
        options = self._options(asked, asked.logprobs, raw=True)
        return self._choices(options, sampling, prompts, asked.n), TextForm(self._setting_of(asked, sampling))

    def _complete_plainly(self, asked: CompletionRequest) -> tuple[list[Choice], Form]:
        sampling, prompts = _with_grammar(self._sampling(asked)), [*map(self._tokens, asked.prompts)]
        options = self._options(asked, asked.n_probs or None, raw=True, drawn=asked.post_sampling_probs)
        return self._choices(options, sampling, prompts), PlainForm(self._setting_of(asked, sampling), asked)

    def _setting_of(self, asked: AnswerRequest, sampling: SamplingSettings) -> Setting:
        """What the bodies and events of a request's answers are made of."""
        engine, limit = self._model.engine, self._limit(asked)
        lengths = {"max_tokens": limit, "n_predict": limit, "stop": [*self._settings.stops, *asked.stop]}
        ends = engine.model.ends() if sampling.ignore_eos else ()
        return Setting(
            self._settings.name,
            engine.prompts.piece,
            {**in_their_words(sampling, ends), **lengths},
            self._model.context,
            per_token=asked.timings_per_token,
            progress=asked.return_progress,
            verbose=asked.verbose or self._settings.verbose,
            watched=asked.lacli.steps,
        )

    def _limit(self, asked: AnswerRequest) -> int:
        return self._settings.max_tokens if asked.max_tokens is None else asked.max_tokens

    def _sampling(self, asked: AnswerRequest) -> SamplingSettings:
        """How the tokens of a request are drawn. A bias on a text is on its tokens, which take a while."""
        model = self._model.engine.model
        return asked.sampling(self._settings.sampling, lambda text: model.tokenize(text, add_special=False))

    def _options(self, asked: AnswerRequest, logprobs: int | None, *, raw: bool, drawn: bool = False) -> AnswerOptions:
        """How the answers to a request are decoded.

        `drawn`: `logprobs` are of the distribution that tokens are drawn from, not of the model's.
        """
        options = AnswerOptions(
            stop=(*self._settings.stops, *asked.stop), max_tokens=self._limit(asked), raw=raw, mode=asked.mode or ""
        )
        return options if logprobs is None else {**options, "logprobs": logprobs, "drawn_logprobs": drawn}

    def _choices(
        self,
        options: AnswerOptions,
        sampling: SamplingSettings,
        prompts: Sequence[Sequence[int]],
        answers_each: int = 1,
        rules: CallRules | None = None,
    ) -> list[Choice]:
        """Begin the answers, without decoding yet. Raises Refused for a prompt longer than the context.

        `answers_each`: answers to each prompt; the first uses the request's seed, each further one the next number, as
        llama-server does. `rules`: what they may call.
        """
        longest, context = max(map(len, prompts)), self._model.context
        if longest > context:
            said = f"the request has {longest:,} tokens and exceeds the available context size of {context:,}"
            raise Refused(400, TOO_LONG, said, n_prompt_tokens=longest, n_ctx=context)
        choices: list[Choice] = []
        for tokens in prompts:
            for place in range(answers_each):
                seed = sampling.seed if sampling.seed < 0 else (sampling.seed + place) % (MOST_SEED + 1)
                own: AnswerOptions = {**options, "sampling": replace(sampling, seed=seed)}
                choices.append(Choice(self._model, tokens, len(choices), own, self._meter, rules))
        return choices

    def _rendered(self, asked: ChatRequest) -> str:
        """The prompt of a conversation. Raises UsageError for tools where the model's template knows none."""
        prompts = self._model.engine.prompts
        if asked.offered or any(message.is_of_tools for message in asked.messages):
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
        if isinstance(prompt, PromptObject):
            prompt = prompt.prompt_string
        if isinstance(prompt, str):
            return self._model.engine.prompt(prompt, raw=True)
        tokens: list[int] = []
        for index, part in enumerate(prompt):
            if isinstance(part, str):
                tokens += self._model.engine.model.tokenize(part, add_special=not index)
            else:
                tokens.append(part)
        if not tokens:
            raise Refused(400, INVALID, "the prompt is empty")
        return tokens


def _with_grammar(sampling: SamplingSettings, rules: CallRules | None = None, prompt: str = "") -> SamplingSettings:
    """The same with a grammar for its schema; the log names what of that is not enforced.

    `rules`: functions that an answer to `prompt` may call, or has to.
    """
    if rules and rules.have_grammar:
        grammar, ignored = rules.grammar(prompt)
    elif sampling.json_schema:
        grammar, ignored = grammar_of(sampling.json_schema)
    else:
        return sampling
    for sentence in ignored:
        log.warning(sentence)
    return replace(sampling, grammar=grammar, json_schema="")


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
