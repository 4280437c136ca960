"""Models on this disk: huggingface_hub's cache, which llama-cli shares, and what is known of each file.

A repository is the folder `models--owner--name`: `refs/main` names a commit, `snapshots/COMMIT` has its files as links
to `blobs`. lacli adds `gguf/COMMIT.json`, the names of the models that the repository has, so that a name without a
quant means the same file without asking the hub. Nothing here uses the network.

The library's `scan_cache_dir` leaves out a whole repository when one link dangles or an update broke off, which are
those that a user has to see and to remove. So the folders are read here, by one function for all purposes.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lacli.errors import ModelLoadError, reason_of
from lacli.hub.names import (
    DEFAULT_QUANTS,
    HubModel,
    SeveralModels,
    choose,
    has_quant,
    models,
    quant_of,
    quants_in_words,
    with_quant,
)
from lacli.llamacpp.gguf import Header, all_parts, parts, read_header
from lacli.text.files import MAX_RECORD, read_file, replace_file

PREFIX = "models--"
EVERY = f"{PREFIX}*--*"
"""The folders of repositories that have an owner; others cannot be named."""

LLAMA_CPPS = ".downloadInProgress"
UNFINISHED = ("*.incomplete", f"*{LLAMA_CPPS}")
"""Downloads that broke off: of lacli and huggingface_hub, and of llama.cpp."""


@dataclass(frozen=True)
class LocalModel:
    """A model on this disk.

    `name`: what to type for it. `path`: the file to open. `repository`, `file`: as on the hub,
    "" outside its cache. `links`: its files in the cache, all parts at all commits. `size`: bytes of all parts at the
    newest commit; `older`: bytes that other commits take beside. `last_used`: last read or written, in seconds since
    1970. `header`: None if it was not or cannot be read. `problem`: why it cannot be run, in a few words, or "".
    """

    name: str
    path: Path
    repository: str = ""
    file: str = ""
    links: tuple[Path, ...] = ()
    size: int = 0
    last_used: float = 0.0
    header: Header | None = None
    problem: str = ""
    older: int = 0


@dataclass(frozen=True)
class UnfinishedDownload:
    """A download that broke off or is going on: the file so far, its bytes, and its last change since 1970."""

    repository: str
    path: Path
    size: int
    last_used: float


def cache_folder() -> Path:
    """Where the cache is: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub; absolute, without `..`."""
    from huggingface_hub import constants

    return Path(os.path.abspath(constants.HF_HUB_CACHE))


def repository_folder(repository: str) -> Path:
    """The folder of a repository, which need not exist."""
    return cache_folder() / _folder_name(repository)


def lock_of(folder: Path, blob: str) -> Path:
    """The library's lock for fetching this blob of a repository's folder."""
    return folder.parent / ".locks" / folder.name / f"{blob}.lock"


def cached_models(cache: Path, repository: str = "", *, headers: bool = True) -> list[LocalModel]:
    """The models in a cache folder, or those of one repository there. `headers`: read what their files say."""
    folders = _found(cache, _folder_name(repository) if repository else EVERY)
    return [model for folder in folders for model in _models_in(folder, headers=headers)]


def local_file(name: str, path: Path) -> LocalModel:
    """A model file outside the cache."""
    header, problem = _read_header(path)
    size, used = _size_and_use(parts(path))
    return LocalModel(name, path, size=size, last_used=used, header=header, problem=problem)


def unfinished_downloads(repository: str = "") -> list[UnfinishedDownload]:
    """The unfinished downloads in the cache, or those of one repository."""
    folders = _folder_name(repository) if repository else EVERY
    found = []
    for path in (path for pattern in UNFINISHED for path in _found(cache_folder(), f"{folders}/blobs/{pattern}")):
        with suppress(OSError):
            status = path.stat()
            found.append(UnfinishedDownload(_repository_of(path.parents[1]), path, status.st_size, status.st_mtime))
    return found


def matching(found: Iterable[LocalModel], wanted: HubModel) -> list[LocalModel]:
    """The models that a hub name means: one file, those with a quant, or all of a repository."""
    there = [model for model in found if model.repository == wanted.repository]
    if wanted.file:
        return [model for model in there if all_parts(model.file) == all_parts(wanted.file)]
    chosen = models(model.file for model in there)
    return [m for m in there if m.file in chosen and (not wanted.quant or has_quant(m.file, wanted.quant))]


def find_cached(model: HubModel, *, anything: bool = False) -> Path | None:
    """The file of a model in the cache, the first of its parts, or None if it is not there with all of them.

    `anything`: choose among what is in the cache, older commits included, because the hub cannot be asked; raises
    ModelLoadError then if several files match.
    """
    folder = repository_folder(model.repository)
    newest = newest_snapshot(folder)
    older = [path for path in _found(folder, "snapshots/*") if anything and path != newest and path.is_dir()]
    older.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for snapshot in (*([newest] if newest else []), *older):
        there = _complete_files(snapshot)
        try:
            wanted = _wanted(model, there, known_files(folder, snapshot.name), anything=anything)
        except SeveralModels:
            if anything:
                raise
            continue
        except ModelLoadError:
            continue
        if wanted and set(wanted) <= set(there):
            return snapshot / wanted[0]
    return None


def _wanted(model: HubModel, there: Sequence[str], known: Sequence[str], *, anything: bool) -> list[str]:
    """The files of a model among those in the cache and those that the repository is known to have."""
    if model.file:
        return all_parts(model.file)
    if known and not anything:
        return choose(known, model.quant, model.repository)
    if model.quant:
        sure = [file for file in there if models([file]) and has_quant(file, model.quant)]
        return choose(sure or known, model.quant, model.repository)
    return choose(there, "", model.repository) if anything or with_quant(there, DEFAULT_QUANTS[0]) else []


def cached_quants(repository: str) -> str:
    """The quants of a repository that are complete in the cache at any commit, in words; "" for none."""
    found: list[str] = []
    for snapshot in _found(repository_folder(repository), "snapshots/*"):
        there = _complete_files(snapshot)
        found += [file for file in models(there) if set(all_parts(file)) <= set(there)]
    return quants_in_words(found, repository)


def remember_newest(repository: str, commit: str) -> None:
    """Make `commit` the newest one, as the library does after asking for `main`."""
    folder = repository_folder(repository)
    newest = newest_snapshot(folder)
    if not newest or newest.name != commit:  # a cache that is up to date may be read-only
        _write(folder / "refs" / "main", commit)


def remember_files(repository: str, commit: str, names: Iterable[str]) -> None:
    """Remember which models a repository has at a commit; a read-only cache is left unchanged."""
    with suppress(OSError):
        path = repository_folder(repository) / "gguf" / f"{commit}.json"
        _write(path, json.dumps([name for name in names if name.endswith(".gguf")]))


def known_files(folder: Path, commit: str) -> list[str]:
    """The names that `remember_files` wrote for a commit; none if it did not."""
    try:
        names = json.loads(read_file(folder / "gguf" / f"{commit}.json", MAX_RECORD))
    except (OSError, ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [text.encode()])


def _found(folder: Path, pattern: str) -> list[Path]:
    """What matches a pattern below a folder, sorted; nothing in a folder that only somebody else may read."""
    try:
        return sorted(folder.glob(pattern))
    except PermissionError:
        return []


def _folder_name(repository: str) -> str:
    return PREFIX + repository.replace("/", "--")


def _repository_of(folder: Path) -> str:
    return folder.name.removeprefix(PREFIX).replace("--", "/")


def newest_snapshot(folder: Path) -> Path | None:
    """The snapshot of the commit that `refs/main` names, if it is there."""
    try:
        commit = read_file(folder / "refs" / "main", MAX_RECORD).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    # A name from a file may hold `..`, so it is looked for among those that are there.
    return next((path for path in _found(folder, "snapshots/*") if path.name == commit and path.is_dir()), None)


def _complete_files(snapshot: Path) -> list[str]:
    """The GGUF files whose content is there, as the hub names them; only names that a terminal can show."""
    names = (path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.is_file())
    return sorted(filter(str.isprintable, names))


def _models_in(folder: Path, *, headers: bool) -> Iterator[LocalModel]:
    """The models of one repository's folder, those of its newest commit first."""
    repository, newest = _repository_of(folder), newest_snapshot(folder)
    links: defaultdict[str, list[Path]] = defaultdict(list)
    for snapshot in sorted(_found(folder, "snapshots/*"), key=lambda path: path != newest):
        for path in sorted(snapshot.rglob("*.gguf")):
            if not path.is_dir():
                links[path.relative_to(snapshot).as_posix()].append(path)
    names = list(dict.fromkeys([*links, *(known_files(folder, newest.name) if newest else ())]))
    for file in dict.fromkeys(all_parts(name)[0] for name in links):
        model = _cached_model(file, links, headers=headers)
        old = newest is None or newest not in model.path.parents
        problem = model.problem or ("of an older commit" if old else "")
        yield replace(model, name=_shortest_name(repository, file, names), repository=repository, problem=problem)


def _cached_model(file: str, links: Mapping[str, Sequence[Path]], *, headers: bool) -> LocalModel:
    """A model without its name, given the links to each file of its repository, the newest first."""
    expected = all_parts(file)
    found = [link for part in expected for link in links.get(part, ())]
    current = [links[part][0] for part in expected if part in links]
    missing = len(expected) - sum(link.exists() for link in current)
    header, problem = None, ""
    if missing:
        problem = f"{missing} of {len(expected)} parts missing" if expected[1:] else "damaged: its content is missing"
    elif headers:
        header, problem = _read_header(found[0])
    if not problem and not models([file]):
        problem = "goes with a model"
    (size, _), (whole, used) = _size_and_use(current), _size_and_use(found)
    return LocalModel("", found[0], "", file, tuple(found), size, used, header, problem, whole - size)


def _shortest_name(repository: str, file: str, names: Sequence[str]) -> str:
    """The shortest name that means this file among those of its repository."""
    quant = quant_of(file)
    if quant and [all_parts(found)[0] for found in with_quant(names, quant)] == [file]:
        return str(HubModel(repository, quant))
    return str(HubModel(repository, file=file))


def _read_header(path: Path) -> tuple[Header | None, str]:
    """What a file says of its model, or why it does not. Raises llama.cpp's error if that does not load."""
    from lacli.llamacpp.library import library

    library()
    try:
        with _unread(parts(path)):
            return read_header(path), ""
    except ModelLoadError as error:
        return None, f"damaged: {error.what.removeprefix('cannot read ')}"
    except OSError as error:
        return None, f"cannot be read: {reason_of(error)}"


@contextmanager
def _unread(paths: Sequence[Path]) -> Iterator[None]:
    """Keep the files' access times while they are inspected, which does not count as use."""
    times = {}
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            times[path] = (status.st_atime_ns, status.st_mtime_ns)
    try:
        yield
    finally:
        for path, (read, written) in times.items():
            with suppress(OSError):
                status = path.stat()
                if status.st_atime_ns != read and status.st_mtime_ns == written:
                    os.utime(path, ns=(read, written))


def _size_and_use(links: Sequence[Path]) -> tuple[int, float]:
    """Bytes of the files, each content counted once, and when one was last read or written."""
    contents = {}
    for link in links:
        with suppress(OSError):
            contents[link.resolve()] = link.stat()
    used = (max(status.st_atime, status.st_mtime) for status in contents.values())
    return sum(status.st_size for status in contents.values()), max(used, default=0.0)
