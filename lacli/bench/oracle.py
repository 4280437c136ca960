"""The ceiling: how much faster than plain decoding an oracle is that drafts plain's own text.

Every guess of it comes true. It answers beside plain decoding, in turns, as all contenders do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from statistics import mode

import numpy as np

from lacli.auto.step_cost import Cost, StepCost
from lacli.batch import Batch, Ints
from lacli.bench.results import results
from lacli.bench.rounds import Contender, Exchange, Rounds, Trial, timed
from lacli.bench.statistics import Ratio
from lacli.bench.sweep import Point
from lacli.check.replay import Recorder
from lacli.decode import Decoder
from lacli.engine import Engine, Floats, Sampler
from lacli.modes import Mode
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from lacli.verify import SampleAndMatch, Verifier

MANY = 4
"""Repetitions of a benchmark from which on the oracle answers twice: it should not take as long as the modes do."""


class OracleMode(Mode):
    """Drafts the next tokens of a known answer as one chain in sequence 0, in steps of `rows` rows."""

    def __init__(self, answer: Sequence[int], rows: int) -> None:
        self._answer = answer
        self._rows = rows

    def begin(self, text: Sequence[int]) -> None:
        self._prompt = len(text)

    def grow(self, text: Sequence[int], room: int) -> Tree:
        begin = len(text) - self._prompt
        # The answer's last token is the model's own choice, which needs no row.
        end = min(begin + min(self._rows, room), len(self._answer)) - 1
        tree = Tree(text[-1])
        tree.add_path(self._answer[begin:end], 0, Origin.CHAIN)
        return tree


class OracleEngine(Recorder):
    """An engine that computes as another one does, and then chooses what plain decoding chose.

    Rounding may turn a near tie, and what plain said behind it would be no guess at what comes then.
    """

    def __init__(self, engine: Engine, text: Sequence[int]) -> None:
        """`text`: the prompt's and the answer's tokens."""
        super().__init__(engine)
        self._text = np.array(text, np.int32)

    def decode(self, batch: Batch) -> bool:
        self._asked = batch.positions[: len(batch)][batch.outputs[: len(batch)].astype(bool)]
        return self.engine.decode(batch)

    def greedy(self) -> Ints:
        self.engine.greedy()
        # A padding row may lie behind the answer's last token.
        chosen: Ints = self._text[np.minimum(self._asked + 1, len(self._text) - 1)]
        return chosen


class OracleVerifier:
    """A verifier that draws as another one does, and then chooses what plain decoding chose."""

    def __init__(self, verifier: Verifier, answer: Sequence[int]) -> None:
        self._verifier: Verifier | None = verifier
        self._first = verifier
        self._answer = answer

    def begin(self, text: Sequence[int]) -> None:
        self._verifier = self._first
        self._verifier.begin(text)
        self._left = iter(self._answer)

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        token = next(self._left)
        # A sampler that has drawn another token may refuse what comes behind plain's, so it is asked no more.
        if self._verifier and self._verifier.choose(logits, guesses) != token:
            self._verifier = None
        return token


def oracle_in(
    engine: Engine,
    settings: DecodeSettings,
    prompt: Sequence[int],
    answer: Sequence[int],
    rows: int,
    sampler: Sampler | None = None,
) -> Decoder:
    """A decoder that gives plain decoding's `answer` to a prompt in steps of `rows` rows.

    `settings`: what the engine was made for. `sampler`: what the answer was drawn with, or None when greedy.
    """
    verifier = OracleVerifier(SampleAndMatch(sampler), answer) if sampler else None
    asked = engine if verifier else OracleEngine(engine, [*prompt, *answer])
    return Decoder(asked, settings, verifier, make_mode=lambda *_, **__: OracleMode(answer, rows))


@dataclass(frozen=True)
class Ceiling:
    """The most that guesses could reach in one class. `rows`: of an oracle's steps. `ratio`: to plain decoding's speed.

    It is what an oracle reached, and at least 1: plain steps are always possible.
    """

    rows: int
    ratio: Ratio

    def share(self, speedup: float) -> float | None:
        """The part of the possible gain that `speedup` is: 0 for plain's speed or less, 1 for the ceiling.

        None where nothing can be won.
        """
        above = self.ratio.value - 1
        return min(max(speedup - 1, 0.0) / above, 1.0) if above > 0 else None


PLAIN = Ceiling(1, Ratio(1.0))
"""Where not even guesses that all come true are worth their rows."""

Ceilings = Mapping[tuple[int, str], Ceiling]
"""By contender and class."""


@dataclass
class Oracles:
    """The oracle's answers beside plain decoding's; iterate `rounds` to go on by one.

    `number`: the contender whose ceiling it is. `rows`: of its steps, by exchange, as far as it has got.
    """

    rounds: Rounds
    number: int
    rows: Mapping[Exchange, int]

    @property
    def ceilings(self) -> Ceilings:
        """Of what has been answered."""
        return {
            (self.number, result.kind): Ceiling(
                mode(self.rows[each.exchange] for each in result.answered), result.speedup
            )
            if result.speedup.value > 1
            else PLAIN
            for result in results(self.rounds)
            if result.number
        }


@contextmanager
def oracles(
    rounds: Rounds,
    number: int,
    cost: Cost,
    open_engine: Callable[[Point], AbstractContextManager[Engine]],
    sampler: Sampler | None,
    text: Callable[[Sequence[int]], str],
) -> Iterator[Oracles]:
    """An oracle for the exchanges of contender `number`, in a context that is closed in the end.

    `cost`: the measured step costs that choose the rows of its steps. `open_engine`: makes its context. `sampler`: what
    the answers were drawn with, or None when greedy. `text`: detokenizes.
    """
    contender = rounds.contenders[number]
    assert contender.point and cost.staircases, "another program has no oracle, and neither has an unknown machine"
    settings, plain = contender.point.settings, rounds.contenders[contender.baseline]
    most = max(best_rows(each, settings.max_rollback) for each in cost.staircases)
    point = replace(contender.point, settings=chain(settings, most))
    rows: dict[Exchange, int] = {}
    known: dict[Exchange, tuple[int, ...]] = {}
    with open_engine(point) as engine:

        def plainly(exchange: Exchange) -> Trial:
            trial = plain.answer(exchange)
            known[exchange] = trial.ids or ()
            return trial

        def foretold(exchange: Exchange) -> Trial:
            rows[exchange] = min(best_rows(cost.at(len(exchange.prompt)), settings.max_rollback), most)
            decoder = oracle_in(engine, point.settings, exchange.prompt, known[exchange], rows[exchange], sampler)
            return timed(decoder, exchange, text)

        both = [replace(plain, baseline=0, answer=plainly), Contender("oracle", point, 0, foretold)]
        repetitions = 2 if rounds.repetitions >= MANY else 1
        yield Oracles(Rounds(both, rounds.tasks, repetitions, rounds.asker), number, rows)


def best_rows(step_cost: StepCost, max_rollback: int = -1) -> int:
    """The rows of a step that bring most tokens a second if all guesses come true.

    `max_rollback`: as in DecodeSettings.
    """
    possible = [point for point in step_cost.points if max_rollback < 0 or point.rows <= 1 + max_rollback]
    return max(possible, key=lambda point: point.rows / point.every).rows


def chain(settings: DecodeSettings, rows: int) -> DecodeSettings:
    """The settings for steps of one linear draft with `rows` rows."""
    return replace(settings, mode="lookup", lookup_draft=rows - 1) if rows > 1 else replace(settings, mode="plain")
