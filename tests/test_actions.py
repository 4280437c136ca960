"""What the commands do to a chat, and what the loop is told to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lacli.chat.actions import Actions, Outcome
from lacli.chat.adjust import Adjusted, settings_by_name
from lacli.chat.commands import COMMANDS, help_text, parse
from lacli.chat.conversation import Message
from lacli.chat.saved import SavedChat, read_chat, write_chat
from lacli.chat.shown import all_settings
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import DecodeSettings
from tests.fake_chat import FakeChat, an_answer, talked


def run(chat: FakeChat, *lines: str) -> Outcome:
    """What the last of these lines brings."""
    return run_in(Actions(chat, "demo"), *lines)


def run_in(actions: Actions, *lines: str) -> Outcome:
    outcome = Outcome()
    for line in lines:
        command = parse(line)
        assert command is not None
        outcome = actions.run(command)
    return outcome


def two_turns() -> FakeChat:
    return FakeChat(talked([("a", "b"), ("c", "d")], "be brief"))


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.names[0])
def test_every_command_does_something_even_in_an_empty_chat(entry: object, tmp_path: Path) -> None:
    assert hasattr(entry, "names") and hasattr(entry, "argument") and hasattr(entry, "needed")
    (tmp_path / "file").write_text("text")
    write_chat(tmp_path / "chat", SavedChat("demo", "", (), Adjusted()))
    argument = {"file": str(tmp_path / "chat"), "switch": "on"}.get(entry.argument, "") if entry.needed else ""
    assert run(FakeChat(cells=10_000), f"{entry.names[0]} {argument}".strip()) != Outcome()


def test_help_fits_the_screen_and_exit_ends() -> None:
    command = parse("/help")
    assert command is not None
    assert Actions(FakeChat()).run(command, 20).text == help_text(20)
    for name in ("/exit", "/bye", "/quit", "/q"):
        assert run(FakeChat(), name) == Outcome(end=True)


def test_undo_takes_back_and_offers_the_question() -> None:
    chat = two_turns()
    assert run(chat, "/undo").edit == "c"
    assert chat.conversation.questions == 1
    assert run(FakeChat(), "/undo") == Outcome("there is nothing to take back")


def test_regen_asks_for_the_answer_and_leaves_it_to_the_loop() -> None:
    chat = two_turns()
    assert run(chat, "/regen").again
    assert chat.conversation.last_answer == "d"
    assert run(FakeChat(), "/regen") == Outcome("there is no question to answer anew")


def test_clear_forgets_what_was_said_and_what_waits(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    chat = two_turns()
    actions = Actions(chat)
    run_in(actions, f"/read {tmp_path}/a.txt", "/clear")
    assert not chat.conversation.messages and chat.conversation.system == "be brief"
    assert actions.message("hi") == "hi"


def test_system_shows_sets_and_clears() -> None:
    chat = FakeChat()
    assert "there is no system prompt" in run(chat, "/system").text
    run(chat, '/system "answer in verse"')
    assert run(chat, "/system").text == chat.conversation.system == "answer in verse"
    run(chat, "/system be\nbrief")
    assert chat.conversation.system == "be\nbrief"
    run(chat, '/system ""')
    assert chat.conversation.system == ""


def test_set_changes_the_chat_and_says_what_was_made_anew() -> None:
    chat = FakeChat(anew="the context was made anew")
    assert run(chat, "/set temp 0.8").text == "temp: 0 -> 0.8\nthe context was made anew"
    assert chat.sampling.temp == 0.8
    assert run(chat, "/set temp 0.8").text == "temp is 0.8 already"
    run(chat, "/set stop a b", "/set n 5", "/mode plain")
    assert chat.adjusted == Adjusted(DecodeSettings(mode="plain"), SamplingSettings(temp=0.8), 5, ("a", "b"))
    assert run(chat, "/set stop").text.startswith('stop is "a" "b" (none is the default)')
    for clearing in ('""', "none", "default"):
        assert chat.stops
        assert run(chat, f"/set stop {clearing}").text.startswith('stop: "a" "b" -> none')
        assert chat.stops == ()
        run(chat, "/set stop a b")
    run(chat, "/set topk=5", "/set temp = 0.5")
    assert (chat.sampling.top_k, chat.sampling.temp) == (5, 0.5)
    run(chat, "/set no-pool-prompt", "/set default")
    assert chat.adjusted == Adjusted()


def test_set_alone_lists_and_a_key_alone_is_shown() -> None:
    chat = FakeChat(adjusted=Adjusted(sampling=SamplingSettings(temp=0.5)))
    listed = run(chat, "/set").text
    assert "temp 0.5 *" in listed and "top-k 40\n" in listed and max(map(len, listed.splitlines())) <= 80
    assert run(chat, "/set temp").text == "temp is 0.5 (0 is the default); write a number"
    assert "on or off" in run(chat, "/set ignore-eos").text and not chat.sampling.ignore_eos
    with pytest.raises(UsageError, match="did you mean temp"):
        run(chat, "/set tmep")


@pytest.mark.parametrize("width", [30, 53, 80, 104, 300])
def test_settings_stand_in_columns_on_a_screen_of_any_width(width: int) -> None:
    lines = all_settings(Adjusted(), width).splitlines()[:-1]
    assert max(map(len, lines)) <= min(width, 104)
    for _, name, value, _ in settings_by_name(Adjusted()):
        first = f" {name} {value.split()[0]}"
        assert {line.index(first) % 26 for line in lines if first in line} == {1}, name


@pytest.mark.parametrize("width", [12, 20, 30])
def test_settings_are_broken_between_words_on_a_narrow_screen(width: int) -> None:
    now = Adjusted(stops=("a text that is longer than a row",))
    allowed = {"answer", "guessing", "sampling", "*"}
    for _, name, value, _ in settings_by_name(now):
        parts = re.findall(r".+?-|.+", name)
        allowed |= {"".join(parts[i:j]) for i in range(len(parts)) for j in range(i, len(parts) + 1)}
        allowed |= set(value.split())
    lines = all_settings(now, width).splitlines()[:-1]
    assert max(map(len, lines)) <= width
    assert set(" ".join(lines).split()) <= allowed


def test_a_setting_that_the_chat_refuses_changes_nothing() -> None:
    chat = FakeChat(refuses=Adjusted(limit=5))
    with pytest.raises(UsageError, match="no memory"):
        run(chat, "/set n 5")
    assert chat.adjusted == Adjusted()


def test_mode_says_which_there_are() -> None:
    text = run(FakeChat(), "/mode").text
    assert text.startswith("auto, at most") and all(mode in text for mode in ("plain", "jacobi", "lookup", "lookahead"))
    ahead = FakeChat(adjusted=Adjusted(DecodeSettings(mode="lookahead")))
    assert run(ahead, "/mode").text.startswith("lookahead, W=15 N=5 G=15; the modes are")
    with pytest.raises(UsageError, match="did you mean plain"):
        run(FakeChat(), "/mode plan")


def test_show_names_model_template_settings_and_context() -> None:
    chat = two_turns()
    chat.adjusted = Adjusted(DecodeSettings(mode="plain"), SamplingSettings(temp=0.5, json_schema='{"a":\n1}'))
    text = run(chat, "/show").text
    for words in ("demo: toy 1M F32", "template  chatml", "be brief", "plain", "--temp 0.5", "with a JSON schema",
                  "mode plain, temp 0.5", "2 questions", "10 of 100 tokens used (10%)"):  # fmt: skip
        assert words in text
    assert len(text.splitlines()) == 8


def test_stats_has_the_last_answer_and_the_sum_of_all() -> None:
    chat = FakeChat()
    assert run(chat, "/stats").text == "nothing was answered yet"
    chat.turns = [an_answer(tokens=6, steps=2, seconds=1.5)]
    assert "S = 3.00" in run(chat, "/stats").text and "all" not in run(chat, "/stats").text.split()
    chat.turns.append(an_answer(tokens=4, steps=4, seconds=0.5))
    rows = [line.split() for line in run(chat, "/stats").text.splitlines()[-4:]]
    assert rows == [
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
    actions = Actions(chat)
    said = run_in(actions, f"/read {tmp_path}/a.txt").text
    assert "17 characters, 3 tokens" in said and "a.txt goes before the next message" in said
    assert "b.txt go before" in run_in(actions, f'/read "{tmp_path}/b.txt"').text
    message = actions.message("what is it?")
    assert message == "three short words\n\nmore\n\nwhat is it?"
    assert actions.message("and?") == "and?"
    chat.conversation.ask(message)
    assert run_in(actions, "/undo").edit == "what is it?"
    assert actions.message("what else?") == "three short words\n\nmore\n\nwhat else?"


def test_a_file_with_a_question_is_asked_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    outcome = run(FakeChat(), f"/read {tmp_path}/a.txt what is it?")
    assert outcome.ask == "text\n\nwhat is it?"


def test_a_file_that_does_not_fit_is_called_so_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 95)
    (tmp_path / "empty").touch()
    assert "more than the context has left: 90 tokens" in run(FakeChat(), f"/read {tmp_path}/long.txt").text
    with pytest.raises(LacliError, match="95 tokens, and the context has 90"):
        run(FakeChat(cells=90), f"/read {tmp_path}/long.txt")
    for name, words in (("none", "cannot read"), ("empty", "is empty"), ("", "cannot read"), ("a\0b", "cannot read")):
        with pytest.raises(LacliError, match=words):
            run(FakeChat(), f"/read {tmp_path}/{name}")


def test_a_file_that_waits_is_taken_back_first(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("some words")
    write_chat(tmp_path / "chat", SavedChat("demo", "", (), Adjusted()))
    for command in ("/undo", "/clear", f"/load {tmp_path}/chat"):
        chat = two_turns()
        actions = Actions(chat, "demo")
        for line in (f"/read {tmp_path}/a", command):
            parsed = parse(line)
            assert parsed
            outcome = actions.run(parsed)
        assert f"{tmp_path}/a will not go before the next message" in outcome.text
        assert actions.message("next") == "next"
        assert command != "/undo" or chat.conversation.questions == 2


def test_a_seed_that_the_user_has_not_set_is_saved_apart(tmp_path: Path) -> None:
    chat = two_turns()
    run(chat, f"/save {tmp_path}/chat.json")
    saved = read_chat(tmp_path / "chat.json")
    assert (saved.seed, saved.adjusted.sampling.seed) == (11, -1)


def test_a_saved_chat_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a chat.json"
    chat = two_turns()
    chat.adjusted = Adjusted(DecodeSettings(window=7), SamplingSettings(temp=0.5), 9, ("x",))
    assert run(chat, f"/save {file}").text == f"saved 4 messages to {file}"
    assert read_chat(file).model == "demo"
    other = FakeChat(talked([("x", "y")], "other"), anew="the context was made anew")
    text = run(other, f"/load {file}").text
    assert text == f"loaded 4 messages and the settings from {file}\nthe context was made anew"
    assert other.conversation.as_messages() == chat.conversation.as_messages()
    assert other.adjusted == chat.adjusted


def test_a_chat_is_saved_over_and_this_is_said_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("dear diary")
    assert "in place of the chat" in run(two_turns(), f"/save {tmp_path}/c", f"/save {tmp_path}/c").text
    with pytest.raises(LacliError, match="no saved chat"):
        run(two_turns(), f"/save {tmp_path}/notes")


def test_a_loaded_chat_that_was_otherwise_is_called_so(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    strict = Adjusted(DecodeSettings(strict=True))
    write_chat(file, SavedChat("qwen", "", (Message("user", "open"),), strict, "chatml"))
    chat = FakeChat()
    text = run(chat, f"/load {file}").text
    for words in ("loaded 1 message ", "made with qwen, and goes on with demo", "chatml", "--strict", "/regen"):
        assert words in text
    assert chat.settings == DecodeSettings(), "what was loaded with the model stays"
    chat.adjusted = Adjusted(DecodeSettings(strict=True, ordered=True, least_outputs=2))
    assert "--strict" not in run(chat, f"/load {file}").text
    assert chat.settings == DecodeSettings(strict=True, ordered=True, least_outputs=2)


def break_file(file: Path, chat: FakeChat) -> None:
    file.write_text("{")


def refuse_settings(file: Path, chat: FakeChat) -> None:
    chat.refuses = Adjusted(limit=5)


@pytest.mark.parametrize("spoil", [break_file, refuse_settings])
def test_a_chat_that_cannot_be_loaded_leaves_all_as_it_was(
    tmp_path: Path, spoil: Callable[[Path, FakeChat], None]
) -> None:
    file = tmp_path / "chat.json"
    write_chat(file, SavedChat("demo", "", (), Adjusted(limit=5)))
    chat = two_turns()
    spoil(file, chat)
    before = chat.conversation.as_messages(), chat.adjusted
    with pytest.raises(LacliError):
        run(chat, f"/load {file}")
    assert (chat.conversation.as_messages(), chat.adjusted) == before


def test_the_last_answer_is_copied_without_its_thoughts() -> None:
    chat = FakeChat(talked([("a", "<think>hm</think>\n\nyes")]))
    assert run(chat, "/copy") == Outcome(copy="yes")
    chat.conversation.ask("open")
    assert run(chat, "/copy").copy == "yes"
    assert run(FakeChat(), "/copy") == Outcome("there is no answer to copy")


def test_compact_says_how_much_was_dropped() -> None:
    chat = two_turns()
    text = run(chat, "/compact").text
    assert text == "dropped the oldest question and its answer; 10 of 100 tokens used (10%)"
    assert "nothing to drop" in run(chat, "/compact").text
    assert "2 questions and answers" in run(FakeChat(talked([("a", "b")] * 3)), "/compact").text


def test_colour_and_status_are_switched_by_the_loop() -> None:
    assert run(FakeChat(), "/color on") == Outcome(color=True)
    assert run(FakeChat(), "/status off") == replace(Outcome(), status=False)
    with pytest.raises(UsageError, match="on or off"):
        run(FakeChat(), "/color blue")
