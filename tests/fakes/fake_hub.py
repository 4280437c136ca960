"""A Hugging Face Hub on the loopback: as much of its API as fetching a model needs, and some ways to fail.

huggingface_hub reads HF_ENDPOINT once, when it is imported: `looking_up` points its constants at the hub.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import unquote

import huggingface_hub
import pytest
from huggingface_hub import constants

from lacli.errors import ModelLoadError
from lacli.hub.download import find_model
from tests.fakes.tiny_models import write_llama
from tests.program import HUBS, PROXIES

GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}
NOT_FOUND = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
NO_ENTRY = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
BAD_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}


@dataclass
class Repository:
    """One repository. `gated`: its files want this token."""

    files: dict[str, bytes]
    gated: str = ""
    commit: str = ""

    def __post_init__(self) -> None:
        names = "\n".join(f"{name} {len(content)}" for name, content in self.files.items())
        self.commit = self.commit or sha1(names.encode()).hexdigest()


@dataclass
class FakeHub:
    """What the hub has, and what was asked of it.

    requests: method and path of every request, in order. token: the one that is valid; any other is refused.
    status: answers every request with this, where it is not 0.
    """

    repositories: dict[str, Repository]
    token: str = "hf_valid"
    status: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """The environment of a process that has this hub and a cache of its own below `home`."""
        cache = {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "XDG_CONFIG_HOME": str(home / "config")}
        cleared = {"HF_TOKEN": "", "HF_HUB_OFFLINE": ""}
        return {**cleared, **cache, "HF_ENDPOINT": self.address, "no_proxy": "127.0.0.1,localhost", **more}

    def transfers(self) -> list[str]:
        """The file of each transfer that was asked for."""
        return [path.rpartition("/")[2] for method, path in self.requests if "/resolve/" in path and method == "GET"]

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Answer on a free port while this lasts."""
        hub: FakeHub = self

        class Answers(_Answers):
            fake = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Answers(BaseHTTPRequestHandler):
    """The routes: /api/models/REPOSITORY for the listing, /REPOSITORY/resolve/REVISION/FILE for a file."""

    fake: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        hub = self.fake
        path = unquote(self.path.partition("?")[0])
        hub.requests.append((self.command, path))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if hub.status:
            return self._send(hub.status)
        if token and token != hub.token:
            return self._send(401, BAD_TOKEN)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/.*)?", path):
            repository = hub.repositories.get(match[1])
            return self._list(match[1], repository) if repository else self._send(404 if token else 401, NOT_FOUND)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            return self._resolve(match[1], match[2], token)
        return self._send(404)

    def _resolve(self, name: str, file: str, token: str) -> None:
        repository = self.fake.repositories.get(name)
        if repository is None:
            return self._send(404, NOT_FOUND)
        if repository.gated and token != repository.gated:
            return self._send(403 if token else 401, GATED)
        if file not in repository.files:
            return self._send(404, NO_ENTRY)
        content = repository.files[file]
        headers = {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": repository.commit}
        return self._send(200, headers, content)

    def _list(self, name: str, repository: Repository) -> None:
        siblings = [{"rfilename": file, "size": len(content)} for file, content in repository.files.items()]
        answer = {"id": name, "sha": repository.commit, "siblings": siblings, "tags": [], "private": False}
        self._send(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def _send(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


NAME = "someone/tiny-GGUF"


def tiny_model(folder: Path) -> bytes:
    path = folder / "tiny.gguf"
    write_llama(path)
    return path.read_bytes()


def tiny_hub(tiny: bytes) -> FakeHub:
    """A hub with one repository of several quants."""
    files = {"README.md": b"tiny", "tiny-F16.gguf": b"GGUF", "tiny-Q4_K_M.gguf": tiny, "tiny-Q8_0.gguf": tiny + b"8"}
    return FakeHub({NAME: Repository(files)})


class Here:
    """Names looked up inside this process; `said` is what was told about them."""

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
    """A process that has this hub and this cache, no token, and none of the developer's own settings of the library."""
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
