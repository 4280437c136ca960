"""Commands on a user's hub cache, run inside the test's process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import program
from tests.fakes import hub_cache
from tests.fakes.tiny_models import write_llama


@dataclass(frozen=True)
class Home:
    """A user with a cache, a list of aliases and a model file outside the cache, all below one folder."""

    folder: Path
    cache: Path
    model: Path

    @property
    def env(self) -> dict[str, str]:
        """For the environment of a run; HF_HUB_CACHE matters to processes of their own."""
        return {
            "HF_HOME": str(self.folder),
            "HF_HUB_CACHE": str(self.cache),
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }

    def alias(self, *lines: str) -> Path:
        """Write the user's list of aliases."""
        path = self.folder / "config" / "lacli" / "models.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return path

    def add(self, repository: str, file: str, content: bytes | None = None) -> Path:
        """Put a file, the model unless its content is given, into the cache."""
        return hub_cache.add(self.cache, repository, file, self.model if content is None else content)

    def call(self, *arguments: str, **more: str) -> program.Done:
        """Run lacli with this home; `more`: further variables of the environment."""
        return program.call(*arguments, env={**self.env, **more})


def make_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home in an empty folder, whose cache is that of the running process."""
    write_llama(folder / "model.gguf")
    return Home(folder, hub_cache.use(folder / "hub", monkeypatch), folder / "model.gguf")
