"""From the MODEL argument to a GGUF file that is worth opening: the one door for paths and names.

What a name means and how a model comes from the hub is in `lacli/hub`; nothing is loaded here. What is inside a file
is llama.cpp's to judge.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from lacli.errors import ModelLoadError, reason_of
from lacli.hub.aliases import FILE, read_aliases
from lacli.hub.names import (
    MODEL_IS,
    HubModel,
    read_name,
    shortened,
)
from lacli.hub.quants import all_parts, missing_parts

DEMO = "stdlib-7m.q8_0.gguf"
MAGIC = b"GGUF"


def demo_model() -> Path:
    """The model that ships with lacli."""
    return Path(str(files("lacli") / "data" / DEMO))


def find_model(
    name: str | Path | None,
    *,
    offline: bool = False,
    aliases: Path | None = None,
    quiet: bool = False,
    say: Callable[[str], None] | None = None,
) -> Path:
    """The file to load for a MODEL argument; None is the demo model, any part of a split file means its first.

    A model of the hub is fetched where the cache lacks it, unless offline. aliases: the user's own list of names.
    quiet: no bar. say: is told in a sentence what a name became. Raises ModelLoadError when there is no such file or
    model, it is no GGUF file or a part of it is missing.
    """
    if name is None:
        return demo_model()
    path = Path(os.path.expanduser(name))
    if isinstance(name, Path) or os.path.isfile(path):
        return check_file(path)
    found = read_name(name, read_aliases(aliases, say))
    if isinstance(found, HubModel):
        from lacli.hub.download import fetch_model

        return check_file(fetch_model(found, offline=offline, quiet=quiet, name=str(name), say=say))
    if say is not None and found != path:
        say(f"{name} is {found}")
    return check_file(found)


def check_file(path: Path) -> Path:
    """The part to open of a GGUF file. Raises ModelLoadError when it is none or a part of it is missing."""
    try:
        magic = _read_magic(path)
    except FileNotFoundError as error:
        raise ModelLoadError(f"no such file: {shortened(str(path))}", _what_was_meant(str(path))) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {shortened(str(path))}: {reason_of(error)}", MODEL_IS) from error
    if not magic:
        raise ModelLoadError(f"{path} is empty", "fetch the model again")
    if magic != MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF file", "lacli runs models in llama.cpp's GGUF format")
    return _first_part(path)


def _read_magic(path: Path) -> bytes:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise ModelLoadError(f"{path} is a directory", f"name a file in it: {_example(path)}")
    if not stat.S_ISREG(mode):
        raise ModelLoadError(f"{path} is not a regular file", "llama.cpp maps the model's file into memory")
    with path.open("rb") as file:
        return file.read(len(MAGIC))


def _first_part(path: Path) -> Path:
    parts = all_parts(path.name)
    if problem := missing_parts(parts, [name for name in parts if (path.parent / name).exists()]):
        raise ModelLoadError(f"the model {problem}", f"put all parts into {path.parent}")
    return path.parent / parts[0]


def _what_was_meant(text: str) -> str:
    """The hint for a file that does not exist: a prompt without -p, a file of the hub, or a mistyped path."""
    if any(char.isspace() for char in text):
        return f"a prompt needs -p; {MODEL_IS}"
    return f"on the hub it is hf:{text}; {MODEL_IS}" if FILE.fullmatch(text) else MODEL_IS


def _example(folder: Path) -> str:
    return str(next(iter(sorted(folder.glob("*.gguf"))), folder / "model.gguf"))
