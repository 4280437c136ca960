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

    `name`: what to type for it. `path`: the file to open. `repository`, `file`: its names on the hub, "" outside the
    cache. `size`: bytes of all parts. `last_used`: last read or written, in seconds since 1970. `header`: None if it
    was not or cannot be read. `problem`: why the model cannot run, in a few words, or "".
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
    """The cache's folder: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub; absolute, without `..`."""
    from huggingface_hub import constants

    return Path(os.path.abspath(constants.HF_HUB_CACHE))


def cached_models(repository: str = "", *, headers: bool = True) -> list[LocalModel]:
    """The models in the cache, of one `repository` if given. `headers`: read their headers too."""
    found = []
    for repo in _repositories(_scanned(), repository):
        files = _files(repo)
        for name in models(files):
            if there := [files[part][0] for part in all_parts(name) if part in files]:
                found.append(_model(repo.repo_id, name, files, there, headers=headers))
    return found


def _scanned() -> HFCacheInfo | None:
    """The library's list of the cache; None if there is no cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        with silent_library():
            return scan_cache_dir(cache_folder())
    except (CacheNotFound, OSError, ValueError):
        return None


@contextmanager
def silent_library(*, bars: bool = False) -> Iterator[None]:
    """Silence the library's warnings. `bars`: keep its progress bars, which it shows if stderr is a terminal."""
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
    """A repository's files by printable name, each in all commits: first `main`'s, then the newest."""
    found: defaultdict[str, list[CachedFileInfo]] = defaultdict(list)
    for revision in sorted(repo.revisions, key=lambda each: ("main" not in each.refs, -each.last_modified)):
        for file in sorted(revision.files, key=lambda each: each.file_path):
            name = file.file_path.relative_to(revision.snapshot_path).as_posix()
            if name.isprintable():
                found[name].append(file)
    return found


def _model(
    repository: str, file: str, names: Iterable[str], there: Sequence[CachedFileInfo], *, headers: bool
) -> LocalModel:
    """A model in the cache. `names`: all files of its repository. `there`: its parts on this disk."""
    expected = all_parts(file)
    header, problem = None, ""
    if len(there) < len(expected):
        problem = f"{len(expected) - len(there)} of {len(expected)} parts missing"
    elif headers:
        header, problem = _read_header(there[0].file_path)
    size, used = sum(each.size_on_disk for each in there), max(each.blob_last_accessed for each in there)
    name = _shortest_name(repository, file, names)
    return LocalModel(name, there[0].file_path, repository, file, size, used, header, problem)


def local_file(name: str, path: Path) -> LocalModel:
    """A model file outside the cache."""
    header, problem = _read_header(path)
    found = [part.stat() for part in parts(path) if part.exists()]
    size, used = sum(each.st_size for each in found), max((each.st_atime for each in found), default=0.0)
    return LocalModel(name, path, size=size, last_used=used, header=header, problem=problem)


def cached_names(cache: Path) -> list[str]:
    """The names of all models in a cache, from its folders alone: importing the library takes too long for a shell."""
    found = []
    for folder in sorted(cache.glob("models--*--*")):
        paths = folder.glob("snapshots/*/**/*.gguf")
        names = sorted({path.relative_to(folder / "snapshots").as_posix().partition("/")[2] for path in paths})
        repository = folder.name.removeprefix("models--").replace("--", "/")
        found += [_shortest_name(repository, file, names) for file in models(filter(str.isprintable, names))]
    return found


def matching(found: Iterable[LocalModel], wanted: HubModel) -> list[LocalModel]:
    """The models that a hub name means: one file, all files of a quant, or all of a repository."""
    there = [model for model in found if model.repository == wanted.repository]
    if wanted.file:
        return [model for model in there if all_parts(model.file) == all_parts(wanted.file)]
    return [model for model in there if not wanted.quant or has_quant(model.file, wanted.quant)]


def find_cached(model: HubModel, *, anything: bool = False) -> Path | None:
    """The model's file in the cache, or the first of its parts; None unless all parts are there.

    `anything`: the hub cannot be asked, so also accept older commits and other quants. Raises SeveralModels if several
    files match then.
    """
    for snapshot in _snapshots(model.repository)[: None if anything else 1]:
        names = (path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.is_file())
        there = sorted(filter(str.isprintable, names))
        try:
            if model.file:
                return snapshot / with_parts(model.file, there, model.repository)[0]
            first = choose(there, model.quant, model.repository)[0]
        except ModelLoadError as error:
            if anything and isinstance(error, SeveralModels):
                raise
            continue
        # The hub may have a better match.
        if anything or has_quant(first, model.quant or DEFAULT_QUANTS[0]):
            return snapshot / first
    return None


def _snapshots(repository: str) -> list[Path]:
    """The folders of a repository's commits: first the one that `main` names, then the last written."""
    folder, found, newest = cache_folder() / f"models--{repository.replace('/', '--')}", list[Path](), ""
    with suppress(OSError, UnicodeDecodeError):
        found = [path for path in folder.glob("snapshots/*") if path.is_dir()]
        newest = (folder / "refs" / "main").read_text().strip()
    return sorted(found, key=lambda path: (path.name != newest, -path.stat().st_mtime))


def _shortest_name(repository: str, file: str, names: Iterable[str]) -> str:
    """The shortest name that means this file and no other of its repository's `names`."""
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
    """Remove a model from the cache, in all commits. Returns the bytes freed.

    Contents that other files share stay. Raises LacliError if a file stays, UsageError if a link leads out of the
    cache.
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
    # The contents include unfinished downloads, of other programs too.
    if {*files} <= {*gone} and not any(repo.repo_path.glob("blobs/*")):
        shutil.rmtree(repo.repo_path, ignore_errors=True)
    if left := [file.file_path for file in chosen if os.path.lexists(file.file_path)]:
        raise LacliError(f"cannot remove {left[0]}", "is the cache yours? HF_HOME says where it is")
    return strategy.expected_freed_size
