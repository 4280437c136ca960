"""From MODEL to a GGUF file to open: a path, a model found in huggingface_hub's cache, or one fetched into it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from lacli.errors import Interrupted, ModelLoadError, reason_of
from lacli.hub.cache import cache_folder, cached_quants, find_cached, remember_newest
from lacli.hub.library import Listing, address, careful_library, list_files, reason
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

MAX_OFFERED = 8
"""A mistyped file is answered with all files of a smaller repository, and with the nearest ones of a larger."""


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
    cached = find_cached(model, anything=offline) if offline or not fresh else None
    if cached is not None:
        return _from_cache(model, cached, say)
    if offline:
        pull = f"lacli pull {name or model} fetches it, without --offline"
        raise ModelLoadError(f"{model} is not in the cache", _beside_cached(model, pull))
    try:
        with careful_library(bars=not quiet):
            return _fetch(model, say)
    except ModelLoadError:
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"stopped fetching {model}", "the same command fetches it again") from None
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
    """The model from the hub, by the library. Raises the library's errors too."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    listing, cache = list_files(model.repository), cache_folder()
    names = _choose(model, listing)
    repository, commit = model.repository, listing.commit
    there = {name: try_to_load_from_cache(repository, name, cache, commit) for name in names}
    absent = [name for name, path in there.items() if not isinstance(path, str)]
    if absent:
        _check_room(model, sum(listing.files[name] for name in absent), cache)
        size = size_in_words(sum(listing.files[name] for name in absent))
        say(f"{model} is {names[0].rpartition('/')[2]}: fetching {size} from {address()}")
    paths = [
        Path(hf_hub_download(repository, name, revision=commit, cache_dir=cache, library_name="lacli"))
        for name in names
    ]
    for name, path in zip(names, paths, strict=True):
        if listing.files[name] and path.stat().st_size != listing.files[name]:
            path.resolve().unlink()
            what = f"{name} came with another size than the {listing.files[name]} bytes that the hub names"
            raise ModelLoadError(what, "it was removed: fetch it again")
    remember_newest(repository, commit)
    return paths[0] if absent else _from_cache(model, paths[0], say)


def _check_room(model: HubModel, size: int, cache: Path) -> None:
    if size > (free := free_disk(cache)):
        raise ModelLoadError(
            f"{model} needs {size_in_words(size)} more in {cache}, where {size_in_words(free)} are free",
            "make room (lacli list shows models, lacli rm removes them) or set HF_HOME to a folder on another disk",
        )


def _choose(model: HubModel, listing: Listing) -> list[str]:
    files: Mapping[str, int] = listing.files
    if not model.file:
        return choose(files, model.quant, model.repository)
    if model.file not in files:
        there = models(files)
        similar = ", ".join(suggest(model.file, there) if len(there) > MAX_OFFERED else there)
        hint = f"there are {similar}" if similar else f"its files: {address()}/{model.repository}/tree/main"
        raise ModelLoadError(f"{model.repository} has no {model.file}", hint)
    return with_parts(model.file, files, model.repository)
