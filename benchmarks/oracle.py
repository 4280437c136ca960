"""An oracle that drafts plain decoding's own text, so that every guess comes true: the most there is to win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lacli.auto.step_cost import StepCost
from lacli.batch import Batch, Ints
from lacli.check.replay import Recorder
from lacli.decode import Decoder
from lacli.engine import Engine, Floats, Sampler
from lacli.modes import Mode
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from lacli.verify import SampleAndMatch, Verifier


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


def best_rows(step_cost: StepCost, max_rollback: int = -1) -> int:
    """The rows of a step that bring most tokens a second if all guesses come true.

    `max_rollback`: as in DecodeSettings.
    """
    possible = [point for point in step_cost.points if max_rollback < 0 or point.rows <= 1 + max_rollback]
    return max(possible, key=lambda point: point.rows / point.every).rows


def chain(settings: DecodeSettings, rows: int) -> DecodeSettings:
    """The settings for steps of one linear draft with `rows` rows."""
    return replace(settings, mode="lookup", lookup_draft=rows - 1) if rows > 1 else replace(settings, mode="plain")
