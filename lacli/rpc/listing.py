"""A process of its own that lists the devices of RPC servers: it dies where ggml aborts, and its parent reads why.

Its arguments are the addresses. On stdout: an empty line when llama.cpp is loaded, then for each server a line with
its devices as JSON. On stderr: llama.cpp's own words.
"""

from __future__ import annotations

import json
import os
import sys

from lacli.errors import LacliError
from lacli.llamacpp.library import library, on_abort
from lacli.rpc.library import register


def main() -> None:
    library().verbose = True
    on_abort(_end)
    _write("")
    try:
        for endpoint in sys.argv[1:]:
            _write(json.dumps(register([endpoint])))
    except LacliError as error:
        _end(str(error))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _end(message: str) -> None:
    """Say why, and end without a core dump."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
