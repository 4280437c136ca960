"""Another Python of ours: the command that runs one of lacli's modules in a process of its own."""

from __future__ import annotations

import sys


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line of `python -m module arguments` with this process's search path.

    A plain -m would look into the folder that the user is in first, where a json.py may lie.
    """
    start = f"import runpy, sys; sys.path[:] = {sys.path!r}; runpy.run_module({module!r}, {{}}, '__main__')"
    return [sys.executable, "-P", "-c", start, *arguments]
