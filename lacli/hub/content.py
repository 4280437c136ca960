"""One file's content of the hub, brought whole into huggingface_hub's cache.

The library takes a broken download from its beginning, so the bytes are fetched here: into `blobs/NAME.incomplete`,
where the next attempt goes on, under the library's lock and with its bar. The library makes the rest of the cache
itself. Which files those are is `download.py`'s affair.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from lacli.errors import Interrupted, ModelLoadError
from lacli.hub.cache import cache_folder, lock_of, repository_folder
from lacli.hub.library import UNSAFE, address, check_hash
from lacli.text.format import size_in_words

PATIENCE = 0.5
"""Seconds until a wait for another program is told."""

SHA256 = re.compile(r"[0-9a-f]{64}")
"""The blob's name of a file that git does not keep itself: the hash of its content."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class HubFile:
    """One file of a repository. blob: the name of its content in the cache, which tells one content from another."""

    name: str
    size: int
    blob: str


@dataclass(frozen=True)
class Listing:
    """What a repository has at a commit: its GGUF files by their names.

    Raises ModelLoadError for names that would lead out of the cache's folders, or to a terminal's control codes.
    """

    repository: str
    commit: str
    files: dict[str, HubFile]

    def __post_init__(self) -> None:
        check_hash(self.commit)
        for file in self.files.values():
            check_hash(file.blob)
            if not _is_safe(file.name):
                what = f"{address()} lists a file {file.name[:80]!r} in {self.repository}"
                raise ModelLoadError(f"{what}, which is not a safe file name", UNSAFE)


def _is_safe(name: str) -> bool:
    """Whether a file of this name lies below its folder on any system, and the name can be shown."""
    outside = {"", ".", ".."} & set(name.split("/")) or "\\" in name or name[1:2] == ":"
    return name.isprintable() and not outside


def is_there(file: HubFile, listing: Listing) -> bool:
    """Whether its content is in the cache with all its bytes; a damaged one is not there."""
    return bool(file.blob) and _size(_content(file, listing)) == file.size


def _content(file: HubFile, listing: Listing) -> Path:
    """Where its content is; where links cannot be made, that is in the commit's own folder."""
    pointer = _pointer(file, listing)
    return pointer if pointer.is_file() else _blob(file, listing.repository)


def missing_bytes(file: HubFile, repository: str) -> int:
    """Bytes of a file that are still to be fetched."""
    return max(0, file.size - max(0, _size(_partial(file, repository)))) if file.blob else file.size


def fetch_content(file: HubFile, listing: Listing, say: Say) -> None:
    """Bring a file's content into the cache, going on where an earlier attempt ended."""
    from huggingface_hub import constants

    if not file.blob:
        return  # the library fetches it when it makes the link
    blob, partial = _blob(file, listing.repository), _partial(file, listing.repository)
    if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        # The library fetches it too: it comes in pieces that only it can join. It takes a damaged one for whole.
        for damaged in (_pointer(file, listing), blob):
            damaged.unlink(missing_ok=True)
        return
    lock = lock_of(repository_folder(listing.repository), file.blob)
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with _alone(lock, say):
        if is_there(file, listing):
            return
        try:
            _fetch_content(file, listing, partial, say)
        except KeyboardInterrupt:
            done = f"{size_in_words(max(0, _size(partial)))} of {size_in_words(file.size)}"
            raise Interrupted(f"stopped with {done} fetched", "the same command goes on from there") from None
        place = _place(file, listing)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, place)
        for rest in blob.parent.glob(f"{file.blob}.*.incomplete"):  # what the library left of the same content
            rest.unlink()


def link(file: HubFile, listing: Listing) -> Path:
    """The library's own path for a file whose content is there."""
    from huggingface_hub import hf_hub_download

    revision = listing.commit or None
    path = hf_hub_download(
        listing.repository, file.name, revision=revision, cache_dir=cache_folder(), library_name="lacli"
    )
    return Path(path)


def _place(file: HubFile, listing: Listing) -> Path:
    """Where the content goes: into the commit's own folder where the library could only copy it, or has, to there."""
    from huggingface_hub.file_download import are_symlinks_supported

    pointer = _pointer(file, listing)
    copied = pointer.is_file() and not pointer.is_symlink()
    links = are_symlinks_supported(cache_folder()) or not listing.commit
    return _blob(file, listing.repository) if links and not copied else pointer


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
    """All bytes of a file, going on from those that are there if they are its beginning.

    The library goes on by itself too where a connection breaks, so that what came is judged as a whole.
    """
    if _size(partial) > file.size:
        partial.unlink()
    _fetch_bytes(file, listing, partial)
    if _is_right(file, partial):
        return
    say("what came of it is damaged: fetching all of it")
    partial.unlink()
    _fetch_bytes(file, listing, partial)
    if not _is_right(file, partial):
        partial.unlink()
        raise ModelLoadError(f"{file.name} came with other bytes than the hub has", "it was removed: fetch it again")


def _is_right(file: HubFile, partial: Path) -> bool:
    """Whether it is what its name says, where that is known. Raises ModelLoadError as `_check_size` does."""
    _check_size(file, partial)
    return not SHA256.fullmatch(file.blob) or _hash(partial) == file.blob


def _hash(path: Path) -> str:
    with path.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _fetch_bytes(file: HubFile, listing: Listing, partial: Path) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    there = max(0, _size(partial))
    if there == file.size and partial.exists():
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


def _pointer(file: HubFile, listing: Listing) -> Path:
    return repository_folder(listing.repository) / "snapshots" / listing.commit / file.name


def _blob(file: HubFile, repository: str) -> Path:
    return repository_folder(repository) / "blobs" / file.blob


def _partial(file: HubFile, repository: str) -> Path:
    return _blob(file, repository).with_name(f"{file.blob}.incomplete")


def _size(path: Path) -> int:
    """Bytes of a file, -1 where there is none."""
    return path.stat().st_size if path.is_file() else -1
