"""llama.cpp's log: its last error lines for our messages, the sizes of its buffers, all of it on stderr when asked for.

Lines in, sentences out; `llama.py` connects it to the library. Also what a C function prints past the log.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile

from lacli.amounts import printable

ERROR, CONTINUE = 4, 5
"""ggml's levels; llama-cpp-python's own table has older numbers and hides errors."""

BUFFER = re.compile(r"(?P<device>\S+) +(?P<kind>\w+) buffer size = +(?P<mebibytes>[\d.]+) MiB")

CELLS = re.compile(r"kv_cache\S*: size = +(?P<mebibytes>[\d.]+) MiB")
"""Said of each part of a cache, also when its buffer is only simulated and has no size."""


class Log:
    """Receives llama.cpp's log; `verbose` passes it on to stderr.

    callbacks: what the library calls; it keeps only their addresses, so somebody must keep them alive. taken: MiB by
    kind ("KV", "compute", ..) that `take_buffers` summed up last.
    """

    def __init__(self) -> None:
        self.callbacks: list[object] = []
        self.verbose = False
        self.taken: dict[str, float] = {}
        self._errors: deque[str] = deque(maxlen=3)
        self._level = 0
        self._buffers: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._cells = 0.0

    def receive(self, level: int, text: bytes) -> None:
        """One call of the library's callback: a line, or the next piece of one."""
        if level != CONTINUE:
            self._level = level
        line = text.decode("utf-8", "replace")
        if self._level == ERROR and line.strip():
            self._errors.append(line.strip())
        if buffer := BUFFER.search(line):
            self._add_buffer(buffer["device"], buffer["kind"], float(buffer["mebibytes"]))
        elif cells := CELLS.search(line):
            self._cells += float(cells["mebibytes"])
        if self.verbose:
            sys.stderr.write(printable(line, lines=True))

    @contextmanager
    def kept_quiet(self) -> Iterator[None]:
        """Collect only, while what goes to stderr is read as something else."""
        verbose, self.verbose = self.verbose, False
        try:
            yield
        finally:
            self.verbose = verbose

    def forget(self) -> None:
        """Drop what was collected, before a call whose errors are wanted."""
        self._errors.clear()

    def take_buffers(self) -> float:
        """MiB of the buffers that were made since the last call: of a model or of a context, on every device."""
        taken: defaultdict[str, float] = defaultdict(float)
        for (_, kind), mebibytes in self._buffers.items():
            taken[kind] += mebibytes
        if "KV" in taken:
            taken["KV"] = taken["KV"] or self._cells
        self._buffers.clear()
        self.taken, self._cells = dict(taken), 0.0
        return sum(taken.values())

    def _add_buffer(self, device: str, kind: str, mebibytes: float) -> None:
        # The compute buffer may be made anew for a larger graph; a cache may consist of several.
        before = 0.0 if kind == "compute" else self._buffers[device, kind]
        self._buffers[device, kind] = before + mebibytes

    def last_error(self) -> str:
        """The first of the last error lines, in one line and without the C function's name.

        The lines after it are its consequences. They are all forgotten then.
        """
        line = self._errors[0] if self._errors else "llama.cpp gives no reason"
        self.forget()
        return " ".join(line.split(": ", 1)[-1].split())


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Collect what C code writes to the process's stderr; the text is in the list when the block is left."""
    collected: list[str] = []
    with ExitStack() as stack:
        try:
            file = stack.enter_context(TemporaryFile())
            kept = os.dup(2)
        except OSError:  # there is no place to collect it, or nothing is written because it is closed
            yield collected
            return
        os.dup2(file.fileno(), 2)
        try:
            yield collected
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            collected.append(file.read().decode("utf-8", "replace"))
