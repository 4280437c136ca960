"""Models on this disk: the hub's cache as huggingface_hub and llama-cli fill it, and removals by name."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.cli.models import find_to_remove
from lacli.errors import ModelLoadError, UsageError
from lacli.hub.cache import LocalModel, cached_models, find_cached, remove
from lacli.hub.names import Alias, HubModel, read_name
from lacli.llamacpp.gguf import read_header
from tests.fakes import hub_cache, tiny_models

FILES = ("a-Q4_0.gguf", "deep/a-Q8_0.gguf", "README.md", *(f"a-F32-0000{part}-of-00002.gguf" for part in (1, 2)))


def only() -> LocalModel:
    (found,) = cached_models()
    return found


def names(found: list[LocalModel]) -> list[str]:
    return [each.name for each in found]


def find(name: str, *, without_hub: bool = False) -> Path | None:
    wanted = read_name(name, {})
    assert isinstance(wanted, HubModel)
    return find_cached(wanted, without_hub=without_hub)


def test_every_name_finds_the_file_that_it_is_the_name_of(cache: Path, model: Path) -> None:
    files = ["a-Q4_K_M.gguf", "a-F16.gguf", "a-BF16.gguf", "sub/other-Q8_0.gguf", "a-Q8_0.gguf", "plain.gguf"]
    links = [hub_cache.add(cache, "me/a-GGUF", file, model) for file in files]
    found = cached_models()
    assert {each.path for each in found} == set(links)
    assert [find(each.name) for each in found] == [each.path for each in found]
    assert set(names(found)) >= {"me/a-GGUF:Q4_K_M", "me/a-GGUF:BF16", "hf:me/a-GGUF/plain.gguf"}
    unread = cached_models(headers=False)
    assert [(each.name, each.header) for each in unread] == [(name, None) for name in names(found)]


def test_a_split_model_is_one_with_the_size_of_all_parts_and_says_what_is_missing(cache: Path, tmp_path: Path) -> None:
    files = tiny_models.write_llama_split(tmp_path)
    links = [hub_cache.add(cache, "me/split", file.name, file) for file in files]
    found = only()
    assert found.path == links[0]
    assert found.size == sum(file.stat().st_size for file in files)
    assert found.header == read_header(files[0])
    links[0].unlink()
    found = only()
    assert (found.problem, found.header, find("me/split", without_hub=True)) == ("1 of 2 parts missing", None, None)


def test_the_newest_commit_comes_first_and_what_only_an_older_one_has_is_there_too(cache: Path, model: Path) -> None:
    raw = model.read_bytes()
    old = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", raw, "b-old")
    hub_cache.add(cache, "me/a", "a-Q8_0.gguf", raw, "b-old")
    new = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", raw + bytes(1000), "a-new")
    found = {each.name: each for each in cached_models()}
    assert (found["me/a:Q8_0"].path, found["me/a:Q8_0"].size) == (new, len(raw) + 1000)
    assert found["me/a:Q4_0"].path == old
    assert find("me/a:Q8_0") == new
    assert find("me/a:Q4_0") is None and find("me/a:Q4_0", without_hub=True) == old


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
    """`files`: repository, name, commit and size of each. Files of one size have the same content."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        cache = hub_cache.use(Path(folder), patch)
        links = {
            hub_cache.add(cache, repository, name, bytes(size), commit): (repository, size)
            for repository, name, commit, size in files
        }
        gone = {link for link, (repository, _) in links.items() if repository == "me/a" and quant in link.name}
        if not gone:
            with pytest.raises(ModelLoadError, match="not on this disk"):
                find_to_remove(f"me/a:{quant}", {})
        freed = remove(find_to_remove(f"me/a:{quant}", {})) if gone else 0
        kept = {link: links[link] for link in links if link not in gone}
        assert not any(link.is_symlink() for link in gone)
        assert [link.stat().st_size for link in kept] == [size for _, size in kept.values()]
        contents = {path: path.stat().st_size for path in cache.glob("*/blobs/*")}
        assert sorted(contents.values()) == sorted(size for _, size in set(kept.values()))
        assert freed == sum(size for _, size in set(links.values()) - set(kept.values()))
        folders = {path.name for path in cache.iterdir()}
        assert folders == {hub_cache.folder_of(cache, repository).name for repository, _ in kept.values()}


def test_an_unfinished_download_of_another_quant_stays(cache: Path) -> None:
    link = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", b"x")
    unfinished = hub_cache.folder_of(cache, "me/a") / "blobs" / "abc.incomplete"
    unfinished.write_bytes(b"3 GB of a-Q8_0.gguf")
    assert remove(find_to_remove("me/a:Q4_0", {})) == 1
    assert not link.is_symlink() and unfinished.exists() and cached_models() == []
    hub_cache.add(cache, "me/a", "a-Q4_0.gguf", b"x")
    unfinished.unlink()
    assert remove(find_to_remove("me/a:Q4_0", {})) == 1 and not any(cache.iterdir())


def test_a_link_that_leads_out_of_the_cache_is_not_touched(cache: Path, model: Path) -> None:
    link = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", b"x")
    link.unlink()
    link.symlink_to(os.path.relpath(model, link.parent))
    with pytest.raises(UsageError, match="leads out of the hub's cache"):
        remove(find_to_remove("me/a:Q4_0", {}))
    assert link.is_symlink() and read_header(model)


def test_what_means_several_or_none_or_a_part_of_a_quant_removes_nothing(cache: Path) -> None:
    for quant in ("Q4_K_M", "BF16"):
        hub_cache.add(cache, "me/a", f"a-7b-{quant}.gguf", quant.encode())
    with pytest.raises(ModelLoadError, match="2 models on this disk fit me/a .name one of me/a:BF16, me/a:Q4_K_M"):
        find_to_remove("me/a", {})
    assert find_to_remove("small", {"small": Alias("small", "me/a", "Q4_K_M")}).name == "me/a:Q4_K_M"
    for name in ("me/a:Q8_0", "me/b", "hf:me/a/b.gguf", "me/a:F16", "me/a:M"):
        with pytest.raises(ModelLoadError, match="not on this disk"):
            find_to_remove(name, {})
