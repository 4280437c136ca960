"""What a MODEL text means: a path, a model of the hub or an alias, and what is said when it means nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lacli.errors import LacliError, ModelLoadError
from lacli.hub.aliases import Alias, read_aliases
from lacli.hub.names import HubModel, read_name
from lacli.resolve import demo_model, find_model
from tests.fakes.tiny_models import write_llama_split

ALIASES = read_aliases()
MINE = {
    "mine": Alias("Mine", "me/mine-GGUF", "Q8_0", own=True),
    "file": Alias("file", "hf:me/mine-GGUF/deep/a.gguf", "Q8_0", own=True),
    "here": Alias("here", "/models/a.gguf", own=True),
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("a/b", HubModel("a/b")),
        ("a/b:Q8_0", HubModel("a/b", "Q8_0")),
        ("hf:a/b", HubModel("a/b")),
        ("hf:a/b:q4", HubModel("a/b", "q4")),
        ("hf:a/b/c.gguf", HubModel("a/b", file="c.gguf")),
        ("hf:a/b/c/d e.gguf", HubModel("a/b", file="c/d e.gguf")),
        ("Qwen/Qwen2.5-0.5B_x-GGUF:UD-Q4_K_XL", HubModel("Qwen/Qwen2.5-0.5B_x-GGUF", "UD-Q4_K_XL")),
        ("qwen3-4b", HubModel("Qwen/Qwen3-4B-GGUF", "Q4_K_M")),
        ("Qwen3-4B", HubModel("Qwen/Qwen3-4B-GGUF", "Q4_K_M")),
        ("mine", HubModel("me/mine-GGUF", "Q8_0")),
        ("FILE", HubModel("me/mine-GGUF", file="deep/a.gguf")),
    ],
)
def test_a_name_is_a_model_of_the_hub(text: str, model: HubModel) -> None:
    assert read_name(text, ALIASES | MINE) == model


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("https://huggingface.co/a/b", HubModel("a/b")),
        ("https://huggingface.co/a/b/", HubModel("a/b")),
        ("https://huggingface.co/a/b/tree/main", HubModel("a/b")),
        ("http://www.huggingface.co/a/b?library=x", HubModel("a/b")),
        ("hf.co/a/b:Q8_0", HubModel("a/b", "Q8_0")),
        ("HuggingFace.co/a/b:Q8_0", HubModel("a/b", "Q8_0")),
        ("https://huggingface.co/a/b/blob/main/c.gguf", HubModel("a/b", file="c.gguf")),
        ("https://huggingface.co/a/b/resolve/main/c/d.gguf?download=true", HubModel("a/b", file="c/d.gguf")),
        ("https://huggingface.co/a/b/blob/main/c%20d%2Bx.gguf", HubModel("a/b", file="c d+x.gguf")),
        ("https://huggingface.co/a/b?show_file_info=c-Q8_0.gguf", HubModel("a/b", file="c-Q8_0.gguf")),
        ("https://huggingface.co/a/b/tree/main?show_file_info=c%2Fd.gguf#top", HubModel("a/b", file="c/d.gguf")),
    ],
)
def test_the_address_of_a_page_is_a_model_of_the_hub(text: str, model: HubModel) -> None:
    assert read_name(text, ALIASES) == model


def test_an_alias_with_a_quant_is_its_repository_with_that_quant() -> None:
    assert read_name("Qwen3-4B:Q8_0", ALIASES) == HubModel("Qwen/Qwen3-4B-GGUF", "Q8_0")
    for text in ("file:Q8_0", "here:Q8_0"):
        with pytest.raises(ModelLoadError, match="takes no quant"):
            read_name(text, MINE)


@pytest.mark.parametrize("text", ["", "  "])
def test_no_text_is_no_path(text: str) -> None:
    with pytest.raises(ModelLoadError, match="MODEL is empty"):
        find_model(text)


@pytest.mark.parametrize(
    "model",
    [HubModel("a/b"), HubModel("a/b", "Q8_0"), HubModel("a/b", file="c.gguf"), HubModel("a/b", file="c/d.gguf")],
)
def test_the_name_of_a_model_means_that_model(model: HubModel) -> None:
    assert read_name(str(model), {}) == model


@pytest.mark.parametrize(
    "text", ["x.gguf", "a/b.gguf", "a/b/c.gguf", "./a", "../a/b", "/a/b", "/a", ".", "what is this?", "a\\b"]
)
def test_what_can_only_be_a_path_is_one(text: str) -> None:
    assert read_name(text, ALIASES) == Path(text)


def test_home_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert read_name("~/a/b", {}) == Path("/home/someone/a/b")


def test_an_alias_may_be_a_path() -> None:
    assert read_name("here", MINE) == Path("/models/a.gguf")


def test_a_file_here_goes_before_names(tmp_path: Path) -> None:
    (tmp_path / "qwen3-4b").write_bytes(b"")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"")
    assert read_name("qwen3-4b", ALIASES) == Path("qwen3-4b")
    assert read_name("a/b", ALIASES) == Path("a/b")
    assert read_name("hf:a/b", ALIASES) == HubModel("a/b")


def test_a_folder_does_not_hide_an_alias_but_a_repository(tmp_path: Path) -> None:
    (tmp_path / "phi-4").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / ALIASES["phi-4"].repository).mkdir(parents=True)
    assert read_name("phi-4", ALIASES) == HubModel(ALIASES["phi-4"].repository, ALIASES["phi-4"].quant)
    with pytest.raises(ModelLoadError, match="a/b is a directory"):
        find_model("a/b")


@pytest.mark.parametrize(
    ("text", "offered"),
    [("qwen3-4", "qwen3-4b"), ("lama-3.1-8b", "llama-3.1-8b"), ("QWEN3", "qwen3-0.6b"), ("min", "Mine")],
)
def test_an_unknown_name_is_answered_with_the_nearest_ones(text: str, offered: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read_name(text, ALIASES | MINE)
    assert caught.value.what == f"no such model: {text}"
    assert "did you mean" in caught.value.hint and offered in caught.value.hint
    assert "owner/repo[:quant]" in caught.value.hint


@pytest.mark.parametrize("text", ["zzzz", "a/b/c", "a/b:", "-a/b", "a\0b", "Q" * 5000])
def test_a_name_that_resembles_nothing_says_what_model_may_be(text: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read_name(text, ALIASES)
    assert caught.value.hint == "MODEL is a path, owner/repo[:quant] or an alias: lacli list"
    assert len(caught.value.what) < 120


@pytest.mark.parametrize("text", ["hf:", "hf:a", "hf:a/b/c", "hf:a/b/c.txt", "hf:a/b:q4/c.gguf"])
def test_a_hub_name_that_is_none_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ModelLoadError, match="names no model of the hub"):
        read_name(text, ALIASES)


def test_a_missing_file_with_the_shape_of_the_hubs_is_asked_about() -> None:
    with pytest.raises(ModelLoadError) as caught:
        find_model("owner/repo/file.gguf")
    assert "no such file" in caught.value.what and "hf:owner/repo/file.gguf" in caught.value.hint


def test_no_name_is_the_demo_model_and_a_path_object_is_no_name() -> None:
    assert find_model(None) == demo_model()
    assert find_model(str(demo_model())) == find_model(demo_model()) == demo_model()
    with pytest.raises(ModelLoadError, match="no such file: phi-4"):
        find_model(Path("phi-4"))


def test_the_users_own_list_is_read_and_what_a_name_became_is_said(tmp_path: Path) -> None:
    (tmp_path / "models.txt").write_text(f"demo {demo_model()}\n", "utf-8")
    said: list[str] = []
    assert find_model("Demo", aliases=tmp_path / "models.txt", say=said.append) == demo_model()
    assert said == [f"Demo is {demo_model()}"]
    (tmp_path / "models.txt").write_text("demo\n", "utf-8")
    with pytest.raises(LacliError, match="no such model: demo"):
        find_model("demo", aliases=tmp_path / "models.txt", say=said.append)
    assert "models.txt, line 1" in said[-1]
    assert find_model(str(demo_model()), aliases=tmp_path / "models.txt") == demo_model()


def test_any_part_of_a_split_file_means_its_first_and_a_missing_part_is_named(tmp_path: Path) -> None:
    first, second = write_llama_split(tmp_path)
    assert find_model(second) == find_model(os.path.relpath(second)).resolve() == first
    second.unlink()
    with pytest.raises(ModelLoadError, match=f"2 parts, missing {second.name}"):
        find_model(first)


@pytest.mark.parametrize("revision", ["0123abc", "v1", "refs%2Fpr%2F1"])
@pytest.mark.parametrize("kind", ["blob", "resolve", "tree"])
def test_the_address_of_another_revision_is_refused_in_a_sentence(kind: str, revision: str) -> None:
    with pytest.raises(ModelLoadError, match="only main can be named") as caught:
        read_name(f"https://huggingface.co/a/b/{kind}/{revision}/c.gguf", ALIASES)
    assert f"of the revision {revision.replace('%2F', '/')}" in caught.value.what


def test_an_alias_with_what_can_be_no_quant_says_so() -> None:
    for quant in ("Q8:0", "a/b"):
        with pytest.raises(ModelLoadError, match=f"{quant} is no quant"):
            read_name(f"mine:{quant}", MINE)


def test_an_alias_called_hf_hides_no_name_of_the_hub() -> None:
    assert read_name("hf:a/b", {"hf": Alias("hf", "c/d")}) == HubModel("a/b")
