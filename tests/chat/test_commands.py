"""What the commands do to a chat, and what the loop is told to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from lacli.chat.commands import Commands, Reply, file_and_rest
from lacli.chat.input import parse
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Message
from lacli.chat.transcript import Log, SavedChat, read_chat, write_chat
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen
from tests.fakes.fake_chat import FakeChat, talked


def commands_of(chat: FakeChat) -> Commands:
    return Commands(chat.as_chat, Screen(), Log(None, pytest.fail), "demo")


def run(chat: FakeChat, *lines: str) -> Reply:
    """What the last of these lines brings."""
    return run_in(commands_of(chat), *lines)


def run_in(commands: Commands, *lines: str) -> Reply:
    reply = Reply()
    for line in lines:
        command = parse(line)
        assert command is not None
        reply = commands.run(command)
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


def test_set_changes_the_chat_and_says_what_was_made_anew() -> None:
    chat = FakeChat(anew="the context was made anew")
    assert run(chat, "/set temp 0.8").text == "temp: 0 -> 0.8\nthe context was made anew"
    assert run(chat, "/set temp 0.8").text == "nothing changed"
    run(chat, "/set stop a b", "/set n 5", "/set mode plain", "/set top_k=6")
    sampling = SamplingSettings(temp=0.8, top_k=6)
    assert chat.settings == ChatSettings(DecodeSettings(mode="plain"), sampling, 5, ("a", "b"))
    assert run(chat, "/set stop").text.startswith('stop is "a" "b" (none is the default)')
    assert run(chat, '/set stop ""').text.startswith('stop: "a" "b" -> none')
    run(chat, "/set W 3", "/set default")
    assert chat.settings == ChatSettings()


def test_a_file_goes_before_the_next_message(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("three short words\n")
    (tmp_path / "b.txt").write_text("more")
    chat = FakeChat()
    commands = commands_of(chat)
    said = run_in(commands, f"/read {tmp_path}/a.txt").text
    assert "a.txt: 17 characters, 3 tokens; it goes before the next message" in said
    assert "it goes before" in run_in(commands, f'/read "{tmp_path}/b.txt"').text
    assert commands.message("what is it?") == "three short words\n\nmore\n\nwhat is it?"
    assert run_in(commands, f"/read {tmp_path}/b.txt and now?").ask == "and now?"


def test_a_file_that_does_not_fit_is_called_so_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 95)
    (tmp_path / "empty").touch()
    with pytest.raises(LacliError, match=r"95 tokens and the context has 90 \(give a part of it; -c 95 has room"):
        run(FakeChat(cells=90), f"/read {tmp_path}/long.txt")
    for name, words in (("none", "cannot read"), ("empty", "is empty"), ("", "cannot read"), ("a\0b", "cannot read")):
        with pytest.raises(LacliError, match=words):
            run(FakeChat(), f"/read {tmp_path}/{name}")


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
    chat.settings = ChatSettings(DecodeSettings(window=7), SamplingSettings(temp=0.5), 9, ("x",))
    assert run(chat, f"/save {file}").text == f"saved 4 messages to {file}"
    saved = read_chat(file)
    assert (saved.model, saved.seed, saved.settings.sampling.seed) == ("demo", 11, -1), "the seed in use is apart"
    other = FakeChat(talked([("x", "y")], "other"), anew="the context was made anew")
    text = run(other, f"/load {file}").text
    changes = 'n: -1 -> 9, stop: none -> "x", W: 15 -> 7, temp: 0 -> 0.5'
    loaded = f"loaded 4 messages, the system prompt and the settings from {file}"
    assert text == f"{loaded}\n{changes}\nthe context was made anew"
    assert run(other, f"/load {file}").text.splitlines()[1] == "the context was made anew", "nothing else changed"
    assert other.conversation.as_messages() == chat.conversation.as_messages()
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
    write_chat(file, SavedChat("demo", messages=(Message("user", "kept"),)))
    commands = commands_of(two_turns())
    for _ in range(2):
        with pytest.raises(LacliError, match="holds another chat"):
            run_in(commands, f"/save {file}")
    assert read_chat(file).messages[0].content == "kept"


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
