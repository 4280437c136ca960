"""How the bytes of a model come into the cache: broken off and resumed, damaged, waited for, without room."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock
from huggingface_hub import constants

from lacli.errors import ModelLoadError
from lacli.hub.download import fetch_model
from lacli.hub.names import HubModel
from lacli.resolve import find_model
from lacli.shelf.cached import cached_models
from lacli.shelf.removal import plan_removal, remove
from tests.fake_hub import FakeHub, Repository
from tests.here import (
    LARGE,
    NAME,
    Here,
    add_large,
    looking_up,
    tiny_hub,
    tiny_model,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_model(tmp_path_factory.mktemp("models"))


@pytest.fixture
def hub(tiny: bytes) -> Iterator[FakeHub]:
    with tiny_hub(tiny).running() as running:
        yield running


@pytest.fixture
def here(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with looking_up(hub, tmp_path / "hub", monkeypatch) as found:
        yield found


@pytest.fixture
def large(hub: FakeHub, tiny: bytes) -> Repository:
    return add_large(hub, tiny)


def test_a_download_that_broke_off_goes_on_where_it_stopped(here: Here, large: Repository) -> None:
    assert "broke (the same command goes on from there)" in here.refused("someone/large")
    (partial,) = here.contents()
    there = partial.stat().st_size
    assert partial.suffix == ".incomplete" and 0 < there < LARGE
    assert here.find("someone/large").read_bytes() == large.files["large-Q8_0.gguf"]
    assert here.hub.transfers() == [("large-Q8_0.gguf", ""), ("large-Q8_0.gguf", f"bytes={there}-")]
    assert f"fetching {(LARGE - there) / 1e6:.1f} MB" in here.said[-1]
    assert len(here.contents()) == 1


def test_a_file_that_lies_elsewhere_comes_without_telling_the_token(
    here: Here, large: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    large.gated, large.elsewhere = here.hub.token, True
    monkeypatch.setenv("HF_TOKEN", here.hub.token)
    assert "broke" in here.refused("someone/large")
    assert here.find("someone/large").read_bytes() == large.files["large-Q8_0.gguf"]
    first, second = [span for method, path, span in here.hub.requests if path.startswith("/elsewhere/")]
    assert not first and re.fullmatch(r"bytes=[1-9]\d+-", second)


def test_a_connection_that_ends_early_is_made_again_at_once(here: Here, large: Repository) -> None:
    large.ending = "close"
    assert here.find("someone/large").read_bytes() == large.files["large-Q8_0.gguf"]
    (_, whole), (_, rest) = here.hub.transfers()
    assert not whole and re.fullmatch(r"bytes=[1-9]\d+-", rest)


def test_what_is_too_long_to_be_a_beginning_is_fetched_anew(here: Here, tiny: bytes) -> None:
    path = here.find(NAME).resolve()
    path.rename(path.with_name(f"{path.name}.incomplete")).write_bytes(tiny + b"more")
    assert here.find(NAME).read_bytes() == tiny


def test_another_program_that_fetches_the_same_is_waited_for(here: Here, tiny: bytes) -> None:
    folder = here.cache / ".locks" / f"models--{NAME.replace('/', '--')}"
    folder.mkdir(parents=True)
    other = FileLock(folder / f"{sha256(tiny).hexdigest()}.lock")
    other.acquire()

    def say(sentence: str) -> None:
        if "waiting" in sentence:
            assert here.hub.transfers() == []
            other.release()

    find_model(NAME, quiet=True, say=say)
    assert not other.is_locked and len(here.hub.transfers()) == 1


@pytest.mark.parametrize("lie", [3, -3])
def test_a_file_of_another_size_than_the_hub_said_is_refused_and_not_kept(lie: int, here: Here, tiny: bytes) -> None:
    here.hub.repositories[NAME].lie = lie
    assert f"came with {len(tiny)} bytes instead of {len(tiny) + lie}" in here.refused(NAME)
    assert here.contents() == []


def test_a_disk_without_room_is_seen_before_anything_is_fetched(
    here: Here, large: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [LARGE - 1_000_000]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[0]))
    line = here.refused("someone/large")
    assert line.startswith(f"someone/large needs 24.0 MB more in {here.cache}, where 23.0 MB are free (make room")
    assert here.hub.transfers() == [] and not here.cache.exists()
    free[0] = LARGE
    assert "broke" in here.refused("someone/large")
    # What is there already needs no room.
    (partial,) = here.contents()
    free[0] = LARGE - partial.stat().st_size
    assert here.find("someone/large").stat().st_size == LARGE


@pytest.mark.parametrize("there", [0.4, 1.0])
def test_what_is_not_the_beginning_of_the_file_is_not_gone_on_with(there: float, here: Here, tiny: bytes) -> None:
    blob = here.cache / f"models--{NAME.replace('/', '--')}" / "blobs" / sha256(tiny).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.with_name(f"{blob.name}.incomplete").write_bytes(b"GGUF" + bytes(int(there * len(tiny)) - 4))
    assert here.find(NAME).read_bytes() == tiny
    assert "damaged: fetching all of it" in here.said[-1]
    assert here.hub.transfers()[-1] == ("tiny-Q4_K_M.gguf", "")
    assert here.contents() == [blob]


def test_what_the_library_left_of_the_same_content_goes(here: Here, tiny: bytes) -> None:
    blob = here.cache / f"models--{NAME.replace('/', '--')}" / "blobs" / sha256(tiny).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.with_name(f"{blob.name}.0123abcd.incomplete").write_bytes(b"left")
    other = blob.with_name("other.0123abcd.incomplete")
    other.write_bytes(b"left")
    here.find(NAME)
    assert here.contents() == sorted([blob, other])


def test_what_came_while_waiting_is_not_fetched_again(here: Here, tiny: bytes) -> None:
    folder = f"models--{NAME.replace('/', '--')}"
    blob = here.cache / folder / "blobs" / sha256(tiny).hexdigest()
    lock = here.cache / ".locks" / folder / f"{blob.name}.lock"
    for path in (blob, lock):
        path.parent.mkdir(parents=True)
    other = FileLock(lock)
    other.acquire()

    def say(sentence: str) -> None:
        if "waiting" in sentence:
            blob.write_bytes(tiny)
            other.release()

    assert find_model(NAME, quiet=True, say=say).read_bytes() == tiny
    assert not other.is_locked and here.hub.transfers() == []


def test_without_links_a_model_takes_its_size_once(here: Here, monkeypatch: pytest.MonkeyPatch, tiny: bytes) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    path = here.find(NAME)
    assert path.read_bytes() == tiny and not path.is_symlink()
    assert here.contents() == []
    assert fetch_model(HubModel(NAME), quiet=True, fresh=True) == path
    assert len(here.hub.transfers()) == 1
    remove(plan_removal(NAME, {}))
    assert not path.exists() and cached_models() == []


@pytest.mark.parametrize("there", [0, 5000])
@pytest.mark.parametrize("links", [True, False])
def test_a_damaged_content_is_fetched_again(
    there: int, links: bool, here: Here, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", not links)
    path = here.find(NAME)
    path.write_bytes(tiny[:there])
    assert fetch_model(HubModel(NAME), quiet=True, fresh=True) == path
    assert path.read_bytes() == tiny and path.is_symlink() is links
    assert len(here.hub.transfers()) == 2


def test_a_damaged_copy_is_fetched_again_where_links_can_be_made_now(
    here: Here, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without_links:
        without_links.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
        path = here.find(NAME)
    path.write_bytes(tiny[:5000])
    assert fetch_model(HubModel(NAME), quiet=True, fresh=True) == path
    assert path.read_bytes() == tiny


def test_what_only_the_library_can_fetch_is_left_to_it_whole(
    here: Here, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here.find(NAME)
    path.write_bytes(tiny[:5000])
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 1000)
    with pytest.raises(ModelLoadError, match="too large"):
        fetch_model(HubModel(NAME), quiet=True, fresh=True)
    assert here.contents() == []


def test_what_the_library_goes_on_with_by_itself_is_judged_too(here: Here, large: Repository, tiny: bytes) -> None:
    large.ending, large.tail = "close", b"other bytes"
    assert here.find("someone/large").read_bytes() == large.files["large-Q8_0.gguf"]
    assert "damaged: fetching all of it" in here.said[-1]
    assert [bool(span) for _, span in here.hub.transfers()] == [False, True, False]


def test_bytes_that_are_wrong_twice_are_refused_and_not_kept(here: Here, large: Repository) -> None:
    large.break_after, large.wrong = None, True
    assert "large-Q8_0.gguf came with other bytes than the hub has" in here.refused("someone/large")
    assert len(here.hub.transfers()) == 2 and here.contents() == []
