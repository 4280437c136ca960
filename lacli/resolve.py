"""From the MODEL argument to a GGUF file that is worth opening.

Paths and the bundled demo model only; nothing is downloaded and nothing is loaded. What is inside a file is
llama.cpp's to judge.
"""

from __future__ import annotations

import os
import re
import stat
from importlib.resources import files
from pathlib import Path

from lacli.errors import ModelLoadError

DEMO = "stdlib-7m.q8_0.gguf"
MAGIC = b"GGUF"
LONGEST_SHOWN = 80
SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")


def demo_model() -> Path:
    """The model that ships with lacli."""
    return Path(str(files("lacli") / "data" / DEMO))


def find_model(name: str | Path | None) -> Path:
    """The file to load for a MODEL argument; None is the demo model, any part of a split file means its first.

    Raises ModelLoadError when there is no such file, it is no GGUF file or a part of it is missing.
    """
    if name is None:
        return demo_model()
    path = Path(os.path.expanduser(name))
    try:
        magic = _read_magic(path)
    except FileNotFoundError as error:
        raise ModelLoadError(
            f"no such file: {_short(path)}", "MODEL is the path of a .gguf file; a prompt needs -p"
        ) from error
    except OSError as error:
        raise ModelLoadError(f"cannot read {_short(path)}: {error.strerror}", "MODEL is a .gguf file's path") from error
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
    match = SPLIT.fullmatch(path.name)
    parts = int(match["parts"]) if match else 0
    if match is None or not parts:
        return path
    names = [f"{match['stem']}-{part:05d}-of-{parts:05d}.gguf" for part in range(1, parts + 1)]
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        others = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise ModelLoadError(
            f"the model has {parts} parts, missing {missing[0]}{others}", f"put all parts into {path.parent}"
        )
    return path.parent / names[0]


def _short(path: Path) -> str:
    """The beginning of a path that may be a whole prompt without its -p."""
    name = str(path)
    return name if len(name) <= LONGEST_SHOWN else name[:LONGEST_SHOWN] + "..."


def _example(folder: Path) -> str:
    return str(next(iter(sorted(folder.glob("*.gguf"))), folder / "model.gguf"))
