"""What owns memory of a library, threads or files is closed when its `with` block is left."""

from __future__ import annotations

from typing import Self


class Closing:
    """Closed when its `with` block is left; `close` may be called again."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
