"""Which models are on this disk: in the hub's cache, the bundled one, and the files that aliases name.

Looks and describes; what is shown of it is `listing.py`, what is removed is `removal.py`. Where the cache is and how
its folders look is told in `lacli/hub/cache.py`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lacli.errors import ModelLoadError
from lacli.hub.aliases import Alias
from lacli.hub.cache import (
    PREFIX,
    cache_folder,
    known_files,
    newest_snapshot,
    repository_folder,
    repository_of,
)
from lacli.hub.names import HubModel, alias_model
from lacli.hub.quants import (
    all_parts,
    find,
    has_quant,
    models,
    quant_of,
)
from lacli.llamacpp.gguf import Header, parts, read_header
from lacli.resolve import demo_model

EVERY = f"{PREFIX}*--*"
"""The folders of repositories that have an owner; no others can be named."""

LLAMA_CPPS = ".downloadInProgress"
UNFINISHED = ("*.incomplete", f"*{LLAMA_CPPS}")
"""Of downloads that broke off: ours and huggingface_hub's, and llama.cpp's."""


@dataclass(frozen=True)
class Stored:
    """A model on this disk.

    name: what to type for it, empty for the bundled one. path: the file to open. repository, file: as the hub names
    them, empty outside its cache. entries: its files in the cache, all parts at all commits. size: bytes of the file to
    open with all its parts. older: bytes that other commits' files of that name take beside. used: when it was read or
    written last, in seconds since 1970. header: what it says of itself, None where it is not or cannot be read.
    problem: why it cannot be run, in a few words, or empty.
    """

    name: str
    path: Path
    repository: str = ""
    file: str = ""
    entries: tuple[Path, ...] = ()
    size: int = 0
    used: float = 0.0
    header: Header | None = None
    problem: str = ""
    older: int = 0


@dataclass(frozen=True)
class Unfinished:
    """A download that broke off, or goes on just now: its repository, the file so far, its bytes, and its last change.

    lacli goes on with its own alone, BLOB.incomplete; those of the library and llama.cpp have other names.
    """

    repository: str
    path: Path
    size: int
    used: float


def stored_models(aliases: Mapping[str, Alias]) -> list[Stored]:
    """All models on this disk: those of the hub by name, then files that aliases name, then the bundled one."""
    return [*cached_models(), *_named_files(aliases), _file("", demo_model())]


def cached_models(repository: str = "", *, headers: bool = True) -> list[Stored]:
    """The models in the hub's cache, or those of one repository there; headers: read what their files say."""
    folders = [repository_folder(repository)] if repository else sorted(cache_folder().glob(EVERY))
    return [model for folder in folders for model in _in_repository(folder, headers=headers)]


def cached_names(cache: Path) -> list[str]:
    """What to type for each model in a cache, without a look into its files."""
    found = []
    for folder in sorted(cache.glob(EVERY)):
        newest = newest_snapshot(folder)
        entries = _entries(folder, newest)
        names = _all_names(folder, entries, newest)
        found += [_name(repository_of(folder), file, names) for file in _firsts(entries)]
    return found


def unfinished_downloads(repository: str = "") -> list[Unfinished]:
    """The downloads into the cache that broke off, or those of one repository."""
    wanted = repository_folder(repository).name if repository else EVERY
    paths = [path for pattern in UNFINISHED for path in sorted(cache_folder().glob(f"{wanted}/blobs/{pattern}"))]
    found = []
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            found.append(Unfinished(repository_of(path.parents[1]), path, status.st_size, status.st_mtime))
    return found


def matching(stored: Sequence[Stored], wanted: HubModel) -> list[Stored]:
    """Those that a name of the hub means: one file, those with a quant, or all of a repository."""
    there = [model for model in stored if model.repository == wanted.repository]
    if wanted.file:
        return [model for model in there if all_parts(model.file) == all_parts(wanted.file)]
    chosen = models(model.file for model in there)
    return [m for m in there if m.file in chosen and (not wanted.quant or has_quant(m.file, wanted.quant))]


def aliased(stored: Sequence[Stored], alias: Alias) -> list[Stored]:
    """What an alias means of what is on this disk; several where it names a repository without a quant."""
    try:
        wanted = alias_model(alias)
    except ModelLoadError:
        return []
    if isinstance(wanted, HubModel):
        return matching(stored, wanted)
    return [model for model in stored if model.path == wanted]


def _in_repository(folder: Path, *, headers: bool) -> list[Stored]:
    """The models of one repository, those that its newest commit has first."""
    newest = newest_snapshot(folder)
    entries = _entries(folder, newest)
    names = _all_names(folder, entries, newest)
    return [
        _cached(
            HubModel(repository_of(folder), file=file),
            _name(repository_of(folder), file, names),
            entries,
            newest,
            headers=headers,
        )
        for file in _firsts(entries)
    ]


def _all_names(folder: Path, entries: Mapping[str, Sequence[Path]], newest: Path | None) -> list[str]:
    """The files of a repository that are here, and those that it is known to have besides."""
    known = known_files(folder, newest.name) if newest is not None else ()
    return list(dict.fromkeys([*entries, *known]))


def _entries(folder: Path, newest: Path | None) -> dict[str, list[Path]]:
    """The files of a repository by their names, each at all commits, the newest first."""
    entries: defaultdict[str, list[Path]] = defaultdict(list)
    for snapshot in sorted(folder.glob("snapshots/*"), key=lambda path: path != newest):
        for path in sorted(snapshot.rglob("*.gguf")):
            if not path.is_dir():
                entries[path.relative_to(snapshot).as_posix()].append(path)
    return entries


def _firsts(entries: Mapping[str, Sequence[Path]]) -> list[str]:
    """The name of each model's first part."""
    return list(dict.fromkeys(all_parts(file)[0] for file in entries))


def _cached(
    model: HubModel, name: str, entries: Mapping[str, Sequence[Path]], newest: Path | None, *, headers: bool
) -> Stored:
    names = all_parts(model.file)
    links = [link for name in names for link in entries.get(name, ())]
    path = links[0]
    missing = [name for name in names if name not in entries or not entries[name][0].exists()]
    header, problem = None, _words_for(missing, names) if missing else ""
    if headers and not missing:
        header, problem = _read(path)
    if not problem and not models([model.file]):
        problem = "goes with a model"
    if not problem and (newest is None or newest not in path.parents):
        problem = "of an older commit"
    whole, used = _size_and_use(links)
    size, _ = _size_and_use([entries[name][0] for name in names if name in entries])
    return Stored(name, path, model.repository, model.file, tuple(links), size, used, header, problem, whole - size)


def _name(repository: str, file: str, files: Sequence[str]) -> str:
    """The shortest name that means this file among those of its repository."""
    quant = quant_of(file)
    if quant and [all_parts(found)[0] for found in find(files, quant)] == [file]:
        return str(HubModel(repository, quant))
    return str(HubModel(repository, file=file))


def _named_files(aliases: Mapping[str, Alias]) -> list[Stored]:
    found = []
    for alias in aliases.values():
        with suppress(ModelLoadError):
            path = alias_model(alias)
            if isinstance(path, Path) and path.is_file():
                found.append(_file(alias.name, path))
    return found


def _file(name: str, path: Path) -> Stored:
    header, problem = _read(path)
    size, used = _size_and_use(parts(path))
    return Stored(name, path, size=size, used=used, header=header, problem=problem)


def _read(path: Path) -> tuple[Header | None, str]:
    """What a file says of itself, or why it does not. Raises what llama.cpp raises where it does not load."""
    from lacli.llamacpp.library import library

    library()
    try:
        with _unread(parts(path)):
            return read_header(path), ""
    except ModelLoadError as error:
        return None, f"damaged: {error.what.removeprefix('cannot read ')}"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"


@contextmanager
def _unread(paths: Sequence[Path]) -> Iterator[None]:
    """A look at these files that does not count as use: it leaves the time of their last reading as it was."""
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
    """The bytes of the contents, each counted once, and when one was last read or written."""
    contents = {}
    for link in links:
        with suppress(OSError):
            contents[link.resolve()] = link.stat()
    used = (max(status.st_atime, status.st_mtime) for status in contents.values())
    return sum(status.st_size for status in contents.values()), max(used, default=0.0)


def _words_for(missing: Sequence[str], names: Sequence[str]) -> str:
    return f"{len(missing)} of {len(names)} parts missing" if names[1:] else "damaged: its content is missing"
