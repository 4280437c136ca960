"""Fetching from the hub, with its download function replaced: the cache first, and one short reason when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils.logging import get_verbosity
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from lacli.bench.fetch import FetchError, Source, fetch

SOURCE = Source("someone/rows", "test.jsonl")
MISSING = errors.LocalEntryNotFoundError("not here")


def install(monkeypatch: pytest.MonkeyPatch, download: Callable[..., str]) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)


def fail_online(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def download(*_: object, local_files_only: bool = False, **__: object) -> str:
        raise MISSING if local_files_only else error

    install(monkeypatch, download)


def reason(*, offline: bool = False) -> str:
    with pytest.raises(FetchError) as caught:
        fetch(SOURCE, offline=offline)
    return str(caught.value)


def answer(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    return kind("refused\nfor a reason", response=cast(Any, response))


def test_a_file_in_the_cache_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, local_files_only: bool = False, **__: object) -> str:
        assert local_files_only
        return "/cache/test.jsonl"

    install(monkeypatch, download)
    assert fetch(SOURCE) == fetch(SOURCE, offline=True) == "/cache/test.jsonl"


def test_what_the_cache_lacks_is_downloaded_from_the_named_place_and_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def download(repository: str, file: str, *, local_files_only: bool = False, **options: object) -> str:
        if local_files_only:
            raise MISSING
        asked.append({"repository": repository, "file": file, **options})
        return "/cache/test.jsonl"

    install(monkeypatch, download)
    fetch(Source("someone/rows", "test.jsonl", revision="abc"), cache="somewhere")
    fetch(Source("someone/show", "test.jsonl", space=True))
    assert asked == [
        {"repository": "someone/rows", "file": "test.jsonl"}
        | {"repo_type": "dataset", "revision": "abc", "cache_dir": "somewhere"},
        {"repository": "someone/show", "file": "test.jsonl"}
        | {"repo_type": "space", "revision": "main", "cache_dir": None},
    ]


def test_offline_says_what_is_not_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_online(monkeypatch, AssertionError("the network was used"))
    assert reason(offline=True) == "test.jsonl of someone/rows is not in the cache"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MISSING, "no connection to https://huggingface.co"),
        (answer(errors.RepositoryNotFoundError, 404), "there is no test.jsonl in someone/rows"),
        (answer(errors.RemoteEntryNotFoundError, 404), "there is no test.jsonl in someone/rows"),
        (answer(errors.HfHubHTTPError, 503), "https://huggingface.co answers 503"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("a transfer broke\nin the middle"), "a transfer broke"),
    ],
)
def test_why_a_download_failed_is_a_few_words(monkeypatch: pytest.MonkeyPatch, error: Exception, text: str) -> None:
    fail_online(monkeypatch, error)
    assert reason() == text


def test_terms_that_have_to_be_accepted_are_said_with_what_the_hub_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_online(monkeypatch, answer(errors.GatedRepoError, 403))
    assert "accepted" in reason() and "HF_TOKEN" in reason()


def test_the_hubs_own_offline_switch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = errors.LocalEntryNotFoundError("not here")
    error.__cause__ = errors.OfflineModeIsEnabled("offline")
    fail_online(monkeypatch, error)
    assert reason() == "HF_HUB_OFFLINE is set"


def test_the_hub_is_silent_while_it_downloads_and_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before = get_verbosity(), are_progress_bars_disabled()
    seen: list[tuple[int, bool]] = []

    def download(*_: object, local_files_only: bool = False, **__: object) -> str:
        if local_files_only:
            raise MISSING
        seen.append((get_verbosity(), are_progress_bars_disabled()))
        raise OSError(5, "broken")

    install(monkeypatch, download)
    assert reason() == "broken"
    assert seen == [(logging.ERROR, True)]
    assert (get_verbosity(), are_progress_bars_disabled()) == before


def test_the_address_of_a_space_is_not_that_of_a_dataset() -> None:
    assert SOURCE.url == "https://huggingface.co/datasets/someone/rows/resolve/main/test.jsonl"
    assert Source("a/b", "c.json", space=True).url == "https://huggingface.co/spaces/a/b/resolve/main/c.json"
