"""Owners of a library's memory, threads or files, which are closed at the end of a `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """Closed at the end of its `with` block; `close` may be called more than once."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
