"""Prompt files as tests write them, and what is said of one that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lacli.bench.tasks import Task
from lacli.errors import LacliError

GOOD = b'{"prompt": "one"}\n{"prompt": "two"}\n'
TWO = [Task(("one",)), Task(("two",))]


def write(folder: Path, raw: bytes, name: str = "prompts.jsonl") -> str:
    path = folder / name
    path.write_bytes(raw)
    return str(path)


def complaint(read: Callable[[str], object], path: str) -> str:
    """The error that reading a file raises: one line with a hint."""
    with pytest.raises(LacliError) as caught:
        read(path)
    assert caught.value.hint and "\n" not in str(caught.value)
    return caught.value.what
