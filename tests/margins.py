"""Whether a text that parts from plain's was rounded another way or is wrong: the check of exactness on real models.

One row and many rows take different kernels, and a tree leaves holes among the cells, so sums run in another order
and a near tie may fall the other way. How much that is worth in logits is measured on plain's own tokens: they are
decoded again in the mode's batch shapes, each at the row where the mode had it, so in the same cells too. This
replay lies in sequence 0; what else the mode's batches held goes along in a sequence that shares no cell with it.
It needs neither the mode's masks nor its cache calls, so a mistake in those cannot pass for rounding: the replay
stays as near to plain as before, and plain's margin at the first difference is larger than rounding explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, pairwise

import numpy as np
import numpy.typing as npt

from lacli.batch import Batch, from_tree
from lacli.decode import Decoder
from lacli.llama import LlamaEngine, LlamaModel
from lacli.settings import DecodeSettings, ModelSettings
from lacli.stats import Step
from lacli.tree import Tree

Logits = npt.NDArray[np.float32]

PLAIN = DecodeSettings(mode="plain")


@dataclass(frozen=True)
class Rows:
    """What one decoded batch held, row by row; outputs: whether the row's logits were wanted."""

    tokens: list[int]
    positions: list[int]
    sequences: list[list[int]]
    outputs: list[bool]

    @classmethod
    def of(cls, batch: Batch) -> Rows:
        """A copy of a batch's rows: the batch itself is filled again for the next step."""
        rows = len(batch)
        ids = iter(batch.sequence_ids.tolist())
        counts = batch.sequence_counts[:rows].tolist()
        return cls(
            tokens=batch.tokens[:rows].tolist(),
            positions=batch.positions[:rows].tolist(),
            sequences=[[next(ids) for _ in range(owners)] for owners in counts],
            outputs=batch.outputs[:rows].astype(bool).tolist(),
        )

    def batch(self) -> Batch:
        """A batch of these rows. It is made as if they were a tree: nothing there asks for a real one."""
        tree = Tree(self.tokens[0])
        tree.tokens, tree.depths, tree.sequences = self.tokens, self.positions, self.sequences
        tree.verified = self.outputs
        return from_tree(tree, past=0)


class RecordedEngine(LlamaEngine):
    """A LlamaEngine that remembers the batches it has decoded since it was last cleared."""

    def clear(self) -> None:
        self.decoded: list[Rows] = []
        super().clear()

    def decode(self, batch: Batch) -> bool:
        fits = super().decode(batch)
        if fits:
            self.decoded.append(Rows.of(batch))
        return fits


@dataclass(frozen=True)
class Difference:
    """Where a text first parts from plain's.

    at: index among the generated tokens. plain, other: the two tokens, None where a text has ended. margin: how far
    plain's logit of its token lies above its logit of the other one (the top-2 margin, or more if the other is not
    even the runner-up). rounding: the largest difference between plain's logits there and those of the replay.
    """

    at: int
    plain: int | None
    other: int | None
    margin: float
    rounding: float

    @property
    def bug(self) -> bool:
        """Each of the two logits may be off by the rounding, towards each other; more than that is a mistake."""
        return self.margin > 2 * self.rounding


def first_difference(
    engine: RecordedEngine,
    plain_engine: LlamaEngine,
    prompt: Sequence[int],
    expected: Sequence[int],
    steps: Sequence[Sequence[int]],
) -> Difference | None:
    """Compare what a mode has just generated with plain's text; None where they are equal.

    engine: it decoded the mode's steps since its last clear, and they are replayed on it. steps: the tokens that
    each step brought. expected: plain's tokens for the prompt under the same limit, made on an engine like
    `plain_engine`. Both engines are cleared.
    """
    tokens = [token for step in steps for token in step]
    if tokens == list(expected):
        return None
    shared = min(len(tokens), len(expected))
    at = next((index for index in range(shared) if tokens[index] != expected[index]), shared)
    if at == shared:
        longer = tokens if len(tokens) > len(expected) else expected
        plain, other = (None, longer[at]) if longer is tokens else (longer[at], None)
        return Difference(at, plain, other, margin=float("inf"), rounding=0.0)
    replayed = replay(engine, steps, expected[:at])
    logits = plain_logits(plain_engine, prompt, expected[: at + 1])
    return Difference(
        at=at,
        plain=expected[at],
        other=tokens[at],
        margin=float(logits[expected[at]] - logits[tokens[at]]),
        rounding=float(np.abs(logits - replayed).max()),
    )


def plain_logits(engine: LlamaEngine, prompt: Sequence[int], tokens: Sequence[int]) -> Logits:
    """The logits, (vocabulary,), from which plain decoding chooses the last of its first tokens."""
    again = [token for step in Decoder(engine, PLAIN).generate(prompt, len(tokens)) for token in step.tokens]
    assert again == list(tokens), "plain decoding does not repeat itself"
    logits: Logits = engine.logits()[0].copy()
    return logits


def replay(engine: RecordedEngine, steps: Sequence[Sequence[int]], text: Sequence[int]) -> Logits:
    """The logits, (vocabulary,), after `text` when it is decoded in the shapes of the engine's recorded batches.

    steps: the tokens that each recorded step brought; `text` is a part of them from the first on.
    """
    prefill = [rows for rows in engine.decoded if not any(rows.outputs)]
    recorded = [rows for rows in engine.decoded if any(rows.outputs)]
    engine.clear()
    for rows in prefill:
        assert engine.decode(rows.batch())
    begins = accumulate((len(step) for step in steps), initial=0)
    for (begin, end), rows in zip(pairwise(begins), recorded, strict=True):
        kept = accepted_rows(rows, text[begin : min(end - 1, len(text))])
        alone, scratch = _beside(rows, kept, engine.sequences)
        assert engine.decode(alone.batch())
        if len(text) < end:
            logits: Logits = engine.logits()[sum(rows.outputs[: kept[-1]])].copy()
            return logits
        assert engine.remove(scratch, 0 if scratch else rows.positions[0] + len(kept), -1)
    raise AssertionError("the text is longer than what the steps brought")


def accepted_rows(rows: Rows, tokens: Sequence[int]) -> list[int]:
    """The rows of a step's input and of the tokens accepted below it, each found below the one before."""
    found = [0]
    for depth, token in enumerate(tokens, start=1):
        position, above = rows.positions[0] + depth, set(rows.sequences[found[-1]])
        here = zip(rows.positions, rows.tokens, rows.sequences, strict=True)
        below = (row for row, (*place, ids) in enumerate(here) if place == [position, token] and above.issuperset(ids))
        row = next(below, None)
        assert row is not None, f"token {token} was accepted {depth} deep, and no row has it there"
        found.append(row)
    return found


def _beside(rows: Rows, kept: Sequence[int], sequences: int) -> tuple[Rows, int]:
    """The same rows with the kept ones as a chain in sequence 0, and the sequence that all the others went to.

    That is one of their own, or sequence 0 behind the chain where the context has no other.
    """
    scratch = 1 if sequences > 1 else 0
    past = rows.positions[0]
    chain, others = count(past), count(0 if scratch else past + len(kept))
    positions = [next(chain) if row in kept else next(others) for row in range(len(rows.tokens))]
    ids = [[0] if row in kept else [scratch] for row in range(len(rows.tokens))]
    return replace(rows, positions=positions, sequences=ids), scratch


@dataclass(frozen=True)
class Run:
    """One answer of a mode beside plain's. calls: llama_decode calls of it, those of the prompt included."""

    prompt: tuple[int, ...]
    steps: tuple[Step, ...]
    calls: int
    difference: Difference | None

    @property
    def tokens(self) -> list[int]:
        """The generated ids, an end token included."""
        return [token for step in self.steps for token in step.tokens]


class Comparison:
    """Answers prompts on one model, plainly and in other modes, and compares them; close it before the model."""

    def __init__(self, model: LlamaModel, settings: ModelSettings, limit: int) -> None:
        self.model = model
        self.settings = settings
        self.limit = limit
        self.plain_engine = LlamaEngine(model, settings, PLAIN)
        self._plain: dict[tuple[int, ...], list[int]] = {}

    def plain(self, prompt: Sequence[int]) -> list[int]:
        """Plain decoding's tokens; a prompt is decoded once."""
        key = tuple(prompt)
        if key not in self._plain:
            steps = Decoder(self.plain_engine, PLAIN).generate(prompt, self.limit)
            self._plain[key] = [token for step in steps for token in step.tokens]
        return self._plain[key]

    def run(self, settings: DecodeSettings, prompts: Sequence[Sequence[int]]) -> list[Run]:
        """Each prompt answered by a decoder of its own, on one engine."""
        with RecordedEngine(self.model, self.settings, settings) as engine:
            return [self.one(Decoder(engine, settings), engine, prompt) for prompt in prompts]

    def one(self, decoder: Decoder, engine: RecordedEngine, prompt: Sequence[int]) -> Run:
        """One prompt answered by a decoder that may have answered others before."""
        calls = engine.calls
        steps = tuple(decoder.generate(prompt, self.limit))
        calls = engine.calls - calls
        tokens = [step.tokens for step in steps]
        difference = first_difference(engine, self.plain_engine, prompt, self.plain(prompt), tokens)
        return Run(tuple(prompt), steps, calls, difference)

    def close(self) -> None:
        self.plain_engine.close()


def bugs(runs: Sequence[Run]) -> list[Difference]:
    """The differences from plain's text that rounding does not explain."""
    return [run.difference for run in runs if run.difference and run.difference.bug]
