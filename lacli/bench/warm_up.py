"""The first answers, which do not count: they load what is loaded late, and show how fast everyone is here.

What the pace means for the plan is `plan.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lacli.bench.plan import Pace
from lacli.bench.rounds import Contender, Exchange

QUICK_S = 0.1
"""A first step that takes longer than this says enough; after a quicker one a few more are timed."""

TOKENS = 24


def pace(contenders: Sequence[Contender], exchange: Exchange) -> Pace:
    """Let each contender begin an answer. A step that is timed alone counts as one token, so at its dearest."""
    single = replace(exchange, limit=1)
    first = [contender.answer(single) for contender in contenders]
    more = [
        contender.answer(replace(exchange, limit=min(TOKENS, exchange.limit))) if trial.seconds < QUICK_S else trial
        for contender, trial in zip(contenders, first, strict=True)
    ]
    return Pace(
        token_s=tuple(trial.seconds / max(trial.tokens, 1) for trial in more),
        prompt_s=first[0].prompt_s / len(exchange.prompt),
    )


def hopeless(contenders: Sequence[Contender], seen: Pace) -> list[int]:
    """Contenders that would be slower than plain even if every step brought as many tokens as it can, dearest first."""
    lost = []
    for number, contender in enumerate(contenders):
        if contender.point and contender.mode != "plain":
            most = contender.point.settings.most_tokens
            if seen.token_s[number] > most * seen.token_s[contender.baseline]:
                lost.append(number)
    return sorted(lost, key=lambda number: seen.token_s[number], reverse=True)
