"""What the commands do to a chat, and what the loop is told to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lacli.chat.commands import Commands, Reply, file_and_rest, file_name
from lacli.chat.input import COMMANDS, Entry, help_text, parse
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Message
from lacli.chat.transcript import Log, SavedChat, read_chat, write_chat
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen
from tests.fakes.fake_chat import FakeChat, an_answer, talked


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


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.names[0])
def test_every_command_does_something_even_in_an_empty_chat(entry: Entry, tmp_path: Path) -> None:
    is_named = entry.needed or entry.names[0] == "/save"
    argument = str(tmp_path / "chat") if is_named else ""
    if entry.names[0] != "/save":
        write_chat(tmp_path / "chat", SavedChat("demo"))
    reply = run(FakeChat(cells=10_000), f"{entry.names[0]} {argument}".strip())
    assert reply != Reply()


def test_help_shows_the_commands_and_exit_ends() -> None:
    assert run(FakeChat(), "/help").text == help_text()
    beginning = [entry.names[0] for entry in COMMANDS if entry.names[0].startswith("/s")]
    assert [line.split()[0] for line in help_text("S").split("\n")] == beginning
    with pytest.raises(UsageError, match=r"no command begins with /hepl \(did you mean /help"):
        run(FakeChat(), "/help hepl")
    assert run(FakeChat(), "/help set").text == run(FakeChat(), "/? /SET").text
    assert run(FakeChat(), "/help set").text.startswith("/set ") and "\n" not in help_text("set")
    for name in ("/exit", "/bye", "/quit", "/q"):
        assert run(FakeChat(), name) == Reply(end=True)


def test_undo_takes_back_and_offers_the_question() -> None:
    chat = two_turns()
    assert run(chat, "/undo").edit == "c"
    assert chat.conversation.questions == 1
    assert run(FakeChat(), "/undo") == Reply("there is nothing to take back")


def test_regen_asks_for_the_answer_and_leaves_it_to_the_loop() -> None:
    chat = two_turns()
    assert run(chat, "/regen").again
    assert chat.conversation.messages[-1].content == "d"
    assert run(FakeChat(), "/regen") == Reply("there is no question to answer anew")


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
    assert run(chat, "/set temp 0.8").text == "temp is 0.8 already"
    run(chat, "/set stop a b", "/set n 5", "/set mode plain", "/set top_k=6")
    sampling = SamplingSettings(temp=0.8, top_k=6)
    assert chat.settings == ChatSettings(DecodeSettings(mode="plain"), sampling, 5, ("a", "b"))
    assert run(chat, "/set stop").text.startswith('stop is "a" "b" (none is the default)')
    assert run(chat, '/set stop ""').text.startswith('stop: "a" "b" -> none')
    run(chat, "/set W 3", "/set default")
    assert chat.settings == ChatSettings()


def test_set_alone_lists_and_a_key_alone_is_shown() -> None:
    chat = FakeChat(settings=ChatSettings(sampling=SamplingSettings(temp=0.5)))
    listed = run(chat, "/set").text
    assert "temp 0.5 *" in listed and "top-k 40" in listed and max(map(len, listed.splitlines())) <= 80
    assert run(chat, "/set temp").text == "temp is 0.5 (0 is the default); write a number"
    assert "on or off" in run(chat, "/set ignore-eos").text


def test_a_setting_that_the_chat_refuses_changes_nothing() -> None:
    chat = FakeChat(refuses=ChatSettings(max_tokens=5))
    with pytest.raises(UsageError, match="no memory"):
        run(chat, "/set n 5")
    assert chat.settings == ChatSettings()


def test_show_names_model_template_settings_and_context() -> None:
    chat = two_turns()
    chat.settings = ChatSettings(DecodeSettings(mode="plain"), SamplingSettings(temp=0.5, json_schema='{"a":\n1}'))
    text = run(chat, "/show").text
    for words in ("demo: toy 1M F32", "template  chatml", "be brief", "--temp 0.5 --seed 11", "with a JSON schema",
                  "mode plain, temp 0.5", "2 questions", "10 of 100 tokens used (10%)"):  # fmt: skip
        assert words in text
    assert len(text.splitlines()) == 8
    chat.used, chat.cells = 1204, 8192
    assert "1,204 of 8,192 tokens used (14%)" in run(chat, "/show").text


def test_stats_has_the_last_answer_and_the_sum_of_all() -> None:
    chat = FakeChat()
    assert run(chat, "/stats").text == "nothing was answered yet"
    chat.turns = [an_answer(tokens=6, steps=2, seconds=1.5)]
    commands = commands_of(chat)
    commands.report = "as it was"
    assert run_in(commands, "/set temp 0.8", "/stats").text == "as it was"
    chat.turns.append(an_answer(tokens=4, steps=4, seconds=0.5))
    assert [line.split() for line in run(chat, "/stats").text.splitlines()[-4:]] == [
        ["answer", "tokens", "steps", "S", "tokens/s"],
        ["1", "6", "2", "3.00", "4.0"],
        ["2", "4", "4", "1.00", "8.0"],
        ["all", "10", "6", "1.67", "5.0"],
    ]
    chat.turns += [an_answer()] * 20
    assert run(chat, "/stats").text.splitlines()[-2].split()[0] == "22"
    assert len(run(chat, "/stats").text.splitlines()) < 24


def test_a_file_goes_before_the_next_message_and_comes_back_with_undo(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("three short words\n")
    (tmp_path / "b.txt").write_text("more")
    chat = FakeChat()
    commands = commands_of(chat)
    said = run_in(commands, f"/read {tmp_path}/a.txt").text
    assert "a.txt: 17 characters, 3 tokens; it goes before the next message" in said
    assert "it goes before" in run_in(commands, f'/read "{tmp_path}/b.txt"').text
    message = commands.message("what is it?")
    assert message == "three short words\n\nmore\n\nwhat is it?"
    assert commands.message("and?") == "and?"
    chat.conversation.ask(message)
    assert run_in(commands, "/undo").edit == "what is it?"
    assert commands.message("what else?") == "three short words\n\nmore\n\nwhat else?"


def test_a_file_with_a_question_is_asked_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert run(FakeChat(), f"/read {tmp_path}/a.txt what is it?").ask == "text\n\nwhat is it?"


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
        reply = run_in(commands, f"/read {tmp_path}/a", command)
        assert f"{tmp_path}/a will not go before the next message" in reply.text
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


def test_save_asks_again_after_clear_or_load(tmp_path: Path) -> None:
    file, other = tmp_path / "chat", tmp_path / "other"
    write_chat(other, SavedChat("demo", messages=(Message("user", "kept"),)))
    for behind in ("/clear", f"/load {other}"):
        commands = commands_of(two_turns())
        run_in(commands, f"/save {file}")
        run_in(commands, behind)
        with pytest.raises(LacliError, match="holds another chat"):
            run_in(commands, f"/save {file}")
        assert len(read_chat(file).messages) == 4
        file.unlink()


def test_save_replaces_a_chat_of_this_session_and_another_one_only_when_told_again(tmp_path: Path) -> None:
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
    with pytest.raises(LacliError, match="holds another chat .the same again replaces it"):
        run_in(commands, f"/save {file}")
    assert read_chat(file).messages[0].content == "kept"
    assert run_in(commands, f"/save {file}").text == saved
    other = tmp_path / "text"
    other.write_text("no chat")
    for _ in range(2):
        with pytest.raises(LacliError, match="exists and is no saved chat"):
            run_in(commands, f"/save {other}")


def break_file(file: Path, chat: FakeChat) -> None:
    file.write_text("{")


def refuse_settings(file: Path, chat: FakeChat) -> None:
    chat.refuses = ChatSettings(max_tokens=5)


@pytest.mark.parametrize("spoil", [break_file, refuse_settings])
def test_a_chat_that_cannot_be_loaded_leaves_all_as_it_was(
    tmp_path: Path, spoil: Callable[[Path, FakeChat], None]
) -> None:
    file, chat = tmp_path / "chat", two_turns()
    write_chat(file, SavedChat("demo", settings=ChatSettings(max_tokens=5)))
    spoil(file, chat)
    before = chat.conversation.as_messages(), chat.settings
    with pytest.raises(LacliError):
        run(chat, f"/load {file}")
    assert (chat.conversation.as_messages(), chat.settings) == before


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


def test_a_loaded_chat_that_was_otherwise_is_called_so(tmp_path: Path) -> None:
    file = tmp_path / "chat"
    strict = ChatSettings(DecodeSettings(strict=True))
    write_chat(file, SavedChat("qwen", "chatml", "", (Message("user", "open"),), strict, context=4096))
    with file.open("a") as lines:
        lines.write("damaged\n{}\n\n")
    chat = FakeChat()
    text = run(chat, f"/load {file}").text
    for words in ("loaded 1 message,", "made with qwen", "chatml", "--strict", "/regen", "of chat are left out: 3, 4",
                  "made with -c 4096, and this one has 100"):  # fmt: skip
        assert words in text
    own = DecodeSettings(), DecodeSettings(strict=True, ordered=True, min_outputs=2)
    for decode_settings in own:
        chat.settings = ChatSettings(decode_settings)
        assert ("--strict" in run(chat, f"/load {file}").text) == (not decode_settings.strict)
        assert chat.settings.decode_settings == decode_settings, "what was loaded with the model stays"
