"""Slash commands: how a line becomes one, what is offered for mistakes, and the help on wide and narrow screens."""

from __future__ import annotations

from pathlib import Path

import pytest

from lacli.chat.commands import (
    COMMANDS,
    Command,
    argument_of,
    file_and_rest,
    file_name,
    help_text,
    meant_by,
    message_of,
    names,
    parse,
    switched,
)
from lacli.errors import UsageError

WANTED = (
    "/help /? /exit /bye /quit /q /clear /regen /undo /system /set /show /mode /stats /read /save /load /copy /compact "
    "/color /status"
)


def test_every_command_is_there_under_all_its_names() -> None:
    assert set(names()) == set(WANTED.split())
    assert len(names()) == len(set(names()))


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.names[0])
def test_each_name_means_its_command(entry: object) -> None:
    assert hasattr(entry, "names")
    for name in entry.names:
        for line in (f"{name} on", f"{name.upper()} on") if argument_of(name) != "none" else (name, name + "  \n"):
            command = parse(line)
            assert command is not None and f"/{command.name}" == entry.names[0]
            assert command.argument == ("on" if argument_of(name) != "none" else "")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/set temp 0.8", Command("set", "temp 0.8")),
        ("/set", Command("set")),
        ("/system  be brief \n", Command("system", "be brief")),
        ("/system\nbe\nbrief", Command("system", "be\nbrief")),
        ("/READ a b", Command("read", "a b")),
        ("/?", Command("help")),
        ("/bye", Command("exit")),
    ],
)
def test_a_command_is_its_name_and_what_stands_behind_it(line: str, command: Command) -> None:
    assert parse(line) == command


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hello", "hello"),
        ("", ""),
        (" /etc/hosts is a file", "/etc/hosts is a file"),
        ("// a comment", "// a comment"),
        ("  indented", "  indented"),
        ("a /help", "a /help"),
    ],
)
def test_a_line_with_a_space_or_a_second_slash_is_a_message(line: str, message: str) -> None:
    assert parse(line) is None
    assert message_of(line) == message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/etc/hosts", "unknown command /etc/hosts (begin with a space to send it as text)"),
        ("/etc/hosts what is it", "unknown command /etc/hosts (begin with a space to send it as text)"),
        ("/sav x", "did you mean /save"),
        ("/hlep", "did you mean /help"),
        ("/zzz", "/help lists them"),
        ("/", "unknown command / (/help lists the commands)"),
        ("/temp 0.2", "unknown command /temp (write /set temp 0.2)"),
        ("/temp=0.2", "unknown command /temp=0.2 (write /set temp 0.2)"),
        ("/TOPK 40", "(write /set top-k 40)"),
        ("/stop", "(write /set stop)"),
        ("/preset small", "(write /set preset small)"),
        ("/clear all", "/clear stands alone"),
        ("/save", "write /save FILE"),
        ("/read", "write /read FILE [QUESTION]"),
        ("/color", "write /color on|off"),
    ],
)
def test_a_mistake_is_said_in_one_line_with_what_may_be_meant(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("width", [20, 40, 49, 50, 80, 200])
def test_the_help_names_every_command_and_fits_the_screen(width: int) -> None:
    text = help_text(width)
    assert max(map(len, text.splitlines())) <= width
    together = " ".join(text.split())
    for entry in COMMANDS:
        assert entry.shown in together and entry.help in (together if width < 50 else " ".join(text.split()))


def test_the_words_of_the_help_stand_below_each_other() -> None:
    lines = help_text(80).splitlines()[: len(COMMANDS)]
    for line, entry in zip(lines, COMMANDS, strict=True):
        assert line == entry.shown.ljust(24) + entry.help


def test_arguments_are_known_for_completion() -> None:
    assert [argument_of(name) for name in ("/read", "/SET", "/mode", "/bye", "/system", "/color", "/zzz")] == [
        "file",
        "key",
        "mode",
        "none",
        "text",
        "switch",
        "none",
    ]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("exit", "/exit"),
        (" Quit ", "/exit"),
        ("bye", "/exit"),
        ("quit()", "/exit"),
        ("help", "/help"),
        ("help me", ""),
        ("exit\nquit", ""),
        ("", ""),
    ],
)
def test_a_message_that_is_a_command_elsewhere_gets_a_hint(message: str, words: str) -> None:
    hint = meant_by(message)
    assert words in hint and bool(words) == bool(hint)


def test_on_and_off_are_the_only_positions() -> None:
    assert switched("on", "color") and switched("ON", "color") and not switched("off", "color")
    with pytest.raises(UsageError, match="/color is on or off"):
        switched("blue", "color")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("a.txt", ("a.txt", "")),
        ("a.txt what is it?", ("a.txt", "what is it?")),
        ('"a b.txt" what?', ("a b.txt", "what?")),
        ("'a b.txt'", ("a b.txt", "")),
        (r"a\ b.txt what?", ("a b.txt", "what?")),
        ("a.txt\nwhat\nis it?", ("a.txt", "what\nis it?")),
        ('"open what?', ('"open', "what?")),
    ],
)
def test_a_file_is_the_first_word_and_the_rest_is_a_question(argument: str, expected: tuple[str, str]) -> None:
    assert file_and_rest(argument) == expected


def test_a_name_with_spaces_needs_no_quotes_where_such_a_file_exists(tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("x")
    assert file_and_rest(f"{tmp_path}/a b.txt") == (f"{tmp_path}/a b.txt", "")


def test_a_file_name_loses_its_quotes_and_backslashes() -> None:
    assert [file_name(name) for name in ('"a b"', "'a b'", r"a\ b", "a b")] == ["a b"] * 4
