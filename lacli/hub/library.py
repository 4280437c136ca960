"""huggingface_hub as lacli speaks with it: its many errors in our words, its own warnings and bars kept away."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lacli.errors import ModelLoadError

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

HASH = re.compile("[0-9a-f]{32,64}")
"""What names a commit or a content: SHA-1 and SHA-256 on the hub, MD5 on some mirrors."""

UNSAFE = "it is not safe to fetch from there: check HF_ENDPOINT"


@dataclass(frozen=True)
class Reason:
    """Why something could not be had from the hub, in a few words, and what to do about it."""

    why: str
    remedy: str
    unreached: bool = False
    """Whether the hub was not reached or is out of order, so that the cache is what there is."""


def address() -> str:
    """Where the hub is, for people: HF_ENDPOINT or its own address."""
    from huggingface_hub import constants

    return without_secrets(constants.ENDPOINT)


def without_secrets(text: str) -> str:
    """A text whose URLs have lost the name and the password that they may have had; one may begin it without https."""
    return re.sub(r"(^(?![a-z][a-z0-9+.-]*://)|://)\S*@", r"\1", text, flags=re.IGNORECASE)


def reason(error: Exception, repository: str, wanted: str = "") -> Reason:
    """What an error of the library, the transport or the disk means; wanted: a file that was asked for, in words."""
    import httpx2
    from huggingface_hub import errors

    match error:
        case errors.OfflineModeIsEnabled():
            return Reason("HF_HUB_OFFLINE is set", "unset it to fetch models", unreached=True)
        case errors.LocalEntryNotFoundError():
            cause = error.__cause__
            if isinstance(cause, errors.OfflineModeIsEnabled | errors.FileMetadataError | errors.HfHubHTTPError):
                return reason(cause, repository, wanted)
            return _unreached()
        case errors.HfHubHTTPError():
            return _answer(error, repository, wanted)
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            return _unreached()
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            return Reason(f"HF_ENDPOINT is {address()!r}, which is no address", "one begins with https://")
        case httpx2.TransportError():
            return Reason(f"the connection to {address()} broke", "the same command goes on from there")
        case OSError():
            where = f": {error.filename}" if error.filename else ""
            return Reason((error.strerror or _first_line(error)) + where, "HF_HOME sets the folder of the hub's cache")
    return Reason(_first_line(error), "try again, or fetch the file by hand")


def _unreached() -> Reason:
    return Reason(
        f"no connection to {address()}", "check the network; lacli list shows what is on this disk", unreached=True
    )


def _answer(error: Exception, repository: str, wanted: str) -> Reason:
    """What an error status of the hub means."""
    from huggingface_hub import errors

    assert isinstance(error, errors.HfHubHTTPError)
    status = error.response.status_code
    match error:
        case errors.GatedRepoError():
            return Reason(
                f"{repository} wants its terms accepted and HF_TOKEN set",
                f"accept them at {address()}/{repository}; `hf auth login` keeps the token",
            )
        case errors.RemoteEntryNotFoundError() | errors.RevisionNotFoundError():
            return Reason(f"there is no {wanted or repository}", f"its files: {address()}/{repository}/tree/main")
        case errors.RepositoryNotFoundError():
            # The hub answers 401 for what does not exist too, so as not to tell of private repositories.
            private = "check the name; a private repository needs `hf auth login` or HF_TOKEN"
            return Reason(f"there is no {wanted or f'{repository} on {address()}'}", private)
    if status == 401:
        return Reason(
            f"{address()} refuses the token", f"HF_TOKEN or `hf auth login` take one of {address()}/settings/tokens"
        )
    remedy = {403: "the token may not read it", 429: "wait some minutes; `hf auth login` allows more"}
    return Reason(f"{address()} answers {status}", remedy.get(status, "try again later"), unreached=status >= 500)


def _first_line(error: Exception) -> str:
    from huggingface_hub import constants

    line = str(error).partition("\n")[0]
    if constants.ENDPOINT:
        line = line.replace(constants.ENDPOINT, address())
    return without_secrets(line) or type(error).__name__


def check_hash(text: str | None) -> None:
    """Raise ModelLoadError for a name of a commit or a content that is no hash: it becomes a part of a path."""
    if text and not HASH.fullmatch(text):
        raise ModelLoadError(f"{address()} names a commit or a content {text[:80]!r}, which is no hash", UNSAFE)


@contextmanager
def careful_library(*, bars: bool = False) -> Iterator[None]:
    """No warnings of the library's while this lasts, and no bars unless wanted (where stderr is a terminal).

    Raises ModelLoadError inside for a header of the hub's that would name a file outside the cache.
    """
    from huggingface_hub import file_download
    from huggingface_hub.utils.logging import get_verbosity, set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars

    before, metadata = get_verbosity(), file_download.get_hf_file_metadata
    set_verbosity(logging.ERROR)
    # The library makes paths of these headers, and has no place where they could be looked at.
    file_download.get_hf_file_metadata = partial(_checked_metadata, metadata)
    try:
        with nullcontext() if bars else disable_progress_bars():
            yield
    finally:
        file_download.get_hf_file_metadata = metadata
        set_verbosity(before)


def _checked_metadata(ask: Callable[..., HfFileMetadata], *arguments: Any, **named: Any) -> HfFileMetadata:
    """What the hub's headers say of a file, asked for by `ask`; its error remembers a commit too."""
    from huggingface_hub import constants, errors

    try:
        found = ask(*arguments, **named)
    except errors.RemoteEntryNotFoundError as error:
        check_hash(error.response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT))
        raise
    check_hash(found.commit_hash)
    check_hash(found.etag)
    return found
