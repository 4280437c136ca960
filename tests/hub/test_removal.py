"""What a name removes from the cache and what it leaves: other quants, other repositories, all that is outside."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.cli.models import find_to_remove
from lacli.errors import ModelLoadError, UsageError
from lacli.hub.cache import remove
from lacli.hub.names import Alias
from lacli.llamacpp.gguf import read_header
from tests.fakes import hub_cache

FILES = ("a-Q4_0.gguf", "deep/a-Q8_0.gguf", "README.md", *(f"a-F32-0000{part}-of-00002.gguf" for part in (1, 2)))


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
    with pytest.raises(ModelLoadError, match="2 models on this disk are me/a .name one of me/a:BF16, me/a:Q4_K_M"):
        find_to_remove("me/a", {})
    assert find_to_remove("small", {"small": Alias("small", "me/a", "Q4_K_M")}).name == "me/a:Q4_K_M"
    for name in ("me/a:Q8_0", "me/b", "hf:me/a/b.gguf", "me/a:F16", "me/a:M"):
        with pytest.raises(ModelLoadError, match="not on this disk"):
            find_to_remove(name, {})
