"""Judges a difference from plain decoding, rounding or a bug, by a replay in the batches of the mode's run.

The replay decodes the prompt and plain decoding's tokens as one chain, each in the row and cell of the mode's run. It
uses neither the mode's masks nor its cache calls. If the model chooses the mode's token in the replay too, rounding
explains the difference, at any margin; otherwise it is a bug (docs/internals/exactness.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import numpy as np

from lacli.batch import Batch, BatchRow
from lacli.context import Context, Floats
from lacli.engine.engine import Engine, SequenceOptions
from lacli.settings import DecodeSettings

PLAIN = DecodeSettings(mode="plain")

Verdict = Literal["rounding", "unclear", "bug"]


@dataclass(frozen=True)
class Difference:
    """The first difference of an answer from plain decoding's.

    `at`: index among the generated tokens. `plain`, `other`: the token of plain decoding and of the mode, None after
    the end. `margin`: plain decoding's logit of `plain` less its logit of `other`. `rounding`: the largest difference
    of the replay's logits from plain decoding's. `verdict`: unclear if a replay's bits may differ from the run's (GPU).
    """

    at: int
    plain: int | None
    other: int | None
    margin: float
    rounding: float
    verdict: Verdict


def largest_difference(logits: Floats, others: Floats) -> float:
    """Return the largest difference between two arrays of logits; equal infinities do not differ."""
    with np.errstate(invalid="ignore"):
        return float(np.where(logits == others, 0, np.abs(logits - others)).max())


def plain_logits(
    context: Context, prompt: Sequence[int], tokens: Sequence[int], settings: DecodeSettings = PLAIN
) -> Floats:
    """Return plain decoding's logits, (vocabulary,), after `prompt` and its own answer `tokens`; clears the context."""
    given = _Given(tokens)
    for _ in Engine(context, settings).steps(prompt, SequenceOptions(len(tokens) + 1, given)):
        pass
    return given.logits


class _Given:
    """A verifier that chooses the given tokens one by one, and keeps the logits after the last of them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = iter(tokens)
        self.logits: Floats = np.zeros(0)

    def begin(self, text: Sequence[int]) -> None:
        pass

    def choose(self, logits: Floats, guesses: Sequence[int]) -> int:
        token = next(self._tokens, None)
        if token is None:
            self.logits = logits.copy()
            return int(logits.argmax())
        return token


class Mismatch(Exception):
    """The recorded batches cannot have given the accepted tokens: a bug in the mode."""


Passing: Any = object
"""A base class that type checkers take for any protocol."""


class BatchRecorder(Passing):  # type: ignore[misc]
    """A context that forwards all calls to another context, and records the batches since its last clear."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.decoded: list[list[BatchRow]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)

    def decode(self, batch: Batch) -> bool:
        rows = batch.read()
        fits = self.context.decode(batch)
        if fits:
            self.decoded.append(rows)
        return fits

    def clear(self) -> None:
        self.decoded = []
        self.context.clear()


def replay(
    context: BatchRecorder, prompt: Sequence[int], steps: Sequence[Sequence[int]], text: Sequence[int]
) -> Iterator[Floats]:
    """Decode `prompt` and `text` again in the shapes of the context's recorded batches; clears the context.

    Yields the logits, (vocabulary,), after the prompt and after each token of `text`, valid until the next. `steps`:
    the tokens of each recorded step; joined, they begin with `text`. Raises Mismatch if the batches cannot give them.
    """
    recorded, tokens, taken = context.decoded, [*prompt, *text], iter(steps)
    scratch = 1 if context.ids > 1 else 0
    context.clear()
    length = begin = 0
    for rows in recorded:
        past, kept = rows[0].position, [*range(len(rows))]
        if past > length:
            raise Mismatch(f"a recorded batch begins at position {past}, but only {length} tokens have cells")
        outputs = [row.output for row in rows]
        is_step = any(outputs)
        if is_step:
            step, root = next(taken, ()), outputs.index(True)
            end = begin + len(step)
            kept = [*range(root), *accepted_rows(rows, root, text[begin : min(end - 1, len(text))])]
        # The next batch repeats accepted tokens whose cells the mode has freed.
        context.remove(0, past, -1)
        if not context.decode(_lay_out(rows, kept, tokens, scratch)):
            raise Mismatch("no cells are free for a batch that had cells in the recorded run")
        length = past + len(kept)
        if is_step:
            for row in kept[root:]:
                yield context.row_logits(sum(outputs[:row]))
            if len(text) < end:
                return
            begin = end
        context.remove(scratch, 0 if scratch else length, -1)
    raise Mismatch("the answer has more tokens than the recorded steps gave")


def accepted_rows(rows: Sequence[BatchRow], root: int, tokens: Sequence[int]) -> list[int]:
    """Return indices of `rows`: `root` (the input's), then one for each token. Raises Mismatch if one is missing."""
    found = [root]
    for depth, token in enumerate(tokens, start=1):
        place, above = (token, rows[root].position + depth), set(rows[found[-1]].ids)
        below = (at for at, row in enumerate(rows) if row[:2] == place and above.issuperset(row.ids))
        row = next(below, None)
        if row is None:
            raise Mismatch(f"token {token} was accepted at depth {depth}, but no recorded row has it there")
        found.append(row)
    return found


def _lay_out(rows: Sequence[BatchRow], kept: Sequence[int], tokens: Sequence[int], scratch: int) -> Batch:
    """Return a batch of the shape of `rows`. The rows with an index in `kept` become a chain of `tokens` with id 0.

    The other rows have id `scratch`; if this is 0, their positions follow the chain.
    """
    past = rows[0].position
    if past + len(kept) > len(tokens):
        raise Mismatch("a recorded batch has more tokens than the prompt and the answer")
    chain, others = count(past), count(0 if scratch else past + len(kept))
    places = [next(chain) if row in kept else next(others) for row in range(len(rows))]
    return Batch(len(rows)).set_rows(
        [tokens[at] if row in kept else rows[row].token for row, at in enumerate(places)],
        places,
        [[0] if row in kept else [scratch] for row in range(len(rows))],
        [row.output for row in rows],
    )
