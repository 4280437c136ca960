"""The first answers, which do not count: they load what is loaded late, and show how fast everyone is here.

What the pace means for the plan is `plan.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from lacli.bench.plan import Speed
from lacli.bench.rounds import Contender, Exchange

QUICK_S = 0.1
"""A step that takes longer than this says enough; after a quicker one a few more are timed."""

TOKENS = 24


def speed_of(contender: Contender, exchange: Exchange) -> Speed:
    """Let a contender begin an answer. The first step of all is not timed: it may load kernels and make buffers.

    A step that is timed alone counts as one token, so at its dearest. Raises what the contender raises.
    """
    contender.answer(replace(exchange, limit=1))
    speed = _timed(contender, replace(exchange, limit=1))
    return speed if speed.step_s > QUICK_S else _timed(contender, replace(exchange, limit=min(TOKENS, exchange.limit)))


def hopeless(contenders: Sequence[Contender], speeds: Sequence[Speed]) -> list[int]:
    """Contenders that would be slower than plain even if every step brought as many tokens as it can, dearest first."""
    lost = []
    for number, contender in enumerate(contenders):
        if contender.point and contender.mode != "plain":
            most = contender.point.settings.most_tokens
            if speeds[number].step_s > most * speeds[contender.baseline].step_s:
                lost.append(number)
    return sorted(lost, key=lambda number: speeds[number].step_s, reverse=True)


def _timed(contender: Contender, exchange: Exchange) -> Speed:
    begin = perf_counter()
    trial = contender.answer(exchange)
    start = perf_counter() - begin - trial.seconds - trial.prompt_s
    return Speed(
        token_s=trial.seconds / max(trial.tokens, 1),
        step_s=trial.seconds / max(trial.step_count, 1),
        prompt_s=trial.prompt_s / len(exchange.prompt),
        start_s=max(start, 0.0),
    )
