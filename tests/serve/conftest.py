"""A server over the 7M model, in a thread of the tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI
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
    """The address of a server with this application, which ends with the block. `settings`: uvicorn's."""
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


@pytest.fixture(scope="session")
def model() -> Iterator[lacli.Model]:
    with lacli.load(STDLIB_7M, threads=1, parallel=2, model_settings=ModelSettings()) as model:
        yield model


@pytest.fixture(scope="session")
def address(model: lacli.Model) -> Iterator[str]:
    settings = ServeSettings((NAME,), SamplingSettings(), max_tokens=200)
    with serving(Server(model, settings).app()) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> OpenAI:
    return OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0)


@pytest.fixture(scope="session")
def qwen() -> Iterator[str]:
    """The address of a server with Qwen's template."""
    with lacli.load(STDLIB_7M, threads=1, parallel=2, template="qwen") as model:
        settings = ServeSettings((NAME,), SamplingSettings(), max_tokens=300)
        with serving(Server(model, settings).app()) as address:
            yield address


def saying(text: str) -> dict[str, str]:
    """What makes a request's answer this text."""
    return {"grammar": f"root ::= {json.dumps(text)}"}


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each answer break off at its first step."""

    def fails(*_: object, **__: object) -> None:
        raise LacliError("it broke")

    monkeypatch.setattr(Choice, "_delta", fails)
