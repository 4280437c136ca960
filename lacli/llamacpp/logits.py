"""Logits in llama.cpp's memory as numpy arrays, and the best tokens of each row."""

from __future__ import annotations

import ctypes
from math import isqrt
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lacli.batch import Ints
from lacli.engine import Floats, Successors


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

FEW = 8192
"""Logits up to which numpy's partition is no slower than the fold below: for the 8 best of one row 14 and 15 us, of a
row of 32,000 39 and 20 us (timeit, an x86 server)."""


def ranked(logits: Floats, most: int) -> Successors:
    """Each row's `most` best tokens at most, best first; of equal logits any. A token with logit -inf means nothing."""
    return in_order(_unordered(logits, most))


def _unordered(logits: Floats, most: int) -> Successors:
    """The `most` best tokens of each row, unordered.

    A large row is folded into a narrow one of maxima, whose best columns hold all of the row's best tokens: one pass
    over the logits, where a partition takes several.
    """
    rows, vocabulary = logits.shape
    width = 1 << isqrt(most * vocabulary).bit_length()
    if logits.size <= FEW or vocabulary < 2 * width:
        tokens = _largest(logits, most)
        return Successors(tokens, _at(logits, tokens))
    whole = vocabulary // width * width
    rest = vocabulary - whole
    peaks = logits[:, :whole].reshape(rows, -1, width).max(axis=1)
    np.maximum(peaks[:, :rest], logits[:, whole:], out=peaks[:, :rest])
    columns = _largest(peaks, most)
    tokens = (columns[:, None, :] + np.arange(0, vocabulary, width)[:, None]).reshape(rows, -1)
    there = np.minimum(tokens, vocabulary - 1)
    values = _at(logits, there)
    values[tokens != there] = -np.inf
    best = _largest(values, most)
    return Successors(_at(there, best), _at(values, best))


def in_order(found: Successors) -> Successors:
    """Sort each row's tokens, best first; of equal logits the lower token, as an argmax has it."""
    order = np.lexsort((found.tokens, -found.logits))
    return Successors(_at(found.tokens, order), _at(found.logits, order))


def _largest(values: Floats, most: int) -> Ints:
    """Columns of each row's `most` largest values, (rows, most), unordered."""
    most = min(most, values.shape[1])
    places: Ints = np.argpartition(values, -most, axis=1)[:, -most:]
    return places


def _at(values: npt.NDArray[Number], places: Ints) -> npt.NDArray[Number]:
    """Each row's values at the columns `places`; numpy's take_along_axis is slower for few rows."""
    found: npt.NDArray[Number] = values[np.arange(len(values))[:, None], places]
    return found
