"""Which models are found in the cache, by what name, and what does not count as one that can be run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from lacli.hub import cache as hub_cache_module
from lacli.hub.cache import LocalModel, cached_models, find_cached, matching, remember_files, unfinished_downloads
from lacli.hub.names import HubModel, read_name
from lacli.llamacpp.gguf import Header, read_header
from tests.fakes import hub_cache, tiny_models


def only(cache: Path) -> LocalModel:
    (found,) = cached_models(cache)
    return found


def names(found: list[LocalModel]) -> list[str]:
    return [each.name for each in found]


def find(name: str, *, anything: bool = False) -> Path | None:
    wanted = read_name(name, {})
    assert isinstance(wanted, HubModel)
    return find_cached(wanted, anything=anything)


def test_every_name_finds_the_file_that_it_is_the_name_of(cache: Path, model: Path) -> None:
    files = ["a-Q4_K_M.gguf", "a-F16.gguf", "a-BF16.gguf", "sub/other-Q8_0.gguf", "a-Q8_0.gguf", "plain.gguf"]
    links = [hub_cache.add(cache, "me/a-GGUF", file, model) for file in files]
    found = cached_models(cache)
    assert {each.path for each in found} == set(links)
    assert [find(each.name) for each in found] == [each.path for each in found]
    assert set(names(found)) >= {"me/a-GGUF:Q4_K_M", "me/a-GGUF:BF16", "hf:me/a-GGUF/plain.gguf"}
    unread = cached_models(cache, headers=False)
    assert [(each.name, each.header) for each in unread] == [(name, None) for name in names(found)]


def test_a_split_model_is_one_with_the_size_of_all_parts_and_says_what_is_missing(cache: Path, tmp_path: Path) -> None:
    files = tiny_models.write_llama_split(tmp_path)
    links = [hub_cache.add(cache, "me/split", file.name, file) for file in files]
    found = only(cache)
    assert (found.path, set(found.links)) == (links[0], set(links))
    assert found.size == sum(file.stat().st_size for file in files)
    assert found.header == read_header(files[0])
    links[0].unlink()
    found = only(cache)
    assert (found.problem, found.header, find("me/split", anything=True)) == ("1 of 2 parts missing", None, None)


@pytest.mark.parametrize("raw", [b"", b"GGUF", b"GGUF" + bytes(200), b"no model at all"])
def test_a_damaged_file_is_there_beside_the_others_and_says_so(cache: Path, model: Path, raw: bytes) -> None:
    hub_cache.add(cache, "me/a", "a-Q4_0.gguf", raw)
    hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    damaged, whole = cached_models(cache)
    assert damaged.name == "me/a:Q4_0" and damaged.problem.startswith("damaged:")
    assert (whole.name, whole.problem) == ("me/a:Q8_0", "")


def test_a_repository_that_the_librarys_scan_leaves_out_is_there(cache: Path, model: Path) -> None:
    hub_cache.add_broken(cache, "me/a", "a-Q4_0.gguf")
    hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    link = hub_cache.add(cache, "me/b", "b-Q8_0.gguf", model)
    (link.parents[2] / "refs" / "main").write_text("f" * 40)  # an update that broke off
    assert not scan_cache_dir(cache).repos
    damaged, whole, old = cached_models(cache)
    assert (damaged.problem, damaged.size) == ("damaged: its content is missing", 0)
    assert (whole.name, whole.problem) == ("me/a:Q8_0", "")
    assert (old.name, old.problem) == ("me/b:Q8_0", "of an older commit")


def test_a_pipe_in_the_place_of_a_model_is_not_waited_for(cache: Path, model: Path) -> None:
    pipe = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", b"x")
    pipe.unlink()
    os.mkfifo(pipe)
    hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    damaged, whole = cached_models(cache)
    assert "no ordinary file" in damaged.problem and not whole.problem


def test_a_projector_goes_with_a_model(cache: Path, model: Path) -> None:
    hub_cache.add(cache, "me/a", "mmproj-a-F16.gguf", model)
    assert only(cache).problem == "goes with a model"


def test_the_size_is_that_of_the_newest_commit_and_each_content_counts_once(cache: Path, model: Path) -> None:
    raw = model.read_bytes()
    old = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", raw, "a-old")
    new = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", raw, "b-new")
    found = only(cache)
    assert (found.path, set(found.links), found.size, found.older) == (new, {old, new}, len(raw), 0)
    newest = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", raw + bytes(1000), "c-newest")
    found = only(cache)
    assert (found.path, found.size, found.older) == (newest, len(raw) + 1000, len(raw))


def test_what_only_an_older_commit_has_says_so(cache: Path, model: Path) -> None:
    hub_cache.add(cache, "me/a", "a-Q4_0.gguf", model, "old")
    hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model, "new")
    problems = {each.name: each.problem for each in cached_models(cache)}
    assert problems == {"me/a:Q8_0": "", "me/a:Q4_0": "of an older commit"}


def test_what_is_no_model_with_a_name_is_passed_over(cache: Path, model: Path) -> None:
    link = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    (link.parent / "x.gguf").mkdir()
    hub_cache.add(cache, "me/a", "config.json", b"{}")
    hub_cache.add(cache, "gpt2", "a-Q8_0.gguf", model)
    hub_cache.add_unfinished(cache, "gpt2", 5)
    (cache / "datasets--me--d" / "snapshots" / "c").mkdir(parents=True)
    (cache / "datasets--me--d" / "snapshots" / "c" / "d.gguf").write_bytes(b"")
    (cache / "version.txt").write_text("1")
    assert (only(cache).path, unfinished_downloads()) == (link, [])


def test_no_cache_is_an_empty_one(cache: Path) -> None:
    cache.rmdir()
    assert (cached_models(cache), unfinished_downloads()) == ([], [])


def test_unfinished_downloads_are_found(cache: Path) -> None:
    hub_cache.add_unfinished(cache, "me/a", 77)
    hub_cache.add_unfinished(cache, "me/b", 5, "x.downloadInProgress")
    found = unfinished_downloads()
    assert [(each.repository, each.path.name, each.size) for each in found] == [
        ("me/a", "abc.incomplete", 77),
        ("me/b", "x.downloadInProgress", 5),
    ]
    assert unfinished_downloads("me/b") == found[1:]


def test_a_quant_matches_its_model_alone(cache: Path, model: Path) -> None:
    for quant in ("F16", "BF16", "Q4_0"):
        hub_cache.add(cache, "me/a", f"a-{quant}.gguf", model)
    found = cached_models(cache)
    assert names(matching(found, HubModel("me/a", "f16"))) == ["me/a:F16"]
    assert names(matching(found, HubModel("me/a", file="a-Q4_0.gguf"))) == ["me/a:Q4_0"]
    assert matching(found, HubModel("me/a")) == found and matching(found, HubModel("me/b")) == []


def test_a_quant_that_two_models_of_the_hub_have_names_none_that_is_here(cache: Path, model: Path) -> None:
    link = hub_cache.add(cache, "me/a", "a-Q4_K_M.gguf", model)
    remember_files("me/a", link.parent.name, ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"])
    name = only(cache).name
    assert (name, find(name)) == ("hf:me/a/a-Q4_K_M.gguf", link)


@pytest.mark.parametrize("anything", [True, False])
def test_a_part_of_a_quant_finds_a_model_only_if_the_hub_has_no_other(cache: Path, model: Path, anything: bool) -> None:
    link = hub_cache.add(cache, "me/a", "a-BF16.gguf", model)
    assert find("me/a:bf16", anything=anything) == link
    for known, found in (([], None), (["a-BF16.gguf", "a-F16.gguf"], None), (["a-BF16.gguf"], link)):
        remember_files("me/a", link.parent.name, known)
        assert find("me/a:F16", anything=anything) == found


def test_a_look_at_a_file_is_no_use_of_it(cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, header = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model).resolve(), read_header(model)
    os.utime(content, (1e9, 9e8))
    assert [only(cache).last_used, only(cache).last_used] == [1e9, 1e9]

    def stat_after(*times: float) -> os.stat_result:
        """The file after a look that leaves these times of reading and writing."""

        def look(path: Path) -> Header:
            if times:
                os.utime(path, times)  # type: ignore[arg-type]  # two of them
            return header

        monkeypatch.setattr(hub_cache_module, "read_header", look)
        assert only(cache).header == header
        return content.stat()

    before = content.stat()
    assert stat_after().st_ctime_ns == before.st_ctime_ns, "a look that leaves no trace changes nothing"
    assert stat_after(5e9, 9e8).st_atime == 1e9
    assert stat_after(5e9, 5e9).st_mtime == 5e9, "one that is written meanwhile keeps its new times"


def test_a_cache_that_only_somebody_else_may_read_is_an_empty_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "glob", refuse)
    assert cached_models(cache) == [] == unfinished_downloads()
    assert find_cached(HubModel("me/a"), anything=True) is None
