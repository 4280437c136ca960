"""huggingface_hub's cache on this disk, where llama-cli keeps its models too: which files of a repository are there.

A repository is the folder `models--owner--name`: `refs/main` names a commit, `snapshots/COMMIT` has its files as links
to `blobs`. lacli adds `gguf/COMMIT.json`, the names of the models that the repository had, so that a name without a
quant means the same file without asking the hub. Nothing here uses the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from lacli.errors import ModelLoadError
from lacli.hub.names import HubModel
from lacli.hub.quants import (
    DEFAULTS,
    SeveralModels,
    all_parts,
    choose,
    find,
    has_quant,
    listed,
    models,
)
from lacli.text.files import MAX_RECORD, read_file

PREFIX = "models--"


def cache_folder() -> Path:
    """Where the cache is: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub; absolute, without `..`."""
    from huggingface_hub import constants

    return Path(os.path.abspath(constants.HF_HUB_CACHE))


def repository_folder(repository: str) -> Path:
    """The folder of a repository, whether it is there or not."""
    return cache_folder() / f"{PREFIX}{repository.replace('/', '--')}"


def repository_of(folder: Path) -> str:
    """The repository that a folder of the cache is of."""
    return folder.name.removeprefix(PREFIX).replace("--", "/")


def lock_of(folder: Path, blob: str) -> Path:
    """The lock that the library keeps while it fetches this content of a repository's folder."""
    return folder.parent / ".locks" / folder.name / f"{blob}.lock"


def newest_snapshot(folder: Path) -> Path | None:
    """In a repository's folder, that with the files of the commit that was seen last, if any."""
    try:
        commit = read_file(folder / "refs" / "main", MAX_RECORD).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    # A name from a file may hold `..`: it is looked for among those that are there.
    return next((path for path in folder.glob("snapshots/*") if path.name == commit and path.is_dir()), None)


def cached_files(snapshot: Path) -> list[str]:
    """The GGUF files that are complete in a snapshot, as the hub names them; those that a terminal can show."""
    names = (path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.is_file())
    return sorted(filter(str.isprintable, names))


def find_cached(model: HubModel, *, anything: bool = False) -> Path | None:
    """The file of a model in the cache, the first of its parts, or None where it is not there with all of them.

    anything: choose among what is in the cache, older commits included, where the hub cannot be asked. Raises
    ModelLoadError where several files there match and anything is wanted.
    """
    folder = repository_folder(model.repository)
    newest = newest_snapshot(folder)
    older = sorted(_snapshots_beside(newest, folder), key=_written, reverse=True) if anything else ()
    found = (_find_in(snapshot, model, anything=anything) for snapshot in (newest, *older) if snapshot is not None)
    return next(filter(None, found), None)


def whats_here(repository: str) -> str:
    """The models of a repository that are in the cache, whichever commit they are of, in words; "" for none."""
    found: list[str] = []
    for snapshot in sorted(repository_folder(repository).glob("snapshots/*")):
        there = cached_files(snapshot)
        found += [file for file in models(there) if set(all_parts(file)) <= set(there)]
    return listed(found, repository)


def _snapshots_beside(newest: Path | None, folder: Path) -> list[Path]:
    return [path for path in folder.glob("snapshots/*") if path != newest and path.is_dir()]


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _find_in(snapshot: Path, model: HubModel, *, anything: bool) -> Path | None:
    there = cached_files(snapshot)
    try:
        parts = _wanted(
            model, there, known_files(repository_folder(model.repository), snapshot.name), anything=anything
        )
    except SeveralModels:
        if anything:
            raise
        return None
    except ModelLoadError:
        return None
    return snapshot / parts[0] if parts and set(parts) <= set(there) else None


def _wanted(model: HubModel, there: Sequence[str], known: Sequence[str], *, anything: bool) -> list[str]:
    """The files of a model among those in the cache and those that the repository is known to have."""
    if model.file:
        return all_parts(model.file)
    if known and not anything:
        return choose(known, model.quant, model.repository)
    if model.quant:
        sure = [file for file in there if models([file]) and has_quant(file, model.quant)]
        return choose(sure or known, model.quant, model.repository)
    return choose(there, "", model.repository) if anything or find(there, DEFAULTS[0]) else []


def make_newest(repository: str, commit: str) -> None:
    """Remember that this is the commit that the hub has now, as the library does where it asks for `main`."""
    path = repository_folder(repository) / "refs" / "main"
    newest = newest_snapshot(path.parents[1])
    if newest and newest.name == commit:  # perhaps in a cache that cannot be written
        return
    _write(path, commit)


def keep_names(repository: str, commit: str, files: Iterable[str]) -> None:
    """Remember which models a repository has at a commit; a cache that cannot be written is left as it is."""
    path = repository_folder(repository) / "gguf" / f"{commit}.json"
    with suppress(OSError):
        _write(path, json.dumps([file for file in files if file.endswith(".gguf")]))


def _write(path: Path, text: str) -> None:
    """Put a file in the place of whatever is there: a pipe would be waited for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.parents[1] / f".{path.name}.{os.getpid()}.part"
    try:
        part.write_text(text, "utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def known_files(folder: Path, commit: str) -> list[str]:
    """The models that a repository had at a commit, as `keep_names` kept them in its folder; none where it did not."""
    try:
        names = json.loads(read_file(folder / "gguf" / f"{commit}.json", MAX_RECORD))
    except (OSError, ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
