"""What can be asked besides answers: the model, slots, metrics, tokens of texts, and the page."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from time import time
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from lacli import __version__
from lacli.answer_options import checked_tokens
from lacli.engine.worker import AsyncStream
from lacli.errors import UsageError, in_one_line
from lacli.llamacpp.sampling import SamplingSettings
from lacli.model import Model
from lacli.serve.protocol import body_of
from lacli.stats import RunStatistics

COUNTERS: dict[str, tuple[str, Callable[[RunStatistics], float]]] = {
    "prompt_tokens_total": ("Tokens of prompts that were decoded.", lambda run: run.prompt_tokens - run.reused_tokens),
    "prompt_tokens_cached_total": ("Tokens of prompts that were in the KV cache.", lambda run: run.reused_tokens),
    "prompt_seconds_total": ("Seconds of prefill, of each request.", lambda run: run.prompt_s),
    "tokens_predicted_total": ("Tokens of answers.", lambda run: run.tokens),
    "tokens_predicted_seconds_total": ("Seconds of answers from their first step on.", lambda run: run.predicted_s),
    "n_decode_total": ("Steps, of each answer.", lambda run: run.steps),
    "spec_decode_num_draft_tokens_total": ("Drafted tokens that were verified.", lambda run: run.drafted),
    "spec_decode_num_accepted_tokens_total": ("Drafted tokens that were accepted.", lambda run: run.accepted),
    "spec_decode_num_drafts_total": ("Steps with drafts.", lambda run: run.drafts),
}
"""What is counted at the end of an answer, by llama.cpp's names, with its help."""

PAGE = Path(__file__).with_name("page")

POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""Keeps what a model wrote from running in the page."""


@dataclass(frozen=True)
class ServeSettings:
    """How requests are answered. `name`: of the model. `sampling`, `system`, `max_tokens`: if a request gives none.

    `aliases`, `tags`: names of the model, and words beside them. `slots`, `metrics`, `page`: whether these are
    answered. `verbose`: replies have the prompt.
    """

    name: str
    sampling: SamplingSettings
    system: str = ""
    max_tokens: int = -1
    stops: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    slots: bool = True
    metrics: bool = True
    page: bool = True
    verbose: bool = False


class Status:
    """The endpoints that decode nothing, and what they tell of answers."""

    def __init__(self, model: Model, settings: ServeSettings) -> None:
        self._model, self._settings = model, settings
        self._started = str(int(time()))
        self._sums, self._longest = dict.fromkeys(COUNTERS, 0.0), 0
        self._running: list[AsyncStream] = []

    @contextmanager
    def counting(self, stream: AsyncStream) -> Generator[None]:
        """Show an answer while it runs, and count it at its end."""
        self._running.append(stream)
        try:
            yield
        finally:
            self._running.remove(stream)
            for name, (_, count) in COUNTERS.items():
                self._sums[name] += count(stream.cost)
            self._longest = max(self._longest, stream.cost.prompt_tokens + stream.cost.tokens)

    def routes(self) -> list[BaseRoute]:
        settings = self._settings
        return [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/models", self.models),
            Route("/props", self.props),
            Route("/slots", self.slots if settings.slots else not_offered),
            Route("/metrics", self.metrics if settings.metrics else not_offered),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            *([Route("/", page_file), Mount("/page", StaticFiles(directory=PAGE))] if settings.page else []),
        ]

    async def health(self, request: Request) -> Response:
        if failure := self._model.worker.failure:
            raise HTTPException(503, f"nothing is decoded any more, start the server again: {in_one_line(failure)}")
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        model, settings = self._model.engine.model, self._settings
        found = {
            "id": settings.name,
            "aliases": settings.aliases,
            "tags": settings.tags,
            "object": "model",
            "created": 0,
            "owned_by": "lacli",
            "meta": {"n_ctx_train": model.context, "n_params": model.parameters, "size": model.size},
        }
        return JSONResponse({"object": "list", "data": [found]})

    async def props(self, request: Request) -> Response:
        engine, sampling = self._model.engine, self._settings.sampling
        params = {"seed": sampling.seed, "temperature": sampling.temp}
        props = {
            "default_generation_settings": {"n_ctx": self._model.context, "params": params},
            "total_slots": engine.slots,
            "model_path": str(engine.model.path),
            "chat_template": engine.prompts.template.source,
            "build_info": f"lacli {__version__}",
        }
        return JSONResponse(props)

    async def slots(self, request: Request) -> Response:
        """Show each slot's state and the counts of its answer, never a text."""
        running = [stream for stream in self._running if stream.is_decoded]
        slots = []
        for number, stream in zip_longest(range(self._model.engine.slots), running):
            counts = {"n_prompt_tokens": len(stream.prompt), "n_decoded": stream.cost.tokens} if stream else {}
            slots.append({"id": number, "n_ctx": self._model.context, "is_processing": stream is not None, **counts})
        return JSONResponse(slots)

    async def metrics(self, request: Request) -> Response:
        sums, (processing, deferred) = self._sums, self._model.worker.load
        read = _rate(sums["prompt_tokens_total"], sums["prompt_seconds_total"])
        predicted = _rate(sums["tokens_predicted_total"], sums["tokens_predicted_seconds_total"])
        metrics = [
            *((name, help, "counter", sums[name]) for name, (help, _) in COUNTERS.items()),
            ("n_tokens_max", "Tokens of the longest sequence so far.", "counter", self._longest),
            ("prompt_tokens_seconds", "Tokens of prompts a second, by the two totals.", "gauge", read),
            ("predicted_tokens_seconds", "Tokens of an answer a second, the mean of all.", "gauge", predicted),
            ("requests_processing", "Answers in a slot.", "gauge", processing),
            ("requests_deferred", "Answers that wait for a slot.", "gauge", deferred),
            ("n_busy_slots_per_decode", "Slots in use.", "gauge", processing),
        ]
        text = "".join(
            f"# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value:.15g}\n"
            for name, help, kind, value in metrics
        )
        response = Response(text, media_type="text/plain; version=0.0.4")
        # Starlette writes names in small letters, and llama.cpp's tests look for its spelling.
        response.raw_headers.append((b"Process-Start-Time-Unix", self._started.encode()))
        return response

    async def tokenize(self, request: Request) -> Response:
        asked, model = await body_of(request), self._model.engine.model
        if not isinstance(content := asked.get("content"), str):
            raise UsageError("content: give a text")
        begins, is_parsed = bool(asked.get("add_special", False)), bool(asked.get("parse_special", True))
        tokens = await run_in_threadpool(model.tokenize, content, add_special=begins, special=is_parsed)
        if not asked.get("with_pieces"):
            return JSONResponse({"tokens": tokens})
        pieces = [{"id": token, "piece": _piece(model.piece(token, special=True))} for token in tokens]
        return JSONResponse({"tokens": pieces})

    async def detokenize(self, request: Request) -> Response:
        engine = self._model.engine
        if not isinstance(tokens := (await body_of(request)).get("tokens"), list):
            raise UsageError("tokens: give a list of token ids")
        known = checked_tokens(tokens, engine.model.vocabulary)
        return JSONResponse({"content": await run_in_threadpool(partial(engine.text, special=True), known)})


async def not_offered(request: Request) -> Response:
    raise HTTPException(501, "this server was started without it")


async def page_file(request: Request) -> Response:
    return FileResponse(PAGE / "index.html", headers=POLICY)


def _piece(text: bytes) -> str | list[int]:
    """A piece as a text, or its bytes if they are a part of a character."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return [*text]


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def timings(run: RunStatistics) -> dict[str, Any]:
    """What an answer took, in llama.cpp's words: milliseconds, and tokens a second."""
    read = run.prompt_tokens - run.reused_tokens
    # llama.cpp counts the first token as the prompt's; a rate over the others here is rather too low.
    later = max(run.tokens - 1, 0)
    prompt_ms, predicted_ms = 1e3 * run.prompt_s, 1e3 * run.predicted_s
    return {
        "cache_n": run.reused_tokens,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(read, 1),
        "prompt_per_second": 1e3 * _rate(read, prompt_ms),
        "predicted_n": run.tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _rate(predicted_ms, later),
        "predicted_per_second": 1e3 * _rate(later, predicted_ms),
        "draft_n": run.drafted,
        "draft_n_accepted": run.accepted,
    }
