"""From MODEL to a GGUF file to open: a path, a model found in huggingface_hub's cache, or one fetched into it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lacli.errors import Interrupted, ModelLoadError, reason_of
from lacli.hub.cache import cache_folder, find_cached, remember_newest
from lacli.hub.library import Listing, address, list_files, reason, silent_library
from lacli.hub.names import (
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
from lacli.text.format import did_you_mean, size_in_words, suggest

Say = Callable[[str], None]

MAGIC = b"GGUF"


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
        return check_file(fetch_model(found, offline=offline, quiet=quiet, say=say))
    if say is not None and found not in (path, smollm2_file()):
        say(f"{name} is {found}")
    return check_file(found)


def check_file(path: Path) -> Path:
    """The part to open of a GGUF file. Raises ModelLoadError if it is none or a part of it is missing."""
    shown = shortened(str(path))
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError as error:
        near = map(str, path.parent.glob("*.gguf"))
        raise ModelLoadError(f"no such file: {shown}", did_you_mean(str(path), near, MODEL_IS)) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {shown}: {reason_of(error)}", MODEL_IS) from error
    if magic != MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF file", "lacli runs models in llama.cpp's GGUF format")
    parts = all_parts(path.name)
    if problem := missing_parts(parts, [name for name in parts if (path.parent / name).exists()]):
        raise ModelLoadError(f"the model {problem}", f"put all parts into {path.parent}")
    return path.parent / parts[0]


def fetch_model(
    model: HubModel,
    *,
    offline: bool = False,
    quiet: bool = False,
    fresh: bool = False,
    say: Say | None = None,
    warn: Say | None = None,
) -> Path:
    """The file to open for a model (the first part of a split one), fetched with all its parts if the cache lacks it.

    `offline`: only from the cache. `quiet`: no progress bar. `fresh`: ask the hub for the newest even if the cache has
    the model, and take no other if the hub does not answer. `say` is told what a name became, `warn` that the hub did
    not answer. Raises ModelLoadError, or Interrupted by Ctrl-C.
    """
    say = say or (lambda sentence: None)
    cached = find_cached(model, anything=offline) if offline or not fresh else None
    if cached is not None:
        return _from_cache(model, cached, say)
    if offline:
        raise ModelLoadError(f"{model} is not in the cache", f"lacli pull {model} fetches it, without --offline")
    try:
        with silent_library(bars=not quiet):
            return _fetch(model, say)
    except ModelLoadError:
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"stopped fetching {model}", "the same command fetches it again") from None
    except Exception as error:  # the library, its transport and the disk raise many kinds
        why = reason(error, model.repository)
        cached = find_cached(model, anything=not fresh) if why.unreached else None
        if cached is not None:
            return _from_cache(model, cached, warn or say, f" ({why.why})")
        what = why.why if model.repository in why.why else f"cannot fetch {model}: {why.why}"
        raise ModelLoadError(what, why.remedy) from error


def _from_cache(model: HubModel, path: Path, say: Say, why: str = "") -> Path:
    say(f"{model} is {path.name}, from the cache{why}")
    return path


def _fetch(model: HubModel, say: Say) -> Path:
    """The model from the hub, by the library. Raises the library's errors too."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    listing, cache = list_files(model.repository), cache_folder()
    names, repository, commit = _choose(model, listing), model.repository, listing.commit
    there = {name: try_to_load_from_cache(repository, name, cache, commit) for name in names}
    if absent := [name for name, path in there.items() if not isinstance(path, str)]:
        size, free = sum(listing.files[name] for name in absent), free_disk(cache)
        if size > free:
            what = f"{model} needs {size_in_words(size)} more in {cache}, where {size_in_words(free)} are free"
            raise ModelLoadError(what, "make room (lacli rm removes models) or set HF_HOME to a folder on another disk")
        say(f"{model} is {names[0].rpartition('/')[2]}: fetching {size_in_words(size)} from {address()}")
    paths = [hf_hub_download(repository, name, revision=commit, cache_dir=cache) for name in names]
    remember_newest(repository, commit)
    return Path(paths[0]) if absent else _from_cache(model, Path(paths[0]), say)


def _choose(model: HubModel, listing: Listing) -> list[str]:
    if not model.file:
        return choose(listing.files, model.quant, model.repository)
    if model.file not in listing.files:
        there = models(listing.files)
        similar = suggest(model.file, there) or [f"{address()}/{model.repository}/tree/main"]
        raise ModelLoadError(f"{model.repository} has no {model.file}", f"there are {', '.join(similar)}")
    return with_parts(model.file, listing.files, model.repository)
