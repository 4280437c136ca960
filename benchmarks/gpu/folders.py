"""Where the kit keeps things, and files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
"""The folder of the packages lacli and benchmarks."""


@dataclass(frozen=True)
class Folders:
    """work: what may be thrown away. source: the unpacked kit, with llama_cpp_python and wheels. results: of this
    machine."""

    work: Path
    source: Path
    results: Path

    @property
    def build(self) -> Path:
        """CMake's folder, and a mark where the build is done."""
        return self.work / "build"

    @property
    def site(self) -> Path:
        """What Python imports on this machine: the built package and the unpacked wheels."""
        return self.work / "site"

    @property
    def models(self) -> Path:
        """The expanded models."""
        return self.work / "models"

    def environment(self) -> dict[str, str]:
        """The process environment in which lacli runs: its sources, the built package, a cache of its own."""
        paths = [str(ROOT), str(self.site), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "XDG_CACHE_HOME": str(self.work / "cache"),
        }


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def read_json(path: Path) -> Any:
    """What a JSON file holds; None where there is no whole one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
