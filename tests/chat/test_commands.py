"""Slash commands: their names, their effects on a chat, and their replies to the loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from lacli.chat.commands import BY_NAME, COMMANDS, Commands, Reply, file_name, help_text, message_of, parse
from lacli.chat.conversation import Conversation, Message
from lacli.chat.settings import ChatSettings
from lacli.chat.transcript import Log, SavedChat, read_chat, write_chat
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import DecodeSettings
from tests.fakes.fake_chat import FakeChat, talked

WANTED = "/help /? /exit /bye /quit /q /clear /regen /undo /system /set /show /stats /read /save /load"


def test_every_command_is_there_under_all_its_names_and_in_the_help() -> None:
    assert sorted(BY_NAME) == sorted(WANTED.split())
    lines = help_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith(":")] == ["Conversation:", "Settings:", "Files:"]
    for entry, line in zip(COMMANDS, (line for line in lines if line.startswith("  /")), strict=True):
        assert line == f"  {entry.shown:24}{entry.help}"
        argument = "on" if entry.usage else ""
        for name in entry.names:
            assert parse(f"{name.upper()} {argument} \n") == (entry, argument)


@pytest.mark.parametrize("line", ["hello", " /etc/hosts is a file", "// a comment", "  indented"])
def test_a_line_with_a_space_or_a_second_slash_is_a_message(line: str) -> None:
    assert parse(line) is None
    assert message_of(line) == line.replace(" /", "/")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/etc/hosts", "unknown command /etc/hosts (/help lists the commands; begin with a space to send"),
        ("/sav x", "did you mean /save"),
        ("/load", "write /load FILE"),
    ],
)
def test_a_mistake_is_said_in_one_line_with_what_may_be_meant(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def commands_of(chat: FakeChat) -> Commands:
    return Commands(chat, Log(None), "demo")


def run(chat: FakeChat, *lines: str) -> Reply:
    """Run the commands in order, and return the reply of the last one."""
    return run_in(commands_of(chat), *lines)


def run_in(commands: Commands, *lines: str) -> Reply:
    reply = Reply()
    for line in lines:
        command = parse(line)
        assert command is not None
        reply = commands.run(*command)
    return reply


def two_turns() -> FakeChat:
    return FakeChat(talked([("a", "b"), ("c", "d")], "be brief"))


def test_system_shows_sets_and_clears() -> None:
    chat = FakeChat()
    assert "there is no system prompt" in run(chat, "/system").text
    for typed, system in (('"answer in verse"', "answer in verse"), ("be\nbrief", "be\nbrief"), ('""', "")):
        run(chat, f"/system {typed}")
        assert chat.conversation.system == system
        assert not system or run(chat, "/system").text == system


def test_set_changes_the_chat() -> None:
    chat = FakeChat()
    assert run(chat, "/set temp 0.8").text == "temp: 0 -> 0.8"
    assert run(chat, "/set temp 0.8").text == "nothing changed"
    run(chat, "/set stop a b", "/set n 5", "/set mode plain", "/set top_k=6")
    sampling = SamplingSettings(temp=0.8, top_k=6)
    assert chat.settings == ChatSettings(5, ("a", "b"), DecodeSettings(mode="plain"), sampling)
    assert run(chat, "/set stop").text.startswith('stop is "a" "b" (none is the default)')
    assert run(chat, '/set stop ""').text.startswith('stop: "a" "b" -> none')


def test_a_file_that_cannot_fit_is_said_at_once_and_undo_drops_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("word " * 60)
    commands = commands_of(FakeChat())
    assert run_in(commands, f"/read {tmp_path}/a").text.endswith("300 characters; it goes before the next message")
    said = run_in(commands, f"/read {tmp_path}/a").text
    assert said.endswith("the next message needs 120 tokens and the context has 100: /undo drops the files")
    assert "dropped the files" in run_in(commands, "/undo").text and commands.message("next") == "next"


def test_a_file_that_waits_is_taken_back_first(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("some words")
    write_chat(tmp_path / "chat", SavedChat("demo"))
    for command in ("/undo", "/clear", f"/load {tmp_path}/chat"):
        chat = two_turns()
        commands = commands_of(chat)
        run_in(commands, f"/read {tmp_path}/a", command)
        assert commands.message("next") == "next"
        assert command != "/undo" or chat.conversation.questions == 2


def test_a_saved_chat_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a chat"
    chat = two_turns()
    chat.settings = ChatSettings(9, ("x",), DecodeSettings(window=7), SamplingSettings(temp=0.5))
    assert run(chat, f"/save {file}").text == f"saved 4 messages to {file}"
    saved = read_chat(file)
    assert (saved.model, saved.settings) == ("demo", chat.settings)
    other = FakeChat(talked([("x", "y")], "other"))
    text = run(other, f"/load {file}").text
    changes = 'n: -1 -> 9, stop: none -> "x", W: 15 -> 7, temp: 0 -> 0.5'
    loaded = f"loaded 4 messages, the system prompt and the settings from {file}"
    assert text == f"{loaded}\n{changes}"
    assert run(other, f"/load {file}").text == loaded, "nothing changed"
    assert other.conversation == chat.conversation
    assert other.settings == chat.settings


def test_save_replaces_the_chat_of_this_session_only(tmp_path: Path) -> None:
    file = tmp_path / "chat"
    commands, saved = commands_of(two_turns()), f"saved 4 messages to {file}"
    for again in (f"/save {file}", f"/save {file}", "/save"):
        assert run_in(commands, again).text == saved
    for again in ("/save", f"/save {file}"):
        assert run(FakeChat(), f"/load {file}", again).text == saved
    with pytest.raises(UsageError, match="/save needs a file"):
        run(FakeChat(), f"/load {file}", "/clear", "/save")
    write_chat(file, SavedChat("demo", conversation=Conversation("", [Message("user", "kept")])))
    commands = commands_of(two_turns())
    for _ in range(2):
        with pytest.raises(LacliError, match="holds another chat"):
            run_in(commands, f"/save {file}")
    assert read_chat(file).conversation.messages[0].content == "kept"


@pytest.mark.parametrize("argument", ["a b.txt", '"a b.txt"', "'a b.txt'", r"a\ b.txt"])
def test_a_name_may_be_quoted_or_have_backslashes(argument: str) -> None:
    assert file_name(argument) == "a b.txt"
