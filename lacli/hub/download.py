"""A model of the hub on this disk: found in huggingface_hub's own cache, or fetched into it.

What a name means is `names.py`'s affair, which file is meant `quants.py`'s, what is there already `cache.py`'s, how
the bytes of one file come `content.py`'s.
"""

from __future__ import annotations

from pathlib import Path

from lacli.errors import Interrupted, ModelLoadError
from lacli.hub.cache import (
    cache_folder,
    find_cached,
    keep_names,
    make_newest,
    whats_here,
)
from lacli.hub.content import (
    HubFile,
    Listing,
    Say,
    fetch_content,
    is_there,
    link,
    missing_bytes,
)
from lacli.hub.library import address, careful_library, reason
from lacli.hub.names import HubModel
from lacli.hub.quants import choose, models, with_parts
from lacli.text.files import free_disk
from lacli.text.format import size_in_words, suggest

SECONDS = 10.0
"""How long the hub may take to begin an answer."""

MOST_LISTED = 8
"""Of a repository with more files than that only the nearest names are offered."""


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
    """The file to open for a model, its first part where it is split; fetched with all parts where the cache lacks it.

    offline: only from the cache. quiet: without a bar. fresh: ask the hub for the newest even where the cache has the
    model, and take no other where the hub cannot be asked. name: what the user typed. say: is told in a sentence what a
    name became; warn: that the hub could not be asked. Raises ModelLoadError, or Interrupted by Ctrl-C.
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
        with careful_library(bars=not quiet):
            return _fetch(model, say)
    except (ModelLoadError, Interrupted):
        raise
    except Exception as error:  # the library, its transport and the disk raise many kinds
        why = reason(error, model.repository, f"{model.file} in {model.repository}" if model.file else "")
        cached = find_cached(model, anything=not fresh) if why.unreached else None
        if cached is None:
            what = why.why if model.repository in why.why else f"cannot fetch {model}: {why.why}"
            todo = _beside_whats_here(model, why.remedy) if why.unreached else why.remedy
            raise ModelLoadError(what, todo) from error
        return _from_cache(model, cached, warn or say, why.why)


def list_files(repository: str) -> Listing:
    """The GGUF files of a repository, from the hub in one request. Raises what the library raises."""
    from huggingface_hub import HfApi

    found = HfApi(library_name="lacli").model_info(repository, files_metadata=True, timeout=SECONDS)
    files = {
        each.rfilename: HubFile(each.rfilename, each.size or 0, (each.lfs.sha256 if each.lfs else each.blob_id) or "")
        for each in found.siblings or ()
        if each.rfilename.endswith(".gguf")
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
    absent = [file for file in files if not is_there(file, listing)]
    if absent:
        missing = sum(missing_bytes(file, model.repository) for file in absent)
        _check_room(model, missing)
        say(f"{model} is {files[0].name.rpartition('/')[2]}: fetching {size_in_words(missing)} from {address()}")
    for file in absent:
        fetch_content(file, listing, say)
    first, *_ = [link(file, listing) for file in files]
    commit = first.parents[names[0].count("/")].name
    keep_names(model.repository, commit, listing.files)
    make_newest(model.repository, commit)
    return first if absent else _from_cache(model, first, say)


def _choose(model: HubModel, listing: Listing) -> list[str]:
    if not model.file:
        return choose(listing.files, model.quant, model.repository)
    if model.file not in listing.files:
        there = models(listing.files)
        similar = ", ".join(suggest(model.file, there) if len(there) > MOST_LISTED else there)
        hint = f"there are {similar}" if similar else f"its files: {address()}/{model.repository}/tree/main"
        raise ModelLoadError(f"{model.repository} has no {model.file}", hint)
    return with_parts(model.file, listing.files, model.repository)


def _check_room(model: HubModel, missing: int) -> None:
    """Raises ModelLoadError where the cache's disk has no room for the bytes that are missing."""
    folder = cache_folder()
    free = free_disk(folder)
    if missing > free:
        raise ModelLoadError(
            f"{model} needs {size_in_words(missing)} more in {folder}, where {size_in_words(free)} are free",
            "make room (lacli list shows models, lacli rm removes them) or set HF_HOME to a folder on another disk",
        )
