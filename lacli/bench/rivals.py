"""The other programs that a benchmark can compare with: which there are, whether they are on PATH, how to open one.

How each is run and read is in `rival_programs.py` and `rival_server.py`, the record of an answer in `rival_run.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lacli.bench.rival_programs import Program
from lacli.bench.rival_run import PATIENCE, Patience, RivalRun
from lacli.bench.rival_server import Server, speculation_kinds
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings

RIVALS = ("llama-lookahead", "llama-lookup", "llama-server")
"""What --vs takes; `llama-server:KIND` is one kind of its speculation, `llama-server` all that are made of n-grams."""

__all__ = ["RIVALS", "Patience", "Program", "Rival", "RivalRun", "Server", "find_rivals"]


@dataclass(frozen=True)
class Rival:
    """A program that was found. name: what tables call it. kind: a llama-server's speculation, empty elsewhere."""

    name: str
    program: Path
    kind: str = ""

    def open(
        self, model: Path, loading: ModelSettings, *, offloaded: bool, patience: Patience = PATIENCE
    ) -> Program | Server:
        """The program with a model, for `answer`; use it in `with`, which ends what it started.

        loading: with the context and the threads that are in use, not the 0 that leaves them open. offloaded: whether
        lacli computes on a GPU; where it does not, the program must not either.
        """
        if self.kind:
            return Server(self.program, model, loading, self.kind, offloaded=offloaded, patience=patience)
        lookup = self.program.stem == "llama-lookup"
        return Program(self.program, model, loading, offloaded=offloaded, first_from_prefill=lookup, patience=patience)


def find_rivals(names: Sequence[str], sampling: SamplingSettings | None = None) -> list[Rival]:
    """The rivals named, in this order, each once.

    Raises UsageError for an unknown name and for sampling that is not greedy, LacliError for a program that is not
    on PATH.
    """
    if names and sampling and not sampling.greedy:
        raise UsageError("--vs compares greedy answers only", "leave --temp and the other sampling flags out")
    return list(dict.fromkeys(rival for name in names for rival in _found(name)))


def _found(name: str) -> Iterator[Rival]:
    program, _, kind = name.partition(":")
    if program not in RIVALS or (":" in name and program != "llama-server"):
        known = f"{', '.join(RIVALS)}, llama-server:ngram-mod for one kind of its speculation"
        raise UsageError(f"there is no rival {name!r}", f"--vs takes {known}")
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
        if each != "none" or kind:
            yield Rival(f"llama-server {each}", Path(path), each)
