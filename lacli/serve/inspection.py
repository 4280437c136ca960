"""The endpoints that tell of the model and of the server, and cut texts into tokens; they decode nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lacli import __version__
from lacli.answer_options import checked_tokens
from lacli.errors import in_one_line
from lacli.llamacpp.sampling import SamplingSettings
from lacli.model import Model
from lacli.serve.meter import Meter
from lacli.serve.refusals import FAILED, INVALID, Endpoint, Refused, body_of, not_offered


@dataclass(frozen=True)
class ServeSettings:
    """How requests are answered. `name`: of the model. `sampling`: for requests that say nothing else. `system`: the
    system prompt of conversations that have none.

    `max_tokens`: of an answer if a request has no limit, -1 for none. `aliases`, `tags`: other names of the model, and
    words beside them. `slots`, `metrics`, `page`: whether these are answered. `verbose`: bodies show the prompt and how
    tokens were drawn.
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


class Inspection:
    """What can be asked of a model and of the server, besides answers."""

    def __init__(self, model: Model, settings: ServeSettings, meter: Meter) -> None:
        self._model, self._settings, self._meter = model, settings, meter

    @property
    def gets(self) -> dict[str, Endpoint]:
        """What is asked by GET, by its path."""
        return {
            "/health": self.health,
            "/v1/health": self.health,
            "/v1/models": self.models,
            "/models": self.models,
            "/props": self.props,
            "/slots": self.slots if self._settings.slots else not_offered,
            "/metrics": self.metrics if self._settings.metrics else not_offered,
        }

    @property
    def posts(self) -> dict[str, Endpoint]:
        """What is asked by POST, by its path."""
        return {"/tokenize": self.tokenize, "/detokenize": self.detokenize}

    async def health(self, request: Request) -> Response:
        if failure := self._model.failure:
            raise Refused(503, FAILED, f"nothing is decoded any more, start the server again: {in_one_line(failure)}")
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described]})

    @property
    def _described(self) -> dict[str, Any]:
        model, settings = self._model.engine.model, self._settings
        meta = {
            "n_vocab": model.vocabulary,
            "n_ctx_train": model.context,
            "n_params": model.parameters,
            "size": model.size,
        }
        return {
            "id": settings.name,
            "aliases": [*settings.aliases],
            "tags": [*settings.tags],
            "object": "model",
            "created": 0,
            "owned_by": "lacli",
            "meta": meta,
        }

    async def props(self, request: Request) -> Response:
        engine = self._model.engine
        return JSONResponse(
            {
                "default_generation_settings": {
                    "n_ctx": self._model.context,
                    "params": {"seed": self._settings.sampling.seed, "temperature": self._settings.sampling.temp},
                },
                "total_slots": engine.slots,
                "model_path": str(engine.model.path),
                "chat_template": engine.prompts.template.source,
                "build_info": f"lacli {__version__}",
            }
        )

    async def tokenize(self, request: Request) -> Response:
        asked = await body_of(request)
        content = asked.get("content")
        if not isinstance(content, str):
            raise Refused(400, INVALID, "content: give a text")
        begins, is_parsed = bool(asked.get("add_special", False)), bool(asked.get("parse_special", True))
        tokenize = self._model.engine.model.tokenize
        tokens = await run_in_threadpool(tokenize, content, add_special=begins, special=is_parsed)
        if not asked.get("with_pieces"):
            return JSONResponse({"tokens": tokens})
        pieces = [
            {"id": token, "piece": _piece(self._model.engine.model.piece(token, special=True))} for token in tokens
        ]
        return JSONResponse({"tokens": pieces})

    async def detokenize(self, request: Request) -> Response:
        tokens = (await body_of(request)).get("tokens")
        if not isinstance(tokens, list):
            raise Refused(400, INVALID, "tokens: give a list of token ids")
        engine = self._model.engine
        known = checked_tokens(tokens, engine.model.vocabulary)
        return JSONResponse({"content": await run_in_threadpool(partial(engine.text, special=True), known)})

    async def slots(self, request: Request) -> Response:
        return JSONResponse(self._meter.slots(self._model.engine.slots, self._model.context))

    async def metrics(self, request: Request) -> Response:
        text = self._meter.text(*self._model.load)
        response = Response(text, media_type="text/plain; version=0.0.4")
        # Starlette writes names in small letters, and readers of this one look for llama.cpp's spelling.
        response.raw_headers += [(b"Process-Start-Time-Unix", str(self._meter.started).encode())]
        return response


def _piece(text: bytes) -> str | list[int]:
    """A piece as a text, or its bytes where they are part of a character."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return [*text]
