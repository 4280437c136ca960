"""Completion: what a slash command can go on with, and that ordinary text is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from lacli.chat.completion import Vocabulary, is_command, offers

WORDS = Vocabulary(
    {"/help": "none", "/set": "key", "/save": "file", "/mode": "mode", "/color": "switch", "/system": "text"},
    keys=("temp", "top-k", "mode"),
    values=lambda key: ("plain", "lookup") if key == "mode" else (),
    modes=("plain", "lookup", "lookahead"),
)


def completed(text: str) -> list[str]:
    """The whole lines that the offers make of a text."""
    return [text[: len(text) - offer.replaces] + offer.text for offer in offers(text, WORDS)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("/", ["/help", "/set", "/save", "/mode", "/color", "/system"]),
        ("/s", ["/set", "/save", "/system"]),
        ("/help", []),
        ("/help ", []),
        ("/unknown ", []),
        ("/system pla", []),
        ("/set ", ["/set temp", "/set top-k", "/set mode"]),
        ("/set t", ["/set temp", "/set top-k"]),
        ("/set mode ", ["/set mode plain", "/set mode lookup"]),
        ("/set mode l", ["/set mode lookup"]),
        ("/set temp 0", []),
        ("/mode look", ["/mode lookup", "/mode lookahead"]),
        ("/color o", ["/color on", "/color off"]),
    ],
)
def test_a_command_is_completed_by_its_kind(text: str, lines: list[str]) -> None:
    assert completed(text) == lines


@pytest.mark.parametrize("text", ["", "h", "set", " /s", "a /s", "/set\n/s", "/set \nt", "/usr/bin", "/usr/bin ", "//"])
def test_ordinary_text_is_never_completed(text: str) -> None:
    assert completed(text) == []
    assert not is_command(text, WORDS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with files and folders in it."""
    (tmp_path / "notes").mkdir()
    for name in ("notes/in.txt", "notes.md", "two words.md", ".hidden"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("/save ", ["/save notes/", "/save notes.md", "/save two\\ words.md"]),
        ("/save no", ["/save notes/", "/save notes.md"]),
        ("/save notes/", ["/save notes/in.txt"]),
        ("/save ./notes.", ["/save ./notes.md"]),
        ("/save .h", ["/save .hidden"]),
        ("/save two\\ w", ["/save two\\ words.md"]),
        ('/save "two w', ['/save "two words.md']),
        ("/save notes.md ", []),
        ("/save nowhere/", []),
        ("/save notes.md/", []),
        ("/save \0/", []),
    ],
)
def test_files_are_offered_where_a_file_is_wanted(folder: Path, text: str, lines: list[str]) -> None:
    assert completed(text) == lines


def test_a_path_may_begin_at_the_root_or_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert completed("/save ~/notes/") == ["/save ~/notes/in.txt"]
    assert completed(f"/save {folder}/notes/") == [f"/save {folder}/notes/in.txt"]


def test_a_name_that_nobody_can_type_is_not_offered(folder: Path) -> None:
    (folder / "notes" / "a\x1b[31m").touch()
    (folder / "notes" / "b\udcff").touch()
    assert completed("/save notes/") == ["/save notes/in.txt"]
