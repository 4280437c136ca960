"""From MODEL to a GGUF file to open: a path, a model found in huggingface_hub's cache, or one fetched into it.

The library starts an interrupted download again from byte 0, so the bytes are fetched here: into
`blobs/NAME.incomplete`, where the next attempt goes on, under the library's lock and with its progress bar. The library
makes the rest of its cache.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import file_digest
from pathlib import Path

from lacli.errors import Interrupted, ModelLoadError, reason_of
from lacli.hub.cache import (
    cache_folder,
    cached_quants,
    find_cached,
    lock_of,
    remember_files,
    remember_newest,
    repository_folder,
)
from lacli.hub.library import HubFile, Listing, address, careful_library, file_size, list_files, reason
from lacli.hub.names import (
    FILE,
    MODEL_IS,
    HubModel,
    choose,
    missing_parts,
    models,
    read_aliases,
    read_name,
    shortened,
    smollm2_file,
    with_parts,
)
from lacli.llamacpp.gguf import all_parts
from lacli.text.files import free_disk
from lacli.text.format import offered, size_in_words, suggest

Say = Callable[[str], None]

MAGIC = b"GGUF"
LOCK_PATIENCE = 0.5
"""Seconds of waiting for another program's download before that is said."""

MAX_OFFERED = 8
"""A mistyped file is answered with all files of a smaller repository, and with the nearest ones of a larger."""

SHA256 = re.compile(r"[0-9a-f]{64}")
"""A blob whose name is the hash of its content (Git LFS); small files have git's own hash."""


def find_model(
    name: str | Path,
    *,
    offline: bool = False,
    aliases: Path | None = None,
    quiet: bool = False,
    say: Say | None = None,
) -> Path:
    """The file to load for a MODEL argument; any part of a split file means its first.

    A model of the hub is fetched if the cache lacks it, unless `offline`. `aliases`: the user's own list. `quiet`: no
    progress bar. `say` is told what a name became. Raises ModelLoadError if there is no such file or model, it is no
    GGUF file, or a part of it is missing.
    """
    path = Path(os.path.expanduser(name))
    if isinstance(name, Path) or os.path.isfile(path):
        return check_file(path)
    found = read_name(name, read_aliases(aliases, say))
    if isinstance(found, HubModel):
        return check_file(fetch_model(found, offline=offline, quiet=quiet, name=name, say=say))
    if say is not None and found not in (path, smollm2_file()):
        say(f"{name} is {found}")
    return check_file(found)


def check_file(path: Path) -> Path:
    """The part to open of a GGUF file. Raises ModelLoadError if it is none or a part of it is missing."""
    try:
        magic = _read_magic(path)
    except FileNotFoundError as error:
        raise ModelLoadError(f"no such file: {shortened(str(path))}", _what_was_meant(str(path))) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {shortened(str(path))}: {reason_of(error)}", MODEL_IS) from error
    if not magic:
        raise ModelLoadError(f"{path} is empty", "fetch the model again")
    if magic != MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF file", "lacli runs models in llama.cpp's GGUF format")
    parts = all_parts(path.name)
    if problem := missing_parts(parts, [name for name in parts if (path.parent / name).exists()]):
        raise ModelLoadError(f"the model {problem}", f"put all parts into {path.parent}")
    return path.parent / parts[0]


def _read_magic(path: Path) -> bytes:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        example = next(iter(sorted(path.glob("*.gguf"))), path / "model.gguf")
        raise ModelLoadError(f"{path} is a directory", f"name a file in it: {example}")
    if not stat.S_ISREG(mode):
        raise ModelLoadError(f"{path} is not a regular file", "llama.cpp maps the model's file into memory")
    with path.open("rb") as file:
        return file.read(len(MAGIC))


def _what_was_meant(text: str) -> str:
    """The hint for a file that does not exist: a prompt without -p, a mistyped name, or a file of the hub."""
    if any(char.isspace() for char in text):
        return f"a prompt needs -p; {MODEL_IS}"
    path = Path(text)
    beside = [str(each) for each in path.parent.glob("*.gguf")]
    if near := offered(suggest(text, beside)):
        return f"{near} {MODEL_IS}"
    return f"on the hub it is hf:{text}; {MODEL_IS}" if FILE.fullmatch(text) else MODEL_IS


def fetch_model(
    model: HubModel,
    *,
    offline: bool = False,
    quiet: bool = False,
    fresh: bool = False,
    name: str = "",
    say: Say | None = None,
    warn: Say | None = None,
) -> Path:
    """The file to open for a model (the first part of a split one), fetched with all its parts if the cache lacks it.

    `offline`: only from the cache. `quiet`: no progress bar. `fresh`: ask the hub for the newest even if the cache has
    the model, and take no other if the hub does not answer. `name`: what the user typed. `say` is told what a name
    became, `warn` that the hub did not answer. Raises ModelLoadError, or Interrupted by Ctrl-C.
    """
    say = say or (lambda sentence: None)
    if offline or not fresh:
        cached = find_cached(model, anything=offline)
        if cached is not None:
            return _from_cache(model, cached, say)
    if offline:
        pull = f"lacli pull {name or model} fetches it, without --offline"
        raise ModelLoadError(f"{model} is not in the cache", _beside_cached(model, pull))
    try:
        with careful_library(bars=not quiet):
            return _fetch(model, say)
    except (ModelLoadError, Interrupted):
        raise
    except Exception as error:  # the library, its transport and the disk raise many kinds
        why = reason(error, model.repository, f"{model.file} in {model.repository}" if model.file else "")
        cached = find_cached(model, anything=not fresh) if why.unreached else None
        if cached is not None:
            return _from_cache(model, cached, warn or say, f" ({why.why})")
        what = why.why if model.repository in why.why else f"cannot fetch {model}: {why.why}"
        raise ModelLoadError(what, _beside_cached(model, why.remedy) if why.unreached else why.remedy) from error


def _beside_cached(model: HubModel, remedy: str) -> str:
    """A hint for a model that cannot be had, with the other quants of its repository that are on this disk."""
    here = cached_quants(model.repository)
    return f"on this disk {'are' if ',' in here else 'is'} {here}; {remedy}" if here else remedy


def _from_cache(model: HubModel, path: Path, say: Say, why: str = "") -> Path:
    say(f"{model} is {path.name}, from the cache{why}")
    return path


def _fetch(model: HubModel, say: Say) -> Path:
    """The model from the hub. Raises the library's errors too."""
    listing = list_files(model.repository)
    files = [listing.files[name] for name in _choose(model, listing)]
    absent = [file for file in files if not listing.is_complete(file)]
    if absent:
        missing, cache = sum(map(listing.missing_bytes, absent)), cache_folder()
        if missing > (free := free_disk(cache)):
            raise ModelLoadError(
                f"{model} needs {size_in_words(missing)} more in {cache}, where {size_in_words(free)} are free",
                "make room (lacli list shows models, lacli rm removes them) or set HF_HOME to a folder on another disk",
            )
        say(f"{model} is {_base(files[0])}: fetching {size_in_words(missing)} from {address()}")
    for file in absent:
        _fetch_file(file, listing, say)
    first, *_ = [_link(file, listing) for file in files]
    commit = first.parents[files[0].name.count("/")].name
    remember_files(model.repository, commit, listing.files)
    remember_newest(model.repository, commit)
    return first if absent else _from_cache(model, first, say)


def _choose(model: HubModel, listing: Listing) -> list[str]:
    if not model.file:
        return choose(listing.files, model.quant, model.repository)
    if model.file not in listing.files:
        there = models(listing.files)
        similar = ", ".join(suggest(model.file, there) if len(there) > MAX_OFFERED else there)
        hint = f"there are {similar}" if similar else f"its files: {address()}/{model.repository}/tree/main"
        raise ModelLoadError(f"{model.repository} has no {model.file}", hint)
    return with_parts(model.file, listing.files, model.repository)


def _fetch_file(file: HubFile, listing: Listing, say: Say) -> None:
    """Bring a file's content into the cache, going on where an earlier attempt ended."""
    from huggingface_hub import constants

    if not file.blob:
        return  # the library fetches it when it makes the link
    blob, partial = listing.blob(file), listing.partial(file)
    if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        # It comes in pieces that only the library can join, which takes a damaged file for a complete one.
        for damaged in (listing.pointer(file), blob):
            damaged.unlink(missing_ok=True)
        return
    lock = lock_of(repository_folder(listing.repository), file.blob)
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with _alone(lock, say):
        if listing.is_complete(file):
            return
        try:
            _fetch_content(file, listing, say)
        except KeyboardInterrupt:
            done = f"{size_in_words(listing.fetched_bytes(file))} of {size_in_words(file.size)}"
            raise Interrupted(f"stopped with {done} fetched", "the same command goes on from there") from None
        place = _place(file, listing)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, place)
        for rest in blob.parent.glob(f"{file.blob}.*.incomplete"):  # the library's own attempts
            rest.unlink()


@contextmanager
def _alone(lock: Path, say: Say) -> Iterator[None]:
    """Hold the lock of a download, saying so while another program has it."""
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # it is there, and lists no exports

    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=LOCK_PATIENCE))
        except Timeout:
            say("another program is fetching it: waiting for that")
            stack.enter_context(WeakFileLock(lock))
        yield


def _fetch_content(file: HubFile, listing: Listing, say: Say) -> None:
    """Fetch all bytes of a file, going on from those that are there if they are its beginning.

    The library also goes on by itself when a connection breaks, so only the whole file can be judged.
    """
    partial = listing.partial(file)
    if file_size(partial) > file.size:
        partial.unlink()
    for attempt in ("what came of it is damaged: fetching all of it", ""):
        _fetch_bytes(file, listing, partial)
        size = file_size(partial)
        if size != file.size:
            partial.unlink()
            raise ModelLoadError(
                f"{file.name} came with {size} bytes instead of {file.size}", "it was removed: fetch it again"
            )
        if not SHA256.fullmatch(file.blob) or _hash(partial) == file.blob:
            return
        partial.unlink()
        if attempt:
            say(attempt)
    raise ModelLoadError(f"{file.name} came with other bytes than the hub has", "it was removed: fetch it again")


def _fetch_bytes(file: HubFile, listing: Listing, partial: Path) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if file_size(partial) == file.size:
        return
    there = listing.fetched_bytes(file)
    url = hf_hub_url(listing.repository, file.name, revision=listing.commit)
    with partial.open("ab") as to:
        http_get(
            url, to, resume_size=there, headers=build_hf_headers(library_name="lacli"), displayed_filename=_base(file)
        )


def _place(file: HubFile, listing: Listing) -> Path:
    """The content's final place: the commit's own folder if the library can only copy into it, or has."""
    from huggingface_hub.file_download import are_symlinks_supported

    pointer = listing.pointer(file)
    copied = pointer.is_file() and not pointer.is_symlink()
    links = are_symlinks_supported(cache_folder()) or not listing.commit
    return listing.blob(file) if links and not copied else pointer


def _link(file: HubFile, listing: Listing) -> Path:
    """The library's own path of a file whose content is there."""
    from huggingface_hub import hf_hub_download

    path = hf_hub_download(
        listing.repository,
        file.name,
        revision=listing.commit or None,
        cache_dir=cache_folder(),
        library_name="lacli",
    )
    return Path(path)


def _base(file: HubFile) -> str:
    return file.name.rpartition("/")[2]


def _hash(path: Path) -> str:
    with path.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()
