"""Measured staircases in files, one a key, so that a model is measured once on a machine.

A key says everything that a step's time depends on. What cannot be read, or is of another key or format, is as good
as absent: it is measured again. The folder is the caller's choice.
"""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from lacli.cost.staircase import Cost, Point, Staircase

FORMAT = 1
"""Files of another format are measured again."""

HASHED = 1 << 20
"""Bytes at each end of a model file that its hash covers: the header with its metadata, and the last weights."""


@dataclass(frozen=True)
class CostKey:
    """What was measured on what.

    model: the file's name, size: its bytes, content: a hash of its ends. library, devices: what can compute. contexts,
    rows: what was asked for; cells, batch: the room that -c and -b leave for it. The others are the settings of a
    context that change a step's time; which ones, ModelSettings says.
    """

    model: str
    size: int
    content: str
    library: str
    devices: str
    threads: int
    threads_batch: int
    gpu_layers: int
    flash_attention: str
    cache_type_k: str
    cache_type_v: str
    repack: bool
    tiled: bool
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    cells: int
    batch: int

    @property
    def file_name(self) -> str:
        """A name that tells the model to a person and the key to the program."""
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", self.model.removesuffix(".gguf"))[:60]
        digest = sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{stem}-{digest[:16]}.json"


def content_hash(path: Path) -> str:
    """A hash of a file's first and last mebibyte; its name and place do not matter."""
    digest = sha256()
    with path.open("rb") as file:
        digest.update(file.read(HASHED))
        file.seek(max(path.stat().st_size - HASHED, 0))
        digest.update(file.read(HASHED))
    return digest.hexdigest()[:32]


class CostStore:
    """A folder of measured costs; it is made when the first one is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: CostKey) -> Cost | None:
        """What was measured for this key, or None."""
        try:
            kept = json.loads((self.folder / key.file_name).read_text("utf-8"))
            if kept["format"] != FORMAT or kept["key"] != _plain(key):
                return None
            return _cost(kept["cost"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def save(self, key: CostKey, cost: Cost) -> str:
        """Keep a cost in the place of an older one; the reason where the folder cannot take it, otherwise ''."""
        kept = {"format": FORMAT, "key": _plain(key), "cost": _plain(cost)}
        temporary = ""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=self.folder, suffix=".part", encoding="utf-8", delete=False) as file:
                temporary = file.name
                json.dump(kept, file, indent=1)
                file.write("\n")
            # Whoever reads meanwhile finds the old file or the new one, never a part.
            os.replace(temporary, self.folder / key.file_name)
        except OSError as error:
            return f"cannot keep it in {self.folder}: {error.strerror or error}"
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        return ""


def _plain(record: CostKey | Cost) -> Any:
    """The record as JSON gives it back: lists in the place of tuples."""
    return json.loads(json.dumps(asdict(record)))


def _cost(kept: dict[str, Any]) -> Cost:
    """A cost as it was saved; raises ValueError, LookupError or TypeError for anything else."""
    return Cost(
        tuple(map(_staircase, kept["staircases"])),
        description=str(kept["description"]),
        devices=str(kept["devices"]),
        chain_only=str(kept["chain_only"]),
        notes=tuple(map(str, kept["notes"])),
        measured_at=float(kept["measured_at"]),
        budget=float(kept["budget"]),
    )


def _staircase(kept: dict[str, Any]) -> Staircase:
    points = tuple(map(_point, kept["points"]))
    rows = [point.rows for point in points]
    if rows[:1] != [1] or rows != sorted(set(rows)):
        raise ValueError("no staircase")
    return Staircase(int(kept["context"]), points)


def _point(kept: dict[str, Any]) -> Point:
    point = Point(
        int(kept["rows"]), float(kept["every"]), float(kept["first"]), float(kept["spread"]), int(kept["repeats"])
    )
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in (point.every, point.first)):
        raise ValueError("no time of a step")
    return point
