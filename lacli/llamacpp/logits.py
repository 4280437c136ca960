"""Logits where llama.cpp left them, and the largest of each row."""

from __future__ import annotations

import ctypes
from math import isqrt
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lacli.batch import Ints
from lacli.engine import Floats, Successors


class LogitsView:
    """Rows of one length in llama.cpp's memory, as a numpy view of as many as there can be.

    Making a view costs as much as reading a row; llama.cpp moves the rows only when it needs more room for them.
    """

    def __init__(self, kind: type[ctypes.c_float] | type[ctypes.c_int32], rows: int, length: int) -> None:
        self._kind, self._rows, self._length = kind, rows, length
        self._address = 0
        self._view = np.zeros((0, length))

    def at(self, pointer: Any) -> npt.NDArray[Any]:
        """The view, (rows, length); only rows that the last batch had may be read."""
        address = ctypes.addressof(pointer.contents)
        if address != self._address:
            memory = memoryview((self._kind * (self._rows * self._length)).from_address(address))
            self._view = np.asarray(memory).reshape(self._rows, self._length)
            self._address = address
        return self._view


Number = TypeVar("Number", bound=np.generic)

FEW = 8192
"""Logits that numpy's own partition is quick with."""


def ranked(logits: Floats, most: int) -> Successors:
    """Each row's `most` best tokens, best first, or all there are; of equal logits any.

    Where a logit is -inf its token means nothing.
    """
    return in_order(_unordered(logits, most))


def _unordered(logits: Floats, most: int) -> Successors:
    """The best tokens of each row in no order.

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
    """The same tokens of each row, best first; of equal logits the lower token, as an argmax has it."""
    order = np.lexsort((found.tokens, -found.logits))
    return Successors(_at(found.tokens, order), _at(found.logits, order))


def _largest(values: Floats, most: int) -> Ints:
    """Where each row has its largest values, (rows, most), in no order."""
    most = min(most, values.shape[1])
    places: Ints = np.argpartition(values, -most, axis=1)[:, -most:]
    return places


def _at(values: npt.NDArray[Number], places: Ints) -> npt.NDArray[Number]:
    """Each row's values at these places of it; numpy's take_along_axis is slower for few rows."""
    found: npt.NDArray[Number] = values[np.arange(len(values))[:, None], places]
    return found
