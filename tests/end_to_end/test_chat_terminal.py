"""`lacli chat` on a real terminal: its output, Ctrl-C, signals, an editor, narrow and plain terminals."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from lacli.chat.transcript import read_chat
from tests.program import PROGRAM, SECONDS, call, on_terminal, start, terminal_code

QUESTION = "Write a Python function is_empty: Return true if the queue is empty."
"""A question without close choices between tokens in its answer, so that every mode gives the same answer."""

SIZE = 12
QUICK = ("-n", str(SIZE), "--mode", "lookup")


@cache
def answer(*flags: str) -> str:
    """Return the text of `lacli run` with these flags."""
    done = call("run", "--json", "-n", str(SIZE), *flags)
    assert done.code == 0, done.err
    text: str = json.loads(done.out)["text"]
    return text


CUT = f"lacli: the answer was cut after {SIZE} tokens (-n); /set n -1 lifts the limit\n"


def shown(text: str, told: str = CUT) -> str:
    """Return the output of a chat for an answer: the text, the line `told`, and an empty line."""
    return text.removesuffix("\n") + f"\n{told}\n"


PASTES, TAKEN = "\x1b[?2004h", "\x1b[?2004l"
"""The codes that turn the marks of pastes on before a prompt is drawn, and off when its line is entered."""

DRAWN = re.compile(r"\x1b\[\?2004h(?:\x1b\[\?1l)?\x1b\[\?25l")
"""The codes at the beginning of a prompt: mark pastes, hide the cursor."""

CODES = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b\]52;[^\a]*\a")
ENTER, UP = "\r", "\x1b[A"
CTRL_C, CTRL_D = "\x03", "\x04"


class ChatTerminal:
    """A chat at its prompt. `drawn`: the output of the last prompt until it was left, with its codes."""

    def __init__(
        self, *arguments: str, env: Mapping[str, str], columns: int = 400, program: Sequence[str] = PROGRAM
    ) -> None:
        self.process = on_terminal(*arguments, env=env, columns=columns, program=program)
        self.process.delaybeforesend = None
        self.drawn = ""
        self.shown()

    def says(self, line: str) -> str:
        """Type a line; return the output until the next prompt."""
        return self.press(line + ENTER)

    def press(self, keys: str) -> str:
        """Type keys that end the prompt; return the output until the next prompt."""
        self.send(keys)
        return self.shown()

    def send(self, keys: str) -> None:
        """Type keys that end the prompt, and wait only for the prompt's end."""
        self.process.send(keys)
        self.process.expect_exact(TAKEN)
        self.drawn = self.process.before

    def sees(self, text: str) -> str:
        """Wait for a text; return the output up to the text's end."""
        self.process.expect_exact(text)
        return plain(self.process.before + text)

    def shown(self) -> str:
        """Wait for the next prompt; return the output before it."""
        self.process.expect(DRAWN)
        return plain(self.process.before)

    def ends(self, keys: str = CTRL_D) -> int:
        """Type keys that end the chat without a traceback; return the exit code."""
        self.process.send(keys)
        assert "Traceback" not in self.process.read()
        self.process.close()
        return terminal_code(self.process)


def plain(shown: str) -> str:
    """Return a terminal's output without codes and ^C, and with plain line ends."""
    return CODES.sub("", shown).replace("^C", "").replace("\r\n", "\n")


Start = Callable[..., ChatTerminal]


@pytest.fixture
def start_chat(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a chat with a separate history; every chat is ended after the test."""
    started: list[ChatTerminal] = []

    def start_one(*arguments: str, columns: int = 400, program: Sequence[str] = PROGRAM, **env: str) -> ChatTerminal:
        changes = {"XDG_STATE_HOME": str(tmp_path / "state"), **env}
        started.append(ChatTerminal("chat", *QUICK, *arguments, env=changes, columns=columns, program=program))
        return started[-1]

    yield start_one
    for terminal in started:
        terminal.process.close(force=True)


def test_a_conversation_is_seen_as_it_was_typed_and_answered(start_chat: Start) -> None:
    """One chat shows everything that only a terminal shows."""
    chat = start_chat("--no-history")
    expected = answer("-p", QUESTION)
    assert chat.says(QUESTION) == shown(expected)
    chat.says("/set mode")
    numbers = r"context \d+ of 2,048 \(\d%\) · lookup · [\d.,]+ tokens/s · [\d.]+ tokens/step"
    assert re.search(numbers, plain(chat.drawn))
    assert "took back the last question" in chat.says("/undo")
    assert chat.press(ENTER) == shown(expected)
    assert QUESTION in plain(chat.drawn)
    assert chat.says(f"/nothing{CTRL_C}/set mode").startswith("mode is lookup")
    assert re.fullmatch(r"lacli: [^\n]{10,}\n", chat.says("/nothing"))
    assert "\x1b[6n" not in chat.drawn, "the chat must not ask for the cursor's position"
    hint = "press Ctrl-C again or Ctrl-D to leave\n"
    assert chat.press(CTRL_C) == hint
    assert chat.says("/set mode").startswith("mode is lookup") and chat.press(CTRL_C) == hint
    assert chat.ends(CTRL_C) == 130


def until_ctrl_c(rows: str) -> tuple[str, ...]:
    """Return a command for lacli that prints WAITING at its first batch with `rows` true, and waits for Ctrl-C."""
    text = f"""
import time
from lacli.__main__ import main
from lacli.llamacpp.context import LlamaContext

decode = LlamaContext.decode

def waiting(engine, batch):
    if {rows}:
        LlamaContext.decode = decode
        print("WAITING", flush=True)
        while True:
            time.sleep(0.01)
    return decode(engine, batch)

LlamaContext.decode = waiting
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
    seen = begun + chat.shown()
    assert seen.endswith("\nlacli: stopped\n\n")
    partial = seen.removesuffix("\nlacli: stopped\n\n")
    chat.says(f"/save {tmp_path}/chat.json")
    kept = read_chat(tmp_path / "chat.json").conversation.messages[1].content
    # The tokens of a step that were not on the screen yet are kept too.
    assert kept.startswith(partial)
    for line in ("/clear", "/set ignore-eos off", f"/set predict {SIZE}"):
        chat.says(line)
    assert chat.says(QUESTION) == shown(answer("-p", QUESTION))


def test_prefill_is_seen_until_ctrl_c_and_the_earlier_turns_stay(start_chat: Start, tmp_path: Path) -> None:
    long_file = tmp_path / "long.txt"
    long_file.write_text("".join(f"self.x{number} = {number}\n" for number in range(200)))
    program = until_ctrl_c("batch.positions[0] > 400")
    chat = start_chat("--no-history", program=program, TTY_INTERACTIVE="1")
    chat.says(QUESTION)
    chat.says(f"/read {long_file}")
    chat.send(QUESTION + ENTER)
    seen = chat.sees("WAITING")
    assert re.search(r"reading the prompt: \d+ of 1,\d{3} tokens, [\d,]+ tokens/s, \d+ s leftWAITING$", seen)
    chat.process.send(CTRL_C)
    after = " ".join(chat.shown().split())
    assert "stopped before the answer began" in after and "reading" not in after
    assert answer("-p", QUESTION) in chat.says(f"{CTRL_C}/regen"), "the question is offered again"


def test_a_terminal_that_goes_away_ends_it_without_a_word(tmp_path: Path) -> None:
    terminal, inside = os.openpty()
    process = start(
        "chat", "-q", "--ignore-eos", "--mode", "plain", stdin=inside, stdout=inside,
        env={"XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    os.close(inside)
    _read_until(terminal, b"\x1b[?2004h")
    os.write(terminal, QUESTION.encode() + b"\r")
    _read_until(terminal, b"def")
    os.close(terminal)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode in (0, 1, -signal.SIGHUP)
    assert b"Traceback" not in err and err.count(b"\n") <= 1


def _read_until(terminal: int, wanted: bytes) -> None:
    read = b""
    while wanted not in read:
        read += os.read(terminal, 4096)


def test_lines_are_known_in_the_next_chat_unless_history_is_off(start_chat: Start, tmp_path: Path) -> None:
    file = tmp_path / "state" / "lacli" / "history"
    assert start_chat("--no-history").ends() == 0 and not file.exists()
    chat = start_chat()
    chat.says("/set mode plain")
    assert chat.ends() == 0 and file.stat().st_mode & 0o777 == 0o600
    chat = start_chat()
    assert chat.says(UP) == "mode: lookup -> plain\n"
