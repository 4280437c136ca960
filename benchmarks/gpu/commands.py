"""Running a command and keeping what it prints: the one place where the kit's measurements start processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class KitError(Exception):
    """What stops a stage, in one sentence for the person who started it."""


@dataclass(frozen=True)
class Done:
    """A command that ended: its exit code and its standard output."""

    code: int
    out: str


Run = Callable[[Sequence[str], Mapping[str, str], Path], Done]
"""Gets a command, its process environment and its working folder."""


def run_command(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> Done:
    """Run a command to its end; what it writes to standard error is seen at once."""
    done = subprocess.run(arguments, env=dict(environment), cwd=folder, stdout=subprocess.PIPE, encoding="utf-8")
    return Done(done.returncode, done.stdout)
