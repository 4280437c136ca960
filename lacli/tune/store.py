"""The result of a search in a file of its model and machine, where `--preset tuned` finds it.

A model is known by its content: a file's name is for people, and a renamed copy finds what the other has found. The
folder is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from json import loads
from pathlib import Path
from typing import Any

from lacli.amounts import counted
from lacli.cost.store import MachineKey, digest_of, readable
from lacli.disk import MOST_RECORD, read_file
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

FOLDERS = "lacli doctor shows the folders"


@dataclass(frozen=True)
class Tuned:
    """What a search has found. settings: of them a search chooses those of its mode, the others are the defaults.

    speedup, low, high: against plain decoding with its 95% interval, where there is one, both 1 for plain itself.
    over_auto: against mode auto. prompts: how many it was confirmed on. tuned_at: seconds since 1970. temp: the
    temperature of the answers.
    """

    settings: DecodeSettings
    speedup: float
    low: float | None
    high: float | None
    over_auto: float
    prompts: int
    tuned_at: float
    temp: float = 0.0


class TunedStore:
    """A folder of results; it is made when the first one is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: MachineKey) -> Tuned | None:
        """What was found for this model on this machine. Raises LacliError where it is there and cannot be read."""
        path = self.path_of(key)
        try:
            return _tuned(read_record(path, FORMAT, _apart_from_name(key), NAME))
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise LacliError(f"{self.folder} is no folder", FOLDERS) from error
        except OSError as error:
            raise LacliError(f"{path} cannot be read: {reason_of(error)}", FOLDERS) from error
        except (*UNREADABLE, LacliError) as error:
            what = f"{path} cannot be read: it is damaged, or not of this lacli"
            raise LacliError(what, "lacli tune MODEL makes a new one") from error

    def save(self, key: MachineKey, tuned: Tuned) -> str:
        """Keep a result in the place of an older one; the reason where the folder cannot take it, otherwise ''."""
        return save_record(self.path_of(key), FORMAT, _apart_from_name(key), NAME, as_plain(tuned))

    def path_of(self, key: MachineKey) -> Path:
        """The file of a key, which has the name of the model that was tuned first."""
        return next(iter(self._exact(key)), self.folder / f"{readable(key.model)}-{_digest(key)}.json")

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
        found = {path for path, _ in self._of(key)} | set(self._exact(key))
        try:
            for path in found:
                path.unlink()
        except OSError as error:
            raise LacliError(f"cannot remove {path}: {reason_of(error)}", "remove it by hand") from error
        return len(found)

    def _exact(self, key: MachineKey) -> list[Path]:
        """The files of a key, whatever is in them."""
        return sorted(self.folder.glob(f"*-{_digest(key)}.json"))

    def _of(self, key: MachineKey) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """The files of this model with their keys, and no others."""
        with suppress(OSError):
            for path in sorted(self.folder.glob("*.json")):
                with suppress(*UNREADABLE):
                    other = loads(read_file(path, MOST_RECORD))["key"]
                    if (other["content"], other["size"]) == (key.content, key.size) and int(other["threads"]):
                        yield path, other


def chosen(settings: DecodeSettings) -> dict[str, Any]:
    """What a search chooses: the mode, and the fields of it that are searched."""
    return {"mode": settings.mode, **{name: getattr(settings, name) for name in SEARCHED[settings.mode]}}


def as_plain(tuned: Tuned) -> dict[str, Any]:
    """A result as JSON holds it."""
    rest = {each.name: getattr(tuned, each.name) for each in fields(tuned) if each.name != "settings"}
    return {"settings": chosen(tuned.settings), **rest}


def _apart_from_name(key: MachineKey) -> dict[str, Any]:
    return {name: value for name, value in asdict(key).items() if name != "model"}


def _digest(key: MachineKey) -> str:
    return digest_of(_apart_from_name(key))[:16]


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
        temp=float(kept["temp"]),
    )


def _settings(kept: Mapping[str, Any]) -> DecodeSettings:
    mode = kept["mode"]
    if mode not in MODES:
        raise ValueError("no mode")
    values: dict[str, Any] = {}
    for name in SEARCHED[mode]:
        values[name] = tuple(map(str, kept[name])) if name == "sources" else int(kept[name])
    return DecodeSettings(mode=mode, **values)
