"""Measure t(b) on a context: steps of many sizes, in rounds, by a clock.

Rows form a chain in sequence 0, as drafts do. Rounds spread the times of a size over the whole measurement, so what
slows the machine down for a while slows all sizes down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from statistics import median
from time import perf_counter

from lacli.auto.step_cost import MeasurePlan, StepCost
from lacli.batch import Batch, from_tokens
from lacli.context import Context
from lacli.tree import Origin, Tree

SAMPLE = (
    "```python\ndef count_words(text):\n    counts = {}\n    for word in text.split():\n        counts[word] += 1\n"
    "A hash table finds an entry by a number that is computed from its key. List ten things for a long walk: water, "
    'bread, a map ... Turn this into JSON: {"name": "Ada", "age": 36, "town": "London"}. Once upon a time a lighthouse '
    "keeper found a letter in a bottle; der Wind kam von Norden, et la mer montait."
)
"""A varied text to measure on: a mixture of experts uses few of them for a monotonous one."""

MIN_ROUNDS, MAX_ROUNDS = 3, 6
"""Times that a size is visited, unless the machine becomes slower, and at most."""

VISIT = 3
"""Steps of a visit. The first one comes behind another size, and llama.cpp builds its graph anew for it."""

SURVEY, PREFILL = 0.25, 1 / 3
"""Parts of the time in which sizes are tried once, to see how many can be measured, and that a prefill may take."""

DENSE = 16
"""Rows up to which all sizes are measured where there is no time for all: small ones differ most from each other."""


def measure(
    context: Context,
    tokens: Sequence[int],
    plan: MeasurePlan,
    *,
    clock: Callable[[], float] = perf_counter,
    progress: Callable[[str], None] = lambda sentence: None,
) -> tuple[tuple[StepCost, ...], float]:
    """Return the step costs by context, and the seconds that a step costs more behind one of other rows.

    `context`: has room for all that is planned; its cache is cleared. `tokens`: the text of contexts and rows, repeated
    as needed. Contexts and large sizes for which there is no time are left out. `progress`: gets a sentence when
    something slow begins.
    """
    timer, found, changes, end = _Timer(context, tokens, clock), list[StepCost](), list[float](), clock() + plan.seconds
    for left, length in zip(range(len(plan.contexts), 0, -1), plan.contexts, strict=True):
        begin = clock()
        seconds = max(end - begin, 0.0) / left
        if found:
            token_s = found[-1].seconds(found[-1].max_rows) / found[-1].max_rows
            if (length - found[-1].context) * token_s > PREFILL * seconds:
                break
        progress(f"timing steps of 1 to {plan.rows[-1]} rows behind {length} tokens")
        timer.prefill(length)
        times, first = timer.times(plan.rows, begin + seconds)
        measured = {size: median(each) for size, each in times.items()}
        found.append(StepCost(length, measured))
        changes += [median(first[size]) - seconds for size, seconds in measured.items()]
    return tuple(found), max(median(changes), 0.0)


class _Timer:
    """Times steps behind a context that stays as it is."""

    def __init__(self, context: Context, tokens: Sequence[int], clock: Callable[[], float]) -> None:
        self._context, self._tokens, self._clock = context, cycle(tokens), clock
        self._batch, self._past = Batch(context.batch_rows), 0
        context.clear()

    def prefill(self, length: int) -> None:
        """Decode tokens until there are `length`."""
        while more := min(length - self._past, self._context.batch_rows, self._context.prefill_rows):
            fits = self._context.decode(from_tokens(list(islice(self._tokens, more)), self._past))
            assert fits, "the context has room for the plan"
            self._past += more

    def times(self, sizes: Sequence[int], end: float) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Return the seconds of steps by rows, of as many sizes as can be timed often enough by `end`.

        Beside them those of steps that came behind other rows.
        """
        begin, survey = self._clock(), dict[int, float]()
        for size in _doubled(sizes):
            if len(survey) > 1 and self._clock() > begin + SURVEY * (end - begin):
                break
            survey[size] = self._step(size)
        expected = StepCost(self._past, survey)
        chosen = _chosen(sizes, expected, end - self._clock())
        times, first = [{size: list[float]() for size in chosen} for _ in range(2)]
        round_s = VISIT * sum(map(expected.seconds, chosen))
        for number in range(MAX_ROUNDS):
            if number and self._clock() + round_s > end:
                break
            for size in chosen:
                first[size].append(self._step(size))
                times[size] += [self._step(size) for _ in range(VISIT - 1)]
        return times, first

    def _step(self, size: int) -> float:
        """Return the seconds of decoding `size` rows and choosing their tokens."""
        tree = Tree(next(self._tokens))
        tree.add_path(list(islice(self._tokens, size - 1)), 0, Origin.CHAIN)
        batch = self._batch.set_tree(tree, self._past)
        begin = self._clock()
        fits = self._context.decode(batch)
        self._context.greedy()
        seconds = self._clock() - begin
        assert fits, "the context has room for the plan"
        self._context.remove(0, self._past, -1)
        return seconds


def _doubled(sizes: Iterable[int]) -> list[int]:
    """Return the sizes that are at least twice the one before, and the largest."""
    found = list[int]()
    for size in (ordered := sorted(sizes)):
        if not found or size >= 2 * found[-1] or size == ordered[-1]:
            found.append(size)
    return found


def _chosen(sizes: Sequence[int], survey: StepCost, seconds: float) -> list[int]:
    """Return the sizes that can be visited MIN_ROUNDS times: all, or fewer of the large ones, or the smallest."""
    known = [size for size in sizes if size <= survey.max_rows]
    doubled = _doubled(known)
    smallest = [doubled[:count] for count in range(len(doubled), 2, -1)]
    for chosen in (known, [size for size in known if size <= DENSE or size in doubled], *smallest):
        if MIN_ROUNDS * VISIT * sum(map(survey.seconds, chosen)) <= seconds:
            return chosen
    return doubled[:2]
