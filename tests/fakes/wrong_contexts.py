"""Toy contexts with a mistake in a mask or a cache call, and others that only round, for tests of checks."""

from __future__ import annotations

import zlib
from contextlib import suppress

import numpy as np

from lacli.batch import Batch
from lacli.context import Floats
from lacli.errors import BatchRefused
from tests.fakes.context import FakeContext, RuleBroken


class LikeLlama(FakeContext):
    """A toy context that refuses a broken rule as llama.cpp's context does."""

    def decode(self, batch: Batch) -> bool:
        try:
            return super().decode(batch)
        except RuleBroken as error:
            raise BatchRefused(f"llama_decode failed (-1): {error}") from error

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        # llama.cpp gives no error for a cell that exists already.
        with suppress(RuleBroken):
            super().copy(source, target, start, end)


class WrongMask(LikeLlama):
    """Each row also sees the first token at its position, of any sequence."""

    def _visible(self, sequence: int, position: int) -> list[tuple[int, int]]:
        seen = super()._visible(sequence, position)
        here = ((cell.position, cell.token) for cell in self._cells if cell.position == position)
        return sorted({*seen, *list(here)[:1]})


class LateCopy(LikeLlama):
    """Copies begin one position too late."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        super().copy(source, target, start + 1, end)


class LateRemove(LikeLlama):
    """Removes begin one position too late."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return super().remove(sequence, start + 1, end)


WRONG = (WrongMask, LateCopy, LateRemove)


class Rounding(LikeLlama):
    """Logits depend a little on the batch's number of rows, and the second choice is often close."""

    noise = 0.02
    gap = 0.0

    def decode(self, batch: Batch) -> bool:
        self.now = len(batch)
        return super().decode(batch)

    def logits_after(self, context: list[tuple[int, int]]) -> Floats:
        logits = super().logits_after(context)
        best = int(logits.argmax())
        logits[(best + 1) % self.vocabulary] = 3 - self.gap - 0.015 * (len(context) % 3)
        if self.now > 1:
            random = np.random.default_rng(zlib.crc32(repr((self.now, context)).encode()))
            logits += random.uniform(-self.noise, self.noise, len(logits))
        return logits


class Tied(Rounding):
    """The second choice is often close, but logits do not depend on the batch."""

    noise = 0.0


class FaintMask(Rounding):
    """The mistake of WrongMask, but it changes logits by little more than rounding does."""

    noise = 0.04
    gap = 0.06

    def _visible(self, sequence: int, position: int) -> list[tuple[int, int]]:
        seen = super()._visible(sequence, position)
        first = next((cell.token for cell in self._cells if cell.position == position), None)
        self.is_wrong = first is not None and (position, first) not in seen
        return seen

    def logits_after(self, context: list[tuple[int, int]]) -> Floats:
        logits = super().logits_after(context)
        if self.is_wrong:
            logits[int(logits.argmax())] -= 0.15
        return logits
