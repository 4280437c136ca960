"""The result of a search in a file of its model and machine, where `--preset tuned` finds it.

What cannot be read is as good as absent, and said. The folder is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from json import loads
from pathlib import Path
from typing import Any

from lacli.amounts import counted
from lacli.cost.store import MachineKey
from lacli.errors import LacliError, reason_of
from lacli.records import UNREADABLE, read_record, save_record
from lacli.settings import MODES, DecodeSettings
from lacli.tune.candidates import SEARCHED

FORMAT = 1
"""Files of another format are as good as absent."""

NAME = "tuned"
"""Of the result in its file."""

WORDS = {
    "library": "another llama.cpp",
    "devices": "other devices",
    "gpu_layers": "another -ngl",
    "flash_attention": "another -fa",
    "cache_type_k": "another -ctk",
    "cache_type_v": "another -ctv",
}
"""What of a key was different, for a person; threads are said by their number."""


@dataclass(frozen=True)
class Tuned:
    """What a search has found. settings: of them a search chooses those of its mode, the others are the defaults.

    speedup, low, high: against plain decoding with its 95% interval, where there is one, both 1 for plain itself.
    over_auto: against mode auto. prompts: how many it was confirmed on. tuned_at: seconds since 1970.
    """

    settings: DecodeSettings
    speedup: float
    low: float | None
    high: float | None
    over_auto: float
    prompts: int
    tuned_at: float


class TunedStore:
    """A folder of results; it is made when the first one is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: MachineKey) -> tuple[Tuned | None, str]:
        """What was found for this model on this machine, or None; and why a file that is there cannot be read."""
        path = self.folder / key.file_name
        try:
            return _tuned(read_record(path, FORMAT, asdict(key), NAME)), ""
        except FileNotFoundError:
            return None, ""
        except (*UNREADABLE, LacliError) as error:
            why = reason_of(error) if isinstance(error, OSError) else "it is damaged, or not of this lacli"
            return None, f"{path} cannot be read: {why}"

    def save(self, key: MachineKey, tuned: Tuned) -> str:
        """Keep a result in the place of an older one; the reason where the folder cannot take it, otherwise ''."""
        return save_record(self.folder / key.file_name, FORMAT, asdict(key), NAME, as_plain(tuned))

    def otherwise(self, key: MachineKey) -> str:
        """With what else this model was tuned, in words; '' where it was not."""
        for _, other in self._of(key):
            if other.get("threads") != key.threads:
                return f"with {counted(int(other['threads']), 'thread')}"
            for name, words in WORDS.items():
                if other.get(name) != getattr(key, name):
                    return f"with {words}"
        return ""

    def forget(self, key: MachineKey) -> int:
        """Remove all results of this model, whatever they were found with; how many. Raises LacliError."""
        found = {path for path, _ in self._of(key)}
        exact = self.folder / key.file_name
        found |= {exact} if exact.exists() else set()
        try:
            for path in found:
                path.unlink()
        except OSError as error:
            raise LacliError(f"cannot remove {path}: {reason_of(error)}", "remove it by hand") from error
        return len(found)

    def _of(self, key: MachineKey) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """The files of this model with their keys, and no others."""
        with suppress(OSError):
            for path in sorted(self.folder.glob("*.json")):
                with suppress(*UNREADABLE):
                    other = loads(path.read_text("utf-8"))["key"]
                    if (other["content"], other["size"]) == (key.content, key.size) and int(other["threads"]):
                        yield path, other


def chosen(settings: DecodeSettings) -> dict[str, Any]:
    """What a search chooses: the mode, and the fields of it that are searched."""
    return {"mode": settings.mode, **{name: getattr(settings, name) for name in SEARCHED[settings.mode]}}


def as_plain(tuned: Tuned) -> dict[str, Any]:
    """A result as JSON holds it."""
    rest = {each.name: getattr(tuned, each.name) for each in fields(tuned) if each.name != "settings"}
    return {"settings": chosen(tuned.settings), **rest}


def _tuned(kept: Mapping[str, Any]) -> Tuned:
    """A result as it was saved; raises one of UNREADABLE, or UsageError, for anything else."""
    return Tuned(
        settings=_settings(kept["settings"]),
        speedup=float(kept["speedup"]),
        low=None if kept["low"] is None else float(kept["low"]),
        high=None if kept["high"] is None else float(kept["high"]),
        over_auto=float(kept["over_auto"]),
        prompts=int(kept["prompts"]),
        tuned_at=float(kept["tuned_at"]),
    )


def _settings(kept: Mapping[str, Any]) -> DecodeSettings:
    mode = kept["mode"]
    if mode not in MODES:
        raise ValueError("no mode")
    values: dict[str, Any] = {}
    for name in SEARCHED[mode]:
        values[name] = tuple(map(str, kept[name])) if name == "sources" else int(kept[name])
    return DecodeSettings(mode=mode, **values)
