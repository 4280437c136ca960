"""Which downloads that broke off `lacli rm` removes, and that those that go on just now stay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from lacli.errors import LacliError, ModelLoadError
from lacli.hub.aliases import Alias
from lacli.llamacpp.gguf import read_header
from lacli.shelf.cached import LLAMA_CPPS, unfinished_downloads
from lacli.shelf.removal import plan_removal, remove, remove_models
from lacli.terminal.screen import Screen
from tests import hub_cache

NO_ALIASES: dict[str, Alias] = {}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return hub_cache.use(tmp_path / "hub", monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return hub_cache.small_model(tmp_path)


@pytest.mark.parametrize("name", ["me/a:Q4_0", "hf:me/a/a-Q4_0.gguf"])
def test_a_name_that_means_one_model_means_no_download(hub: Path, name: str) -> None:
    broken_off = hub_cache.add_unfinished(hub, "me/a", 1000)
    with pytest.raises(ModelLoadError, match="not on this disk"):
        plan_removal(name, NO_ALIASES)
    assert plan_removal(name, NO_ALIASES, unfinished=True).unfinished == (broken_off,)


def test_a_download_that_goes_on_just_now_stays(hub: Path) -> None:
    partial = hub_cache.add_unfinished(hub, "me/a", 1000)
    path = hub / ".locks" / partial.parents[1].name / "abc.lock"
    path.parent.mkdir(parents=True)
    with FileLock(path):
        with pytest.raises(LacliError, match="another program goes on with"):
            plan_removal("me/a", NO_ALIASES)
        broken_off = hub_cache.add_unfinished(hub, "me/a", 10, "def.incomplete")
        removal = plan_removal("me/a", NO_ALIASES)
        assert (removal.unfinished, removal.size) == ((broken_off,), 10)
    # And one that began while the user was asked.
    removal = plan_removal("me/a", NO_ALIASES)
    with FileLock(path):
        remove(removal)
    assert partial.exists() and not broken_off.exists()


def test_all_downloads_that_broke_off_go_where_none_is_named(hub: Path, model: Path, tmp_path: Path) -> None:
    kept = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    gone = [hub_cache.add_unfinished(hub, repository, 10) for repository in ("me/a", "me/b")]
    going_on = hub_cache.add_unfinished(hub, "me/c", 10)
    lock = hub / ".locks" / going_on.parents[1].name / "abc.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        assert remove_models([], tmp_path / "none", Screen(quiet=True), None, unfinished=True)
        with pytest.raises(LacliError, match="another program"):
            remove_models([], tmp_path / "none", Screen(quiet=True), None, unfinished=True)
    assert [path.exists() for path in (*gone, going_on, kept)] == [False, False, True, True]
    assert remove_models([], tmp_path / "none", Screen(quiet=True), None, unfinished=True)
    with pytest.raises(ModelLoadError, match="no unfinished download"):
        remove_models([], tmp_path / "none", Screen(quiet=True), None, unfinished=True)
    assert read_header(kept)


def test_a_download_that_broke_off_is_removed_where_no_model_is_there(hub: Path, model: Path) -> None:
    hub_cache.add_unfinished(hub, "me/a", 1000)
    kept = hub_cache.add_unfinished(hub, "me/b", 1000)
    removal = plan_removal("me/a", NO_ALIASES)
    assert removal.name == "unfinished downloads of me/a" and removal.size == 1000
    remove(removal)
    assert [each.path for each in unfinished_downloads()] == [kept]
    assert not hub_cache.folder_of(hub, "me/a").exists()


def test_a_download_of_llama_cpp_is_going_on_while_it_changes(hub: Path, tmp_path: Path) -> None:
    partial = hub_cache.add_unfinished(hub, "me/a", 1000, f"abc{LLAMA_CPPS}")
    with pytest.raises(LacliError, match="another program goes on"):
        remove_models([], tmp_path / "none", Screen(quiet=True), None, unfinished=True)
    with pytest.raises(LacliError, match="another program goes on"):
        plan_removal("me/a", NO_ALIASES)
    assert partial.exists()
    os.utime(partial, (1, 1))
    assert remove_models([], tmp_path / "none", Screen(quiet=True), None, unfinished=True)
    assert not partial.exists()


def test_what_is_gone_on_with_while_the_user_is_asked_is_not_said_to_be_removed(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, gone = (hub_cache.add_unfinished(hub, f"me/{name}", 1_000_000) for name in "ab")
    lock = FileLock(hub / ".locks" / kept.parents[1].name / "abc.lock")
    Path(lock.lock_file).parent.mkdir(parents=True)

    def yes(question: str) -> bool:
        lock.acquire()
        return True

    own = tmp_path / "none"
    assert remove_models([], own, Screen(quiet=True), yes, unfinished=True, as_json=True)
    assert [each["paths"] for each in json.loads(capsys.readouterr().out)["removed"]] == [[str(gone)]]
    assert kept.exists()
    lock.release()
    assert remove_models(["me/a"], own, Screen(), yes)
    assert "nothing was removed" in capsys.readouterr().err and kept.exists()
    lock.release()
