"""Damages a model file in many ways and runs lacli on each, in a fork, since some damages end the process.

No test lives here. Prints one JSON list: what was done, the exit code (negative: killed by that signal), stderr.
Run as `python -m tests.fakes.damage MODEL FOLDER COUNT`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NoReturn

import gguf

from lacli.cli.main import main
from tests.program import call

ARGUMENTS = ("-q", "-p", "hi", "-n", "2", "-c", "256", "-W", "2", "-N", "3", "-G", "2")
MEMORY, SECONDS = 8 << 30, 20
"""More than a tiny model can need, in bytes of address space and of computing."""


def damages(raw: bytes, header: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Ways to break the header, in words and as the whole file: a bit is changed, or up to eight bytes."""
    random = Random(0)
    for number in range(count):
        at, bit, size = random.randrange(header - 8), random.randrange(8), random.randrange(1, 9)
        if number % 2:
            yield f"bit {bit} of byte {at}", raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
        else:
            yield f"{size} bytes at {at}", raw[:at] + random.randbytes(size) + raw[at + size :]


def outcome(path: Path) -> tuple[int, str]:
    """Exit code and stderr of lacli on a file, in a fork."""
    with tempfile.TemporaryFile() as err, open(os.devnull, "r+b") as null:
        child = os.fork()
        if not child:
            for stream, number in ((null, 0), (null, 1), (err, 2)):
                os.dup2(stream.fileno(), number)
            _run(path)
        _, status = os.waitpid(child, 0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), err.read().decode("utf-8", "replace")


def _run(path: Path) -> NoReturn:
    """Run lacli and leave the fork with its exit code. Never returns."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.argv = ["lacli", "run", str(path), *ARGUMENTS]
    code = 99
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def report(model: Path, folder: Path, count: int) -> None:
    call("run", str(model), *ARGUMENTS)  # what is loaded and begun here, no fork has to begin again
    raw = model.read_bytes()
    header = int(gguf.GGUFReader(model).data_offset)
    file = folder / "damaged.gguf"
    found = []
    for name, damaged in damages(raw, header, count):
        file.write_bytes(damaged)
        found.append((name, *outcome(file)))
    print(json.dumps(found))


if __name__ == "__main__":
    report(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
