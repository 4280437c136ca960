"""huggingface_hub's cache, made by hand: repositories whose files are links to their contents, as it makes them."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

COMMIT = "c0ffee"


def use(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this the cache of the running process."""
    hub.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    return hub


def folder_of(hub: Path, repository: str) -> Path:
    return hub / f"models--{repository.replace('/', '--')}"


def add(hub: Path, repository: str, file: str, content: bytes | Path, commit: str = COMMIT) -> Path:
    """Put a file into the cache and return its link; the commit becomes the newest."""
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
