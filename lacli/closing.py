"""What holds something of llama.cpp's can be used in `with`, which closes it."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Closed when its `with` block is left; `close` may be called again."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
