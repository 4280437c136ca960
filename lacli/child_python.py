"""Another Python of ours: what it has to be told so that it runs lacli's modules as this one does."""

from __future__ import annotations

import os
import sys


def python_environment() -> dict[str, str]:
    """The environment of a Python that finds the modules that this one finds; start it with -P.

    Without -P it would look first into the folder that the user is in, where a json.py may lie.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
