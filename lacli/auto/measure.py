"""Measure t(b) on an engine: steps of many sizes, in rounds, by a clock.

Rows form a chain in sequence 0, as drafts do. The times of a size are spread over the whole measurement, so that what
slows the machine down for a while slows all sizes down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import inf
from statistics import median, quantiles
from time import perf_counter

from lacli.auto.step_cost import Point, StepCost
from lacli.batch import Batch, from_tokens
from lacli.context import Context
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree

ROWS = (*range(1, 21), 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
"""Sizes of steps. All up to 20: where kernels take rows by four, 13 cost more than 16 (0.5B Q4_0, AVX-512)."""

CONTEXTS = (64, 2048)
"""Tokens before the steps: a short and a long text."""

SECONDS = 20.0

SAMPLE = (
    "Write a Python function that counts the words of a text:\n```python\ndef count_words(text):\n    counts = {}\n"
    "    for word in text.split():\n        counts[word] = counts.get(word, 0) + 1\n    return counts\n```\n"
    "A hash table finds an entry by a number that is computed from its key. List ten things for a long walk: water, "
    'bread, a map ... Turn this into JSON: {"name": "Ada", "age": 36, "town": "London"}. Once upon a time a lighthouse '
    "keeper found a letter in a bottle; der Wind kam von Norden, et la mer montait."
)
"""A varied text to measure on: a mixture of experts uses few of them for a monotonous one."""

MIN_ROUNDS = 3
"""Times of a size at least, or its median would be any one of them."""

MIN_SIZES = 4
"""Sizes that are timed however late it is: below them nothing says what a row costs."""

SURVEY = 0.25
"""Part of the time in which sizes are tried once, to see how many of them can be measured."""

LADDER = ((32, 128), (16, 128), (8, 8), (4, 4), (1, 1))
"""Choices of sizes for less and less time: all up to the first number, above it each that is twice the one before.

The largest of these are left out, but none up to the second number.
"""

FILLING = 1 / 3
"""Part of a context's time that its prefill may take."""

WARMING, SINGLES = 2, 3
"""Single-row steps of one visit, untimed and timed; the first comes behind another size. Larger ones are timed once.

llama.cpp is faster when a step has the same shape as the one before, as in plain decoding.
"""


@dataclass(frozen=True)
class MeasurePlan:
    """The contexts (tokens) and step sizes (rows, a single one always included) to measure in about `seconds` s.

    `rounds`: times of each size at most, 0 for as many as fit.
    """

    contexts: tuple[int, ...] = CONTEXTS
    rows: tuple[int, ...] = ROWS
    seconds: float = SECONDS
    rounds: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({1, *self.rows}))


@dataclass(frozen=True)
class Measurement:
    """The step costs by context, and sentences about what was left out.

    `stuck`: the cache cannot forget a row, so nothing could be measured. `stopped`: Ctrl-C ended it early. `is_cut`: it
    was not worthwhile to go on.
    """

    staircases: tuple[StepCost, ...]
    notes: tuple[str, ...] = ()
    stuck: bool = False
    stopped: bool = False
    is_cut: bool = False


def engine_settings(rows: int, back: int = -1) -> DecodeSettings:
    """Return settings for an engine with one sequence and the logits of `rows` rows; `back` as in DecodeSettings."""
    return (
        DecodeSettings(mode="lookup", lookup_draft=rows - 1, max_rollback=back)
        if rows > 1
        else DecodeSettings(mode="plain")
    )


def drift(context: int) -> int:
    """Return by how many tokens a text of `context` may grow while it is measured, if each step keeps its first row."""
    return max(64, context // 4)


def measure(
    engine: Context,
    tokens: Sequence[int],
    plan: MeasurePlan | None = None,
    *,
    clock: Callable[[], float] = perf_counter,
    progress: Callable[[str], None] = lambda sentence: None,
    worthwhile: Callable[[], bool] = lambda: True,
) -> Measurement:
    """Return the step costs of an engine made with `engine_settings`, whose cache is cleared.

    `tokens`: the text of contexts and rows, repeated as needed. `progress`: gets a sentence when something slow begins.
    `worthwhile`: asked once the sizes of a context were tried and behind each step of the rounds; after a False it ends
    with those. Ctrl-C ends it with
    what was measured; raises KeyboardInterrupt before anything was.
    """
    plan = plan or MeasurePlan()
    end = clock() + plan.seconds
    sizes, contexts, notes, cut = _fitting(plan, engine)
    bench = _Bench(engine, tokens, clock, worthwhile)
    found: list[StepCost] = []
    for left, context in zip(range(len(contexts), 0, -1), contexts, strict=True):
        begin = clock()
        seconds = max(end - begin, 0.0) / left
        wanted, context = context, _affordable(found, context, FILLING * seconds)
        if context < wanted:
            cut = f"contexts above {context} tokens take too long for --seconds {plan.seconds:g}"
        if found and context == found[-1].context:
            break
        progress(f"timing steps of 1 to {sizes[-1]} rows behind {context} tokens")
        try:
            if not bench.fill(context, sizes[-1]):
                return Measurement((), stuck=True)
            staircase = bench.staircase(sizes, begin + seconds, plan.rounds or inf)
        except KeyboardInterrupt:
            if not found:
                raise
            bench.stopped = True
            break
        found.append(staircase)
        if bench.is_cut:
            return Measurement(tuple(found), is_cut=True)
        if len(staircase.points) < len(sizes):
            notes.append(_left_out(staircase, sizes, plan.seconds))
        if bench.stopped:
            break
    if bench.stopped:
        cut = ""
        notes.append("stopped before everything was measured, so these numbers are not kept")
    return Measurement(tuple(found), tuple(filter(None, [*notes, cut])), stopped=bench.stopped)


@dataclass
class _Times:
    """Seconds of one size so far, with every row's logits read and with the first row's only.

    `changed`: of the first step of each visit, which comes behind one of another number of rows.
    """

    every: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)

    def point(self, rows: int) -> Point:
        every = median(self.every)
        low, _, high = quantiles(self.every, n=4, method="inclusive") if len(self.every) > 1 else (every,) * 3
        # Reading fewer choices takes no longer; a few times on a busy machine can look as if it did.
        first = min(median(self.first), every)
        spread = (high - low) / every if every else 0.0
        return Point(rows, every, first, spread, len(self.every), median(self.changed))


class _Bench:
    """Times steps behind a context that stays as it is.

    `stopped`: by Ctrl-C, once each size was timed. `is_cut`: it was not worthwhile to go on.
    """

    def __init__(
        self, engine: Context, tokens: Sequence[int], clock: Callable[[], float], worthwhile: Callable[[], bool]
    ) -> None:
        self._engine = engine
        self._worthwhile = worthwhile
        self._tokens = cycle(tokens)
        self._clock = clock
        self._past = 0
        self._batch = Batch(engine.batch_rows)
        self._context = 0
        self.stopped = self.is_cut = False
        engine.clear()

    def fill(self, context: int, largest: int) -> bool:
        """Prefill `context` tokens for steps of up to `largest` rows; False if the cache cannot take back guesses."""
        self._context = context
        self._refill()
        rows = min(2, largest)
        self._decode(self._tree(rows, every=False))
        return self._go_back()

    def staircase(self, sizes: Sequence[int], end: float, most: float) -> StepCost:
        """Measure as many of the sizes as can be timed often enough until the clock shows `end`, in `most` rounds."""
        begin = self._clock()
        survey = self._survey(sizes, begin + SURVEY * (end - begin))
        if not self._worthwhile():
            self.is_cut = True
            return survey
        chosen = _chosen(sizes, survey, end - self._clock())
        times = {size: _Times() for size in chosen}
        cost, rounds = sum(_visit_seconds(survey, size) for size in chosen), 0
        late = end + (end - begin)
        # Two rounds show how much the times vary.
        while rounds < 2 or self._clock() < late:
            if rounds >= MIN_ROUNDS and (rounds >= most or self._clock() + cost > end):
                break
            try:
                for place, size in enumerate(chosen):
                    if not rounds and place >= MIN_SIZES and self._clock() > late:
                        # The machine became slower after the survey.
                        chosen = chosen[:place]
                        break
                    self._visit(size, times[size])
                    if not self._worthwhile():
                        self.is_cut = True
                        return survey
            except KeyboardInterrupt:
                if not rounds:
                    raise
                self.stopped = True
                break
            rounds += 1
        return StepCost(self._context, tuple(times[size].point(size) for size in chosen))

    def _survey(self, sizes: Sequence[int], end: float) -> StepCost:
        """Time one step of each doubled size, small ones first, until the clock shows `end`."""
        points: list[Point] = []
        for size in _doubled(sizes):
            if len(points) > 1 and self._clock() > end:
                break
            seconds = self._step(size, every=True)
            points.append(Point(size, seconds, seconds))
        return StepCost(self._context, tuple(points))

    def _visit(self, size: int, times: _Times) -> None:
        times.changed.append(self._step(size, every=True))
        if size == 1:
            taken = [self._step(1, every=True) for _ in range(WARMING - 1 + SINGLES)][WARMING - 1 :]
            times.every += taken
            times.first += taken
            return
        times.every.append(self._step(size, every=True))
        times.first.append(self._step(size, every=False))

    def _step(self, size: int, *, every: bool) -> float:
        """Return the seconds of decoding `size` rows and reading their choices."""
        room = min(self._engine.cells - self._past, self._engine.batch_rows)
        if self._past > self._context + drift(self._context) or room < size:
            self._refill()
        seconds = self._decode(self._tree(size, every=every))
        self._go_back()
        return seconds

    def _refill(self) -> None:
        if self._past > self._context:
            self._engine.clear()
            self._past = 0
        tokens = list(islice(self._tokens, self._context - self._past))
        most = min(self._engine.batch_rows, self._engine.prefill_rows)
        for begin in range(0, len(tokens), most):
            piece = tokens[begin : begin + most]
            fits = self._engine.decode(from_tokens(piece, self._past))
            assert fits, "contexts are chosen so that they fit"
            self._past += len(piece)

    def _go_back(self) -> bool:
        """Take the last step back; a recurrent state, which is kept behind each row, goes back behind its first row."""
        if self._engine.remove(0, self._past, -1):
            return True
        self._past += 1
        return self._engine.remove(0, self._past, -1)

    def _tree(self, size: int, *, every: bool) -> Tree:
        tree = Tree(next(self._tokens))
        tree.add_path(list(islice(self._tokens, size - 1)), 0, Origin.CHAIN, verify=every)
        return tree

    def _decode(self, tree: Tree) -> float:
        batch = self._batch.set_tree(tree, self._past)
        begin = self._clock()
        fits = self._engine.decode(batch)
        self._engine.greedy()
        seconds = self._clock() - begin
        assert fits, "contexts are chosen so that the steps fit"
        return seconds


def _doubled(sizes: Iterable[int]) -> Iterator[int]:
    """Yield the sizes that are at least twice the one before, and the largest."""
    last = 0
    for size in (ordered := sorted(sizes)):
        if size >= 2 * last or size == ordered[-1]:
            yield size
            last = size


def _visit_seconds(survey: StepCost, size: int) -> float:
    return (WARMING + SINGLES if size == 1 else 3) * survey.seconds(size)


def _chosen(sizes: Sequence[int], survey: StepCost, seconds: float) -> list[int]:
    """Return the sizes that can be timed often enough: all, or fewer of the large ones, or the smallest.

    Small sizes differ most from their neighbours, and on a slow machine they are those that can pay.
    """

    def fit(chosen: Sequence[int]) -> bool:
        return MIN_ROUNDS * sum(_visit_seconds(survey, size) for size in chosen) <= seconds

    known = [size for size in sizes if size <= survey.max_rows]
    doubled, chosen = list(_doubled(known)), known
    for dense, largest in LADDER:
        if fit(chosen):
            break
        chosen = [size for size in known if size <= dense or size in doubled]
        while chosen[-1] > max(largest, *known[:2]) and not fit(chosen):
            chosen.pop()
    return chosen


def _affordable(found: Sequence[StepCost], context: int, seconds: float) -> int:
    """Return the context, or what can be prefilled of it in `seconds` at the speed of the largest measured step.

    If that is hardly longer than the last one measured, the last one is returned.
    """
    if not found:
        return context
    last = found[-1]
    possible = last.context + int(seconds / (last.seconds(last.max_rows, 1) / last.max_rows))
    if possible >= context:
        return context
    return possible if possible >= 2 * last.context else last.context


def _fitting(plan: MeasurePlan, engine: Context) -> tuple[list[int], list[int], list[str], str]:
    """Return the sizes and contexts that the engine has room for, sentences about other sizes and one about contexts.

    If not all of both fits, half of the cells are for the steps.
    """
    longest, cells, notes, cut = max(plan.contexts), engine.cells, list[str](), ""
    room = max(cells // 2, cells - longest)
    sizes = [size for size in plan.sizes if size <= min(engine.batch_rows, room)]
    if dropped := plan.sizes[len(sizes) :]:
        counts = f"{dropped[0]} to {dropped[-1]}" if len(dropped) > 1 else f"{dropped[0]}"
        at_most = f"a batch takes {engine.batch_rows} (-b)"
        if room < engine.batch_rows:
            at_most = f"a context of {cells} cells (-c) has room for {room}"
        notes.append(f"steps of {counts} rows were left out: {at_most}")
    most = cells - sizes[-1]
    if longest > most:
        step = "a step of one row" if sizes[-1] == 1 else f"a step of {sizes[-1]} rows"
        cut = f"the longest context measured has {most:,} tokens: {step} behind them fills -c {cells}"
    return sizes, sorted({min(context, most) for context in plan.contexts}), notes, cut


def _left_out(staircase: StepCost, sizes: Sequence[int], seconds: float) -> str:
    return (
        f"behind {staircase.context} tokens only {len(staircase.points)} of {len(sizes)} sizes, up to "
        f"{staircase.max_rows} rows, were measured; --seconds {3 * seconds:g} measures more"
    )
