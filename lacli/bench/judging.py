"""Why an answer of a benchmark is not plain's: the differences decoded again, without a clock, and judged.

The judge is `judge.py`, the comparison `compare.py`; here is only which answers go to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from lacli.bench.again import Again
from lacli.bench.results import ALL, Answered, Result
from lacli.bench.rounds import Contender
from lacli.bench.sweep import Point
from lacli.check.compare import Comparison, OpenEngine, Run
from lacli.check.judge import InspectableSampler

Judged = dict[tuple[int, int], Run]
"""By contender and exchange."""


def judge(
    readable: Callable[[Point], OpenEngine],
    contenders: Sequence[Contender],
    found: Iterable[Result],
    sampler: InspectableSampler | None,
    *,
    every: bool,
) -> Judged:
    """Decode answers that are not plain's once more, plainly and in their mode's steps, and give each a verdict.

    readable: contexts for a point whose logits can be read. every: all of them, or the first one of each result.
    Other programs' answers cannot be judged.
    """
    judged: Judged = {}
    for result in found:
        point = contenders[result.contender].point
        if result.kind == ALL or point is None:
            continue
        for each in result.parted if every else result.parted[:1]:
            judged[result.contender, each.number] = _judged(readable(point), point, each, sampler)
    return judged


def _judged(open_engine: OpenEngine, point: Point, answered: Answered, sampler: InspectableSampler | None) -> Run:
    plain, exchange = replace(point.settings, mode="plain"), answered.exchange
    trees = answered.other.trees if answered.other else ()
    mode = partial(Again, trees) if trees else None
    with Comparison(open_engine, exchange.limit, plain, sampler) as comparison:
        return comparison.run(point.settings, [exchange.prompt], mode)[0]
