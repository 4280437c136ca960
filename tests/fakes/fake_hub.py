"""A Hugging Face Hub on the loopback: as much of its API as fetching a model needs, and some ways to fail.

No test lives here. Point HF_ENDPOINT at `address` in the environment of a process of its own: huggingface_hub reads it
once, when it is imported.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}
NOT_FOUND = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
NO_ENTRY = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
BAD_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}


@dataclass
class Repository:
    """One repository: its files, and what goes wrong with them.

    gated: its files want this token.
    """

    files: dict[str, bytes]
    gated: str = ""
    commit: str = ""

    def __post_init__(self) -> None:
        names = "\n".join(f"{name} {len(content)}" for name, content in self.files.items())
        self.commit = self.commit or sha1(names.encode()).hexdigest()


@dataclass
class FakeHub:
    """What the hub has, and what was asked of it.

    requests: method, path and Range of every request, in order. token: the one that is valid; any other is refused.
    status: answers every request with this, where it is not 0.
    """

    repositories: dict[str, Repository]
    token: str = "hf_valid"
    status: int = 0
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    address: str = ""

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """The environment of a process that has this hub and a cache of its own below `home`."""
        cache = {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "XDG_CONFIG_HOME": str(home / "config")}
        cleared = {"HF_TOKEN": "", "HF_HUB_OFFLINE": ""}
        return {**cleared, **cache, "HF_ENDPOINT": self.address, "no_proxy": "127.0.0.1,localhost", **more}

    def transfers(self) -> list[tuple[str, str]]:
        """The file and the Range of each transfer that was asked for."""
        return [
            (path.rpartition("/")[2], span)
            for method, path, span in self.requests
            if "/resolve/" in path and method == "GET"
        ]

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
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if hub.status:
            return self._refuse(hub.status, {})
        if token and token != hub.token:
            return self._refuse(401, BAD_TOKEN)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/.*)?", path):
            repository = hub.repositories.get(match[1])
            return self._list(match[1], repository) if repository else self._refuse(404 if token else 401, NOT_FOUND)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            return self._resolve(match[1], match[2], token)
        return self._refuse(404, {})

    def _resolve(self, name: str, file: str, token: str) -> None:
        repository = self.fake.repositories.get(name)
        if repository is None:
            return self._refuse(404, NOT_FOUND)
        if repository.gated and token != repository.gated:
            return self._refuse(403 if token else 401, GATED)
        if file not in repository.files:
            return self._refuse(404, NO_ENTRY)
        return self._send_file(repository, repository.files[file])

    def _refuse(self, status: int, headers: dict[str, str]) -> None:
        self._send(status, b"", headers)

    def _list(self, name: str, repository: Repository) -> None:
        siblings = [_sibling(file, content) for file, content in repository.files.items()]
        answer = {
            "id": name,
            "modelId": name,
            "sha": repository.commit,
            "siblings": siblings,
            "tags": [],
            "private": False,
        }
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send_file(self, repository: Repository, content: bytes) -> None:
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(span[1]) if span else 0
        headers = {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": repository.commit}
        headers |= {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if span else {}
        self._send(206 if span else 200, content[start:], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    """A file as the listing shows it: large ones are kept by their SHA-256."""
    lfs = {"sha256": sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return {"rfilename": name, "size": len(content), "blobId": sha1(content).hexdigest(), "lfs": lfs}
