"""A server over the 7M model, in a thread of the tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp

import lacli
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.serve.app import Server, ServeSettings
from lacli.serve.replies import Choice
from lacli.serve.run import Listener, open_sockets
from tests.loading import STDLIB_7M

NAME = "demo"


@contextmanager
def serving(app: ASGIApp, **settings: Any) -> Iterator[str]:
    """Serve an application until the block ends, and yield the server's address. `settings`: uvicorn's."""
    (listening,) = open_sockets(["127.0.0.1"], 0)
    listening.listen()
    server = Listener(app, drain_s=5, **settings)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def app_of(model: lacli.Model, access: Sequence[Middleware] = (), **settings: Any) -> Starlette:
    """Return the application of a server for the model. `settings`: fields of ServeSettings."""
    settings = {"names": (NAME,), "sampling": SamplingSettings(), **settings}
    return Server(model, ServeSettings(**settings)).app(access)


@contextmanager
def serving_7m(max_tokens: int = -1, **loading: Any) -> Iterator[str]:
    """Serve the 7M model, loaded for this server alone, and yield its address. `loading`: arguments of `load`."""
    with lacli.load(STDLIB_7M, threads=1, **loading) as model, serving(app_of(model, max_tokens=max_tokens)) as address:
        yield address


@pytest.fixture(scope="session")
def model() -> Iterator[lacli.Model]:
    with lacli.load(STDLIB_7M, threads=1, parallel=2, model_settings=ModelSettings()) as model:
        yield model


@pytest.fixture(scope="session")
def address(model: lacli.Model) -> Iterator[str]:
    with serving(app_of(model, max_tokens=200)) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> OpenAI:
    return OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0)


@pytest.fixture(scope="session")
def qwen() -> Iterator[str]:
    """Yield the address of a server with Qwen's template."""
    with serving_7m(300, parallel=2, template="qwen") as address:
        yield address


@pytest.fixture(scope="session")
def caller(qwen: str) -> OpenAI:
    return OpenAI(api_key="none", base_url=f"{qwen}/v1", max_retries=0)


def saying(text: str) -> dict[str, str]:
    """Return the fields of a request that force its answer to be this text."""
    return {"grammar": f"root ::= {json.dumps(text)}"}


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each answer fail at its first step."""

    def fails(*_: object, **__: object) -> None:
        raise LacliError("it broke")

    monkeypatch.setattr(Choice, "_delta", fails)
