"""One file from the Hugging Face Hub: the only place of the benchmark that uses the network.

Silent: the hub's own progress bars and warnings are off while it works. Which files are wanted is `suites.py`'s affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lacli.hub.library import careful_library, reason

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Source:
    """One file on the hub. kind: the class of its rows where they name none."""

    repository: str
    file: str
    kind: str = ""
    space: bool = False
    revision: str = "main"

    @property
    def url(self) -> str:
        return f"{HUB}/{'spaces' if self.space else 'datasets'}/{self.repository}/resolve/{self.revision}/{self.file}"


class FetchError(Exception):
    """Why a file could not be had, in a few words."""


def fetch(source: Source, *, offline: bool = False, cache: str | None = None) -> str:
    """The path of a source's file, downloaded where the cache lacks it.

    offline: only from the cache. cache: its folder, or the hub's own. Raises FetchError.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    download = partial(
        hf_hub_download,
        source.repository,
        source.file,
        repo_type="space" if source.space else "dataset",
        revision=source.revision,
        cache_dir=cache,
    )
    try:
        # First the cache alone: asking for news of a file that is there takes seconds without a network.
        return str(download(local_files_only=True))
    except LocalEntryNotFoundError as error:
        if offline:
            raise FetchError(f"{source.file} of {source.repository} is not in the cache") from error
    try:
        with careful_library():
            return str(download())
    except Exception as error:  # the hub, its transport and the disk raise many kinds
        raise FetchError(reason(error, source.repository, f"{source.file} in {source.repository}").why) from error
