"""Models on this disk, found without the network: huggingface_hub's cache, which llama-cli shares, and other files."""

from __future__ import annotations

import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lacli.errors import LacliError, ModelLoadError, UsageError, reason_of
from lacli.hub.names import (
    DEFAULT_QUANTS,
    HubModel,
    SeveralModels,
    choose,
    has_quant,
    models,
    quant_of,
    with_parts,
    with_quant,
)
from lacli.llamacpp.gguf import Header, all_parts, parts, read_header

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, HFCacheInfo


@dataclass(frozen=True)
class LocalModel:
    """A model on this disk.

    `name`: the name that a user types. `path`: the file to open. `repository`, `file`: their names on the hub, "" for a
    file outside the cache. `size`: bytes of all parts. `last_used`: last read or written, in seconds since 1970.
    `header`: None if it was not read or cannot be. `problem`: why the model cannot run, in a few words, or "".
    """

    name: str
    path: Path
    repository: str = ""
    file: str = ""
    size: int = 0
    last_used: float = 0.0
    header: Header | None = None
    problem: str = ""


def cache_folder() -> Path:
    """Return the hub cache's folder, HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub: absolute, without `..`."""
    from huggingface_hub import constants

    return Path(os.path.abspath(constants.HF_HUB_CACHE))


def cached_models(repository: str = "", *, headers: bool = True) -> list[LocalModel]:
    """Return the models in the cache, or only the models of one `repository`. `headers`: read their files' headers."""
    found = []
    for repo in _repositories(_scanned(), repository):
        files = _files(repo)
        for name in models(files):
            if there := [files[part][0] for part in all_parts(name) if part in files]:
                found.append(_model(repo.repo_id, name, files, there, headers=headers))
    return found


def _scanned() -> HFCacheInfo | None:
    """Return huggingface_hub's list of the cache; None if there is no readable cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        with silent_library():
            return scan_cache_dir(cache_folder())
    except (CacheNotFound, OSError, ValueError):
        return None


@contextmanager
def silent_library(*, bars: bool = False) -> Iterator[None]:
    """Silence huggingface_hub in this block. `bars`: keep its progress bars, which it shows if stderr is a terminal."""
    from huggingface_hub.utils.logging import get_verbosity, set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars

    before = get_verbosity()
    set_verbosity(logging.CRITICAL)
    try:
        with nullcontext() if bars else disable_progress_bars():
            yield
    finally:
        set_verbosity(before)


def _repositories(info: HFCacheInfo | None, repository: str = "") -> list[CachedRepoInfo]:
    found = [each for each in (info.repos if info else ()) if each.repo_type == "model" and "/" in each.repo_id]
    return sorted((each for each in found if repository in ("", each.repo_id)), key=lambda each: each.repo_id)


def _files(repo: CachedRepoInfo) -> dict[str, list[CachedFileInfo]]:
    """Return all versions of each file of a repository, by printable name: `main`'s first, then newer before older."""
    found: defaultdict[str, list[CachedFileInfo]] = defaultdict(list)
    for revision in sorted(repo.revisions, key=lambda each: ("main" not in each.refs, -each.last_modified)):
        for file in sorted(revision.files, key=lambda each: each.file_path):
            name = file.file_path.relative_to(revision.snapshot_path).as_posix()
            if name.isprintable():
                found[name].append(file)
    return found


def _model(
    repository: str, file: str, names: Iterable[str], cached: Sequence[CachedFileInfo], *, headers: bool
) -> LocalModel:
    """Return the model of `file`. `names`: the repository's files. `cached`: its parts. `headers`: read its header."""
    expected = all_parts(file)
    header, problem = None, ""
    if len(cached) < len(expected):
        problem = f"{len(expected) - len(cached)} of {len(expected)} parts missing"
    elif headers:
        header, problem = _read_header(cached[0].file_path)
    size, used = sum(each.size_on_disk for each in cached), max(each.blob_last_accessed for each in cached)
    name = _shortest_name(repository, file, names)
    return LocalModel(name, cached[0].file_path, repository, file, size, used, header, problem)


def local_file(name: str, path: Path) -> LocalModel:
    """Return the model in a file outside the cache. `name`: the name that a user types for the file."""
    header, problem = _read_header(path)
    found = [part.stat() for part in parts(path) if part.exists()]
    size, used = sum(each.st_size for each in found), max((each.st_atime for each in found), default=0.0)
    return LocalModel(name, path, size=size, last_used=used, header=header, problem=problem)


def cached_names(cache: Path) -> list[str]:
    """Return the names of all models in a cache, for a shell's completion: quick, without huggingface_hub."""
    found = []
    for folder in sorted(cache.glob("models--*--*")):
        paths = folder.glob("snapshots/*/**/*.gguf")
        names = sorted({path.relative_to(folder / "snapshots").as_posix().partition("/")[2] for path in paths})
        repository = folder.name.removeprefix("models--").replace("--", "/")
        found += [_shortest_name(repository, file, names) for file in models(filter(str.isprintable, names))]
    return found


def matching(found: Iterable[LocalModel], wanted: HubModel) -> list[LocalModel]:
    """Return the models of `found` that `wanted` means: one file, all files of a quant, or a whole repository."""
    there = [model for model in found if model.repository == wanted.repository]
    if wanted.file:
        return [model for model in there if all_parts(model.file) == all_parts(wanted.file)]
    return [model for model in there if not wanted.quant or has_quant(model.file, wanted.quant)]


def find_cached(model: HubModel, *, without_hub: bool = False) -> Path | None:
    """Return the file to open for `model`, from the newest commit in the cache; None if not all files are there.

    The file must certainly have the quant (`has_quant`). `without_hub`: the hub cannot be asked, so older commits and
    uncertain quants count too; raises SeveralModels if several files match.
    """
    for snapshot in _snapshots(model.repository)[: None if without_hub else 1]:
        names = (path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.is_file())
        there = sorted(filter(str.isprintable, names))
        try:
            if model.file:
                return snapshot / with_parts(model.file, there, model.repository)[0]
            first = choose(there, model.quant, model.repository)[0]
        except ModelLoadError as error:
            if without_hub and isinstance(error, SeveralModels):
                raise
            continue
        # The hub may have a better match.
        if without_hub or has_quant(first, model.quant or DEFAULT_QUANTS[0]):
            return snapshot / first
    return None


def _snapshots(repository: str) -> list[Path]:
    """Return the cache's folders of a repository's commits: first the commit of `main`, then newer before older."""
    folder, found, newest = cache_folder() / f"models--{repository.replace('/', '--')}", list[Path](), ""
    with suppress(OSError, UnicodeDecodeError):
        found = [path for path in folder.glob("snapshots/*") if path.is_dir()]
        newest = (folder / "refs" / "main").read_text().strip()
    return sorted(found, key=lambda path: (path.name != newest, -path.stat().st_mtime))


def _shortest_name(repository: str, file: str, names: Iterable[str]) -> str:
    """Return the shortest name that means only this file. `names`: all files of the repository."""
    quant = quant_of(file)
    if quant and [all_parts(found)[0] for found in with_quant(names, quant)] == [file]:
        return str(HubModel(repository, quant))
    return str(HubModel(repository, file=file))


def _read_header(path: Path) -> tuple[Header | None, str]:
    try:
        return read_header(path), ""
    except ModelLoadError as error:
        return None, f"damaged: {error.what.removeprefix('cannot read ')}"
    except OSError as error:
        return None, f"cannot be read: {reason_of(error)}"


def remove(model: LocalModel) -> int:
    """Remove a model's files of all commits from the cache. Return the bytes freed, 0 if the model is not there.

    Contents that another file also uses stay. Raises LacliError if a file cannot be removed, UsageError if a link
    leads out of the cache.
    """
    info = _scanned()
    if not info or not (repos := _repositories(info, model.repository)):
        return 0
    repo = repos[0]
    files, gone = _files(repo), all_parts(model.file)
    chosen = [file for name in gone for file in files.get(name, ())]
    if outside := [each for each in chosen if not each.blob_path.is_relative_to(repo.repo_path.resolve())]:
        raise UsageError(f"{outside[0].file_path} leads out of the hub's cache", "remove the file yourself")
    strategy = info.delete_files(*chosen)
    with silent_library():
        strategy.execute()
    # Keep the folder if content is left: the content may be an unfinished download of another program.
    if {*files} <= {*gone} and not any(repo.repo_path.glob("blobs/*")):
        shutil.rmtree(repo.repo_path, ignore_errors=True)
    if left := [file.file_path for file in chosen if os.path.lexists(file.file_path)]:
        raise LacliError(f"cannot remove {left[0]}", "check who owns the cache; HF_HOME sets its folder")
    return strategy.expected_freed_size
