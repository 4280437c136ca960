"""`lacli chat` without a terminal: lines from a pipe or a file, saved chats and logs, a context that gets full."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Message
from lacli.chat.logged import read_log
from lacli.chat.saved import SavedChat, read_chat, write_chat
from tests.program import (
    PROGRAM,
    SECONDS,
    Done,
    call,
    environment,
    run,
    start,
)

QUESTION = "Write a Python function is_empty: Return true if the queue is empty."
"""No choice between two tokens of its answer is close, so every mode gives the same one."""

NEXT = "And for a stack?"
SIZE = 12
QUICK = ("-n", str(SIZE), "--mode", "lookup")


def chat(*arguments: str, lines: list[str], quiet: bool = True, env: dict[str, str] | None = None) -> Done:
    """A chat that reads these lines from a pipe."""
    notes = ["-q"] if quiet else []
    stdin = "".join(f"{line}\n" for line in lines).encode()
    return call("chat", "--commands", *notes, *arguments, stdin=stdin, env=env)


@cache
def answer(*flags: str) -> str:
    """The answer of a run of its own, its last line ended."""
    done = call("run", "-q", "-n", str(SIZE), *flags)
    assert done.code == 0, done.err
    return done.out


def test_answers_alone_go_to_stdout_and_no_control_codes_anywhere() -> None:
    lines = f'{QUESTION}\n/mode\n\n"""\nprint(\n\n1)\n"""\n/nothing\n/set n 4\n//hello\n/stats\n'
    done = run("chat", "--commands", *QUICK, "--show-accepted", stdin=lines.encode())
    assert done.code == 1, "a script hears of the unknown command"
    assert done.out.startswith(answer("-p", QUESTION))
    assert "lookup, match up to 2" in done.err and "unknown command /nothing" in done.err
    assert re.search(r"\nall +\d+ ", done.err)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.out + done.err)
    assert call("chat", "--commands", *QUICK, stdin=lines.encode()).out == done.out


def test_a_line_of_a_pipe_is_no_command_unless_commands_are_wanted(tmp_path: Path) -> None:
    secret, log = tmp_path / "secret", tmp_path / "log"
    secret.write_text("the secret")
    lines = f"/read {secret}\n/save {tmp_path}/saved\n/nothing\n".encode()
    done = call("chat", "--log", str(log), "-n", "2", stdin=lines)
    assert (done.code, done.err.count("--commands makes it a command")) == (0, 1)
    questions = [message.content for message in read_log(log.read_text()).conversation.messages[::2]]
    assert questions == lines.decode().splitlines()
    assert not (tmp_path / "saved").exists()
    assert "--commands" not in call("chat", "-q", "-n", "2", stdin=lines).err


def test_a_message_may_have_several_lines_and_a_slash_at_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    quoted = ['"""', "one", "", "/two", '"""', '"""/mode', '"""']
    chat("-n", "1", lines=[*quoted, "/ three", " /four", "five\\", "six", f"/save {file}"])
    questions = [message.content for message in read_chat(file).messages[::2]]
    assert questions == ["one\n\n/two", "/mode", "/four", "five\nsix"]


def test_a_message_of_the_command_line_comes_first_and_is_no_command(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    done = chat(*QUICK, "-p", QUESTION, lines=[NEXT, f"/save {file}"])
    assert (done.code, done.out) == (0, chat(*QUICK, lines=[QUESTION, NEXT]).out)
    assert [message.content for message in read_chat(file).messages[::2]] == [QUESTION, NEXT]
    chat("-n", "1", "--prompt", "/mode", lines=[f"/save {file}"])
    assert read_chat(file).messages[0].content == "/mode"


@pytest.mark.parametrize("word", ["/exit", "/bye", "/quit"])
def test_a_command_ends_it_before_the_lines_do(word: str) -> None:
    assert chat(*QUICK, lines=[QUESTION, word, "/nothing", QUESTION]) == Done(0, answer("-p", QUESTION), "")


def test_files_can_be_redirected_into_it_and_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "questions").write_text(f"{QUESTION}\n/show\n{QUESTION}")
    done = shell(f"lacli chat --commands -n {SIZE} < questions > answers", tmp_path)
    assert done.returncode == 0 and b"chat      1 question" in done.stderr
    assert (tmp_path / "answers").read_text().startswith(answer("-p", QUESTION))
    assert "question" not in (tmp_path / "answers").read_text()


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("lacli chat -q <&-", 1, "standard input is closed"),
        ("lacli chat -q -n 3 < questions >&-", 1, "cannot write the answer: standard output is closed"),
        ("lacli chat -q -n 3 < questions > /dev/full", 1, "cannot write the answer: No space left on device"),
        ("lacli chat -q -n 3 < questions | head -c 1", 0, ""),
        ("lacli chat -q -n 3 < /dev/null", 0, ""),
    ],
    ids=["no stdin", "no stdout", "full disk", "nobody reads", "no lines"],
)
def test_streams_that_do_not_work_get_a_line_and_no_traceback(
    command: str, code: int, sentence: str, tmp_path: Path
) -> None:
    if "/dev/full" in command and not Path("/dev/full").exists():
        pytest.skip("this system has no full disk")
    (tmp_path / "questions").write_text("hello\nhello\n" * 20)
    done = shell(command, tmp_path)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == code
    assert len(lines) == bool(sentence) and all(sentence in line for line in lines)


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """What a shell makes of a line in which lacli is called."""
    program = shlex.join(PROGRAM)
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("lacli", program, 1)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )


def test_ctrl_c_ends_it_where_nobody_types(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # The answer would take a minute, so it goes on however late Ctrl-C comes.
    flags = ("-n", "20000", "--ignore-eos", "--context-shift", "--mode", "plain", "--log", str(log))
    with start("chat", "-q", *flags, stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(f"{QUESTION}\n{QUESTION}\n".encode())
        process.stdin.flush()
        begun = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=SECONDS)
    shown = begun + rest
    assert (process.returncode, err) == (130, b"")
    assert shown.startswith(b"```python\n") and shown.endswith(b"\n")
    assert read_log(log.read_text("utf-8")).conversation.questions == 1


def test_run_with_a_pipe_asks_it_as_one_question() -> None:
    text = f"{QUESTION}\n/mode\n"
    done = run("run", "-q", *QUICK, stdin=text.encode())
    assert done == Done(0, answer("-p", text.removesuffix("\n")), "")


@pytest.mark.parametrize(("flags", "sequences"), [(("--mode", "lookahead"), 46), ((), 79)], ids=["lookahead", "auto"])
def test_more_sequences_than_before_are_said_and_change_no_answer(flags: tuple[str, ...], sequences: int) -> None:
    done = chat(*flags, "-n", str(SIZE), lines=[QUESTION, "/set W 30", "/regen", "/clear", QUESTION])
    assert f"the context was made anew, for {sequences} sequences" in done.err
    assert done.out == 3 * answer("-p", QUESTION, "-W", "30")


def test_an_error_costs_its_line_only() -> None:
    raw = [b"\xff\n", b"/load nowhere\n", b"/set grammar root ::= (\n", b"/set W 400\n", f"{QUESTION}\n".encode()]
    done = call("chat", "-q", "--commands", "-n", str(SIZE), stdin=b"".join(raw))
    assert done.code == 1 and done.out == answer("-p", QUESTION)
    assert [line.partition(" ")[0] for line in done.err.splitlines()] == ["lacli:"] * 4


def test_flags_beside_load_win_also_where_they_are_what_flags_are_by_default(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat("--temp", "0.7", "-s", "9", "-W", "4", "-n", "5", lines=[f"/save {file}"])
    asked = ["/set temp", "/set W", "/set seed", "/set n"]
    shown = chat("--load", str(file), "--temp", "0", "-W", "15", lines=asked)
    found = [line.partition(" (")[0] for line in shown.err.splitlines()]
    assert found == ["temp is 0", "W is 15", "seed is 9", "predict is 5"]
    assert chat("--load", str(file), lines=["/set W"], env={"LACLI_WINDOW": "11"}).err.startswith("W is 4 ")


def test_a_system_prompt_of_the_environment_is_for_new_chats(tmp_path: Path) -> None:
    file, env = tmp_path / "chat.json", {"LACLI_SYSTEM_PROMPT": "outside"}
    chat("-n", "1", lines=[QUESTION, f"/save {file}"], env=env)
    assert read_chat(file).system == "outside"
    chat("-n", "1", "--load", str(file), lines=["/system inside", f"/save {file}"], env=env)
    chat("-n", "1", "--load", str(file), lines=[f"/save {file}"], env=env)
    assert read_chat(file).system == "inside"


def test_all_flags_beside_load_win_and_the_environment_does_not(tmp_path: Path) -> None:
    file, grammar = tmp_path / "chat.json", tmp_path / "form.gbnf"
    grammar.write_text('root ::= "a"')
    chat("-sys", "Be nice.", "--chat-template", "alpaca", "-j", "{}", lines=[f"/save {file}"])
    asked = ["/system", "/show", "/set G", "/set grammar", "/set json-schema"]
    typed = ["-sys", "", "--preset", "creative", "--grammar-file", str(grammar)]
    env = {"LACLI_CHAT_TEMPLATE": "llama3", "LACLI_STRICT": "1"}
    shown = chat("--load", str(file), *typed, lines=[*asked, f"/save {file}"], env=env).err
    for words in (
        "there is no system prompt",
        "template  alpaca",
        "G is 8 ",
        'grammar is root ::= "a"',
        "schema is none",
    ):
        assert words in shown
    assert not read_chat(file).adjusted.decoding.strict
    schema = chat("--load", str(file), "--json-schema-file", "/dev/stdin", lines=["{}"])
    assert "both given" not in schema.err


def test_every_line_of_a_log_has_its_own_time(tmp_path: Path) -> None:
    log = tmp_path / "chat.jsonl"
    chat("-n", "8", "--log", str(log), lines=[QUESTION, NEXT])
    times = [json.loads(line)["time"] for line in log.read_text().splitlines()]
    assert times == sorted(times) and times[0] < times[-1]


@pytest.mark.parametrize("flags", [[], ["--temp", "0.8", "-s", "7"]], ids=["greedy", "sampled"])
def test_a_loaded_chat_goes_on_as_the_saved_one_does(flags: list[str], tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    own = ["--strict", "-n", "20", "-sys", "Be brief.", "--stop", "@@", *flags]
    whole = chat(*own, lines=[QUESTION, f"/save {file}", NEXT, "/regen"])
    first = chat(*own, lines=[QUESTION])
    again = chat("--load", str(file), lines=[NEXT, "/regen"])
    assert again.code == 0
    assert first.out + again.out == whole.out
    later = chat("--load", str(file), "-n", "3", lines=["/show", NEXT])
    assert "predict 3" in later.err and "system    Be brief." in later.err
    assert again.out.startswith(later.out.removesuffix("\n"))


def test_a_chat_whose_last_question_is_open_is_loaded_too(tmp_path: Path) -> None:
    file = str(tmp_path / "chat.json")
    write_chat(file, SavedChat("", "", (Message("user", QUESTION),), Adjusted()))
    assert chat("--load", file, *QUICK, lines=["/regen"]).out == answer("-p", QUESTION)


BROKEN = {
    "empty": "",
    "cut off": '{"format": "lacli chat", "version": 1, "messages": [',
    "another": '{"answer": 42}',
    "newer": '{"format": "lacli chat", "version": 99}',
    "no turns": '{"format": "lacli chat", "version": 1, "messages": [{"role": "assistant", "content": "x"}]}',
    "a wrong value": '{"format": "lacli chat", "version": 1, "messages": [], "settings": {"temp": "hot"}}',
    "no grammar": '{"format": "lacli chat", "version": 1, "messages": [], "settings": {"grammar": "root ::= ("}}',
    "too many": '{"format": "lacli chat", "version": 1, "messages": [], "settings": {"window": 9999}}',
    "no model": '{"format": "lacli chat", "version": 1, "messages": [], "model": "/no/such.gguf"}',
    "no template": '{"format": "lacli chat", "version": 1, "messages": [], "template": "nowhere"}',
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in BROKEN.items()])
def test_a_broken_session_file_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(text)
    done = chat("--load", str(file), lines=[QUESTION])
    assert done.code in (1, 2) and done.out == ""
    assert re.fullmatch(r"lacli: [^\n]{10,}\n", done.err)


def test_the_log_holds_the_conversation_that_is_saved(tmp_path: Path) -> None:
    log, file = tmp_path / "chat.jsonl", tmp_path / "chat.json"
    for line in ("one", "two"):
        lines = [
            *("/system Be brief.", QUESTION, "second", "/undo", "third", "/regen", "fourth", "/compact", "/nothing"),
            *(f"/save {file}", f"/load {file}", "/set temp 0.5", line, "x " * 400, f"/save {file}"),
        ]
        assert chat("-n", "6", "-c", "256", "--log", str(log), lines=lines).code == 1, "/nothing is no command"
        saved = read_chat(file)
        rebuilt = read_log(log.read_text("utf-8")).conversation
        assert (rebuilt.system, tuple(rebuilt.messages)) == (saved.system, saved.messages)
        assert saved.messages[-2] == Message("user", line)
    events = [json.loads(each) for each in log.read_text().splitlines()]
    assert [each["event"] for each in events].count("session") == 2
    assert all(each["tokens"] <= 6 and each["finish_reason"] for each in events if each.get("role") == "assistant")


def test_a_log_that_cannot_be_opened_ends_it_before_the_first_question(tmp_path: Path) -> None:
    done = chat("--log", str(tmp_path), lines=[QUESTION])
    assert done.code == 1 and done.out == ""
    assert re.fullmatch(r"lacli: cannot write the log [^\n]+\n", done.err)


LONG_ANSWERS = ("-c", "256", "-n", "60", "--mode", "lookup", "--ignore-eos")


def test_a_full_context_ends_an_answer_with_a_sentence_and_compact_makes_room(tmp_path: Path) -> None:
    questions = [f"{QUESTION} {number}" for number in range(3)]
    file = tmp_path / "chat.json"
    done = chat(*LONG_ANSWERS, lines=[*questions, NEXT, "/compact", NEXT, f"/save {file}", "/stats"], quiet=False)
    assert done.code == 1, "a message had no room"
    _, full, refused, dropped, *_ = done.err.splitlines()
    choice = "/compact drops the oldest questions, /clear forgets all, or start again with -c 512"
    assert full == f"lacli: the context of 256 tokens is full and the answer ends here: {choice}"
    assert re.fullmatch(r"lacli: with this message the conversation has \d+ tokens, and the context 256 (.*)", refused)
    assert choice in refused
    assert re.match(r"dropped the oldest 2 questions and answers; \d+ of 256 tokens used", dropped)
    assert [message.content for message in read_chat(file).messages[::2]] == [questions[2], NEXT]
    assert re.search(r"\n4 +60 ", done.err)


@pytest.mark.parametrize("flags", [[], ["--context-shift"]], ids=["", "shifted"])
def test_a_message_larger_than_the_context_is_refused_and_costs_nothing_else(flags: list[str], tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    long = " ".join(f"x{number}" for number in range(300))
    done = chat("-c", "256", *QUICK, *flags, lines=[QUESTION, "second", long, f"/save {file}", NEXT])
    refusal = [line for line in done.err.splitlines() if line.startswith("lacli: ")]
    assert len(refusal) == 1 and "tokens" in refusal[0] and "256" in refusal[0]
    assert [message.content for message in read_chat(file).messages[::2]] == [QUESTION, "second"]
    assert done.out == chat("-c", "256", *QUICK, lines=[QUESTION, "second", NEXT]).out


def test_a_shifted_context_goes_on_and_says_what_it_forgets() -> None:
    lines = [f"{QUESTION} {number}" for number in range(5)]
    done = chat(*LONG_ANSWERS, "--context-shift", lines=[*lines, "/set predict 300", NEXT, "/stats"], quiet=False)
    assert "is full and the answer ends here" not in done.err and "with this message" not in done.err
    assert "the context was full: the oldest question and its answer are forgotten" in done.err
    assert re.search(r"the context was full: \d+ tokens behind the system prompt are forgotten", done.err)
    assert len(re.findall(r"\n\d +60 ", done.err)) == 5 and re.search(r"\n6 +300 ", done.err)


def test_strict_does_not_shift_and_says_so() -> None:
    done = chat(*LONG_ANSWERS, "--context-shift", "--strict", lines=["/show"], quiet=False)
    assert "the context is not shifted when it is full: --strict does not allow it" in done.err
