"""`lacli rm` as a whole: which files of the hub's cache a name means, and how they go without harming the others.

Only the hub's cache is touched. A file there is a link in each commit's folder and a content in `blobs`, which may be
shared; huggingface_hub's own deletion takes care of the order and of what is shared between repositories. What comes
into the cache while the user is asked, or is fetched just now, stays, and is not said to be removed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import time
from typing import Any

from lacli.errors import LacliError, ModelLoadError, UsageError
from lacli.hub.aliases import Alias, read_aliases
from lacli.hub.cache import cache_folder, lock_of, repository_folder
from lacli.hub.names import HubModel, read_name
from lacli.shelf.cached import (
    LLAMA_CPPS,
    Stored,
    Unfinished,
    cached_models,
    matching,
    unfinished_downloads,
)
from lacli.terminal.screen import Screen
from lacli.text.format import size_in_words

Ask = Callable[[str], bool]

STILL = 300.0
"""Seconds after which a download of llama.cpp, which locks none, is taken for one that broke off."""


@dataclass(frozen=True)
class Removal:
    """What a name means to remove.

    name: of the model, as it can be typed. entries: its links in the cache, all parts at all commits. unfinished:
    downloads that broke off. size: bytes that this frees.
    """

    name: str
    repository: str
    entries: tuple[Path, ...] = ()
    unfinished: tuple[Path, ...] = ()
    size: int = 0

    @property
    def paths(self) -> tuple[Path, ...]:
        """What is named to the user."""
        return self.entries or self.unfinished


def remove_models(
    names: Sequence[str], own: Path, screen: Screen, ask: Ask | None, *, unfinished: bool = False, as_json: bool = False
) -> bool:
    """Remove models from the hub's cache; False where the user did not agree, and nothing is removed then.

    ask: is given a question and says yes or no; None: do not ask. unfinished: only downloads that broke off, all of
    them where no name is given. Raises ModelLoadError for what is not there, UsageError for what is not in the cache.
    """
    aliases = read_aliases(own, screen.note)
    planned = [plan_removal(name, aliases, unfinished=unfinished) for name in names] if names else _all_downloads()
    found = {removal.name: removal for removal in planned}
    for removal in found.values():
        screen.note(_in_words(removal))
    size = size_in_words(sum(removal.size for removal in found.values()))
    if ask is not None and not ask(f"remove {' and '.join(found)}, {size}?"):
        return False
    removed = [removal for removal in map(remove, found.values()) if removal.paths]
    if as_json:
        screen.line(json.dumps({"removed": [_removal_json(removal) for removal in removed]}))
    elif removed:
        screen.note(f"removed, {size_in_words(sum(removal.size for removal in removed))} freed")
    else:
        screen.note("another program goes on with it: nothing was removed")
    return True


def plan_removal(name: str, aliases: Mapping[str, Alias], *, unfinished: bool = False) -> Removal:
    """What a MODEL argument means to remove. unfinished: only the downloads of its repository that broke off.

    Where there is no model, a repository's bare name means those downloads too.
    """
    wanted = read_name(name, aliases)
    if isinstance(wanted, Path):
        raise _no_model_of_the_cache(wanted)
    found = [] if unfinished else matching(cached_models(wanted.repository, headers=False), wanted)
    if found[1:]:
        choices = ", ".join(model.name for model in found)
        raise ModelLoadError(f"{len(found)} models on this disk are {wanted}", f"name one of {choices}")
    if found:
        return _of_model(found[0])
    broken = unfinished_downloads(wanted.repository)
    if broken and (unfinished or wanted == HubModel(wanted.repository)):
        return _of_downloads(wanted.repository, broken)
    what = "no unfinished download of" if unfinished else "not on this disk:"
    raise ModelLoadError(f"{what} {wanted}", "lacli list shows what there is")


def remove(removal: Removal) -> Removal:
    """Do it, links first, then what they alone led to; returns what was removed: a download that goes on was not.

    Raises LacliError where something cannot be removed.
    """
    from huggingface_hub.utils import DeleteCacheStrategy  # type: ignore[attr-defined]  # it lists no exports

    folder = repository_folder(removal.repository)
    removal = _without_those_going_on(removal)
    contents = _contents(folder, removal.entries)
    strategy = DeleteCacheStrategy(
        expected_freed_size=removal.size,
        blobs=frozenset(contents) - frozenset(removal.entries),
        refs=frozenset(),
        repos=frozenset(),
        snapshots=frozenset(),
        files=frozenset(removal.entries),
        cache_dir=cache_folder(),
    )
    try:
        for path in removal.unfinished:
            path.unlink(missing_ok=True)
        strategy.execute()
    except OSError as error:
        raise _not_removed(str(error.filename), error.strerror or "") from error
    left = [path for path in (*removal.entries, *contents) if path.exists() or path.is_symlink()]
    if left:
        raise _not_removed(str(left[0]), "")
    _remove_empty(folder)
    return removal


def _without_those_going_on(removal: Removal) -> Removal:
    """What is left of it to remove, where a download may have begun again while the user was asked."""
    ended = tuple(path for path in removal.unfinished if path.exists() and not _is_fetched(path))
    if ended == removal.unfinished:
        return removal
    return replace(removal, unfinished=ended, size=sum(path.stat().st_size for path in ended))


def _remove_empty(folder: Path) -> None:
    """Remove a repository's folder if no file and no download is in it."""
    with suppress(OSError):  # a folder that is not empty
        for kept in ("blobs", "snapshots"):
            for inside, _, _ in os.walk(folder / kept, topdown=False):
                os.rmdir(inside)
        shutil.rmtree(folder.resolve())
        folder.unlink(missing_ok=True)  # a link to where it was


def _of_model(model: Stored) -> Removal:
    folder = repository_folder(model.repository)
    if outside := [link for link in model.entries if not link.parent.resolve().is_relative_to(folder.resolve())]:
        raise UsageError(f"{outside[0]} leads out of the hub's cache", "remove such files yourself")
    size = sum(content.stat().st_size for content in _contents(folder, model.entries))
    return Removal(model.name, model.repository, model.entries, (), size)


def _contents(folder: Path, entries: Sequence[Path]) -> list[Path]:
    """What these links of a repository lead to and no other there needs."""
    kept = {_content(link) for link in _links(folder) if link not in entries}
    # A link that leads out of the cache goes, and what it leads to stays.
    ours = {folder / "blobs", *(link.parent for link in entries)}
    contents = dict.fromkeys(_content(link) for link in entries)
    return [content for content in contents if content not in kept and content.parent in ours and content.exists()]


def _all_downloads() -> list[Removal]:
    """All downloads that broke off, by their repositories; those that go on just now stay."""
    broken = unfinished_downloads()
    ended = [each for each in broken if not _is_fetched(each.path)]
    if broken and not ended:
        raise LacliError("another program goes on with all unfinished downloads just now", "end it first")
    if not broken:
        raise ModelLoadError("there is no unfinished download", "lacli list shows what there is")
    repositories = dict.fromkeys(each.repository for each in ended)
    return [_of_downloads(name, [each for each in ended if each.repository == name]) for name in repositories]


def _of_downloads(repository: str, broken: Sequence[Unfinished]) -> Removal:
    name = f"unfinished downloads of {repository}"
    ended = [each for each in broken if not _is_fetched(each.path)]
    if not ended:
        raise LacliError(f"another program goes on with the {name} just now", "end it first")
    return Removal(name, repository, (), tuple(each.path for each in ended), sum(each.size for each in ended))


def _is_fetched(partial: Path) -> bool:
    """Whether another program has the lock of this download, or writes it where it is one of llama.cpp's."""
    from filelock import FileLock, Timeout

    if partial.suffix == LLAMA_CPPS:
        with suppress(OSError):
            return time() - partial.stat().st_mtime < STILL
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


def _links(folder: Path) -> list[Path]:
    """All files of all commits of a repository."""
    return [path for path in folder.glob("snapshots/**/*") if path.is_symlink() or path.is_file()]


def _content(link: Path) -> Path:
    """What a link leads to, one step; a file that is no link is its own content."""
    return Path(os.path.abspath(link.parent / link.readlink())) if link.is_symlink() else link


def _no_model_of_the_cache(path: Path) -> UsageError:
    """What is said of a path: a file in the cache has a name that can be given, any other is not ours."""
    same = [
        model for model in cached_models(headers=False) if path.is_file() and path.resolve() == model.path.resolve()
    ]
    if same:
        return UsageError(f"{path} is a path; lacli rm takes a name", f"lacli rm {same[0].name}")
    return UsageError(
        f"lacli rm removes models from the hub's cache, and {path} is a path outside it", "remove such files yourself"
    )


def _not_removed(path: str, why: str) -> LacliError:
    return LacliError(
        f"cannot remove {path}{f': {why}' if why else ''}", "is the cache yours? HF_HOME says where it is"
    )


def _in_words(removal: Removal) -> str:
    files = len(removal.paths)
    where = str(removal.paths[0]) + (f" and {files - 1} more" if files > 1 else "")
    return f"{removal.name}: {size_in_words(removal.size)}, {where}"


def _removal_json(removal: Removal) -> dict[str, Any]:
    return {
        "name": removal.name,
        "repository": removal.repository,
        "size": removal.size,
        "paths": [str(path) for path in removal.paths],
    }
