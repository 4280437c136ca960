"""huggingface_hub's cache, made by hand with links to the contents, and a user who has it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests import program
from tests.fakes.fake_hub import FakeHub
from tests.fakes.tiny_models import write_llama

COMMIT = "c0ffee"


def use(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder `hub` the cache of this process, and return the folder."""
    hub.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    return hub


def folder_of(hub: Path, repository: str) -> Path:
    return hub / f"models--{repository.replace('/', '--')}"


def add(hub: Path, repository: str, file: str, content: bytes | Path, commit: str = COMMIT) -> Path:
    """Put a file into the cache and return its link. `commit` becomes the repository's newest commit."""
    raw = content.read_bytes() if isinstance(content, Path) else content
    folder = folder_of(hub, repository)
    blob = folder / "blobs" / sha256(raw).hexdigest()
    link = folder / "snapshots" / commit / file
    for path in (blob, link, folder / "refs" / "main"):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(raw)
    link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs" / "main").write_text(commit)
    return link


@dataclass(frozen=True)
class Home:
    """A user with a cache, a list of aliases and a model file outside the cache, all below one folder."""

    folder: Path
    cache: Path
    model: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of a run without a hub."""
        return FakeHub({}, address="http://127.0.0.1:9").environment(self.folder)

    def alias(self, *lines: str) -> Path:
        """Write the user's list of aliases, and return its path."""
        path = self.folder / "config" / "lacli" / "models.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return path

    def add(self, repository: str, file: str, content: bytes | None = None) -> Path:
        """Put a file into the cache, with the model as its content if `content` is None; return its link."""
        return add(self.cache, repository, file, self.model if content is None else content)

    def call(self, *arguments: str, **more: str) -> program.Done:
        """Run lacli as this user. `more`: further environment variables."""
        return program.call(*arguments, env={**self.env, **more})


def make_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a home in an empty folder. Its cache is this process's cache too."""
    write_llama(folder / "model.gguf")
    return Home(folder, use(folder / "hub", monkeypatch), folder / "model.gguf")
