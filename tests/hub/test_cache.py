"""Models on this disk: the hub's cache as the library and llama-cli fill it, damaged files included."""

from __future__ import annotations

from pathlib import Path

from lacli.hub.cache import LocalModel, cached_models, find_cached
from lacli.hub.names import HubModel, read_name
from lacli.llamacpp.gguf import read_header
from tests.fakes import hub_cache, tiny_models


def only() -> LocalModel:
    (found,) = cached_models()
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
    assert (found.problem, found.header, find("me/split", anything=True)) == ("1 of 2 parts missing", None, None)


def test_a_damaged_file_is_there_beside_the_others_and_says_so(cache: Path, model: Path) -> None:
    hub_cache.add(cache, "me/a", "a-Q4_0.gguf", b"GGUF" + bytes(200))
    hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    damaged, whole = cached_models()
    assert damaged.name == "me/a:Q4_0" and damaged.problem.startswith("damaged:")
    assert (whole.name, whole.problem) == ("me/a:Q8_0", "")


def test_what_is_no_model_with_a_name_is_passed_over(cache: Path, model: Path) -> None:
    assert cached_models() == [] and find("me/a", anything=True) is None
    link = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    (link.parent / "x.gguf").mkdir()
    hub_cache.add(cache, "me/a", "config.json", b"{}")
    hub_cache.add(cache, "gpt2", "a-Q8_0.gguf", model)
    (cache / "datasets--me--d" / "snapshots" / "c").mkdir(parents=True)
    (cache / "datasets--me--d" / "snapshots" / "c" / "d.gguf").write_bytes(b"")
    assert only().path == link


def test_the_newest_commit_comes_first_and_what_only_an_older_one_has_is_there_too(cache: Path, model: Path) -> None:
    raw = model.read_bytes()
    old = hub_cache.add(cache, "me/a", "a-Q4_0.gguf", raw, "b-old")
    hub_cache.add(cache, "me/a", "a-Q8_0.gguf", raw, "b-old")
    new = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", raw + bytes(1000), "a-new")
    found = {each.name: each for each in cached_models()}
    assert (found["me/a:Q8_0"].path, found["me/a:Q8_0"].size) == (new, len(raw) + 1000)
    assert found["me/a:Q4_0"].path == old
    assert find("me/a:Q8_0") == new
    assert find("me/a:Q4_0") is None and find("me/a:Q4_0", anything=True) == old
