"""What lies behind a mode's tokens a step, from answers without a clock: how the pool grows and what a match brings,
how Jacobi blocks converge.

Decodes and counts; how it is shown is `details_report.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lacli.bench.convergence import Convergence, convergence
from lacli.bench.pool_growth import (
    Growth,
    Matches,
    PoolGrowth,
    merged,
)
from lacli.bench.rounds import Contender, Exchange
from lacli.check.replay import Recorder
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.settings import DecodeSettings

TOKENS = 512
"""Tokens of an answer here: pools go on growing for a while."""


@dataclass(frozen=True)
class Details:
    """Of one contender. growth, matches: of lookahead; blocks: of jacobi."""

    growth: Sequence[Growth] = ()
    matches: Matches | None = None
    blocks: Convergence | None = None


MakeDecoder = Callable[[Engine, DecodeSettings], Decoder]
OpenEngine = Callable[[Contender], Engine]


def look_inside(
    contenders: Sequence[Contender],
    exchanges: Sequence[Exchange],
    engine: OpenEngine,
    decoder: MakeDecoder,
) -> Iterator[tuple[int, Details]]:
    """Answer one exchange of each class in lookahead and jacobi, and yield what was seen, by contender.

    engine: a contender's context, decoder: a new decoder on a context.
    """
    chosen = list({exchange.task.kind: exchange for exchange in reversed(exchanges)}.values())
    for number, contender in enumerate(contenders):
        if contender.point is None:
            continue
        settings, opened = contender.point.settings, engine(contender)
        longer = [_longer(exchange, opened) for exchange in reversed(chosen)]
        if settings.mode == "lookahead":
            runs = [_growth(decoder(opened, settings), exchange) for exchange in longer]
            matches = sum((run.matches for run in runs), start=Matches())
            yield number, Details(growth=merged(runs), matches=matches)
        elif settings.mode == "jacobi":
            blocks = [_blocks(opened, settings, decoder, exchange) for exchange in longer]
            yield number, Details(blocks=Convergence.sum_of(blocks))


def _longer(exchange: Exchange, engine: Engine) -> Exchange:
    return replace(exchange, limit=min(max(exchange.limit, TOKENS), engine.cells - len(exchange.prompt)))


def _growth(decoder: Decoder, exchange: Exchange) -> PoolGrowth:
    growth = PoolGrowth()
    for step in decoder.generate(exchange.prompt, exchange.limit):
        growth.observe(step, decoder.pool)
    return growth


def _blocks(engine: Engine, settings: DecodeSettings, decoder: MakeDecoder, exchange: Exchange) -> Convergence:
    recorder = Recorder(engine)
    decoding = decoder(recorder, settings)
    for _ in decoding.generate(exchange.prompt, exchange.limit):
        pass
    return convergence(recorder.decoded, decoding.text, settings)
