"""`lacli chat` on a terminal: every command, Ctrl-C and Ctrl-D, narrow and plain terminals, history."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lacli import load
from lacli.chat.commands import COMMANDS
from lacli.chat.keys import ALL
from lacli.chat.saved import read_chat
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.chat_terminal import (
    CTRL_C,
    CTRL_D,
    ENTER,
    UP,
    ChatTerminal,
    plain,
)
from tests.program import (
    PROGRAM,
    SECONDS,
    call,
    on_terminal,
    start,
)

QUESTION = "Write a Python function is_empty: Return true if the queue is empty."
"""No choice between two tokens of its answer is close, so every mode gives the same one."""

SIZE = 12
QUICK = ("-n", str(SIZE), "--mode", "lookup")
NOTHING = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "PATH": ""}
"""No clipboard but the terminal's."""


MARKED = re.compile(r"\x1b\[(?:3[1-6]|94)m(.*?)\x1b\[0m", re.DOTALL)


@cache
def answer(*flags: str) -> str:
    """The answer of a run of its own."""
    done = call("run", "--json", "-n", str(SIZE), *flags)
    assert done.code == 0, done.err
    text: str = json.loads(done.out)["text"]
    return text


def shown(text: str) -> str:
    """An answer as the chat shows it: its last line ended, and an empty one behind it."""
    return text.removesuffix("\n") + "\n\n"


Start = Callable[..., ChatTerminal]


@pytest.fixture
def start_chat(tmp_path: Path) -> Iterator[Start]:
    """Starts a chat with a history of its own; one that a test leaves running is ended."""
    started: list[ChatTerminal] = []

    def start_one(*arguments: str, columns: int = 400, program: Sequence[str] = PROGRAM, **env: str) -> ChatTerminal:
        changes = {**NOTHING, "XDG_STATE_HOME": str(tmp_path / "state"), **env}
        started.append(ChatTerminal("chat", *QUICK, *arguments, env=changes, columns=columns, program=program))
        return started[-1]

    yield start_one
    for terminal in started:
        terminal.process.close(force=True)


@pytest.fixture(scope="module")
def one_chat() -> Iterator[ChatTerminal]:
    terminal = ChatTerminal("chat", *QUICK, "--no-history", env=NOTHING)
    yield terminal
    assert terminal.ends() == 0


@pytest.fixture
def chat(one_chat: ChatTerminal) -> ChatTerminal:
    """One chat for most tests, where nothing was said and everything is as it was at first."""
    for line in ("/clear", '/system ""', "/set default", f"/set predict {SIZE}", "/mode lookup", "/color off"):
        assert "lacli:" not in one_chat.says(line)
    return one_chat


def test_an_answer_comes_below_the_question_and_its_numbers_below_the_next_prompt(chat: ChatTerminal) -> None:
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION))
    chat.says("/mode")
    assert re.search(r"lookup · [\d.,]+ tokens/s · S [\d.]+ · context \d+ of 2,048 \(\d%\)", plain(chat.drawn))


def test_help_names_every_command_and_what_it_takes(chat: ChatTerminal) -> None:
    for typed in ("/help", "/?"):
        lines = chat.says(typed).splitlines()
        for entry in COMMANDS:
            assert any(line.startswith(entry.shown) and line.endswith(entry.help) for line in lines)


def test_clear_forgets_what_was_said(chat: ChatTerminal) -> None:
    first = chat.says(QUESTION)
    chat.says("And of another one?")
    assert "cleared" in chat.says("/clear")
    assert "chat      0 questions" in chat.says("/show")
    assert chat.says(QUESTION) == first


def test_regen_gives_the_answer_anew_and_says_why_it_is_the_same(chat: ChatTerminal) -> None:
    assert "no question to answer anew" in chat.says("/regen")
    first = chat.says(QUESTION)
    assert chat.says("/regen") == f"{first[:-1]}lacli: at temperature 0 the answer comes out the same; " \
        "/set temp 0.8 for another one\n\n"  # fmt: skip
    assert "chat      1 question\n" in chat.says("/show")


def test_undo_offers_the_question_again(chat: ChatTerminal) -> None:
    assert "nothing to take back" in chat.says("/undo")
    first = chat.says(QUESTION)
    assert "took the last question back" in chat.says("/undo")
    assert chat.press(ENTER) == first
    assert QUESTION in plain(chat.drawn)
    assert "chat      1 question\n" in chat.says("/show")


def test_system_shows_sets_and_clears_the_system_prompt(chat: ChatTerminal) -> None:
    assert "no system prompt" in chat.says("/system")
    assert "it holds from the next answer on" in chat.says("/system Answer with one word.")
    assert chat.says("/system") == "Answer with one word.\n"
    asked = call("run", "-q", "--json", "-n", "1", "-p", QUESTION, "-sys", "Answer with one word.")
    chat.says("/set predict 1")
    chat.says(QUESTION)
    assert f"{json.loads(asked.out)['prompt_n']} tokens" in chat.says("/stats")
    assert "there is none" in chat.says('/system ""')


def test_set_lists_all_settings_shows_one_and_says_what_it_changes(chat: ChatTerminal) -> None:
    listed = chat.says("/set")
    assert all(f" {key.name} " in listed for key in ALL.values())
    assert "predict 12 *" in listed and "mode lookup *" in listed
    assert chat.says("/set top-k") == "top-k is 40 (the default); write a whole number\n"
    assert chat.says("/set stop ] ,") == 'stop: none -> "]" ","\n'
    assert chat.says("/set stop none") == 'stop: "]" "," -> none\n'


@pytest.mark.parametrize(
    ("lines", "flags"),
    [
        (["/set temp 0.8", "/set seed 7"], ["--temp", "0.8", "-s", "7"]),
        (["/set stop )"], ["--stop", ")"]),
        (["/set n 5"], ["-n", "5"]),
        (["/set grammar root ::= [a-f]+"], ["--grammar", "root ::= [a-f]+"]),
        (["/set logit-bias 600-inf 601+3"], ["--logit-bias", "600-inf", "--logit-bias", "601+3"]),
        (["/set repeat-penalty 1.3"], ["--repeat-penalty", "1.3"]),
    ],
    ids=lambda each: each[0],
)
def test_what_is_set_gives_the_answer_of_a_run_with_these_flags(
    chat: ChatTerminal, lines: list[str], flags: list[str]
) -> None:
    for line in lines:
        assert " -> " in chat.says(line)
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION, "--mode", "lookup", *flags))


@pytest.mark.parametrize("mode", ["plain", "jacobi", "lookup", "lookahead"])
def test_every_mode_can_be_chosen_and_gives_the_same_answer(chat: ChatTerminal, mode: str) -> None:
    chat.says(f"/set mode {'plain' if mode != 'plain' else 'jacobi'}")
    assert chat.says(f"/mode {mode}").startswith("mode: ")
    assert chat.says("/mode").startswith(mode)
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION, "--mode", "plain"))


def test_more_sequences_make_the_context_anew_and_the_chat_goes_on_like_before(chat: ChatTerminal) -> None:
    first, second = chat.says(QUESTION), chat.says("And of a list?")
    assert chat.says("/undo").startswith("took")
    chat.says(f"{CTRL_C}/mode lookahead")
    sentence = chat.says("/set W 30")
    assert sentence == (
        "W: 15 -> 30\nthe context was made anew, for 46 sequences: the conversation is decoded again with the next "
        "message\n"
    )
    assert chat.says("And of a list?") == second
    assert "in the cache" not in chat.says("/stats").split("answer")[0]
    chat.says("/clear")
    assert chat.says(QUESTION) == first == shown(answer("-p", QUESTION, "-W", "30"))


def test_show_and_stats_describe_the_session_and_its_answers(chat: ChatTerminal) -> None:
    chat.says(QUESTION)
    chat.says("And of a list?")
    overview = chat.says("/show")
    for words in (
        "llama 7.3M Q8_0",
        "the model's own",
        "lookup, match up to 2",
        "chat      2 questions",
        "of 2048 tok",
    ):
        assert words in overview
    numbers = chat.says("/stats")
    assert re.search(r"prompt +\d+ tokens, \d+ of them in the cache", numbers)
    assert re.search(r"S = [\d.]+ tokens a step", numbers) and re.search(r"(\n\d+ +12 .*){2}\nall ", numbers)


def test_read_puts_a_file_before_a_question(chat: ChatTerminal, tmp_path: Path) -> None:
    file = tmp_path / "a file.py"
    file.write_text("class Queue:\n    pass\n")
    expected = shown(answer("-f", str(file), "-p", QUESTION, "--mode", "lookup"))
    size = f"{file}: {len(file.read_text()) - 1} characters, "
    asked = chat.says(f'/read "{file}" {QUESTION}')
    assert asked.startswith(size) and asked.endswith(f"tokens\n{expected}")
    chat.says("/clear")
    assert chat.says(f"/read {file}").endswith("goes before the next message\n")
    assert chat.says(QUESTION) == expected
    chat.says(f"/save {tmp_path}/chat.json")
    message, _ = read_chat(tmp_path / "chat.json").messages
    assert message.content == f"class Queue:\n    pass\n\n{QUESTION}"


def test_a_chat_is_saved_and_loaded(chat: ChatTerminal, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat.says("/set top-k 3")
    first = chat.says(QUESTION)
    assert chat.says(f"/save {file}") == f"saved 2 messages to {file}\n"
    second = chat.says("And of a list?")
    for line in ("/set default", "/clear"):
        chat.says(line)
    assert re.fullmatch(f"loaded 2 messages( and the settings)? from {file}\n", chat.says(f"/load {file}"))
    assert chat.says("/set top-k") == "top-k is 3 (40 is the default); write a whole number\n"
    assert chat.says("And of a list?") == second
    assert [message.content for message in read_chat(file).messages] == [QUESTION, answer("-p", QUESTION)]
    assert shown(answer("-p", QUESTION)) == first


def test_copy_sends_the_last_answer_to_the_clipboard(chat: ChatTerminal) -> None:
    assert "no answer to copy" in chat.says("/copy")
    chat.says(QUESTION)
    assert "clipboard" in chat.says("/copy")
    sent = re.search(r"\x1b\]52;c;([^\a]*)\a", chat.raw)
    assert sent and base64.b64decode(sent[1]).decode() == answer("-p", QUESTION)


def test_compact_drops_the_oldest_question(chat: ChatTerminal, tmp_path: Path) -> None:
    chat.says(QUESTION)
    assert "nothing to drop" in chat.says("/compact")
    chat.says("And of a list?")
    assert chat.says("/compact").startswith("dropped the oldest question and its answer; ")
    chat.says(f"/save {tmp_path}/chat.json")
    assert [message.content for message in read_chat(tmp_path / "chat.json").messages][:1] == ["And of a list?"]


def test_color_marks_what_was_accepted_in_parallel_and_nothing_else(chat: ChatTerminal) -> None:
    chat.says("/mode lookahead")
    chat.says("/color on")
    chat.says("/set predict 30")
    chat.says(QUESTION)
    ahead = DecodeSettings(mode="lookahead")
    with load(model_settings=ModelSettings(threads=1), decode_settings=ahead) as session:
        pieces = list(session.generate(session.prompt(QUESTION), 30))
    answer_shown, legend = chat.raw.split("lacli: ")
    assert plain(answer_shown) + "\n" == shown("".join(piece.text for piece in pieces))
    marked = plain("".join(MARKED.findall(answer_shown)))
    assert marked == "".join(piece.text for piece in pieces if piece.guessed) != ""
    guessed = [piece for piece in pieces if piece.guessed]
    assert sum(map(int, re.findall(r"(\d+) \w+", plain(legend)))) >= len(guessed) > 0
    chat.says("/color off")
    assert chat.says("/regen").startswith(plain(answer_shown)) and not MARKED.search(chat.raw)


def test_the_line_of_numbers_can_be_hidden_and_shown(chat: ChatTerminal, start_chat: Start) -> None:
    for switch, there in (("off", False), ("on", True)):
        chat.says(f"/status {switch}")
        chat.says("/mode")
        assert ("· context" in chat.drawn) == there
    hidden = start_chat("--no-status")
    hidden.says("/mode")
    assert "context" not in hidden.drawn


def bad_lines(folder: Path) -> Iterator[str]:
    """Lines that nobody can obey."""
    (folder / "broken.json").write_text('{"format": "lacli chat", "version": 1, "messages": [')
    (folder / "dead.json").write_text(
        '{"format": "lacli chat", "version": 1, "messages": [], "settings": {"grammar": "root ::= ("}}'
    )
    (folder / "picture.png").write_bytes(b"\x89PNG\xff")
    yield from ("/nothing", "/undo now", "/read", "/status", "/color maybe", "/mode turbo", "/set nothing 1")
    yield from ("/set temp hot", "/set temp", "/set W 300", "/set strict on", "/set grammar root ::= (")
    yield from ("/set json-schema {", "/set logit-bias 999999+1", "/set context 9", "/set preset lade9")
    yield from (
        f"/read {folder}/nowhere",
        f"/read {folder}",
        f"/read {folder}/picture.png",
        f"/save {folder}/broken.json/chat.json",
    )
    yield from (
        f"/save {folder}",
        f"/load {folder}/nowhere",
        f"/load {folder}/broken.json",
        f"/load {folder}/dead.json",
    )


def test_whatever_goes_wrong_is_one_line_and_the_chat_goes_on(chat: ChatTerminal, tmp_path: Path) -> None:
    chat.says(QUESTION)
    chat.says("/mode lookahead")
    before = chat.says("/show")
    for line in bad_lines(tmp_path):
        reply = chat.says(line)
        # A key without a value is shown.
        assert re.fullmatch(r"lacli: [^\n]{10,}\n", reply) or line == "/set temp", (line, reply)
    assert chat.says("/show").rsplit("\n", 2)[0] == before.rsplit("\n", 2)[0]
    chat.says("/clear")
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION))


def attributes(chat: ChatTerminal) -> list[Any]:
    return termios.tcgetattr(chat.process.child_fd)


def usual_attributes() -> list[Any]:
    """What a terminal is like before and after a program."""
    terminal = on_terminal("--version")
    terminal.read()
    return termios.tcgetattr(terminal.child_fd)


def until_ctrl_c(rows: str) -> tuple[str, ...]:
    """The program, which says that it waits at its first batch with such rows, until Ctrl-C comes, however late."""
    return waiting(rows, "False")


def waiting(rows: str, over: str) -> tuple[str, ...]:
    """The program, which says that it waits at its first batch with such rows, until something is true."""
    text = f"""
import os, time
from lacli.__main__ import main
from lacli.context import LlamaEngine

decode = LlamaEngine.decode

def waiting(engine, batch):
    if {rows}:
        LlamaEngine.decode = decode
        print("WAITING", flush=True)
        while not {over}:
            time.sleep(0.01)
    return decode(engine, batch)

LlamaEngine.decode = waiting
main()
"""
    return (sys.executable, "-c", text)


def test_ctrl_c_stops_an_answer_and_keeps_what_came(start_chat: Start, tmp_path: Path) -> None:
    program = until_ctrl_c("batch.wanted and batch.positions[0] > 60")
    chat = start_chat("-n", "-1", "--ignore-eos", "--mode", "plain", program=program)
    chat.send(QUESTION + ENTER)
    begun = chat.sees("WAITING\r\n").removesuffix("WAITING\n")
    assert "def is_empty" in begun
    chat.process.send(CTRL_C)
    partial, note, gap = (begun + chat.shown()).rsplit("\n", 2)
    assert note == "" and gap == ""
    assert partial.endswith("\nlacli: stopped")
    partial = partial.removesuffix("\nlacli: stopped")
    chat.says(f"/save {tmp_path}/chat.json")
    kept = read_chat(tmp_path / "chat.json").messages[1].content
    # The rest of a step that was not on the screen yet is kept too.
    assert kept.startswith(partial)
    for line in ("/clear", "/set default", f"/set predict {SIZE}"):
        chat.says(line)
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION))


def test_ctrl_c_while_a_message_is_read_in_leaves_the_question_open(start_chat: Start, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("".join(f"self.x{number} = {number}\n" for number in range(200)))
    chat = start_chat(program=until_ctrl_c("batch.positions[0] > 200"))
    chat.send(f"/read {file} {QUESTION}{ENTER}")
    # Between the words about the file and its first token Ctrl-C is not heard.
    assert " tokens\n" in chat.sees("WAITING\r\n")
    chat.process.send(CTRL_C)
    assert "stopped before the answer began; /regen gives it" in chat.shown()
    assert shown(answer("-f", str(file), "-p", QUESTION))[:-1] in chat.says("/regen")


def test_ctrl_c_clears_a_typed_line(chat: ChatTerminal) -> None:
    assert chat.says(f"/nothing{CTRL_C}/mode").startswith("lookup")


@pytest.mark.parametrize(
    ("keys", "code"), [("/exit\r", 0), ("/bye\r", 0), ("/quit\r", 0), (CTRL_D, 0), (CTRL_C + CTRL_C, 130)]
)
def test_each_way_out_has_its_exit_code(start_chat: Start, keys: str, code: int) -> None:
    chat = start_chat()
    assert chat.ends(keys) == code


def test_ctrl_c_once_is_a_hint_and_is_forgotten_with_the_next_line(chat: ChatTerminal) -> None:
    hint = "Ctrl-C again leaves, and so does Ctrl-D\n"
    assert chat.press(CTRL_C) == hint
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION))
    assert chat.press(CTRL_C) == hint
    assert chat.says("/mode").startswith("lookup")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(start_chat: Start, number: signal.Signals) -> None:
    chat = start_chat()
    at_prompt = attributes(chat)
    chat.process.send("typed")
    chat.process.expect_exact("typed")
    chat.process.kill(number)
    shown = chat.process.read()
    chat.process.wait()
    assert chat.process.exitstatus == 128 + number
    # What a shell of one's own would look at: echo, lines, signals, and no mode of the prompt's.
    assert attributes(chat) == usual_attributes() != at_prompt
    assert shown.endswith("\x1b[?2004l\x1b[?25h\r\n")


def test_keys_typed_while_an_answer_comes_wait_for_the_next_line(start_chat: Start, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    program = waiting("batch.wanted and batch.positions[0] > 30", f"os.path.exists({str(go_on)!r})")
    chat = start_chat(program=program)
    chat.send(QUESTION + ENTER)
    chat.sees("WAITING\r\n")
    chat.process.send("/modf\x7fe")
    go_on.touch()
    assert "/mod" not in chat.shown()
    assert chat.press(ENTER).startswith("lookup")
    assert "/mode" in plain(chat.drawn)


@pytest.mark.parametrize("question", ["", QUESTION])
def test_a_terminal_that_goes_away_ends_it_without_a_word(question: str, tmp_path: Path) -> None:
    terminal, inside = os.openpty()
    process = start(
        "chat", "-q", "--ignore-eos", "--mode", "plain", stdin=inside, stdout=inside,
        env={"XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    os.close(inside)
    _read_until(terminal, b"\x1b[?2004h")
    if question:
        os.write(terminal, question.encode() + b"\r")
        _read_until(terminal, b"def")
    os.close(terminal)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode in (0, 1, -signal.SIGHUP)
    assert b"Traceback" not in err and err.count(b"\n") <= 1


def _read_until(terminal: int, wanted: bytes) -> None:
    read = b""
    while wanted not in read:
        read += os.read(terminal, 4096)


def test_lines_are_known_in_the_next_chat(start_chat: Start) -> None:
    first = start_chat()
    first.says("/mode plain")
    assert first.ends() == 0
    assert start_chat().says(UP) == "mode: lookup -> plain\n"


def test_without_history_no_line_is_kept(start_chat: Start, tmp_path: Path) -> None:
    chat = start_chat("--no-history")
    chat.says("/mode plain")
    assert chat.says(UP).startswith("mode is plain already")
    assert chat.ends() == 0
    assert not (tmp_path / "state").exists()


def test_a_broken_history_is_said_in_a_line_and_left_alone(start_chat: Start, tmp_path: Path) -> None:
    file = tmp_path / "state" / "lacli" / "history"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(range(256)))
    chat = start_chat()
    assert chat.greeting.count(f"lines are not kept after this chat: {file}") == 1
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION))
    assert chat.ends() == 0
    assert file.read_bytes() == bytes(range(256))


def test_twenty_columns_lose_nothing(start_chat: Start) -> None:
    chat = start_chat(columns=20)
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION))
    for line in ("/help", "/set", "/show", "/nothing"):
        reply = chat.says(line)
        assert all(len(row) <= 20 or " " not in row.strip() for row in reply.splitlines())
    words = chat.says("/help").split()
    assert all(word in words for entry in COMMANDS for word in f"{entry.shown} {entry.help}".split())
    assert re.search(r"S [\d.]+ · context \d%\x1b", chat.drawn)
    assert chat.ends() == 0


def test_no_color_leaves_no_colours(start_chat: Start) -> None:
    chat = start_chat("--show-accepted", "-n", "30", "--mode", "lookahead", NO_COLOR="1")
    text = answer("-p", QUESTION, "-n", "30")
    assert chat.says(QUESTION) == shown(text)
    assert "\x1b[" not in chat.raw
    chat.says("/nothing")
    assert "\x1b[" not in chat.raw
    assert not re.search(r"\x1b\[[\d;]*[349]\dm", chat.drawn)


def test_a_dumb_terminal_gets_a_prompt_and_no_codes() -> None:
    terminal = on_terminal("chat", *QUICK, "--show-accepted", env={**NOTHING, "TERM": "dumb"})
    for line in (QUESTION, "/mode"):
        terminal.expect_exact("> ")
        terminal.send(line + ENTER)
        terminal.expect_exact(line)
    terminal.expect_exact("lookup, match up to 2")
    terminal.send(CTRL_D)
    rest = terminal.read()
    terminal.close()
    assert terminal.exitstatus == 0 and "\x1b" not in rest


def test_run_without_a_prompt_is_a_chat_and_with_one_is_none(tmp_path: Path) -> None:
    chat = ChatTerminal("run", *QUICK, env={**NOTHING, "XDG_STATE_HOME": str(tmp_path)})
    assert "/help for help" in chat.greeting
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION))
    assert chat.ends() == 0
    terminal = on_terminal("run", "-q", *QUICK, "-p", QUESTION)
    assert terminal.read().replace("\r\n", "\n") == shown(answer("-p", QUESTION))[:-1]
