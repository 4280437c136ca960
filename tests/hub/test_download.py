"""From MODEL to a file: the file of a name, its download, and the errors."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from lacli.errors import ModelLoadError
from lacli.hub import download
from lacli.hub.download import fetch_model, find_model
from lacli.hub.names import HubModel
from tests.fakes import hub_cache
from tests.fakes.fake_hub import NAME, Here, Repository, breaking_off, point_at, silent
from tests.fakes.tiny_models import write_llama_split
from tests.loading import STDLIB_7M

CLOSED = "http://127.0.0.1:9"


def newest(name: str = NAME, quant: str = "") -> Path:
    return fetch_model(HubModel(name, quant), quiet=True, fresh=True)


def test_a_path_is_opened_or_refused_with_what_to_do(tmp_path: Path) -> None:
    assert find_model(str(STDLIB_7M)) == find_model(STDLIB_7M) == STDLIB_7M
    with pytest.raises(ModelLoadError, match="no such file: phi-4"):
        find_model(Path("phi-4"))
    (tmp_path / "empty.gguf").touch()
    for name, words in {
        "what is a lookahead?": "no such file: .*MODEL is a path",
        f"{tmp_path}/emty.gguf": "no such file: .*did you mean .*empty.gguf",
        f"{tmp_path}/empty.gguf": "is not a GGUF file",
        str(tmp_path): "Is a directory",
    }.items():
        with pytest.raises(ModelLoadError, match=words):
            find_model(name)
    for name in ("mmproj-a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelLoadError) as caught:
        find_model(str(tmp_path))
    assert caught.value.hint == f"name one of its files: {tmp_path}/b-00001-of-00002.gguf, {tmp_path}/empty.gguf"


def test_any_part_of_a_split_file_means_its_first_and_a_missing_part_is_named(tmp_path: Path) -> None:
    first, second = write_llama_split(tmp_path)
    assert find_model(second) == find_model(os.path.relpath(second)).resolve() == first
    second.unlink()
    with pytest.raises(ModelLoadError, match=f"2 parts, missing {second.name}"):
        find_model(first)


def test_the_cache_is_the_librarys_own(here: Here, content: bytes) -> None:
    path = here.find(f"{NAME}:q8_0")
    assert huggingface_hub.hf_hub_download(NAME, path.name, local_files_only=True) == str(path)
    scanned = huggingface_hub.scan_cache_dir(here.cache)
    assert [(repository.repo_id, repository.size_on_disk) for repository in scanned.repos] == [(NAME, len(content) + 1)]
    assert scanned.warnings == []
    here.hub.requests.clear()
    found = hub_cache.add(here.cache, NAME, "deep/x-Q6_K.gguf", content, "c" * 40)
    assert here.find(f"{NAME}:Q6_K") == here.find(f"hf:{NAME}/deep/x-Q6_K.gguf") == found
    assert here.find(NAME, offline=True) == found
    assert here.hub.requests == []
    # The name without a quant means Q4_K_M, as without a cache.
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_the_newest_is_asked_for_on_request(here: Here, content: bytes) -> None:
    old = here.find(NAME)
    main = old.parents[2] / "refs" / "main"
    os.utime(main, (1, 1))
    assert newest() == old and len(here.hub.transfers()) == 1
    assert main.stat().st_mtime == 1, "a cache that cannot be written can be asked about"
    here.hub.repositories[NAME] = Repository({"tiny-Q4_K_M.gguf": content + b"new"})
    new = newest()
    assert new != old and new.read_bytes() == content + b"new" and here.find(NAME) == new


def test_a_split_model_comes_with_all_its_parts(here: Here, tmp_path: Path) -> None:
    parts = write_llama_split(tmp_path)
    repository = Repository({f"deep/{part.name}": part.read_bytes() for part in parts})
    here.hub.repositories["a/b"] = repository
    path = here.find("a/b")
    assert (path.name, path.parent.name, path.parents[1].name) == (parts[0].name, "deep", repository.commit)
    assert [(path.parent / part.name).read_bytes() for part in parts] == [part.read_bytes() for part in parts]
    # A deleted part is fetched again.
    (path.parent / parts[1].name).resolve().unlink()
    here.hub.requests.clear()
    assert here.find("a/b") == path and here.hub.transfers() == [parts[1].name]


def test_what_cannot_be_chosen_is_one_line_and_fetches_nothing(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({"x/a-Q8_0.gguf": b"GGUF", "y/a-Q8_0.gguf": b"GGUF"})
    for name, words in {
        "a/b": "choose one: hf:a/b/x/a-Q8_0.gguf, hf:a/b/y/a-Q8_0.gguf",
        f"{NAME}:Q3_K": f"{NAME} has no quant Q3_K (it has F16, Q4_K_M, Q8_0)",
        f"hf:{NAME}/tiny-Q4.gguf": f"{NAME} has no tiny-Q4.gguf (look at tiny-Q4_K_M.gguf",
    }.items():
        assert words in here.refused(name)
    assert here.hub.transfers() == []


def test_tokens_that_are_missing_wrong_or_right(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    address = here.hub.address
    here.hub.repositories[NAME].gated = "hf_friend"
    for token in ("", here.hub.token):
        monkeypatch.setenv("HF_TOKEN", token)
        wanted = f"{NAME} requires that you accept its terms and set HF_TOKEN (accept them at {address}/{NAME};"
        assert wanted in here.refused(NAME)
        missing = here.refused("no/body")
        assert missing.startswith(f"there is no no/body on {address}") and "private" in missing
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    wrong = here.refused(NAME)
    assert f"{address} answers 401 (check HF_TOKEN" in wrong and "hf_wrong" not in wrong
    here.hub.token = "hf_friend"
    monkeypatch.setenv("HF_TOKEN", "hf_friend")
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, f"no connection to {CLOSED}"),
        (Response(status_code=503), "HUB answers 503"),
        (Response(status_code=429), "HUB answers 429"),
        (HTMLResponse("<html>Please log in to this network"), "HUB does not answer as a hub"),
        (HTMLResponse("<html>Gru\u00df".encode("latin-1")), "HUB does not answer as a hub"),
        (silent, "the connection to HUB broke"),
        (breaking_off, "the connection to HUB broke"),
    ],
)
def test_a_model_of_this_disk_is_found_and_pulled_whatever_ails_the_hub(
    answer: ASGIApp | None, words: str, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here.find(f"{NAME}:Q8_0")
    monkeypatch.setattr(download, "LISTING_TIMEOUT", 0.05)
    here.hub.answer = answer
    if answer is None:
        point_at(CLOSED, monkeypatch)
    why = words.replace("HUB", here.hub.address)
    assert here.find(NAME) == newest(quant="q8_0") == path
    assert here.said[-1].endswith(f"tiny-Q8_0.gguf, from the cache ({why})")
    assert f"cannot fetch someone/else: {why}" in here.refused("someone/else")


def test_a_hub_that_refuses_a_model_of_this_disk_names_the_file_and_offline(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here.find(f"{NAME}:Q8_0")
    for answer in (401, 402, 403, 404):
        here.hub.answer = Response(status_code=answer)
        assert "--offline uses tiny-Q8_0.gguf from this disk" in here.refused(NAME)
        assert "--offline" not in here.refused("someone/else")
    here.hub.answer = None
    here.hub.repositories.clear()
    assert "--offline uses tiny-Q8_0.gguf from this disk" in here.refused(NAME)
    assert here.find(NAME, offline=True) == path


def test_offline_only_the_cache_is_used_and_its_choices_are_listed(here: Here, content: bytes) -> None:
    here.hub.repositories["a/b"] = Repository({"x/a-Q8_0.gguf": content, "y/a-Q8_0.gguf": content + b" "})
    assert here.refused("a/b", offline=True) == (
        "a/b is not in the cache (lacli pull a/b fetches it, without --offline)"
    )
    found = [here.find(f"hf:a/b/{folder}/a-Q8_0.gguf") for folder in "xy"]
    here.hub.requests.clear()
    assert "choose one: hf:a/b/x/a-Q8_0.gguf" in here.refused("a/b", offline=True)
    assert here.find("hf:a/b/y/a-Q8_0.gguf", offline=True) == found[1]
    assert here.hub.requests == []


@pytest.mark.parametrize(
    "name", ["../../x-Q8_0.gguf", "/tmp/x-Q8_0.gguf", "../x-Q8_0.gguf", "C:/x.gguf", "a\\..\\x.gguf", "a\x1b[2Jx.gguf"]
)
def test_a_listing_with_a_name_that_leads_elsewhere_is_refused(name: str, here: Here, tmp_path: Path) -> None:
    here.hub.repositories["a/b"] = Repository({name: b"GGUF"})
    line = here.refused("a/b:Q8_0")
    assert "which is not a safe name" in line and "\x1b" not in line
    assert here.hub.transfers() == [] and not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_disk_without_room_is_seen_before_anything_is_fetched(
    here: Here, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=len(content) - 1))
    line = here.refused(NAME)
    assert line.startswith(f"{NAME} needs ") and f"more, but {here.cache} has" in line and "free space" in line
    assert here.hub.transfers() == []
