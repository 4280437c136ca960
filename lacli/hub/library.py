"""huggingface_hub as lacli calls it: what a repository has, errors in one line each, names that cannot do harm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from lacli.errors import ModelLoadError, in_one_line
from lacli.hub.cache import quiet_library

LISTING_TIMEOUT = 10.0
"""Seconds until the hub has to begin its answer to a request for a repository's files."""


@dataclass(frozen=True)
class Reason:
    """Why a request failed and what to do about it; `unreached`: the hub did not answer, so only the cache is left."""

    why: str
    remedy: str
    unreached: bool = False


@dataclass(frozen=True)
class Listing:
    """The GGUF files of a repository at a commit: their bytes, 0 if unknown, by name.

    Raises ModelLoadError for names that lead out of the cache's folders or hold control codes of terminals.
    """

    repository: str
    commit: str
    files: dict[str, int]

    def __post_init__(self) -> None:
        for name in self.files:
            outside = {"", ".", ".."} & set(name.split("/")) or "\\" in name or name[1:2] == ":"
            if outside or not name.isprintable():
                what = f"{self.repository} lists a file {name[:80]!r}, which is not a safe name"
                raise ModelLoadError(what, "look for the model in another repository")


def address() -> str:
    """The hub's address: HF_ENDPOINT or its own."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def list_files(repository: str) -> Listing:
    """The GGUF files of a repository, from the hub in one request. Raises the library's errors."""
    from huggingface_hub import HfApi

    found = HfApi(library_name="lacli").model_info(repository, files_metadata=True, timeout=LISTING_TIMEOUT)
    files = {each.rfilename: each.size or 0 for each in found.siblings or () if each.rfilename.endswith(".gguf")}
    return Listing(repository, found.sha or "", files)


def reason(error: Exception, repository: str) -> Reason:
    """The meaning of an error of the library, the transport or the disk."""
    import httpx2
    from huggingface_hub import errors

    match error:
        case errors.OfflineModeIsEnabled():
            return Reason("HF_HUB_OFFLINE is set", "unset it to fetch models", unreached=True)
        case errors.LocalEntryNotFoundError():
            cause = error.__cause__
            return reason(cause, repository) if isinstance(cause, errors.HfHubHTTPError) else _unreached()
        case errors.GatedRepoError():
            accept = f"accept them at {address()}/{repository}; `hf auth login` keeps the token"
            return Reason(f"{repository} wants its terms accepted and HF_TOKEN set", accept)
        case errors.RemoteEntryNotFoundError() | errors.RevisionNotFoundError() | errors.RepositoryNotFoundError():
            # The hub answers 401 for what does not exist too, so as not to tell of private repositories.
            private = "check the name; a private repository needs `hf auth login` or HF_TOKEN"
            return Reason(f"there is no {repository} on {address()}", private)
        case errors.HfHubHTTPError():
            status = error.response.status_code
            remedies = {401: "check HF_TOKEN", 403: "the token may not read it", 429: "wait some minutes"}
            return Reason(f"{address()} answers {status}", remedies.get(status, "try again later"), status >= 500)
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            return _unreached()
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            return Reason(f"HF_ENDPOINT is {address()!r}, which is no address", "one begins with https://")
        case httpx2.TransportError():
            return Reason(f"the connection to {address()} broke", "the same command fetches it again")
        case OSError():
            return Reason(in_one_line(error), "HF_HOME sets the folder of the hub's cache")
    return Reason(in_one_line(error), "try again, or fetch the file by hand")


def _unreached() -> Reason:
    return Reason(
        f"no connection to {address()}", "check the network; lacli list shows what is on this disk", unreached=True
    )


@contextmanager
def silent_library(*, bars: bool = False) -> Iterator[None]:
    """Silence the library's warnings and, unless `bars` (shown if stderr is a terminal), its progress bars."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    with quiet_library(), nullcontext() if bars else disable_progress_bars():
        yield
