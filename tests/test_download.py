"""Which file a name of the hub becomes, and what is said where it becomes none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from lacli.errors import ModelLoadError
from lacli.hub.cache import known_files
from lacli.hub.download import fetch_model
from lacli.hub.names import HubModel
from lacli.resolve import find_model
from lacli.shelf.pulling import pull_models
from lacli.terminal.screen import Screen
from tests.fake_hub import FakeHub, Repository
from tests.fakes.tiny_models import write_llama_split
from tests.here import (
    NAME,
    Here,
    looking_up,
    point_at,
    tiny_hub,
    tiny_model,
)

CLOSED = "http://127.0.0.1:9"


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


def test_the_cache_is_the_librarys_own(here: Here, tiny: bytes) -> None:
    path = here.find(f"{NAME}:q8_0")
    assert huggingface_hub.hf_hub_download(NAME, path.name, local_files_only=True) == str(path)
    scanned = huggingface_hub.scan_cache_dir(here.cache)
    (repository,) = scanned.repos
    assert scanned.warnings == []
    assert (repository.repo_id, repository.size_on_disk) == (NAME, len(tiny) + 1)


def test_what_another_program_put_into_the_cache_is_used(here: Here, tiny: bytes) -> None:
    folder = here.cache / f"models--{NAME.replace('/', '--')}"
    found = folder / "snapshots" / ("c" * 40) / "deep" / "x-Q6_K.gguf"
    for path, content in ((folder / "refs" / "main", b"c" * 40), (found, tiny)):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert here.find(f"{NAME}:Q6_K") == here.find(f"hf:{NAME}/deep/x-Q6_K.gguf") == found
    assert here.find(NAME, offline=True) == found
    assert here.hub.requests == []
    # Whether Q6_K is what the bare name means, only the hub knows.
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_a_name_means_the_same_file_whatever_else_is_in_the_cache(here: Here) -> None:
    assert here.find(f"{NAME}:Q8_0").name == "tiny-Q8_0.gguf"
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_a_repository_without_the_usual_quant_is_not_asked_again_either(here: Here, tiny: bytes) -> None:
    here.hub.repositories["a/b"] = Repository({"x-Q6_K.gguf": tiny, "y-Q2_K.gguf": b"GGUF"})
    path = here.find("a/b")
    here.hub.requests.clear()
    assert here.find("a/b") == path and path.name == "x-Q6_K.gguf"
    assert here.hub.requests == []


def test_the_newest_is_asked_for_where_that_is_wanted(here: Here, tiny: bytes) -> None:
    old = here.find(NAME)
    newest = old.parents[2] / "refs" / "main"
    os.utime(newest, (1, 1))
    assert fetch_model(HubModel(NAME), quiet=True, fresh=True) == old
    assert len(here.hub.transfers()) == 1
    # A cache that cannot be written can be asked about.
    assert newest.stat().st_mtime == 1
    here.hub.repositories[NAME] = Repository({"tiny-Q4_K_M.gguf": tiny + b"new"})
    new = fetch_model(HubModel(NAME), quiet=True, fresh=True)
    assert new != old and new.read_bytes() == tiny + b"new"
    assert here.find(NAME) == new


def test_a_split_model_comes_with_all_its_parts(here: Here, tmp_path: Path) -> None:
    parts = write_llama_split(tmp_path)
    here.hub.repositories["a/b"] = Repository({f"deep/{part.name}": part.read_bytes() for part in parts})
    path = here.find("a/b")
    assert (path.name, path.parent.name) == (parts[0].name, "deep")
    assert [file for file, _ in here.hub.transfers()] == [part.name for part in parts]
    assert [(path.parent / part.name).read_bytes() for part in parts] == [part.read_bytes() for part in parts]


def test_a_part_that_the_repository_lacks_is_named(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({"x-Q8_0-00002-of-00002.gguf": b"GGUF"})
    for name in ("a/b", "hf:a/b/x-Q8_0-00002-of-00002.gguf"):
        assert "2 parts, missing x-Q8_0-00001-of-00002.gguf" in here.refused(name)


def test_a_lost_part_of_a_cached_model_is_fetched_again(here: Here, tmp_path: Path) -> None:
    parts = write_llama_split(tmp_path)
    here.hub.repositories["a/b"] = Repository({part.name: part.read_bytes() for part in parts})
    path = here.find("a/b")
    (path.parent / parts[1].name).resolve().unlink()
    here.hub.requests.clear()
    assert here.find("a/b") == path
    assert here.hub.transfers() == [(parts[1].name, "")]


def test_a_listing_without_sizes_leaves_the_fetching_to_the_library(here: Here, tiny: bytes) -> None:
    here.hub.repositories[NAME].names_only = True
    assert here.find(NAME).read_bytes() == tiny
    assert "fetching" in here.said[-1]


def test_of_many_files_the_nearest_are_offered(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({f"x-Q{bits}_{kind}.gguf": b"" for bits in range(2, 9) for kind in "01K"})
    line = here.refused("hf:a/b/x-Q4_L.gguf")
    assert "x-Q4_K.gguf" in line and line.count(".gguf") == 4


def test_a_file_that_is_no_model_is_refused_as_any_other(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({"x-Q8_0.gguf": b"<html>an error page</html>"})
    assert "x-Q8_0.gguf is not a GGUF file" in here.refused("a/b")


def test_a_gated_repository_says_what_to_do_and_works_with_a_token(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.hub.repositories[NAME].gated = "hf_friend"
    for token in ("", here.hub.token):
        monkeypatch.setenv("HF_TOKEN", token)
        line = here.refused(NAME)
        assert f"{NAME} wants its terms accepted and HF_TOKEN set (accept them at {here.hub.address}/{NAME};" in line
    here.hub.token = "hf_friend"
    monkeypatch.setenv("HF_TOKEN", "hf_friend")
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_a_token_that_the_hub_refuses_is_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    line = here.refused(NAME)
    assert f"{here.hub.address} refuses the token" in line and "hf_wrong" not in line


@pytest.mark.parametrize("token", ["", "hf_valid"])
def test_a_repository_that_does_not_exist(token: str, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    line = here.refused("no/body")
    assert line.startswith(f"there is no no/body on {here.hub.address}") and "private" in line


def test_a_file_that_does_not_exist_is_answered_with_those_that_do(here: Here) -> None:
    line = here.refused(f"hf:{NAME}/tiny-Q5_0.gguf")
    assert line == f"{NAME} has no tiny-Q5_0.gguf (there are tiny-F16.gguf, tiny-Q4_K_M.gguf, tiny-Q8_0.gguf)"


def test_what_the_quant_rule_refuses_is_one_line(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({"model.safetensors": b""})
    here.hub.repositories["a/c"] = Repository({"x/a-Q8_0.gguf": b"GGUF", "y/a-Q8_0.gguf": b"GGUF"})
    assert "a/b has no GGUF file" in here.refused("a/b")
    assert "choose one: hf:a/c/x/a-Q8_0.gguf, hf:a/c/y/a-Q8_0.gguf" in here.refused("a/c")
    assert f"{NAME} has no Q3_K (it has F16, Q4_K_M, Q8_0)" in here.refused(f"{NAME}:Q3_K")
    assert here.hub.transfers() == []


def test_a_hub_that_is_out_of_order_is_quoted(here: Here) -> None:
    here.hub.status = 503
    assert f"cannot fetch {NAME}: {here.hub.address} answers 503" in here.refused(NAME)


def test_without_a_network_the_cache_is_what_there_is(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    path = here.find(f"{NAME}:Q8_0")
    point_at(CLOSED, monkeypatch)
    assert f"no connection to {CLOSED}" in here.refused("someone/else")
    # The name means Q4_K_M, which is not here and cannot be fetched.
    assert here.find(NAME) == path and "tiny-Q8_0.gguf, from the cache" in here.said[-1]


def test_offline_only_the_cache_is_used_and_its_choices_are_listed(here: Here, tiny: bytes) -> None:
    here.hub.repositories["a/b"] = Repository({"x/a-Q8_0.gguf": tiny, "y/a-Q8_0.gguf": tiny + b" "})
    assert "a/b is not in the cache (lacli pull a/b fetches it" in here.refused("a/b", offline=True)
    assert here.hub.requests == []
    found = [here.find(f"hf:a/b/{folder}/a-Q8_0.gguf") for folder in "xy"]
    here.hub.requests.clear()
    assert "choose one: hf:a/b/x/a-Q8_0.gguf" in here.refused("a/b", offline=True)
    assert here.find("hf:a/b/y/a-Q8_0.gguf", offline=True) == found[1]
    assert here.hub.requests == []


def test_where_a_quant_cannot_be_had_those_that_are_here_are_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    for quant in ("Q8_0", "Q4_K_M"):
        here.find(f"{NAME}:{quant}")
    assert f"(on this disk are Q4_K_M, Q8_0; lacli pull {NAME}:Q2_K" in here.refused(f"{NAME}:Q2_K", offline=True)
    point_at(CLOSED, monkeypatch)
    assert "(on this disk are Q4_K_M, Q8_0; check the network" in here.refused(f"{NAME}:Q2_K")
    assert "on this disk" not in here.refused("someone/else", offline=True)


def test_a_split_model_with_a_part_missing_is_not_said_to_be_here(here: Here, tmp_path: Path) -> None:
    names = [f"big-F16-{part:05d}-of-00002.gguf" for part in (1, 2)]
    contents = [path.read_bytes() for path in write_llama_split(tmp_path)]
    here.hub.repositories["a/b"] = Repository(dict(zip(names, contents, strict=True)))
    here.find("a/b").parent.joinpath(names[1]).unlink()
    assert "on this disk" not in here.refused("a/b:F16", offline=True)


def test_the_hint_says_the_name_that_was_typed(here: Here, tmp_path: Path) -> None:
    own = tmp_path / "models.txt"
    own.write_text(f"mine {NAME} Q8_0\n")
    with pytest.raises(ModelLoadError, match=f"{NAME}:Q8_0 is not in the cache") as caught:
        find_model("mine", offline=True, aliases=own)
    assert caught.value.hint == "lacli pull mine fetches it, without --offline"
    with pytest.raises(ModelLoadError, match="lacli pull MINE fetches it"):
        pull_models(["MINE"], own, Screen(), offline=True)


@pytest.mark.parametrize("address", ["foo", "foo:80", "http://", "ftp://a.b"])
def test_an_endpoint_that_is_no_address_is_said(address: str, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(address, monkeypatch)
    assert f"HF_ENDPOINT is {address!r}, which is no address" in here.refused(NAME)


def test_a_cache_that_cannot_be_written(here: Here) -> None:
    here.cache.write_bytes(b"no folder")
    line = here.refused(NAME)
    assert f"cannot fetch {NAME}: " in line and str(here.cache) in line and "HF_HOME" in line


def test_a_hub_that_is_out_of_order_leaves_what_is_in_the_cache(here: Here) -> None:
    path = here.find(f"{NAME}:Q8_0")
    for status in (500, 503):
        here.hub.status = status
        assert here.find(NAME) == path
        assert here.said[-1].endswith(f"tiny-Q8_0.gguf, from the cache ({here.hub.address} answers {status})")


def test_a_model_of_an_older_commit_is_found_where_the_hub_cannot_be_asked(here: Here, tiny: bytes) -> None:
    old = here.find(f"{NAME}:Q8_0")
    files = here.hub.repositories[NAME].files
    for number in (1, 2):
        here.hub.repositories[NAME] = Repository(files | {"README.md": b"new" * number})
        newest = fetch_model(HubModel(NAME), quiet=True, fresh=True)
    assert newest.parent != old.parent
    assert here.find(f"{NAME}:Q8_0", offline=True) == old
    # Of two older commits, the one that was written last.
    second = here.cache / f"models--{NAME.replace('/', '--')}" / "snapshots" / "later" / old.name
    second.parent.mkdir()
    second.write_bytes(tiny)
    os.utime(second.parent, (2e9, 2e9))
    assert here.find(f"{NAME}:Q8_0", offline=True) == second
    transfers = len(here.hub.transfers())
    assert here.find(f"{NAME}:Q8_0") == newest.with_name(old.name)
    assert len(here.hub.transfers()) == transfers


def test_all_of_a_model_is_of_the_commit_that_was_listed(here: Here, tmp_path: Path) -> None:
    parts = write_llama_split(tmp_path)
    here.hub.repositories["a/b"] = repository = Repository({part.name: part.read_bytes() for part in parts})
    path = here.find("a/b")
    asked = [path.split("/")[4] for _, path, _ in here.hub.asked() if "/resolve/" in path]
    assert len(asked) >= len(parts) and set(asked) == {repository.commit}
    assert path.parent.name == repository.commit
    assert (path.parents[2] / "refs" / "main").read_text() == repository.commit


def test_a_relative_cache_is_an_absolute_folder(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.cache.mkdir()
    monkeypatch.chdir(here.cache)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "./x/../hub")
    assert here.find(NAME).is_relative_to(here.cache / "hub" / f"models--{NAME.replace('/', '--')}")


@pytest.mark.parametrize("status", [0, 503])
def test_a_pull_takes_no_other_model_where_the_hub_cannot_be_asked(
    status: int, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here.find(f"{NAME}:Q8_0")
    here.hub.status = status
    if not status:
        point_at(CLOSED, monkeypatch)
    with pytest.raises(ModelLoadError, match="on this disk is Q8_0"):
        fetch_model(HubModel(NAME), quiet=True, fresh=True)
    warned: list[str] = []
    assert fetch_model(HubModel(NAME, "q8_0"), quiet=True, fresh=True, warn=warned.append) == path
    assert "from the cache" in warned[0]


HOSTILE = ["../../../../{victim}", "{victim}", "a/../../{victim}", "..", "C:/x.gguf", "a\\..\\x.gguf", "a\x1b[2Jx.gguf"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("links", [True, False])
def test_a_listing_with_a_name_that_leads_elsewhere_is_refused(
    name: str, links: bool, here: Here, tiny: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", not links)
    victim = tmp_path / "victim-Q8_0.gguf"
    victim.write_bytes(b"mine")
    bad = name.format(victim=victim if name.startswith("{") else victim.name)
    here.hub.repositories["a/b"] = Repository({bad if bad.endswith(".gguf") else f"{bad}/x-Q8_0.gguf": tiny})
    for wanted in ("a/b", "a/b:Q8_0"):
        line = here.refused(wanted)
        assert "a/b" in line and "\x1b" not in line
    assert here.hub.transfers() == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [victim] and victim.read_bytes() == b"mine"


@pytest.mark.parametrize("field", ["commit", "blob"])
@pytest.mark.parametrize("value", ["../../../../x", "/tmp/x", "main"])
def test_a_listing_whose_commit_or_content_is_no_hash_is_refused(
    field: str, value: str, here: Here, tiny: bytes, tmp_path: Path
) -> None:
    repository = here.hub.repositories[NAME] = Repository({"x-Q8_0.gguf": tiny})
    setattr(repository, field, value)
    assert "no hash" in here.refused(NAME)
    assert here.hub.transfers() == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag", "X-Repo-Commit"])
@pytest.mark.parametrize("names_only", [True, False])
def test_headers_that_would_name_a_file_elsewhere_make_none(
    header: str, names_only: bool, here: Here, tiny: bytes, tmp_path: Path
) -> None:
    hostile = {header: '"../../../../created"'.strip('"' if header == "X-Repo-Commit" else "")}
    here.hub.repositories[NAME] = Repository({"x-Q8_0.gguf": tiny}, names_only=names_only, headers=hostile)
    assert "no hash" in here.refused(NAME)
    assert not list(tmp_path.rglob("created*"))


def test_headers_of_a_file_that_is_not_there_make_none_either(here: Here, tiny: bytes, tmp_path: Path) -> None:
    headers = {"X-Repo-Commit": "../../../../created"}
    here.hub.repositories[NAME] = Repository({"x-Q8_0.gguf": tiny}, names_only=True, gone=True, headers=headers)
    assert "no hash" in here.refused(NAME)
    assert not list(tmp_path.rglob("created*"))


def test_a_kept_name_of_the_newest_commit_that_leads_elsewhere_is_none(here: Here, tiny: bytes, tmp_path: Path) -> None:
    path = here.find(NAME)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / path.name).write_bytes(tiny)
    (path.parents[2] / "refs" / "main").write_text(str(elsewhere))
    assert here.find(NAME, offline=True) == path


def test_a_pipe_in_the_place_of_what_is_remembered_is_not_waited_for(here: Here) -> None:
    path = here.find(NAME)
    folder = path.parents[2]
    for remembered in (folder / "refs" / "main", folder / "gguf" / f"{path.parent.name}.json"):
        remembered.unlink()
        os.mkfifo(remembered)
    assert fetch_model(HubModel(NAME), quiet=True, fresh=True) == path
    assert here.find(NAME, offline=True) == path and known_files(folder, path.parent.name)


def test_a_file_of_the_cache_whose_name_holds_control_codes_is_no_model(here: Here, tiny: bytes) -> None:
    path = here.find(f"{NAME}:Q8_0")
    path.with_name("x\x1b[2J-Q6_K.gguf").write_bytes(tiny)
    assert "is not in the cache (on this disk is Q8_0;" in here.refused(f"{NAME}:Q6_K", offline=True)
