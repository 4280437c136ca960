"""Who takes part in a benchmark: the points of a sweep in this process, and other programs beside it.

Each gets the function that makes it answer; when it is called is `rounds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from lacli.bench.contexts import Contexts
from lacli.bench.rivals import Program, Rival, Server
from lacli.bench.rounds import (
    Contender,
    Exchange,
    Trial,
    timed,
)
from lacli.bench.sweep import Point
from lacli.errors import LacliError
from lacli.session.session import Session
from lacli.text.template import with_one_bos


def contenders(session: Session, contexts: Contexts, points: Sequence[Point]) -> list[Contender]:
    """Points as contenders; each is compared with plain decoding that has the same flash attention."""
    baselines = {point.flash_attention: number for number, point in enumerate(points) if point.settings.mode == "plain"}
    return [
        Contender(
            label=point.label,
            point=point,
            baseline=baselines[point.flash_attention],
            answer=_answering(session, contexts, point),
            memory=contexts.engine(point).memory,
        )
        for point in points
    ]


def with_plain(points: Sequence[Point]) -> list[Point]:
    """The points with plain decoding in front for each choice of flash attention: what all others are measured by."""
    switches = dict.fromkeys(point.flash_attention for point in points)
    plain = {point.flash_attention: point for point in points if point.settings.mode == "plain"}
    ahead = [_plainly(plain.get(switch) or Point(points[0].settings, switch)) for switch in switches]
    return [*ahead, *(point for point in points if point.settings.mode != "plain")]


def _plainly(point: Point) -> Point:
    """Plain decoding needs no way back, which would cost it something."""
    return replace(point, settings=replace(point.settings, mode="plain", back=-1))


def rivals(session: Session, found: Sequence[Rival], stack: ExitStack) -> list[Contender]:
    """Other programs with the session's model, started now and ended with the stack."""
    loading = replace(session.model_settings, context=session.engine.cells)
    entered = []
    for rival in found:
        program = rival.open(session.model.path, loading, offloaded=session.model.offloaded)
        stack.enter_context(program)
        entered.append(Contender(rival.name, None, 0, _asking(session, program)))
    return entered


def _answering(session: Session, contexts: Contexts, point: Point) -> Callable[[Exchange], Trial]:
    def answer(exchange: Exchange) -> Trial:
        decoder = contexts.decoder(point)
        trial = timed(decoder, exchange, session.text)
        for name, why in decoder.replicas.lost.items():
            raise LacliError(f"replica {name} has failed, and fewer are another machine: {why}")
        return trial

    return answer


def _asking(session: Session, program: Program | Server) -> Callable[[Exchange], Trial]:
    def answer(exchange: Exchange) -> Trial:
        text = session.text(exchange.prompt, special=True)
        text = with_one_bos(text, session.model.bos(), adds_bos=session.model.adds_bos)
        run = program.answer(text, exchange.prompt, exchange.limit)
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
            rival=run,
        )

    return answer
