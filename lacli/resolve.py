"""From the MODEL argument to a GGUF file that is worth opening.

Paths and the bundled demo model only; nothing is downloaded and nothing is loaded. What is inside a file is
llama.cpp's to judge.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from lacli.errors import ModelLoadError

DEMO = "stdlib-7m.q8_0.gguf"
MAGIC = b"GGUF"
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
    path = Path(name).expanduser()
    if path.is_dir():
        raise ModelLoadError(f"{path} is a directory", f"name a file in it: {_example(path)}")
    if not path.exists():
        raise ModelLoadError(f"no such file: {path}", "MODEL is the path of a .gguf file")
    _check_magic(path)
    return _first_part(path)


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}", "check the file's permissions") from error
    if not magic:
        raise ModelLoadError(f"{path} is empty", "fetch the model again")
    if magic != MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF file", "lacli runs models in llama.cpp's GGUF format")


def _first_part(path: Path) -> Path:
    match = SPLIT.fullmatch(path.name)
    if match is None:
        return path
    parts = int(match["parts"])
    names = [f"{match['stem']}-{part:05d}-of-{parts:05d}.gguf" for part in range(1, parts + 1)]
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        raise ModelLoadError(
            f"the model has {parts} parts and {', '.join(missing)} is missing", f"put all parts into {path.parent}"
        )
    return path.parent / names[0]


def _example(folder: Path) -> str:
    return str(next(iter(sorted(folder.glob("*.gguf"))), folder / "model.gguf"))
