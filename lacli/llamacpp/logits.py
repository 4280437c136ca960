"""Logits in llama.cpp's memory as numpy arrays, and the best tokens of each row."""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lacli.batch import Ints
from lacli.context import Floats, Successors


class LogitsView:
    """A numpy view of `rows` rows of `length` values in llama.cpp's memory, made anew only when llama.cpp moves them.

    Making a view costs as much as reading a row.
    """

    def __init__(self, kind: type[ctypes.c_float] | type[ctypes.c_int32], rows: int, length: int) -> None:
        self._kind, self._rows, self._length = kind, rows, length
        self._address = 0
        self._view = np.zeros((0, length))

    def at(self, pointer: Any) -> npt.NDArray[Any]:
        """The view at `pointer`, (rows, length); only the last batch's rows may be read."""
        address = ctypes.addressof(pointer.contents)
        if address != self._address:
            memory = memoryview((self._kind * (self._rows * self._length)).from_address(address))
            self._view = np.asarray(memory).reshape(self._rows, self._length)
            self._address = address
        return self._view


Number = TypeVar("Number", bound=np.generic)

LARGE, PART = 1 << 16, 1 << 14
"""Logits from which a row is searched in parts, and logits of a part.

The 6 best of 32,000 took 12 us whole and 17 us in parts, of 151,936 50 and 27 us (timeit, an x86 server). After a
decode of the 0.5B shape, whose weights fill the caches, it takes 86 us, and numpy's partition and sort 198.
"""


def ranked(logits: Floats, most: int) -> Successors:
    """Return each row's `most` best tokens at most, best first; of equal logits the lower token first, as an argmax.

    A token with logit -inf means nothing, and may be named twice.
    """
    rows, vocabulary = logits.shape
    shape = rows, min(most, vocabulary)
    found = Successors(np.empty(shape, np.int32), np.empty(shape, np.float32))
    fill = _fill_by_parts if vocabulary >= LARGE else _fill
    for row, tokens, values in zip(logits, *found, strict=True):
        fill(row, tokens, values)
    return found


def _fill(row: Floats, tokens: Ints, values: Floats) -> None:
    """Fill in a row's best token and its logit again and again: an argmax is numpy's fastest call."""
    left = row.copy()
    for place in range(len(tokens)):
        best = tokens[place] = left.argmax()
        values[place] = left[best]
        left[best] = -np.inf


def _fill_by_parts(row: Floats, tokens: Ints, values: Floats) -> None:
    """Do the same in one pass over the row, and one over a part for each token."""
    parts = [row[start : start + PART] for start in range(0, len(row), PART)]
    best = [part.argmax() for part in parts]
    peaks = [part[token] for part, token in zip(parts, best, strict=True)]
    for place in range(len(tokens)):
        values[place] = max(peaks)
        at = peaks.index(values[place])
        tokens[place] = at * PART + best[at]
        left = parts[at] = parts[at].copy()
        left[best[at]] = -np.inf
        best[at] = left.argmax()
        peaks[at] = left[best[at]]


def in_order(found: Successors) -> Successors:
    """Sort each row's tokens, best first; of equal logits the lower token, as an argmax has it."""
    order = np.lexsort((found.tokens, -found.logits))
    return Successors(_at(found.tokens, order), _at(found.logits, order))


def _at(values: npt.NDArray[Number], places: Ints) -> npt.NDArray[Number]:
    """Return each row's values at the columns `places`; numpy's take_along_axis is slower for few rows."""
    found: npt.NDArray[Number] = values[np.arange(len(values))[:, None], places]
    return found
