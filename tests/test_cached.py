"""Which models are found on the disk, by what name, and what does not count as one that can be run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lacli.hub.aliases import Alias
from lacli.hub.cache import find_cached, keep_names
from lacli.hub.names import HubModel, read_name
from lacli.llamacpp.gguf import Header, read_header
from lacli.resolve import demo_model
from lacli.shelf import cached
from lacli.shelf.cached import (
    aliased,
    cached_models,
    cached_names,
    matching,
    stored_models,
    unfinished_downloads,
)
from tests import hub_cache
from tests.fakes import tiny_models


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return hub_cache.use(tmp_path / "hub", monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return hub_cache.small_model(tmp_path)


def test_every_name_finds_the_file_that_it_is_the_name_of(hub: Path, model: Path) -> None:
    files = ["a-Q4_K_M.gguf", "a-F16.gguf", "a-BF16.gguf", "sub/other-Q8_0.gguf", "a-Q8_0.gguf", "plain.gguf"]
    links = [hub_cache.add(hub, "me/a-GGUF", file, model) for file in files]
    stored = cached_models()
    assert {each.path for each in stored} == set(links)
    for each in stored:
        wanted = read_name(each.name, {})
        assert isinstance(wanted, HubModel)
        assert find_cached(wanted) == each.path
    assert {each.name for each in stored} >= {"me/a-GGUF:Q4_K_M", "me/a-GGUF:BF16", "hf:me/a-GGUF/plain.gguf"}


def test_a_split_model_is_one_with_the_size_of_all_parts(hub: Path, tmp_path: Path) -> None:
    files = tiny_models.write_llama_split(tmp_path)
    links = [hub_cache.add(hub, "me/split", file.name, file) for file in files]
    (found,) = cached_models()
    assert (found.path, set(found.entries)) == (links[0], set(links))
    assert found.size == sum(file.stat().st_size for file in files)
    assert found.header == read_header(files[0])


def test_a_split_model_without_a_part_is_there_and_says_so(hub: Path, tmp_path: Path) -> None:
    _, second = tiny_models.write_llama_split(tmp_path)
    hub_cache.add(hub, "me/split", second.name, second)
    (found,) = cached_models()
    assert (found.problem, found.header) == ("1 of 2 parts missing", None)


@pytest.mark.parametrize("raw", [b"", b"GGUF", b"GGUF" + bytes(200), b"no model at all"])
def test_a_damaged_file_is_there_beside_the_others_and_says_so(hub: Path, model: Path, raw: bytes) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", raw)
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    damaged, whole = cached_models()
    assert damaged.name == "me/a:Q4_0" and damaged.problem.startswith("damaged:")
    assert whole.name == "me/a:Q8_0" and not whole.problem


def test_a_pipe_in_the_place_of_a_model_is_not_waited_for(hub: Path, model: Path) -> None:
    pipe = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", b"x")
    pipe.unlink()
    os.mkfifo(pipe)
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    damaged, whole = cached_models()
    assert "no ordinary file" in damaged.problem and not whole.problem


def test_a_link_whose_content_is_gone_hides_no_other_model(hub: Path, model: Path) -> None:
    broken = hub_cache.add(hub, "me/a", "a-Q4_0.gguf", b"x")
    broken.resolve().unlink()
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    damaged, whole = cached_models()
    assert (damaged.problem, damaged.size) == ("damaged: its content is missing", 0)
    assert not whole.problem


def test_a_projector_is_there_and_no_model(hub: Path, model: Path) -> None:
    hub_cache.add(hub, "me/a", "mmproj-a-F16.gguf", model)
    (found,) = cached_models()
    assert found.problem == "goes with a model"


def test_a_file_of_two_commits_is_one_model_whose_content_counts_once(hub: Path, model: Path) -> None:
    links = [hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model, commit) for commit in ("a-old", "b-new")]
    (found,) = cached_models()
    assert (found.path, set(found.entries), found.size) == (links[1], set(links), model.stat().st_size)
    assert found.older == 0


def test_the_size_is_that_of_the_newest_and_what_older_commits_take_is_told_apart(hub: Path, model: Path) -> None:
    raw = model.read_bytes()
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", raw + bytes(1000), "a-old")
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", raw, "b-new")
    (found,) = cached_models()
    assert (found.size, found.older) == (len(raw), len(raw) + 1000)


def test_a_folder_with_a_models_name_is_none(hub: Path, model: Path) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    (link.parent / "x.gguf").mkdir()
    assert [each.path for each in cached_models()] == [link]


def test_a_repository_without_an_owner_has_no_name_and_is_passed_over(hub: Path, model: Path) -> None:
    hub_cache.add(hub, "gpt2", "a-Q8_0.gguf", model)
    hub_cache.add_unfinished(hub, "gpt2", 5)
    assert (cached_models(), unfinished_downloads(), cached_names(hub)) == ([], [], [])


def test_names_are_the_same_without_a_look_into_the_files(hub: Path, model: Path) -> None:
    for file in ("a-Q4_0.gguf", "deep/a-F16.gguf", "plain.gguf"):
        hub_cache.add(hub, "me/a", file, model)
    stored = cached_models()
    assert cached_names(hub) == [each.name for each in stored] and len(stored) == 3
    assert [(each.name, each.header) for each in cached_models(headers=False)] == [(each.name, None) for each in stored]


def test_what_only_an_older_commit_has_says_so(hub: Path, model: Path) -> None:
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model, "old")
    hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model, "new")
    assert {each.name: each.problem for each in cached_models()} == {
        "me/a:Q8_0": "",
        "me/a:Q4_0": "of an older commit",
    }


def test_other_kinds_of_repositories_and_files_are_passed_over(hub: Path, model: Path) -> None:
    hub_cache.add(hub, "me/a", "config.json", b"{}")
    (hub / "datasets--me--d" / "snapshots" / "c").mkdir(parents=True)
    (hub / "datasets--me--d" / "snapshots" / "c" / "d.gguf").write_bytes(b"")
    (hub / "version.txt").write_text("1")
    assert cached_models() == []


def test_no_cache_is_an_empty_one(hub: Path) -> None:
    hub.rmdir()
    assert (cached_models(), unfinished_downloads()) == ([], [])


def test_looking_is_no_use(hub: Path, model: Path) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    os.utime(link, (1_000_000, 900_000))
    assert [each.used for each in cached_models()] == [
        1_000_000,
    ]
    assert [each.used for each in cached_models()] == [1_000_000]


def test_downloads_that_broke_off_are_found(hub: Path) -> None:
    paths = [
        hub_cache.add_unfinished(hub, "me/a", 77),
        hub_cache.add_unfinished(hub, "me/b", 5, "x.downloadInProgress"),
    ]
    found = unfinished_downloads()
    assert {(each.repository, each.path, each.size) for each in found} == {
        ("me/a", paths[0], 77),
        ("me/b", paths[1], 5),
    }
    assert unfinished_downloads("me/b") == [each for each in found if each.repository == "me/b"]


def test_a_quant_matches_its_model_alone(hub: Path, model: Path) -> None:
    for quant in ("F16", "BF16", "Q4_0"):
        hub_cache.add(hub, "me/a", f"a-{quant}.gguf", model)
    stored = cached_models()
    assert [each.name for each in matching(stored, HubModel("me/a", "f16"))] == ["me/a:F16"]
    assert [each.name for each in matching(stored, HubModel("me/a", file="a-Q4_0.gguf"))] == ["me/a:Q4_0"]
    assert len(matching(stored, HubModel("me/a"))) == 3
    assert matching(stored, HubModel("me/b")) == []


def test_aliases_find_their_models_and_the_bundled_one_is_always_there(hub: Path, model: Path) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    own = Alias("mine", str(model), own=True)
    aliases = {"a": Alias("a", "me/a", "Q8_0"), "b": Alias("b", "me/a", "Q4_0"), "mine": own}
    stored = stored_models(aliases)
    assert [(each.name, each.path) for each in stored] == [("me/a:Q8_0", link), ("mine", model), ("", demo_model())]
    assert [[each.path for each in aliased(stored, alias)] for alias in aliases.values()] == [[link], [], [model]]


def test_a_quant_that_two_models_of_the_hub_have_names_none_that_is_here(hub: Path, model: Path) -> None:
    link = hub_cache.add(hub, "me/a", "a-Q4_K_M.gguf", model)
    keep_names("me/a", link.parent.name, ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"])
    (found,) = cached_models()
    assert found.name == "hf:me/a/a-Q4_K_M.gguf" and cached_names(hub) == [found.name]
    wanted = read_name(found.name, {})
    assert isinstance(wanted, HubModel) and find_cached(wanted) == link


@pytest.mark.parametrize("anything", [True, False])
def test_a_part_of_a_quant_finds_nothing_where_what_the_hub_has_is_not_known(
    hub: Path, model: Path, anything: bool
) -> None:
    link = hub_cache.add(hub, "me/a", "a-BF16.gguf", model)
    assert find_cached(HubModel("me/a", "F16"), anything=anything) is None
    assert find_cached(HubModel("me/a", "bf16"), anything=anything) == link
    keep_names("me/a", link.parent.name, ["a-BF16.gguf", "a-F16.gguf"])
    assert find_cached(HubModel("me/a", "F16"), anything=anything) is None
    # Where the hub has no other, that is the one.
    keep_names("me/a", link.parent.name, ["a-BF16.gguf"])
    assert find_cached(HubModel("me/a", "F16"), anything=anything) == link


def test_a_look_at_a_file_that_leaves_no_trace_changes_nothing_of_it(
    hub: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, header = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model).resolve(), read_header(model)
    os.utime(content, (1e9, 1e9))
    before = content.stat()

    def find_after(*times: float) -> os.stat_result:
        """What becomes of a file whose look at it leaves these times of reading and writing."""

        def look(path: Path) -> Header:
            if times:
                os.utime(path, (times[0], times[1]))
            return header

        monkeypatch.setattr(cached, "read_header", look)
        assert cached_models()[0].header == header
        return content.stat()

    assert find_after().st_ctime_ns == before.st_ctime_ns
    assert find_after(5e9, 1e9).st_atime == 1e9
    # One that is written meanwhile keeps its new times.
    assert find_after(5e9, 5e9).st_mtime == 5e9
