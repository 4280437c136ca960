"""A model of the hub on this disk: found in huggingface_hub's own cache, or fetched into it.

The library takes a broken download from its beginning, so the bytes are fetched here: into `blobs/NAME.incomplete`,
where the next attempt goes on, under the library's lock and with its bar. It makes the rest of the cache itself. What
a name means is `names.py`'s affair, which file is meant `quants.py`'s, what is there already `cache.py`'s.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from lacli.amounts import size_in_words
from lacli.errors import Interrupted, ModelLoadError
from lacli.hub.cache import cache_folder, find_cached, keep_names, make_newest, repository_folder, whats_here
from lacli.hub.library import address, quiet_library, reason
from lacli.hub.names import HubModel
from lacli.hub.quants import choose, models, with_parts
from lacli.nearest import nearest

SECONDS = 10.0
"""How long the hub may take to begin an answer."""

PATIENCE = 0.5
"""Seconds until a wait for another program is told."""

SHA256 = re.compile(r"[0-9a-f]{64}")
"""The blob's name of a file that git does not keep itself: the hash of its content."""

MOST_LISTED = 8
"""Of a repository with more files than that only the nearest names are offered."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class HubFile:
    """One file of a repository. blob: the name of its content in the cache, which tells one content from another."""

    name: str
    size: int
    blob: str


@dataclass(frozen=True)
class Listing:
    """What a repository has at a commit: its files by their names."""

    repository: str
    commit: str
    files: dict[str, HubFile]


def fetch_model(
    model: HubModel,
    *,
    offline: bool = False,
    quiet: bool = False,
    fresh: bool = False,
    name: str = "",
    say: Say | None = None,
) -> Path:
    """The file to open for a model, its first part where it is split; fetched with all parts where the cache lacks it.

    offline: only from the cache. quiet: without a bar. fresh: ask the hub for the newest even where the cache has the
    model. name: what the user typed. say: is told in a sentence what a name became. Raises ModelLoadError, or
    Interrupted by Ctrl-C.
    """
    say = say or (lambda sentence: None)
    if offline or not fresh:
        cached = find_cached(model, anything=offline)
        if cached is not None:
            return _from_cache(model, cached, say)
    if offline:
        pull = f"lacli pull {name or model} fetches it, without --offline"
        raise ModelLoadError(f"{model} is not in the cache", _beside_whats_here(model, pull))
    try:
        with quiet_library(bars=not quiet):
            return _fetch(model, say)
    except (ModelLoadError, Interrupted):
        raise
    except Exception as error:  # the library, its transport and the disk raise many kinds
        why = reason(error, model.repository, f"{model.file} in {model.repository}" if model.file else "")
        cached = find_cached(model, anything=True) if why.unreached else None
        if cached is None:
            what = why.why if model.repository in why.why else f"cannot fetch {model}: {why.why}"
            raise ModelLoadError(
                what, _beside_whats_here(model, why.remedy) if why.unreached else why.remedy
            ) from error
        return _from_cache(model, cached, say, why.why)


def list_files(repository: str) -> Listing:
    """All files of a repository, from the hub in one request. Raises what the library raises."""
    from huggingface_hub import HfApi

    found = HfApi(library_name="lacli").model_info(repository, files_metadata=True, timeout=SECONDS)
    files = {
        each.rfilename: HubFile(each.rfilename, each.size or 0, (each.lfs.sha256 if each.lfs else each.blob_id) or "")
        for each in found.siblings or ()
    }
    return Listing(repository, found.sha or "", files)


def _beside_whats_here(model: HubModel, remedy: str) -> str:
    """What to do where a model cannot be had, and which others of its repository can."""
    here = whats_here(model.repository)
    return f"on this disk {'are' if ',' in here else 'is'} {here}; {remedy}" if here else remedy


def _from_cache(model: HubModel, path: Path, say: Say, why: str = "") -> Path:
    """why: the hub could not be asked."""
    say(f"{model} is {path.name}, from the cache{f' ({why})' if why else ''}")
    return path


def _fetch(model: HubModel, say: Say) -> Path:
    """The model from the hub. Raises the library's errors too."""
    listing = list_files(model.repository)
    names = _choose(model, listing)
    files = [listing.files[name] for name in names]
    absent = [file for file in files if not _is_there(file, listing)]
    if absent:
        missing = sum(_missing_bytes(file, model.repository) for file in absent)
        _check_room(model, missing)
        say(f"{model} is {files[0].name.rpartition('/')[2]}: fetching {size_in_words(missing)} from {address()}")
    for file in absent:
        _fetch_blob(file, listing, say)
    first, *_ = [_link(file, listing) for file in files]
    commit = first.parents[names[0].count("/")].name
    keep_names(model.repository, commit, listing.files)
    make_newest(model.repository, commit)
    return first if absent else _from_cache(model, first, say)


def _choose(model: HubModel, listing: Listing) -> list[str]:
    if not model.file:
        return choose(listing.files, model.quant, model.repository)
    if model.file not in listing.files:
        there = models(listing.files)
        similar = ", ".join(nearest(model.file, there) if len(there) > MOST_LISTED else there)
        hint = f"there are {similar}" if similar else f"its files: {address()}/{model.repository}/tree/main"
        raise ModelLoadError(f"{model.repository} has no {model.file}", hint)
    return with_parts(model.file, listing.files, model.repository)


def _is_there(file: HubFile, listing: Listing) -> bool:
    """Whether its content is in the cache; where links cannot be made, that is in the commit's own folder."""
    return bool(file.blob) and (_blob(file, listing.repository).exists() or _pointer(file, listing).is_file())


def _pointer(file: HubFile, listing: Listing) -> Path:
    return repository_folder(listing.repository) / "snapshots" / listing.commit / file.name


def _blob(file: HubFile, repository: str) -> Path:
    return repository_folder(repository) / "blobs" / file.blob


def _partial(file: HubFile, repository: str) -> Path:
    return _blob(file, repository).with_name(f"{file.blob}.incomplete")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _missing_bytes(file: HubFile, repository: str) -> int:
    """Bytes of a file that are still to be fetched."""
    return max(0, file.size - _size(_partial(file, repository))) if file.blob else file.size


def _check_room(model: HubModel, missing: int) -> None:
    """Raises ModelLoadError where the cache's disk has no room for the bytes that are missing."""
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise ModelLoadError(
            f"{model} needs {size_in_words(missing)} more in {folder}, where {size_in_words(free)} are free",
            "make room (lacli list shows models, lacli rm removes them) or set HF_HOME to a folder on another disk",
        )


def _fetch_blob(file: HubFile, listing: Listing, say: Say) -> None:
    """Bring a file's content into the cache, going on where an earlier attempt ended."""
    from huggingface_hub import constants

    if not file.blob or file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        # The library fetches it when it makes the link; so large files come in pieces that only it can join.
        return
    blob, partial = _blob(file, listing.repository), _partial(file, listing.repository)
    lock = cache_folder() / ".locks" / repository_folder(listing.repository).name / f"{file.blob}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with _alone(lock, say):
        if _is_there(file, listing):
            return
        try:
            _fetch_content(file, listing, partial, say)
        except KeyboardInterrupt:
            done = f"{size_in_words(_size(partial))} of {size_in_words(file.size)}"
            raise Interrupted(f"stopped with {done} fetched", "the same command goes on from there") from None
        place = _place(file, listing)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, place)
        for rest in blob.parent.glob(f"{file.blob}.*.incomplete"):  # what the library left of the same content
            rest.unlink()


def _place(file: HubFile, listing: Listing) -> Path:
    """Where the content goes: into the commit's own folder where the library could only copy it to there."""
    from huggingface_hub.file_download import are_symlinks_supported

    links = are_symlinks_supported(cache_folder()) or not listing.commit
    return _blob(file, listing.repository) if links else _pointer(file, listing)


@contextmanager
def _alone(lock: Path, say: Say) -> Iterator[None]:
    """Keep others, lacli or the library, from fetching the same content; while they do, wait and say so."""
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # it is there, and lists no exports

    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=PATIENCE))
        except Timeout:
            say("another program is fetching it: waiting for that")
            stack.enter_context(WeakFileLock(lock))
        yield


def _fetch_content(file: HubFile, listing: Listing, partial: Path, say: Say) -> None:
    """All bytes of a file, going on from those that are there if they are its beginning."""
    if _size(partial) > file.size:
        partial.unlink()
    resumed = _size(partial) > 0
    _fetch_bytes(file, listing, partial)
    _check_size(file, partial)
    if resumed and SHA256.fullmatch(file.blob) and _hash(partial) != file.blob:
        say("what was there of it is damaged: fetching all of it")
        partial.unlink()
        _fetch_bytes(file, listing, partial)
        _check_size(file, partial)


def _hash(path: Path) -> str:
    with path.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _fetch_bytes(file: HubFile, listing: Listing, partial: Path) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    there = _size(partial)
    if there == file.size:
        return
    url = hf_hub_url(listing.repository, file.name, revision=listing.commit)
    with partial.open("ab") as to:
        headers = build_hf_headers(library_name="lacli")
        http_get(url, to, resume_size=there, headers=headers, displayed_filename=file.name.rpartition("/")[2])


def _check_size(file: HubFile, partial: Path) -> None:
    """Raises ModelLoadError, and forgets the content, where it is not as long as the hub said."""
    size = _size(partial)
    if size != file.size:
        partial.unlink()
        raise ModelLoadError(
            f"{file.name} came with {size} bytes instead of {file.size}", "it was removed: fetch it again"
        )


def _link(file: HubFile, listing: Listing) -> Path:
    """The library's own path for a file whose content is there."""
    from huggingface_hub import hf_hub_download

    revision = listing.commit or None
    path = hf_hub_download(
        listing.repository, file.name, revision=revision, cache_dir=cache_folder(), library_name="lacli"
    )
    return Path(path)
