"""The lists of short names: the one that comes with lacli, the user's own, and what is said of a broken line."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import pytest

from lacli.errors import LacliError
from lacli.hub import aliases
from lacli.hub.aliases import (
    Alias,
    packaged_list,
    read_aliases,
    read_list,
)
from lacli.hub.names import read_name
from tests.program import ROOT


def own_list(folder: Path, *lines: str) -> Path:
    path = folder / "models.txt"
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def broken(folder: Path, *lines: str) -> LacliError:
    aliases, [error] = read_list(own_list(folder, *lines), own=True)
    assert [alias.name for alias in aliases] == [line.split()[0] for line in lines[:-1] if line[0] != "#"]
    return error


def test_every_line_of_the_list_that_comes_with_lacli_is_read() -> None:
    lines = [line for line in (ROOT / "models.txt").read_text("utf-8").splitlines() if line and line[0] != "#"]
    found = read_aliases()
    assert list(found) == [line.split()[0] for line in lines]
    for line in lines:
        name, repository, quant, words = line.split(maxsplit=3)
        assert found[name] == Alias(name, repository, quant, words, own=False)


def test_the_list_of_an_installed_package_is_among_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert packaged_list() == ROOT / "models.txt"
    package = tmp_path / "lacli"
    (package / "data").mkdir(parents=True)
    monkeypatch.setattr(aliases, "files", lambda name: package)
    assert importlib.resources.files("lacli") != package and packaged_list() == tmp_path / "models.txt"
    installed = own_list(package / "data", "a  b/c")
    assert packaged_list() == installed
    assert list(read_aliases()) == ["a"]


@pytest.mark.parametrize(
    ("line", "alias"),
    [
        ("me a/b", Alias("me", "a/b", own=True)),
        ("Me a/b Q8_0", Alias("Me", "a/b", "Q8_0", own=True)),
        ("me a/b IQ4_XS my words", Alias("me", "a/b", "IQ4_XS", "my words", own=True)),
        ("me a/b UD-Q4_K_XL words", Alias("me", "a/b", "UD-Q4_K_XL", words="words", own=True)),
        ("me a/b - words", Alias("me", "a/b", "", "words", own=True)),
        ("me a/b F1 racing", Alias("me", "a/b", words="F1 racing", own=True)),
        ("me a/b bf16 words", Alias("me", "a/b", "bf16", words="words", own=True)),
        ("me a/b 7 billion", Alias("me", "a/b", words="7 billion", own=True)),
        ("me hf:a/b:Q8_0", Alias("me", "hf:a/b:Q8_0", own=True)),
        ("  me\ta/b   quick and small ", Alias("me", "a/b", words="quick and small", own=True)),
        ("me hf:a/b/c/d.gguf it's mine", Alias("me", "hf:a/b/c/d.gguf", words="it's mine", own=True)),
        ("me /models/d.gguf", Alias("me", "/models/d.gguf", own=True)),
        ('me "/my models/d.gguf" words', Alias("me", "/my models/d.gguf", words="words", own=True)),
    ],
)
def test_columns_after_the_repository_may_be_left_out(line: str, alias: Alias, tmp_path: Path) -> None:
    assert read_list(own_list(tmp_path, line), own=True) == ([alias], [])


def test_a_path_may_begin_at_home_or_at_the_lists_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    (home, beside), _ = read_list(own_list(tmp_path, "one ~/a.gguf", "two folder/b.gguf"))
    assert home.repository == "/home/someone/a.gguf"
    assert beside.repository == str(tmp_path / "folder" / "b.gguf")


def test_the_users_entries_replace_those_of_the_same_name(tmp_path: Path) -> None:
    path = own_list(tmp_path, "# mine", "", "QWEN3-4B  a/b", "new a/c")
    found = read_aliases(path)
    assert found["qwen3-4b"] == Alias("QWEN3-4B", "a/b", own=True)
    assert found["new"].own and not found["phi-4"].own
    assert len(found) == len(read_aliases()) + 1


def test_a_list_of_ones_own_need_not_exist(tmp_path: Path) -> None:
    assert read_aliases(tmp_path / "none.txt") == read_aliases()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("alone", "no repository"),
        ("me a-word", "neither owner/repo nor a .gguf file"),
        ("me folder/deep/repo", "neither owner/repo nor a .gguf file"),
        ("me/you a/b", "me/you is no name"),
        (".me a/b", ".me is no name"),
        ("-me a/b", "-me is no name"),
        ("me.gguf a/b", "me.gguf is no name"),
        ("me a/b.", "neither owner/repo nor a .gguf file"),
        ("me hf:a", "hf:a names no model of the hub"),
        ("me hf:a/b/c.txt", "names no model of the hub"),
        ('me "/my models/d.gguf', "quote"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(line: str, words: str, tmp_path: Path) -> None:
    error = broken(tmp_path, "# a comment", "fine a/b", line)
    assert f"{tmp_path / 'models.txt'}, line 3: " in error.what and words in error.what
    assert error.hint.startswith("a line is: alias repository")


def test_a_name_that_is_given_twice_is_pointed_out(tmp_path: Path) -> None:
    assert "line 2: Me is in line 1 already" in broken(tmp_path, "me a/b", "Me a/c").what


def test_a_list_that_is_no_text_or_no_file(tmp_path: Path) -> None:
    path = tmp_path / "models.txt"
    path.write_bytes(b"\xff\xfe\x00")
    said: list[str] = []
    assert read_aliases(path, said.append) == read_aliases(tmp_path, said.append) == read_aliases()
    assert "not UTF-8 text" in said[0] and "cannot read" in said[1]


def test_all_other_names_go_on_working_beside_broken_lines_which_one_sentence_tells_of(tmp_path: Path) -> None:
    path = own_list(tmp_path, "broken", "mine a/b", "dir /tmp", "mine a/c")
    said: list[str] = []
    assert read_aliases(path, said.append) == read_aliases() | {"mine": Alias("mine", "a/b", own=True)}
    assert said == [f"passed over: {path}, line 1: no repository and 2 more ({aliases.HOW})"]
    assert read_aliases(path) == read_aliases(path, said.append)


def test_a_path_in_a_list_with_a_relative_name_is_no_name_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_list(tmp_path, "x a.gguf")
    monkeypatch.chdir(tmp_path.parent)
    found = read_aliases(Path(tmp_path.name) / "models.txt")
    assert read_name("x", found) == tmp_path / "a.gguf"
