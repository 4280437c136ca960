"""From MODEL to a file: which one a name becomes, how its bytes come, and what is said if it cannot be had."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants

from lacli.errors import ModelLoadError
from lacli.hub.cache import cache_folder
from lacli.hub.download import fetch_model, find_model
from lacli.hub.names import HubModel
from tests.fakes import hub_cache
from tests.fakes.fake_hub import FakeHub, Repository
from tests.fakes.tiny_models import write_llama_split
from tests.here import LARGE, NAME, Here, add_large, point_at
from tests.loading import STDLIB_7M, smollm2

CLOSED = "http://127.0.0.1:9"


@pytest.fixture
def large(hub: FakeHub, tiny: bytes) -> Repository:
    return add_large(hub, tiny)


def newest(name: str = NAME, quant: str = "") -> Path:
    return fetch_model(HubModel(name, quant), quiet=True, fresh=True)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_path_object_is_no_name() -> None:
    assert find_model(str(STDLIB_7M)) == find_model(STDLIB_7M) == STDLIB_7M
    with pytest.raises(ModelLoadError, match="no such file: phi-4"):
        find_model(Path("phi-4"))


def test_a_file_that_cannot_be_opened_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "page.gguf").write_text("<html>")
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, words in {
        "owner/repo/file.gguf": "no such file: owner/repo/file.gguf .on the hub it is hf:owner/repo/file.gguf",
        "what is a lookahead?": "no such file: .* .a prompt needs -p",
        "x.gguf": "no such file: x.gguf",
        f"{tmp_path}/empty.gguf": "is empty",
        f"{tmp_path}/page.gguf": "is not a GGUF file",
        f"{tmp_path}/pipe.gguf": "is not a regular file",
        str(tmp_path): "is a directory .name a file in it: .*/empty.gguf",
    }.items():
        with pytest.raises(ModelLoadError, match=words):
            find_model(name)


def test_any_part_of_a_split_file_means_its_first_and_a_missing_part_is_named(tmp_path: Path) -> None:
    first, second = write_llama_split(tmp_path)
    assert find_model(second) == find_model(os.path.relpath(second)).resolve() == first
    second.unlink()
    with pytest.raises(ModelLoadError, match=f"2 parts, missing {second.name}"):
        find_model(first)


def test_the_users_own_list_is_read_and_what_a_name_became_is_said(tmp_path: Path) -> None:
    own, said = tmp_path / "models.txt", list[str]()
    file = tmp_path / "a.gguf"
    file.symlink_to(STDLIB_7M)
    own.write_text(f"smollm2-135m {file}\nmine {NAME} Q8_0\n", "utf-8")
    assert find_model("SmolLM2-135M", aliases=own, say=said.append) == file
    assert said == [f"SmolLM2-135M is {file}"]
    with pytest.raises(ModelLoadError, match="no such model: nobodys"):
        find_model("nobodys", aliases=own)


def test_the_cache_is_the_librarys_own(here: Here, tiny: bytes) -> None:
    path = here.find(f"{NAME}:q8_0")
    assert huggingface_hub.hf_hub_download(NAME, path.name, local_files_only=True) == str(path)
    scanned = huggingface_hub.scan_cache_dir(here.cache)
    assert [(repository.repo_id, repository.size_on_disk) for repository in scanned.repos] == [(NAME, len(tiny) + 1)]
    assert scanned.warnings == []


def test_what_another_program_put_into_the_cache_is_used(here: Here, tiny: bytes) -> None:
    found = hub_cache.add(here.cache, NAME, "deep/x-Q6_K.gguf", tiny, "c" * 40)
    assert here.find(f"{NAME}:Q6_K") == here.find(f"hf:{NAME}/deep/x-Q6_K.gguf") == found
    assert here.find(NAME, offline=True) == found
    assert here.hub.requests == []
    # The bare name means Q4_K_M, as without a cache.
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_the_newest_is_asked_for_where_that_is_wanted(here: Here, tiny: bytes) -> None:
    old = here.find(NAME)
    main = old.parents[2] / "refs" / "main"
    os.utime(main, (1, 1))
    assert newest() == old and len(here.hub.transfers()) == 1
    assert main.stat().st_mtime == 1, "a cache that cannot be written can be asked about"
    here.hub.repositories[NAME] = Repository({"tiny-Q4_K_M.gguf": tiny + b"new"})
    new = newest()
    assert new != old and new.read_bytes() == tiny + b"new" and here.find(NAME) == new


def test_a_split_model_comes_with_all_its_parts_of_the_commit_that_was_listed(here: Here, tmp_path: Path) -> None:
    parts = write_llama_split(tmp_path)
    repository = Repository({f"deep/{part.name}": part.read_bytes() for part in parts})
    here.hub.repositories["a/b"] = repository
    path = here.find("a/b")
    assert (path.name, path.parent.name, path.parents[1].name) == (parts[0].name, "deep", repository.commit)
    assert [file for file, _ in here.hub.transfers()] == [part.name for part in parts]
    assert [(path.parent / part.name).read_bytes() for part in parts] == [part.read_bytes() for part in parts]
    assert {path.split("/")[4] for _, path, _ in here.hub.requests if "/resolve/" in path} == {repository.commit}
    assert (path.parents[3] / "refs" / "main").read_text() == repository.commit
    # A part that is lost is fetched again, and the model is not said to be here without it.
    (path.parent / parts[1].name).resolve().unlink()
    assert "on this disk" not in here.refused("a/b:F32", offline=True)
    here.hub.requests.clear()
    assert here.find("a/b") == path and here.hub.transfers() == [(parts[1].name, "")]


def test_what_cannot_be_chosen_is_one_line_and_fetches_nothing(here: Here) -> None:
    half = "x-Q8_0-00002-of-00002.gguf"
    here.hub.repositories |= {
        "a/b": Repository({"model.safetensors": b""}),
        "a/c": Repository({"x/a-Q8_0.gguf": b"GGUF", "y/a-Q8_0.gguf": b"GGUF"}),
        "a/d": Repository({half: b"GGUF"}),
        "a/many": Repository({f"x-Q{bits}_{kind}.gguf": b"" for bits in range(2, 9) for kind in "01K"}),
    }
    for name, words in {
        "a/b": "a/b has no GGUF file",
        "a/c": "choose one: hf:a/c/x/a-Q8_0.gguf, hf:a/c/y/a-Q8_0.gguf",
        "a/d": "2 parts, missing x-Q8_0-00001-of-00002.gguf",
        f"hf:a/d/{half}": "2 parts, missing x-Q8_0-00001-of-00002.gguf",
        f"{NAME}:Q3_K": f"{NAME} has no Q3_K (it has F16, Q4_K_M, Q8_0)",
        f"hf:{NAME}/no.gguf": f"{NAME} has no no.gguf (there are tiny-F16.gguf, tiny-Q4_K_M.gguf, tiny-Q8_0.gguf)",
    }.items():
        assert words in here.refused(name)
    nearest = here.refused("hf:a/many/x-Q4_L.gguf")
    assert "x-Q4_K.gguf" in nearest and nearest.count(".gguf") == 4
    assert here.hub.transfers() == []


def test_tokens_that_are_missing_wrong_or_right(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    address = here.hub.address
    here.hub.repositories[NAME].gated = "hf_friend"
    for token in ("", here.hub.token):
        monkeypatch.setenv("HF_TOKEN", token)
        wanted = f"{NAME} wants its terms accepted and HF_TOKEN set (accept them at {address}/{NAME};"
        assert wanted in here.refused(NAME)
        missing = here.refused("no/body")
        assert missing.startswith(f"there is no no/body on {address}") and "private" in missing
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    wrong = here.refused(NAME)
    assert f"{address} refuses the token" in wrong and "hf_wrong" not in wrong
    here.hub.token = "hf_friend"
    monkeypatch.setenv("HF_TOKEN", "hf_friend")
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_where_the_hub_does_not_answer_the_cache_is_what_there_is(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_order() -> str:
        here.hub.status = 503
        return f"{here.hub.address} answers 503"

    def unplugged() -> str:
        point_at(CLOSED, monkeypatch)
        return f"no connection to {CLOSED}"

    path = here.find(f"{NAME}:Q8_0")
    for cut in (out_of_order, unplugged):
        why = cut()
        assert f"cannot fetch someone/else: {why}" in here.refused("someone/else")
        # The name means Q4_K_M, which is not here and cannot be fetched.
        assert here.find(NAME) == path and here.said[-1].endswith(f"tiny-Q8_0.gguf, from the cache ({why})")
        # Who asks for the newest gets no other quant, and is warned of what may be old.
        with pytest.raises(ModelLoadError, match="on this disk is Q8_0; "):
            newest()
        warned: list[str] = []
        assert fetch_model(HubModel(NAME, "q8_0"), quiet=True, fresh=True, warn=warned.append) == path
        assert "from the cache" in warned[0]


def test_offline_only_the_cache_is_used_and_its_choices_are_listed(here: Here, tiny: bytes, tmp_path: Path) -> None:
    here.hub.repositories["a/b"] = Repository({"x/a-Q8_0.gguf": tiny, "y/a-Q8_0.gguf": tiny + b" "})
    assert here.refused("a/b", offline=True) == (
        "a/b is not in the cache (lacli pull a/b fetches it, without --offline)"
    )
    assert here.hub.requests == []
    found = [here.find(f"hf:a/b/{folder}/a-Q8_0.gguf") for folder in "xy"]
    here.find(f"{NAME}:Q8_0")
    here.hub.requests.clear()
    assert "choose one: hf:a/b/x/a-Q8_0.gguf" in here.refused("a/b", offline=True)
    assert here.find("hf:a/b/y/a-Q8_0.gguf", offline=True) == found[1]
    assert f"(on this disk is Q8_0; lacli pull {NAME}:Q2_K" in here.refused(f"{NAME}:Q2_K", offline=True)
    own = tmp_path / "models.txt"
    own.write_text(f"mine {NAME} Q2_K\n")
    with pytest.raises(ModelLoadError, match="lacli pull mine fetches it"):
        find_model("mine", offline=True, aliases=own)
    assert here.hub.requests == []


@pytest.mark.parametrize("address", ["foo", "foo:80", "http://", "ftp://a.b"])
def test_an_endpoint_that_is_no_address_is_said(address: str, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(address, monkeypatch)
    assert f"HF_ENDPOINT is {address!r}, which is no address" in here.refused(NAME)


def test_a_cache_that_cannot_be_written_or_is_relative(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.cache.write_bytes(b"no folder")
    line = here.refused(NAME)
    assert f"cannot fetch {NAME}: " in line and str(here.cache) in line and "HF_HOME" in line
    here.cache.unlink()
    monkeypatch.chdir(here.cache.parent)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "./x/../hub")
    assert here.find(NAME).is_relative_to(hub_cache.folder_of(here.cache, NAME))
    assert cache_folder() == here.cache


def test_a_model_of_an_older_commit_is_found_where_the_hub_cannot_be_asked(here: Here, tiny: bytes) -> None:
    old = here.find(f"{NAME}:Q8_0")
    here.hub.repositories[NAME] = Repository(here.hub.repositories[NAME].files | {"README.md": b"new"})
    new = newest()
    assert new.parent != old.parent and here.find(f"{NAME}:Q8_0", offline=True) == old
    # Of two older commits, the one that was written last.
    second = new.parents[1] / "later" / old.name
    second.parent.mkdir()
    second.write_bytes(tiny)
    os.utime(second.parent, (2e9, 2e9))
    assert here.find(f"{NAME}:Q8_0", offline=True) == second
    assert here.find(f"{NAME}:Q8_0") == new.with_name(old.name), "while the hub answers the newest is taken"


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
    assert files_below(tmp_path) == [victim] and victim.read_bytes() == b"mine"


@pytest.mark.parametrize("value", ["../../../../x", "/tmp/x", "main"])
def test_a_listing_whose_commit_is_no_hash_is_refused(value: str, here: Here, tiny: bytes, tmp_path: Path) -> None:
    repository = here.hub.repositories[NAME] = Repository({"x-Q8_0.gguf": tiny})
    repository.commit = value
    assert "no hash" in here.refused(NAME)
    assert here.hub.transfers() == [] and files_below(tmp_path) == []


@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag", "X-Repo-Commit"])
@pytest.mark.parametrize(("names_only", "gone"), [(False, False), (True, False), (True, True)])
def test_headers_that_would_name_a_file_elsewhere_make_none(
    header: str, names_only: bool, gone: bool, here: Here, tiny: bytes, tmp_path: Path
) -> None:
    hostile = {header: "../../../../created" if header == "X-Repo-Commit" else '"../../../../created"'}
    repository = Repository({"x-Q8_0.gguf": tiny}, headers=hostile, names_only=names_only, gone=gone)
    here.hub.repositories[NAME] = repository
    line = here.refused(NAME)
    # An error's answer has no content whose name could lead elsewhere.
    assert "no hash" in line or (gone and header != "X-Repo-Commit")
    assert not list(tmp_path.rglob("created*"))


def test_what_is_remembered_in_the_cache_is_not_trusted(here: Here, tiny: bytes, tmp_path: Path) -> None:
    path = here.find(f"{NAME}:Q8_0")
    path.with_name("x\x1b[2J-Q6_K.gguf").write_bytes(tiny)
    assert "is not in the cache (on this disk is Q8_0;" in here.refused(f"{NAME}:Q6_K", offline=True)
    (tmp_path / path.name).write_bytes(tiny)
    (path.parents[2] / "refs" / "main").write_text(str(tmp_path))
    assert here.find(f"{NAME}:Q8_0", offline=True) == path
    remembered = path.parents[2] / "refs" / "main"
    remembered.unlink()
    os.mkfifo(remembered)  # which would be waited for
    assert here.find(f"{NAME}:Q8_0", offline=True) == path


def test_a_file_of_another_size_than_the_hub_said_is_refused_and_not_kept(here: Here, tiny: bytes) -> None:
    here.hub.repositories[NAME].lie = 3
    here.refused(NAME)
    assert here.contents() == []


def test_a_disk_without_room_is_seen_before_anything_is_fetched(
    here: Here, large: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=LARGE - 1_000_000))
    line = here.refused("someone/large")
    assert line.startswith(f"someone/large needs 24.0 MB more in {here.cache}, where 23.0 MB are free (make room")
    assert here.hub.transfers() == []


def test_the_installed_model_has_a_name_and_no_note() -> None:
    said: list[str] = []
    assert find_model("smollm2-135m", offline=True, say=said.append) == smollm2() and not said
