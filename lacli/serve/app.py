"""The HTTP application: its endpoints, streams of events, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import zip_longest
from pathlib import Path
from time import time
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from lacli import __version__
from lacli.engine.prompt_cache import key_of, load_slot, save_slot
from lacli.engine.worker import AsyncStream
from lacli.errors import LacliError, PromptError, SamplingError, UsageError, in_one_line
from lacli.ik.context import decoding_library
from lacli.llamacpp.sampling import MOST_SEED, SamplingSettings
from lacli.model import AnswerOptions, Model, checked_tokens
from lacli.serve.messages import MessagesReply, MessagesRequest
from lacli.serve.protocol import REFUSED, ChatRequest, CompletionRequest, InfillRequest, Prompt, body_of, error_body
from lacli.serve.replies import ChatReply, Choice, PlainReply, Reply, TextReply, rate
from lacli.serve.responses import ResponsesReply, ResponsesRequest
from lacli.stats import RunStatistics
from lacli.text.calls import CallRules, UnreadableError, form_of
from lacli.text.format import printable
from lacli.text.json_schema import checked
from lacli.text.reasoning import begun_closer
from lacli.text.template import MARK

ANSWERED: dict[Sequence[str], tuple[type[ChatRequest | CompletionRequest], type[Reply]]] = {
    ("/v1/chat/completions", "/chat/completions"): (ChatRequest, ChatReply),
    ("/v1/completions",): (CompletionRequest, TextReply),
    ("/v1/responses", "/responses"): (ResponsesRequest, ResponsesReply),
    ("/v1/messages",): (MessagesRequest, MessagesReply),
    ("/completion", "/completions"): (CompletionRequest, PlainReply),
    ("/infill",): (InfillRequest, PlainReply),
}
"""The classes that read a request and write its reply, by the paths that have them."""

COUNTED = [each.name for each in fields(RunStatistics) if each.type in ("int", "float")]
"""The numeric fields of an answer's statistics, which /metrics adds up over all answers."""

ABSENT = r"/v1/(embeddings|images|audio|moderations|files|uploads|batches|fine_tuning|vector_stores|conversations)\b"
"""Paths of OpenAI's API that this server does not have."""

PAGE = Path(__file__).with_name("page")

POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}
"""Prevents scripts in a model's answer from running in the page."""


@dataclass(frozen=True)
class ServeSettings:
    """How a server answers. `sampling`, `max_tokens` (-1: no limit): the values of fields that a request leaves out.

    `names`: the model's names; replies have the first. `system`: the system prompt of a chat that begins without one.
    `stops`: stop texts of every answer; a request can add others. `tags`: words about the model in /v1/models.
    `slot_save_path`: folder for saved slots; "": saving is off. `off`: paths of GET requests that are refused; "/" is
    the web page. `verbose`: replies contain the prompt.
    """

    names: tuple[str, ...]
    sampling: SamplingSettings
    system: str = ""
    max_tokens: int = -1
    stops: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    slot_save_path: str = ""
    off: Collection[str] = ()
    verbose: bool = False


class TooLong(PromptError):
    """A prompt has `tokens` tokens, but a prompt and its answer may have only `limit` tokens together."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"the request has {tokens:,} tokens and exceeds the available context size of {limit:,}")
        self.sizes = {"n_prompt_tokens": tokens, "n_ctx": limit}


class Server:
    """The HTTP endpoints of one model, and the sums of its answers' statistics."""

    def __init__(self, model: Model, settings: ServeSettings) -> None:
        self._model, self._settings = model, settings
        self._preparing = asyncio.Lock()
        self._started = str(int(time()))
        self._key = key_of(model.engine) if settings.slot_save_path else {}
        self._total, self._longest = RunStatistics(), 0
        warn = logging.getLogger(__name__).warning
        self._note_unknown = lru_cache(256)(partial(warn, "a field of a request is ignored: %s"))
        try:
            form_of(model.engine.prompts.template)
        except UnreadableError as error:
            warn("%s: requests with tools are refused", error)
        except UsageError:
            pass

    def app(self, access: Sequence[Middleware] = ()) -> Starlette:
        """Return the ASGI application. `access`: the middleware of `access_for`, the outermost first."""
        change_slot = self.change_slot if self._settings.slot_save_path else not_offered
        posts: dict[str, Callable[[Request], Any]]
        posts = {path: partial(self._answer, *kinds) for paths, kinds in ANSWERED.items() for path in paths}
        count_response = partial(self._count_tokens, ResponsesRequest, object="response.input_tokens")
        posts["/v1/responses/input_tokens"] = count_response
        posts["/v1/messages/count_tokens"] = partial(self._count_tokens, MessagesRequest)
        posts |= {"/apply-template": self.apply_template, "/slots/{id:int}": change_slot}
        posts |= {"/tokenize": self.tokenize, "/detokenize": self.detokenize}
        gets = {"/health": self.health, "/v1/models": self.models, "/models": self.models, "/props": self.props}
        gets |= {"/v1/models/{name:path}": self.models, "/slots": self.slots, "/metrics": self.metrics}
        routes: list[BaseRoute] = [Route(path, call, methods=["POST"]) for path, call in posts.items()]
        routes += [Route(path, not_offered if path in self._settings.off else call) for path, call in gets.items()]
        if "/" not in self._settings.off:
            routes.append(Route("/", lambda request: FileResponse(PAGE / "index.html", headers=POLICY)))
            routes.append(Mount("/page", StaticFiles(directory=PAGE)))
        return Starlette(routes=routes, middleware=access, exception_handlers=HANDLERS, max_body_size=8 * 2**20)

    def count(self, stream: AsyncStream) -> None:
        """Add the statistics of an ended answer to the sums of /metrics."""
        run = stream.statistics
        for name in COUNTED:
            setattr(self._total, name, getattr(self._total, name) + getattr(run, name))
        self._longest = max(self._longest, run.prompt_tokens + run.tokens)

    async def health(self, request: Request) -> Response:
        if failure := self._model.worker.failure:
            raise HTTPException(503, f"nothing is decoded any more, start the server again: {in_one_line(failure)}")
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        model, settings = self._model.engine.model, self._settings
        found = {
            "id": settings.names[0],
            "aliases": settings.names,
            "tags": settings.tags,
            "object": "model",
            "created": 0,
            "owned_by": "lacli",
            "meta": {"n_ctx_train": model.trained_tokens, "n_params": model.parameters, "size": model.size},
        }
        name = request.path_params.get("name")
        if name not in (None, *settings.names):
            raise HTTPException(404)
        return JSONResponse(found if name else {"object": "list", "data": [found]})

    async def props(self, request: Request) -> Response:
        engine, sampling = self._model.engine, self._settings.sampling
        params = {"seed": sampling.seed, "temperature": sampling.temp}
        props = {
            "default_generation_settings": {"n_ctx": self._model.context, "params": params},
            "total_slots": engine.slots,
            "model_path": str(engine.model.path),
            "chat_template": engine.prompts.template.source,
            "build_info": f"lacli {__version__}",
            **decoding_library(engine.model_settings),
        }
        return JSONResponse(props)

    async def slots(self, request: Request) -> Response:
        """Reply with one entry a slot. Running answers fill the first entries, with token counts but no text."""
        slots = []
        for number, stream in zip_longest(range(self._model.engine.slots), [*self._model.worker.running]):
            counts = {"n_prompt_tokens": len(stream.prompt), "n_decoded": stream.statistics.tokens} if stream else {}
            slots.append({"id": number, "n_ctx": self._model.context, "is_processing": stream is not None, **counts})
        return JSONResponse(slots)

    async def change_slot(self, request: Request) -> Response:
        """Save, restore or erase the slot in the path, as the query's `action` says. Each API key has its own files."""
        engine, number, action = self._model.engine, request.path_params["id"], request.query_params.get("action")
        name = "-" if action == "erase" else str((await body_of(request)).get("filename", ""))
        is_bare = re.fullmatch(r"[\w-][\w.-]{0,99}", name)
        if number >= engine.slots or action not in ("save", "restore", "erase") or not is_bare:
            what = f"there are slots 0 to {engine.slots - 1}, and actions save, restore and erase"
            raise UsageError(what, "a filename may have only letters, digits and the characters . _ -")
        path = Path(self._settings.slot_save_path, request.scope.get("owner", "") + name)

        def change() -> dict[str, object]:
            slot = engine.admission.slot(number)
            if action == "save":
                return {"filename": name, "n_saved": slot.past, "n_written": save_slot(engine, slot, path, self._key)}
            if action == "restore":
                return {"filename": name, "n_read": load_slot(engine, slot, path, self._key), "n_restored": slot.past}
            erased = slot.past
            engine.admission.refill(slot, [])
            return {"n_erased": erased}

        done = await asyncio.shield(asyncio.wrap_future(self._model.worker.call(change)))
        return JSONResponse({"id_slot": number, **done})

    async def metrics(self, request: Request) -> Response:
        total, worker = self._total, self._model.worker
        read = total.prompt_tokens - total.reused_tokens
        counters = [
            ("prompt_tokens_total", "Tokens of prompts that were decoded.", read),
            ("prompt_tokens_cached_total", "Tokens of prompts that were in the KV cache.", total.reused_tokens),
            ("prompt_seconds_total", "Seconds of prefill, summed over requests.", total.prompt_s),
            ("tokens_predicted_total", "Tokens of answers.", total.tokens),
            ("tokens_predicted_seconds_total", "Seconds of decoding answers, without the prefill.", total.predicted_s),
            ("n_decode_total", "Steps, summed over answers.", total.steps),
            ("spec_decode_num_draft_tokens_total", "Drafted tokens that were verified.", total.drafted),
            ("spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted.", total.accepted),
            ("spec_decode_num_drafts_total", "Steps with drafts.", total.drafts),
            ("n_tokens_max", "Tokens of the longest sequence so far.", self._longest),
        ]
        gauges = [
            ("prompt_tokens_seconds", "Tokens of prompts a second of prefill.", rate(read, total.prompt_s)),
            ("predicted_tokens_seconds", "Tokens of an answer a second, without the prefill.", total.tokens_per_second),
            ("requests_processing", "Answers in a slot.", len(worker.running)),
            ("requests_deferred", "Answers that wait for a slot.", len(worker.waiting)),
            ("n_busy_slots_per_decode", "Slots in use.", len(worker.running)),
        ]
        text = "".join(
            f"# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value:.15g}\n"
            for kind, metrics in (("counter", counters), ("gauge", gauges))
            for name, help, value in metrics
        )
        response = Response(text, media_type="text/plain; version=0.0.4")
        # Starlette writes names in small letters, and llama.cpp's tests look for its spelling.
        response.raw_headers.append((b"Process-Start-Time-Unix", self._started.encode()))
        return response

    async def tokenize(self, request: Request) -> Response:
        asked, model = await body_of(request), self._model.engine.model
        if not isinstance(content := asked.get("content"), str):
            raise UsageError("content is missing or no text", 'give {"content": "..."}')
        begins, is_parsed = bool(asked.get("add_special", False)), bool(asked.get("parse_special", True))
        tokens = await run_in_threadpool(model.tokenize, content, add_special=begins, special=is_parsed)
        if not asked.get("with_pieces"):
            return JSONResponse({"tokens": tokens})
        pieces = [{"id": token, "piece": _piece(model.piece(token, special=True))} for token in tokens]
        return JSONResponse({"tokens": pieces})

    async def detokenize(self, request: Request) -> Response:
        engine = self._model.engine
        if not isinstance(tokens := (await body_of(request)).get("tokens"), list):
            raise UsageError("tokens is missing or no list", 'give {"tokens": [1, 2]}')
        known = checked_tokens(tokens, engine.model.vocabulary)
        return JSONResponse({"content": await run_in_threadpool(partial(engine.text, special=True), known)})

    async def apply_template(self, request: Request) -> Response:
        asked = checked(ChatRequest, await body_of(request))
        return JSONResponse({"prompt": (await run_in_threadpool(self._rendered, asked)).replace(MARK, "")})

    async def _count_tokens(self, request_type: type[ChatRequest], request: Request, **more: str) -> Response:
        """Reply with the number of tokens in the prompt of a `request_type`. `more`: further fields of the reply."""
        asked, tokenize = checked(request_type, await body_of(request)), self._model.engine.prompts.tokenize
        tokens = await run_in_threadpool(lambda: tokenize(self._rendered(asked)))
        return JSONResponse({**more, "input_tokens": len(tokens)})

    async def _answer(
        self, request_type: type[ChatRequest | CompletionRequest], reply_type: type[Reply], request: Request
    ) -> Response:
        """Read a `request_type` and reply with a `reply_type`: one JSON body, or events for "stream": true."""
        asked = checked(request_type, await body_of(request))
        asked.verbose |= self._settings.verbose
        for name in asked.model_extra or ():
            if name not in REFUSED:
                self._note_unknown(printable(name[:40]))
        # In a thread, so that streams go on. One request at a time, so that streams have processor time too.
        async with self._preparing:
            reply = await run_in_threadpool(self._begin, asked, reply_type)
        if asked.stream:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(_as_sent(reply), headers=headers, media_type="text/event-stream")
        return JSONResponse(await _while_connected(request, reply.whole()))

    def _begin(self, asked: ChatRequest | CompletionRequest, reply_type: type[Reply]) -> Reply:
        """Return the reply to a request, as a `reply_type`. Its answers are prepared, but nothing is decoded yet.

        The first answer to a prompt has the request's seed, each further answer the next number, as in llama-server.
        Raises TooLong for a prompt longer than `Model.context`, UsageError for impossible requests.
        """
        model, settings, rules, options = self._model, self._settings, None, AnswerOptions()
        sampling = asked.sampling(settings.sampling, lambda text: model.engine.model.tokenize(text, add_special=False))
        if isinstance(asked, ChatRequest):
            rendered = self._rendered(asked)
            prompts, most = [model.engine.prompts.tokenize(rendered)], asked.top_logprobs if asked.logprobs else -1
            # The grammar applies only after the reasoning.
            sampling = replace(sampling, grammar_after=begun_closer(rendered))
            if asked.offered:
                sampling, rules = self._with_calls(asked, sampling)
        else:
            if len(asked.prompt) * asked.n > 128:  # the samplers of all answers are made before the first step
                raise UsageError("prompt, n: a request has at most 128 answers", "send several requests")
            prompts, most = self._prompts(asked), (asked.n_probs or -1) if asked.logprobs is None else asked.logprobs
            options |= {"raw": True, "prompt_logprobs": asked.echo}
        if (longest := max(map(len, prompts))) > model.context:
            raise TooLong(longest, model.context)
        limit = settings.max_tokens if asked.max_tokens is None else asked.max_tokens
        stops = *settings.stops, *asked.stop
        options |= {"stop": () if rules else stops, "max_tokens": limit, "logprobs": None if most < 0 else most}
        options["drawn_logprobs"] = asked.post_sampling_probs
        choices: list[Choice] = []
        for tokens in prompts:
            for place in range(asked.n):
                seed = sampling.seed if sampling.seed < 0 else (sampling.seed + place) % (MOST_SEED + 1)
                options["sampling"] = replace(sampling, seed=seed)
                choices.append(Choice(model, self.count, tokens, len(choices), options, rules, stops))
        return reply_type(asked, choices, model, settings.names[0], sampling, limit)

    def _with_calls(self, asked: ChatRequest, sampling: SamplingSettings) -> tuple[SamplingSettings, CallRules]:
        """Return `sampling`, with a grammar if a call is forced or a schema given, and the rules for calls.

        Raises UsageError for a bad schema, for a template that supports no tools, and for a forced call if the request
        has its own `grammar` or `json_schema`.
        """
        forced = asked.has_to_call
        # A response_format applies to a text, but a grammar and a json_schema apply to the whole answer.
        if forced and (asked.grammar or asked.json_schema is not None):
            raise UsageError("tool_choice: a forced call cannot have another grammar", "omit grammar and json_schema")
        form, schema = form_of(self._model.engine.prompts.template), "" if forced else sampling.json_schema
        rules = CallRules(form, asked.offered, asked.parallel_tool_calls, forced, schema)
        return replace(sampling, grammar=rules.grammar(), json_schema="") if forced or schema else sampling, rules

    def _prompts(self, asked: CompletionRequest) -> list[list[int]]:
        """Return each prompt's tokens; with infill or a suffix at most 3/4 of the context. Raises UsageError if bad."""
        infill, room = self._model.engine.prompts.infill, 3 * self._model.context // 4
        if isinstance(asked, InfillRequest):
            files = [(each.filename, each.text) for each in asked.input_extra]
            return [infill(asked.input_prefix, asked.input_suffix, room, asked.prompt[0], files)]
        if not asked.suffix:
            return [*map(self._tokens, asked.prompt)]
        texts = [each for each in asked.prompt if isinstance(each, str)]
        if len(texts) < len(asked.prompt):
            raise UsageError("suffix: with a suffix the prompt must be a text", "leave out token ids")
        return [infill(each, asked.suffix, room) for each in texts]

    def _rendered(self, asked: ChatRequest) -> str:
        """Return a chat's prompt text. Raises UsageError if the chat has tools and the chat template supports none."""
        prompts = self._model.engine.prompts
        if asked.offered or any(message.role == "tool" or message.tool_calls for message in asked.messages):
            form_of(prompts.template)
        tools = [tool.model_dump() for tool in asked.tools] if asked.offered else []
        messages = [message.for_template for message in asked.messages]
        if self._settings.system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._settings.system})
        effort = asked.reasoning_effort
        # "none" turns thinking off, as for llama-server.
        told: dict[str, Any] = {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
        variables = {**prompts.template.variables, **(told if effort else {}), **asked.chat_template_kwargs}
        begun = messages.pop() if asked.is_begun else None
        rendered = prompts.render(messages, tools, variables)
        # A template may open a reasoning block although thinking is off, and a begun message is no reasoning either.
        if (begun or variables.get("enable_thinking") is False) and (closer := begun_closer(rendered)):
            rendered += f"{closer}\n\n"
        return rendered + (prompts.marked(begun["content"], "assistant") if begun else "")

    def _tokens(self, prompt: Prompt) -> list[int]:
        """Return a prompt's tokens. A text in a list gets BOS and EOS only at index 0. Raises UsageError for []."""
        if isinstance(prompt, dict):
            prompt = prompt.get("prompt_string", "")
        if isinstance(prompt, str):
            return self._model.engine.prompts.question(prompt, raw=True)
        tokenize, tokens = self._model.engine.model.tokenize, list[int]()
        for index, part in enumerate(prompt):
            tokens += tokenize(part, add_special=not index) if isinstance(part, str) else [part]
        if not tokens:
            raise UsageError("the prompt is empty", "give some text")
        return tokens


async def not_offered(request: Request) -> Response:
    raise HTTPException(501, "this server was started without this endpoint, see lacli serve --help")


def _piece(token_bytes: bytes) -> str | list[int]:
    """Return a token's bytes as text, or as a list of integers if they are no valid UTF-8."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return [*token_bytes]


async def _as_sent(reply: Reply) -> AsyncGenerator[bytes]:
    """Yield a reply's events as bytes. An error becomes the last event; it is raised too unless it is a LacliError."""
    events = reply.events()
    try:
        async for event in events:
            yield reply.frame(event)
        yield reply.end
    except Exception as error:
        yield reply.frame(reply.failure(_failure(error)[1]))
        if not isinstance(error, LacliError):
            raise  # Starlette logs it
    finally:
        await events.aclose()


async def _while_connected(request: Request, answering: Coroutine[Any, Any, Any]) -> Any:
    """Return `answering`'s result. Raises ClientDisconnect if the client leaves, HTTPException if the server stops."""
    task, gone = asyncio.create_task(answering), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    except asyncio.CancelledError:
        raise HTTPException(503, "the server ended before the answer, send the request again") from None
    finally:
        task.cancel()
        gone.cancel()


def _failure(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the JSON body for an error: 400 if the request is at fault, otherwise 500."""
    if isinstance(error, TooLong):
        return 400, error_body(400, str(error), "exceed_context_size_error", **error.sizes)
    if isinstance(error, RecursionError):
        return 400, error_body(400, "the request is nested too deeply")
    status = 400 if isinstance(error, UsageError | PromptError | SamplingError) else 500
    return status, error_body(status, in_one_line(error))


async def _refuse(request: Request, error: Exception) -> Response:
    """Reply with an error in OpenAI's shape. Starlette raises an unexpected error again, so that it is logged."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    if isinstance(error, HTTPException):
        absent = re.match(ABSENT, request.url.path) if error.status_code == 404 else None
        why = f"this server has no {absent[1]}" if absent else error.detail.lower()
        body = error_body(error.status_code, f"{request.method} {request.url.path}: {why}")
        return JSONResponse(body, error.status_code, error.headers)
    status, body = _failure(error)
    return JSONResponse(body, status)


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Any]] = dict.fromkeys(
    (LacliError, HTTPException, ClientDisconnect, RecursionError, Exception), _refuse
)
