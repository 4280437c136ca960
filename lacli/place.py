"""Rows of numbers where llama.cpp keeps them: read in place, never copied as a whole.

Addresses and numpy views only; which rows mean what is `context.py`'s.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt


class RowsInPlace:
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
