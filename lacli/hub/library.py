"""huggingface_hub as lacli calls it: what a repository has, errors in one line each, names that cannot do harm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from lacli.errors import ModelLoadError
from lacli.hub.cache import quiet_library

HASH = re.compile("[0-9a-f]{32,64}")
"""The name of a commit or a content: SHA-1 and SHA-256 on the hub, MD5 on some mirrors."""

LISTING_TIMEOUT = 10.0
"""Seconds until the hub has to begin its answer to a request for a repository's files."""

UNSAFE = "it is not safe to fetch from there: check HF_ENDPOINT"


@dataclass(frozen=True)
class Reason:
    """Why a request failed and what to do about it; `unreached`: the hub did not answer, so only the cache is left."""

    why: str
    remedy: str
    unreached: bool = False


def address() -> str:
    """The hub's address to show: HF_ENDPOINT or its own, without a password."""
    from huggingface_hub import constants

    return without_secrets(constants.ENDPOINT)


def without_secrets(text: str) -> str:
    """The text without user names and passwords in its URLs; one at its beginning may lack its https://."""
    return re.sub(r"(^(?![a-z][a-z0-9+.-]*://)|://)\S*@", r"\1", text, flags=re.IGNORECASE)


@dataclass(frozen=True)
class Listing:
    """The GGUF files of a repository at a commit: their bytes, 0 if unknown, by name.

    Raises ModelLoadError for names that lead out of the cache's folders or hold control codes of terminals.
    """

    repository: str
    commit: str
    files: dict[str, int]

    def __post_init__(self) -> None:
        check_hash(self.commit)
        for name in self.files:
            outside = {"", ".", ".."} & set(name.split("/")) or "\\" in name or name[1:2] == ":"
            if outside or not name.isprintable():
                what = f"{address()} lists a file {name[:80]!r} in {self.repository}"
                raise ModelLoadError(f"{what}, which is not a safe file name", UNSAFE)


def list_files(repository: str) -> Listing:
    """The GGUF files of a repository, from the hub in one request. Raises the library's errors."""
    from huggingface_hub import HfApi

    found = HfApi(library_name="lacli").model_info(repository, files_metadata=True, timeout=LISTING_TIMEOUT)
    files = {each.rfilename: each.size or 0 for each in found.siblings or () if each.rfilename.endswith(".gguf")}
    return Listing(repository, found.sha or "", files)


def reason(error: Exception, repository: str, wanted: str = "") -> Reason:
    """The meaning of an error of the library, the transport or the disk; `wanted`: the requested file, in words."""
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
            return Reason(f"the connection to {address()} broke", "the same command fetches it again")
        case OSError():
            where = f": {error.filename}" if error.filename else ""
            return Reason((error.strerror or _first_line(error)) + where, "HF_HOME sets the folder of the hub's cache")
    return Reason(_first_line(error), "try again, or fetch the file by hand")


def _unreached() -> Reason:
    return Reason(
        f"no connection to {address()}", "check the network; lacli list shows what is on this disk", unreached=True
    )


def _answer(error: Exception, repository: str, wanted: str) -> Reason:
    """The meaning of an error status of the hub."""
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
    """Raise ModelLoadError for a commit or content that is no hash, because it becomes part of a path."""
    if text and not HASH.fullmatch(text):
        raise ModelLoadError(f"{address()} names a commit or a content {text[:80]!r}, which is no hash", UNSAFE)


@contextmanager
def careful_library(*, bars: bool = False) -> Iterator[None]:
    """Silence the library's warnings and, unless `bars` (shown if stderr is a terminal), its progress bars.

    Inside, a header of the hub that would name a file outside the cache raises ModelLoadError.
    """
    from huggingface_hub import constants, errors, file_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    ask = file_download.get_hf_file_metadata

    def checked(*arguments: Any, **named: Any) -> Any:
        try:
            found = ask(*arguments, **named)
        except errors.RemoteEntryNotFoundError as error:
            # The library keeps the commit of an error too.
            check_hash(error.response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT))
            raise
        check_hash(found.commit_hash)
        check_hash(found.etag)
        return found

    # The library makes paths of these headers and offers no hook to check them.
    file_download.get_hf_file_metadata = checked
    try:
        with quiet_library(), nullcontext() if bars else disable_progress_bars():
            yield
    finally:
        file_download.get_hf_file_metadata = ask
