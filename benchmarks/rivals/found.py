"""llama.cpp's programs that lacli can be compared with: which there are, whether they are on PATH, how they answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rivals.programs import Program
from benchmarks.rivals.runs import PATIENCE, Patience
from benchmarks.rivals.server import DRAFT, Server, speculation_kinds
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.settings import ModelSettings

RIVALS = ("llama-lookahead", "llama-lookup", "llama-server")
"""The names; `llama-server:KIND` is one kind of its speculation, `llama-server` all that are made of n-grams."""


@dataclass(frozen=True)
class Rival:
    """A program that was found. name: what tables call it. kind: a llama-server's speculation, empty elsewhere.

    draft: the model that drafts for a llama-server of kind draft-simple.
    """

    name: str
    program: Path
    kind: str = ""
    draft: Path | None = None

    def open(
        self, model: Path, model_settings: ModelSettings, *, offloaded: bool, patience: Patience = PATIENCE
    ) -> Program | Server:
        """The program with a model, for `answer`; use it in `with`, which ends what it started.

        `model_settings`: with the context and the threads that are in use, not the 0 that leaves them open.
        `offloaded`: whether lacli computes on a GPU; where it does not, the program must not either.
        """
        if self.kind:
            draft, kind = self.draft, self.kind
            return Server(
                self.program, model, model_settings, kind, draft=draft, offloaded=offloaded, patience=patience
            )
        lookup = self.program.stem == "llama-lookup"
        return Program(
            self.program, model, model_settings, offloaded=offloaded, first_from_prefill=lookup, patience=patience
        )


def find_rivals(names: Sequence[str]) -> list[Rival]:
    """The rivals named, in this order, each once.

    Raises UsageError for an unknown name, LacliError for a program that is not on PATH.
    """
    return list(dict.fromkeys(rival for name in names for rival in _found(name)))


def _found(name: str) -> Iterator[Rival]:
    program, _, kind = name.partition(":")
    if program not in RIVALS or (":" in name and program != "llama-server"):
        known = f"{', '.join(RIVALS)}, llama-server:ngram-mod for one kind of its speculation"
        raise UsageError(f"there is no rival {name!r}", f"there are {known}")
    path = shutil.which(program)
    if path is None:
        raise LacliError(f"{program} is not on PATH", "build llama.cpp and put its build/bin on PATH")
    if program != "llama-server":
        yield Rival(program, Path(path))
        return
    kinds = speculation_kinds(Path(path))
    if not kinds:
        raise LacliError("this llama-server speculates only with a draft model", "a newer llama.cpp has --spec-type")
    if kind and kind not in kinds:
        raise UsageError(f"llama-server has no --spec-type {kind!r}", f"this one has {', '.join(kinds)}")
    for each in [kind] if kind else kinds:
        if kind or each not in ("none", DRAFT):
            yield Rival(f"llama-server {each}", Path(path), each)
