"""llama.cpp's programs that lacli can be compared with: which there are, whether they are on PATH, how they answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.rivals.programs import Program
from benchmarks.rivals.runs import PATIENCE, Patience
from benchmarks.rivals.server import Server, speculation_kinds
from lacli.bench.rounds import Contender, Exchange, Trial
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.session.session import Session
from lacli.text.template import with_one_bos

RIVALS = ("llama-lookahead", "llama-lookup", "llama-server")
"""The names; `llama-server:KIND` is one kind of its speculation, `llama-server` all that are made of n-grams."""


@dataclass(frozen=True)
class Rival:
    """A program that was found. name: what tables call it. kind: a llama-server's speculation, empty elsewhere."""

    name: str
    program: Path
    kind: str = ""

    def open(
        self, model: Path, model_settings: ModelSettings, *, offloaded: bool, patience: Patience = PATIENCE
    ) -> Program | Server:
        """The program with a model, for `answer`; use it in `with`, which ends what it started.

        `model_settings`: with the context and the threads that are in use, not the 0 that leaves them open.
        `offloaded`: whether lacli computes on a GPU; where it does not, the program must not either.
        """
        if self.kind:
            return Server(self.program, model, model_settings, self.kind, offloaded=offloaded, patience=patience)
        lookup = self.program.stem == "llama-lookup"
        return Program(
            self.program, model, model_settings, offloaded=offloaded, first_from_prefill=lookup, patience=patience
        )


def find_rivals(names: Sequence[str]) -> list[Rival]:
    """The rivals named, in this order, each once.

    Raises UsageError for an unknown name, LacliError for a program that is not on PATH.
    """
    return list(dict.fromkeys(rival for name in names for rival in _found(name)))


def rivals(session: Session, found: Sequence[Rival], stack: ExitStack) -> list[Contender]:
    """Other programs with the session's model as contenders, started now and ended with the stack."""
    model_settings = replace(session.model_settings, context=session.engine.cells)
    entered = []
    for rival in found:
        program = rival.open(session.model.path, model_settings, offloaded=session.model.offloaded)
        stack.enter_context(program)
        entered.append(Contender(rival.name, None, 0, _asking(session, program)))
    return entered


def _asking(session: Session, program: Program | Server) -> Callable[[Exchange], Trial]:
    def answer(exchange: Exchange) -> Trial:
        text = session.text(exchange.prompt, special=True)
        text = with_one_bos(text, session.model.bos(), adds_bos=session.model.adds_bos)
        run = program.answer(text, exchange.prompt, exchange.max_tokens)
        return Trial(
            ids=run.ids,
            text=run.text,
            tokens=run.tokens,
            step_count=run.steps,
            rows=None,
            drafted=run.drafted,
            accepted=run.accepted,
            seconds=run.seconds,
            prompt_s=run.prompt_s,
            first_token_s=run.prompt_s,
            own_limit=True,
        )

    return answer


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
        if each != "none" or kind:
            yield Rival(f"llama-server {each}", Path(path), each)
