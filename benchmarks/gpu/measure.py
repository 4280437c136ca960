"""What is measured: models to expand, and lacli's commands on each, each result a JSON file when it is there.

What exists is not done again, so a stage that was cut off goes on where it stopped.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.commands import KitError, Run
from benchmarks.gpu.folders import Folders, write_whole

LACLI = (sys.executable, "-m", "lacli")
BUG_FOUND = 3
"""The exit code of a check that did its work and found a bug: its report counts."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Model:
    """An expanded model. shape: a name that `expand.py` knows, or sizes as its flags."""

    shape: str
    type_name: str

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{'tiny' if self.shape.startswith('-') else self.shape}-{self.type_name}"

    def flags(self) -> list[str]:
        """For `expand.py`."""
        shape = shlex.split(self.shape) if self.shape.startswith("-") else ["--shape", self.shape]
        return [*shape, "--type", self.type_name]


@dataclass(frozen=True)
class Plan:
    """The flags of each measurement, by lacli's command."""

    bench: str = "--modes plain,lookup,lookahead -W 5,10,15 -N 5 -G W"
    cost: str = ""
    check: str = "-n 128"

    def commands(self, seconds: float) -> Iterator[tuple[str, str]]:
        """A command's name and all its flags, costs first: a benchmark reuses them. seconds: of a benchmark."""
        yield "cost", f"--json --fresh {self.cost}"
        yield "bench", f"-o json --seconds {seconds:g} {self.bench}"
        yield "check", f"--json {self.check}"


FULL = Plan()
TINY_SHAPE = "--width 288 --layers 9"
CPU = "-ngl 0 -t 1"
TINY = Plan(
    bench=f"--modes plain,lookahead -W 3 -N 3 -G W --classes code,edit --each 1 -r 1 -n 8 {CPU}",
    cost=f"--rows 1,2,4 --contexts 32 --seconds 0.5 {CPU}",
    check=f"--each 1 -n 8 {CPU}",
)
"""The same in seconds on a CPU."""


def expand(folders: Folders, models: Sequence[Model], run: Run, say: Say) -> None:
    """Write the models that are not there yet."""
    folders.models.mkdir(parents=True, exist_ok=True)
    for model in models:
        path = model_path(folders, model)
        if path.exists():
            say(f"expand: {path.name} is there")
            continue
        say(f"expand: {path.name}")
        command = [sys.executable, "-m", "benchmarks.expand", path.name, *model.flags()]
        done = run(command, folders.environment(), folders.models)
        if done.code:
            raise KitError(f"{path.name} could not be made; the reason is above")


def model_path(folders: Folders, model: Model) -> Path:
    """Where a model is."""
    return folders.models / f"{model.name}.gguf"


def measure(folders: Folders, models: Sequence[Model], plan: Plan, seconds: float, run: Run, say: Say) -> list[str]:
    """Run what has no result yet; returns what failed, in sentences, after all else has run."""
    failed = []
    for model in models:
        path = model_path(folders, model)
        if not path.exists():
            failed.append(f"{path.name} is missing: run the stage expand")
            continue
        for name, flags in plan.commands(seconds):
            result = folders.results / f"{model.name}.{name}.json"
            if result.exists():
                say(f"bench: {result.name} is there")
                continue
            say(f"bench: {result.name}")
            folders.results.mkdir(parents=True, exist_ok=True)
            done = run([*LACLI, name, path.name, *shlex.split(flags)], folders.environment(), folders.models)
            if problem := keep(done.out, done.code, result):
                failed.append(f"lacli {name} {path.name}: {problem}")
    return failed


def keep(text: str, code: int, result: Path) -> str:
    """Save a command's JSON; returns why not, or nothing."""
    if code not in (0, BUG_FOUND):
        return f"exit code {code}"
    try:
        json.loads(text)
    except ValueError:
        return "it printed no JSON"
    write_whole(result, text if text.endswith("\n") else text + "\n")
    return "it found a bug" if code == BUG_FOUND else ""
