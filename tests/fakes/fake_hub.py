"""A Hugging Face Hub on the loopback: the API calls that fetch a model, and some failures.

huggingface_hub reads HF_ENDPOINT only when it is imported, so `looking_up` changes huggingface_hub's constants.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from pathlib import Path
from typing import Self

import huggingface_hub
import pytest
from huggingface_hub import constants
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lacli.errors import ModelLoadError
from lacli.hub.download import find_model
from tests.program import HUBS, PROXIES
from tests.serve.conftest import serving

GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}
NOT_FOUND = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
NO_ENTRY = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
BAD_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}


@dataclass
class Repository:
    """One repository. `files`: contents by name. `gated`: the only token that may read its files, "" for any."""

    files: dict[str, bytes]
    gated: str = ""
    commit: str = ""

    def __post_init__(self) -> None:
        names = "\n".join(f"{name} {len(content)}" for name, content in self.files.items())
        self.commit = self.commit or sha1(names.encode()).hexdigest()


@dataclass
class FakeHub:
    """A hub with these repositories.

    requests: method and path of every request, in order. token: the only valid token. answer: an application that
    answers every request, None: the hub itself.
    """

    repositories: dict[str, Repository]
    token: str = "hf_valid"
    answer: ASGIApp | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """Return the environment variables of a process with this hub and a cache below `home`, and `more`."""
        cache = {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "XDG_CONFIG_HOME": str(home / "config")}
        cleared = {"HF_TOKEN": "", "HF_HUB_OFFLINE": ""}
        return {**cleared, **cache, "HF_ENDPOINT": self.address, "no_proxy": "127.0.0.1,localhost", **more}

    def transfers(self) -> list[str]:
        """Return the name of each file whose content was requested."""
        return [path.rpartition("/")[2] for method, path in self.requests if "/resolve/" in path and method == "GET"]

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Serve on a free port until the block ends, and yield this hub."""
        with serving(Starlette(routes=[Route("/{path:path}", self._answer)])) as self.address:
            yield self

    def _answer(self, request: Request) -> ASGIApp:
        """Answer /api/models/REPOSITORY with its listing, and /REPOSITORY/resolve/REVISION/FILE with a file."""
        path = request.url.path
        self.requests.append((request.method, path))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.answer:
            return self.answer
        if token and token != self.token:
            return Response(status_code=401, headers=BAD_TOKEN)
        listing, found = re.match(r"/api/models/([^/]+/[^/]+)", path), re.match(r"/(.+?/.+?)/resolve/[^/]+/(.+)", path)
        name = (listing or found or [""] * 2)[1]
        if not (repository := self.repositories.get(name)):
            return Response(status_code=404 if token else 401, headers=NOT_FOUND)
        if listing:
            siblings = [{"rfilename": file, "size": len(content)} for file, content in repository.files.items()]
            return JSONResponse({"id": name, "sha": repository.commit, "siblings": siblings, "tags": []})
        assert found
        if repository.gated and token != repository.gated:
            return Response(status_code=403 if token else 401, headers=GATED)
        if found[2] not in repository.files:
            return Response(status_code=404, headers=NO_ENTRY)
        content = repository.files[found[2]]
        headers = {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": repository.commit}
        return Response(content, headers=headers)


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """Send nothing until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def breaking_off(scope: Scope, receive: Receive, send: Send) -> None:
    """Close the connection in the middle of an answer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{", "more_body": True})


NAME = "someone/tiny-GGUF"


def tiny_hub(tiny: bytes) -> FakeHub:
    """Return a hub with one repository of three quants; `tiny` is the content of Q4_K_M."""
    files = {"README.md": b"tiny", "tiny-F16.gguf": b"GGUF", "tiny-Q4_K_M.gguf": tiny, "tiny-Q8_0.gguf": tiny + b"8"}
    return FakeHub({NAME: Repository(files)})


class Here:
    """Looks up models by name in this process. `said`: the messages for the user."""

    def __init__(self, hub: FakeHub, cache: Path) -> None:
        self.hub, self.cache = hub, cache
        self.said: list[str] = []

    def find(self, name: str, *, offline: bool = False) -> Path:
        return find_model(name, offline=offline, quiet=True, say=self.said.append)

    def refused(self, name: str, *, offline: bool = False) -> str:
        with pytest.raises(ModelLoadError) as caught:
            self.find(name, offline=offline)
        assert caught.value.hint and "\n" not in str(caught.value)
        return str(caught.value)


@contextmanager
def looking_up(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """Let this process use the hub and the cache, without a token and without the developer's own settings."""
    point_at(hub.address, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_SYMLINKS", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.setattr(constants, name, False)
    for name in [name for name in os.environ if name.startswith((*HUBS, *PROXIES))]:
        monkeypatch.delenv(name)
    huggingface_hub.close_session()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache.parent / "token"))
    yield Here(hub, cache)
    huggingface_hub.close_session()


def point_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
