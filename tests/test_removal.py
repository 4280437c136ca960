"""What `lacli rm` removes and what it leaves: other quants, other repositories, all that is outside the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lacli.errors import LacliError, ModelLoadError, UsageError
from lacli.hub.aliases import Alias
from lacli.llamacpp.gguf import read_header
from lacli.shelf.cached import cached_models
from lacli.shelf.removal import plan_removal, remove, remove_models
from lacli.terminal.screen import Screen
from lacli.text.format import size_in_words
from tests import hub_cache
from tests.fakes import tiny_models

NO_ALIASES: dict[str, Alias] = {}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return hub_cache.use(tmp_path / "hub", monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return hub_cache.small_model(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.gguf"
    tiny_models.write_qwen2(path)
    return path


def removed(name: str) -> int:
    """Remove a model and return the bytes that were said to be freed."""
    removal = plan_removal(name, NO_ALIASES)
    remove(removal)
    return removal.size


def bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("blobs/*") if path.is_file())


def test_removing_one_quant_leaves_the_other_readable(hub: Path, model: Path, other: Path) -> None:
    gone = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    kept = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", other)
    content, before = gone.resolve(), bytes_below(hub)
    freed = removed("me/a:Q4_0")
    assert not gone.is_symlink() and not content.exists()
    assert read_header(kept).architecture == "qwen2"
    assert [each.name for each in cached_models()] == ["me/a:Q8_0"]
    assert freed == before - bytes_below(hub) == model.stat().st_size


def test_the_last_model_takes_its_repository_along(hub: Path, model: Path) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    hub_cache.add(hub, "me/b", "b-Q4_0.gguf", model)
    removed("me/a:Q4_0")
    assert not hub_cache.folder_of(hub, "me/a").exists()
    assert [each.name for each in cached_models()] == ["me/b:Q4_0"]


def test_files_of_other_kinds_keep_their_repository(hub: Path, model: Path) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    readme = hub_cache.add(hub, "me/a", "README.md", b"read me")
    removed("me/a:Q4_0")
    assert readme.read_bytes() == b"read me" and cached_models() == []


def test_a_model_goes_from_all_commits(hub: Path, model: Path, other: Path) -> None:
    links = [hub_cache.add(hub, "me/a", "a-Q4_0.gguf", raw, str(raw.name)) for raw in (model, other)]
    kept = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model, "third")
    contents = [link.resolve() for link in links]
    assert removed("me/a:Q4_0") == other.stat().st_size
    assert not any(link.is_symlink() for link in links)
    # The first one's content is the other model's too.
    assert [content.exists() for content in contents] == [True, False]
    assert read_header(kept)


def test_all_parts_of_a_split_model_go(hub: Path, tmp_path: Path, model: Path) -> None:
    files = tiny_models.write_llama_split(tmp_path)
    links = [hub_cache.add(hub, "me/a", f"a-F32{file.name.removeprefix('tiny')}", file) for file in files]
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    assert removed("me/a:F32") == sum(file.stat().st_size for file in files)
    assert not any(link.is_symlink() for link in links)


def test_a_link_whose_content_is_gone_can_be_removed(hub: Path, model: Path) -> None:
    broken = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", b"x")
    broken.resolve().unlink()
    kept = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    assert removed("me/a:Q4_0") == 0
    assert not broken.is_symlink() and read_header(kept)


def test_what_a_link_leads_to_outside_the_cache_stays(hub: Path, model: Path, other: Path) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", other)
    link.unlink()
    link.symlink_to(os.path.relpath(model, link.parent))
    removed("me/a:Q4_0")
    assert not link.is_symlink() and read_header(model)


def test_a_repository_with_several_models_wants_one_named(hub: Path, model: Path, other: Path) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", other)
    with pytest.raises(ModelLoadError, match="2 models on this disk are me/a .name one of me/a:Q4_0, me/a:Q8_0"):
        plan_removal("me/a", NO_ALIASES)
    removed("me/a:q8_0")
    assert plan_removal("me/a", NO_ALIASES).name == "me/a:Q4_0"


def test_an_alias_removes_what_it_means(hub: Path, model: Path, other: Path) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", other)
    assert plan_removal("small", {"small": Alias("small", "me/a", "Q4_0")}).name == "me/a:Q4_0"


def test_files_outside_the_cache_are_refused(hub: Path, model: Path) -> None:
    with pytest.raises(UsageError, match="a path outside it"):
        plan_removal(str(model), NO_ALIASES)
    with pytest.raises(UsageError, match="a path outside it"):
        plan_removal("mine", {"mine": Alias("mine", str(model))})
    assert model.exists()


def test_a_path_into_the_cache_is_refused_with_the_name_to_type(hub: Path, model: Path) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    with pytest.raises(UsageError, match="lacli rm me/a:Q4_0"):
        plan_removal(str(link), NO_ALIASES)


@pytest.mark.parametrize("name", ["me/a:Q8_0", "me/b", "hf:me/a/b.gguf"])
def test_what_is_not_there_cannot_be_removed(hub: Path, model: Path, name: str) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    with pytest.raises(ModelLoadError, match="not on this disk"):
        plan_removal(name, NO_ALIASES)
    assert link.exists()


def test_what_arrives_while_the_user_is_asked_stays(hub: Path, model: Path, other: Path, tmp_path: Path) -> None:
    gone = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    came: list[Path] = []

    def yes(question: str) -> bool:
        came.append(hub_cache.add(hub, "me/a", "a-Q8_0.gguf", other))
        came.append(hub_cache.add(hub, "me/a", "copy-F16.gguf", model))
        return True

    assert remove_models(["me/a"], tmp_path / "none.txt", Screen(quiet=True), yes)
    assert not gone.is_symlink()
    assert [read_header(path).architecture for path in came] == ["qwen2", "llama"]


def test_a_commit_that_is_a_link_to_a_folder_elsewhere_is_not_touched(hub: Path, model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = model.rename(elsewhere / "a-Q4_0.gguf")
    snapshots = hub_cache.folder_of(hub, "me/a") / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "c").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="leads out of the hub's cache"):
        plan_removal("me/a", NO_ALIASES)
    assert read_header(file)


def test_a_repository_that_is_a_link_to_another_disk_is_emptied_too(hub: Path, model: Path, tmp_path: Path) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    folder, elsewhere = hub_cache.folder_of(hub, "me/a"), tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    assert removed("me/a:Q4_0") == model.stat().st_size
    assert not elsewhere.exists() and not folder.is_symlink()


@pytest.mark.parametrize("cache", ["hub", "./x/../hub"])
def test_a_relative_cache_is_freed_too(
    hub: Path, model: Path, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model).resolve()
    hub_cache.add(hub, "me/a", "README.md", b"read me")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", cache)
    assert removed("me/a:Q4_0") == model.stat().st_size
    assert not content.exists()


def test_two_models_at_once_leave_no_empty_folder(hub: Path, model: Path, other: Path, tmp_path: Path) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", other)
    assert remove_models(["me/a:Q4_0", "me/a:Q8_0"], tmp_path / "none.txt", Screen(quiet=True), None)
    assert not hub_cache.folder_of(hub, "me/a").exists()


def test_a_model_leaves_its_repositorys_downloads_and_they_leave_it(hub: Path, model: Path, other: Path) -> None:
    kept = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", other)
    broken_off = hub_cache.add_unfinished(hub, "me/a", 1000)
    removed("me/a:Q4_0")
    assert broken_off.exists()
    remove(plan_removal("me/a", NO_ALIASES, unfinished=True))
    assert not broken_off.exists() and read_header(kept)


def test_the_last_model_leaves_a_download_that_broke_off(hub: Path, model: Path) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    broken_off = hub_cache.add_unfinished(hub, "me/a", 1000)
    removed("me/a:Q4_0")
    assert broken_off.exists() and cached_models() == []


def test_a_content_that_repositories_share_stays_for_the_other(hub: Path, model: Path) -> None:
    links = [hub_cache.add(hub, repository, "a-Q4_0.gguf", model) for repository in ("me/a", "me/b")]
    hub_cache.add(hub, "me/a", "README.md", b"read me")
    contents = [link.resolve() for link in links]
    shared = hub / "blobs" / "00" / "0123"
    shared.parent.mkdir(parents=True)
    contents[0].rename(shared)
    contents[1].unlink()
    for content in contents:
        content.symlink_to(os.path.relpath(shared, content.parent))
    removed("me/a:Q4_0")
    assert not contents[0].is_symlink() and shared.exists()
    assert read_header(links[1])


def test_nothing_is_removed_when_the_answer_is_no_or_one_name_is_wrong(hub: Path, model: Path, tmp_path: Path) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    screen, own = Screen(quiet=True), tmp_path / "none.txt"
    assert not remove_models(["me/a"], own, screen, no)
    assert asked == [f"remove me/a:Q4_0, {size_in_words(model.stat().st_size)}?"]
    with pytest.raises(LacliError, match="not on this disk"):
        remove_models(["me/a", "me/b"], own, screen, None)
    assert link.exists()
    assert remove_models(["me/a", "me/a:Q4_0"], own, screen, None)
    assert not link.exists()


def test_what_cannot_be_removed_is_an_error_that_names_it(hub: Path, model: Path) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model)
    removal = plan_removal("me/a", NO_ALIASES)
    link.unlink()
    link.mkdir()
    with pytest.raises(LacliError, match=f"cannot remove {link}"):
        remove(removal)


@pytest.mark.parametrize("quant", ["F16", "b", "M", "4_K_M"])
def test_a_part_of_a_quant_removes_nothing(hub: Path, model: Path, other: Path, quant: str) -> None:
    links = [hub_cache.add(hub, "me/a", "a-7b-Q4_K_M.gguf", model), hub_cache.add(hub, "me/a", "a-7b-BF16.gguf", other)]
    with pytest.raises(ModelLoadError, match="not on this disk"):
        plan_removal(f"me/a:{quant}", NO_ALIASES)
    assert all(link.exists() for link in links)
