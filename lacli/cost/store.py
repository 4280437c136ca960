"""Measured staircases in files, one a key, so that a model is measured once on a machine.

A key says everything that a step's time depends on. What cannot be read, or is of another key or format, is as good
as absent: it is measured again. The folder is the caller's choice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from lacli.records import UNREADABLE, read_record, save_record
from lacli.staircase import Cost, Point, Staircase
from lacli.text.files import MAX_RECORD, UnfitFile, read_file

FORMAT = 1
"""Files of another format are measured again."""

HASHED = 1 << 20
"""Bytes at each end of a model file that its hash covers: the header with its metadata, and the last weights."""


@dataclass(frozen=True)
class MachineKey:
    """What computes what: a model on a machine.

    model: the file's name, size: its bytes, content: a hash of its ends. library: the build of llama.cpp with its
    instruction sets and files. devices: those it finds, or those that were named, and how they share the model. The
    others are the settings of a context that change a step's time; which ones, ModelSettings says.
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

    @property
    def file_name(self) -> str:
        """A name that tells the model to a person and the key to the program."""
        return _file_name(asdict(self))


@dataclass(frozen=True)
class CostKey(MachineKey):
    """What was measured on what. contexts, rows: what was asked for; cells, batch: the room that -c and -b leave."""

    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    cells: int
    batch: int


def readable(model: str) -> str:
    """A model's name as the beginning of a file's."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", model.removesuffix(".gguf"))[:60]


def digest_of(key: Mapping[str, object]) -> str:
    """A hash of all that a key says."""
    return sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def content_hash(path: Path) -> str:
    """A hash of a file's first and last mebibyte; its name and place do not matter."""
    digest = sha256()
    with path.open("rb") as file:
        digest.update(file.read(HASHED))
        file.seek(max(path.stat().st_size - HASHED, 0))
        digest.update(file.read(HASHED))
    return digest.hexdigest()[:32]


class Found(NamedTuple):
    """What is kept of a model, if anything is, and the files of its name that can be read and hold no cost."""

    cost: Cost | None
    broken: tuple[Path, ...]


class CostStore:
    """A folder of measured costs; it is made when the first one is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: CostKey) -> Cost | None:
        """What was measured for this key, or None."""
        try:
            return _cost(read_record(self.folder / key.file_name, FORMAT, asdict(key), "cost"))
        except UNREADABLE:
            return None

    def broken(self, key: CostKey) -> bool:
        """Whether there is a file for a key that holds no cost."""
        return (self.folder / key.file_name).exists() and self.load(key) is None

    def holds(self, model: str) -> bool:
        """Whether there is a file of any model of this name."""
        return bool(self._files(model))

    def richest(self, machine: MachineKey) -> Found:
        """The cost with the most steps of all that were measured there, whatever was asked for."""
        costs, broken = [], []
        for path in self._files(machine.model):
            try:
                kept = json.loads(read_file(path, MAX_RECORD))
                if kept["format"] != FORMAT:
                    continue
                if path.name != _file_name(kept["key"]):
                    raise ValueError("the file of another key")
                if asdict(machine).items() <= kept["key"].items():
                    costs.append(_cost(kept["cost"]))
            except UnfitFile:
                broken.append(path)
            except OSError:
                # It may be well, and be read another time.
                continue
            except UNREADABLE:
                broken.append(path)
        return Found(max(costs, key=_richness, default=None), tuple(broken))

    def _files(self, model: str) -> list[Path]:
        """The files of all models of a name."""
        name = re.compile(re.escape(readable(model)) + r"-[0-9a-f]{16}\.json")
        try:
            return sorted(path for path in self.folder.iterdir() if name.fullmatch(path.name))
        except OSError:
            return []

    def save(self, key: CostKey, cost: Cost) -> str:
        """Keep a cost in the place of an older one; the reason where the folder cannot take it, otherwise ''."""
        return save_record(self.folder / key.file_name, FORMAT, asdict(key), "cost", asdict(cost))


def _file_name(key: Mapping[str, Any]) -> str:
    return f"{readable(str(key['model']))}-{digest_of(key)[:16]}.json"


def _richness(cost: Cost) -> tuple[int, float, float]:
    """By the steps that were measured, then by how long that took, then the latest."""
    return sum(len(staircase.points) for staircase in cost.staircases), cost.budget, cost.measured_at


def _cost(kept: dict[str, Any]) -> Cost:
    """A cost as it was saved; raises ValueError, LookupError or TypeError for anything else."""
    if not kept["staircases"] and not kept["chain_only"]:
        raise ValueError("nothing was measured, and no reason is given")
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
