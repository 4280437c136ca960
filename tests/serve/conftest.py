"""A server over the 7M model, in a thread of the tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from openai import OpenAI
from starlette.types import ASGIApp

import lacli
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve.app import Server, ServeSettings
from lacli.serve.guard import GuardSettings
from lacli.serve.run import Certificate, Listener, open_socket
from tests.loading import STDLIB_7M

NAME = "demo"


@contextmanager
def serving(app: ASGIApp, certificate: Certificate | None = None) -> Iterator[str]:
    """The address of a server with this application, which ends with the block."""
    listening = open_socket("127.0.0.1", 0)
    listening.listen()
    server = Listener(app, 5, certificate)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="session")
def model() -> Iterator[lacli.Model]:
    with lacli.load(STDLIB_7M, threads=1, parallel=2) as model:
        yield model


@pytest.fixture(scope="session")
def address(model: lacli.Model) -> Iterator[str]:
    settings = ServeSettings(NAME, SamplingSettings(), max_tokens=200, queue=2)
    with serving(Server(model, settings).app(GuardSettings())) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> OpenAI:
    return OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0)
