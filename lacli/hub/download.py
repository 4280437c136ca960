"""The GGUF file that MODEL means: from a path, from huggingface_hub's cache, or fetched from the hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path

from lacli.errors import Interrupted, ModelLoadError, in_one_line, reason_of
from lacli.hub.cache import cache_folder, find_cached, silent_library
from lacli.hub.names import (
    MODEL_IS,
    HubModel,
    choose,
    missing_parts,
    models,
    read_aliases,
    read_name,
    smollm2_file,
    with_parts,
)
from lacli.llamacpp.gguf import all_parts
from lacli.text.files import free_disk
from lacli.text.format import did_you_mean, shortened, size_in_words, suggest

Say = Callable[[str], None]

LISTING_TIMEOUT = 10.0
"""Seconds to wait for the first bytes of the hub's list of a repository's files."""


def address() -> str:
    """Return the hub's address: HF_ENDPOINT or https://huggingface.co."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def find_model(
    name: str | Path, *, offline: bool = False, aliases: Path | None = None, quiet: bool = False, say: Say | None = None
) -> Path:
    """Return the file to load for a MODEL argument; for a split model the first part, whichever part was named.

    A hub model that is not in the cache is fetched, unless `offline`. `aliases`: the file of the user's aliases; None:
    only lacli's. `quiet`: no progress bar. `say`: called with a sentence about the file chosen. Raises ModelLoadError
    if the model is unknown, cannot be fetched, is not a GGUF file or lacks a part, and Interrupted after Ctrl-C.
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
    """Return the first part of the GGUF file at `path`. Raises ModelLoadError for other files and missing parts."""
    shown = shortened(str(path))
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        near = map(str, path.parent.glob("*.gguf"))
        raise ModelLoadError(f"no such file: {shown}", did_you_mean(str(path), near, MODEL_IS)) from error
    except (OSError, ValueError) as error:
        files = [str(path / name) for name in models(sorted(each.name for each in path.glob("*.gguf")))]
        hint = f"name one of its files: {', '.join(files)}" if files else MODEL_IS
        raise ModelLoadError(f"cannot read {shown}: {reason_of(error)}", hint) from error
    if magic != b"GGUF":
        raise ModelLoadError(f"{path} is not a GGUF file", "lacli runs models in llama.cpp's GGUF format")
    parts = all_parts(path.name)
    if problem := missing_parts(parts, [name for name in parts if (path.parent / name).exists()]):
        raise ModelLoadError(f"the model {problem}", f"put all parts into {path.parent}")
    return path.parent / parts[0]


def fetch_model(
    model: HubModel, *, offline: bool = False, quiet: bool = False, fresh: bool = False, say: Say | None = None
) -> Path:
    """Return the file to open for a hub model, the first part of a split one; fetch the model if the cache lacks it.

    `offline`: use only the cache. `quiet`: no progress bar. `fresh`: ask the hub for its newest version even if the
    cache has the model. `say`: called with a sentence about the file chosen. Raises ModelLoadError if there is no such
    model or it cannot be fetched, Interrupted after Ctrl-C.
    """
    say = say or (lambda sentence: None)
    cached = find_cached(model, without_hub=offline) if offline or not fresh else None
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
    except Exception as error:  # huggingface_hub, its transport and the disk raise many kinds
        why = _reason(error, model.repository)
        cached, remedy = find_cached(model, without_hub=True), why.remedy
        if cached is not None:
            if why.unreached:
                return _from_cache(model, cached, say, f" ({why.what})")
            remedy += f"; --offline uses {cached.name} from this disk"
        what = why.what if model.repository in why.what else f"cannot fetch {model}: {why.what}"
        raise ModelLoadError(what, remedy) from error


def _from_cache(model: HubModel, path: Path, say: Say, why: str = "") -> Path:
    say(f"{model} is {path.name}, from the cache{why}")
    return path


def _fetch(model: HubModel, say: Say) -> Path:
    """Fetch the model's newest version; return the file to open. Raises ModelLoadError and huggingface_hub's errors."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cache, repository = cache_folder(), model.repository
    commit, files = _list_files(repository)
    names = _choose(model, files)
    there = {name: try_to_load_from_cache(repository, name, cache, commit) for name in names}
    if absent := [name for name, path in there.items() if not isinstance(path, str)]:
        size, free = sum(files[name] for name in absent), free_disk(cache)
        if size > free:
            what = f"{model} needs {size_in_words(size)} more, but {cache} has {size_in_words(free)} free"
            raise ModelLoadError(what, "free space with lacli rm, or set HF_HOME to a folder on another disk")
        say(f"{model} is {names[0].rpartition('/')[2]}: fetching {size_in_words(size)} from {address()}")
    paths = [hf_hub_download(repository, name, cache_dir=cache) for name in names]
    return Path(paths[0]) if absent else _from_cache(model, Path(paths[0]), say)


def _list_files(repository: str) -> tuple[str, dict[str, int]]:
    """Return a repository's newest commit and the bytes (0: unknown) of each GGUF file by name, with one request.

    Raises huggingface_hub's errors, and ModelLoadError for a name that leads out of the repository or is not printable.
    """
    from huggingface_hub import HfApi

    found = HfApi(library_name="lacli").model_info(repository, files_metadata=True, timeout=LISTING_TIMEOUT)
    files = {each.rfilename: each.size or 0 for each in found.siblings or () if each.rfilename.endswith(".gguf")}
    for name in files:
        outside = {"", ".", ".."} & set(name.split("/")) or "\\" in name or name[1:2] == ":"
        if outside or not name.isprintable():
            what = f"{repository} lists a file {name[:80]!r}, which is not a safe name"
            raise ModelLoadError(what, "look for the model in another repository")
    return found.sha or "", files


def _choose(model: HubModel, files: Collection[str]) -> list[str]:
    if not model.file:
        return choose(files, model.quant, model.repository)
    if model.file not in files:
        similar = suggest(model.file, models(files)) or [f"{address()}/{model.repository}/tree/main"]
        raise ModelLoadError(f"{model.repository} has no {model.file}", f"look at {', '.join(similar)}")
    return with_parts(model.file, files, model.repository)


@dataclass(frozen=True)
class Reason:
    """Why a request to the hub failed. `remedy`: what to do. `unreached`: the hub gave no answer about the model."""

    what: str
    remedy: str
    unreached: bool = False


def _reason(error: Exception, repository: str) -> Reason:
    """Return the reason and remedy for an error of huggingface_hub, the connection or the disk."""
    import httpx2
    from huggingface_hub import errors

    match error:
        case errors.OfflineModeIsEnabled():
            return Reason("HF_HUB_OFFLINE is set", "unset it to fetch models", unreached=True)
        case errors.LocalEntryNotFoundError(__cause__=errors.HfHubHTTPError() as cause):
            return _reason(cause, repository)
        case errors.GatedRepoError():
            accept = f"accept them at {address()}/{repository}; `hf auth login` keeps the token"
            return Reason(f"{repository} requires that you accept its terms and set HF_TOKEN", accept)
        case errors.RemoteEntryNotFoundError() | errors.RepositoryNotFoundError():
            # The hub answers 401 for missing repositories too, to hide the private ones.
            private = "check the name; a private repository needs `hf auth login` or HF_TOKEN"
            return Reason(f"there is no {repository} on {address()}", private)
        case errors.HfHubHTTPError():
            status = error.response.status_code
            remedies = {401: "check HF_TOKEN", 403: "the token may not read it", 429: "wait some minutes"}
            remedy = remedies.get(status, "try again later")
            return Reason(f"{address()} answers {status}", remedy, unreached=status not in range(401, 405))
        case errors.LocalEntryNotFoundError() | httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            hint = "check the network; lacli list shows what is on this disk"
            return Reason(f"no connection to {address()}", hint, unreached=True)
        case httpx2.RequestError():
            return Reason(f"the connection to {address()} broke", "the same command fetches it again", unreached=True)
        case JSONDecodeError() | UnicodeDecodeError():
            hint = "log in if the network asks for it, or check HF_ENDPOINT"
            return Reason(f"{address()} does not answer as a hub", hint, unreached=True)
    return Reason(in_one_line(error), "HF_HOME sets the folder of the hub's cache, HF_ENDPOINT the hub's address")
