"""The command line: pipes, flags, JSON, colours, Ctrl-C, help, the environment."""

from __future__ import annotations

import json
import re
import signal
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from lacli.batch import Batch
from lacli.cli.main import COMMANDS
from lacli.cli.run import first_block
from lacli.errors import LacliError
from lacli.llamacpp.context import LlamaContext
from lacli.terminal.input import read_question
from tests.loading import STDLIB_7M
from tests.program import call, exit_code, finish, on_terminal, run, start

QUESTION = "Show me the source code of `json.dumps`."
SIZE = 30
"""Tokens of most answers here: enough for accepted drafts, and quick."""

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
ANSWER_COLOUR = re.compile(r"\x1b\[(?:3[1-6]|94)m(.*?)\x1b\[0m", re.DOTALL)


def answer(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the JSON object of `lacli run --json`, which has to end with code 0."""
    done = call("run", "--json", *arguments, stdin=stdin, env=env)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """Return the JSON answer to QUESTION, which other runs are compared with."""
    return answer("-p", QUESTION, "-n", str(SIZE))


@pytest.mark.parametrize("arguments", [[], ["-p", "-"], ["-f", "-"], [str(STDLIB_7M), "-"]])
def test_a_prompt_through_a_pipe_is_the_prompt_of_p(arguments: list[str], reference: dict[str, Any]) -> None:
    found = answer(*arguments, "-n", str(SIZE), stdin=f"{QUESTION}\n".encode())
    assert (found["tokens"], found["prompt_n"]) == (reference["tokens"], reference["prompt_n"])


@pytest.mark.parametrize(
    ("prompt", "file", "piped", "question"),
    [
        ("third", "first\n", "\nsecond\nline\n\n", "first\n\nsecond\nline\n\nthird"),
        ("\n as it is\n", None, "", "\n as it is\n"),
        (None, None, "one newline less\n\n", "one newline less\n"),
    ],
)
def test_file_then_pipe_then_p_with_a_blank_line_between(
    prompt: str | None, file: str | None, piped: str, question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(piped.encode()), "utf-8"))
    path = tmp_path / "prompt.txt"
    path.write_text(file or "")
    files = [str(path)] if file else []
    assert read_question(prompt, files) == question
    assert not file or read_question(prompt, files * 2, stdin=False) == f"first\n\nfirst\n\n{prompt}"


def test_a_run_says_that_its_input_added_something_and_can_be_told_to_leave_it(reference: dict[str, Any]) -> None:
    sizes = ("-n", str(SIZE))
    added = call("run", "-p", "hi", "-n", "1", stdin=b"1\n2").err
    assert "lacli: added standard input to the prompt (--no-stdin adds none)\n" in added
    assert answer("--no-stdin", "-p", QUESTION, *sizes, stdin=b"1\n2")["tokens"] == reference["tokens"]


FENCE = "`" * 3


@pytest.mark.parametrize(
    ("text", "block"),
    [
        (f"Here:\n{FENCE}python\nx = 1\n\ny = 2\n{FENCE}\nand\n{FENCE}\nno\n{FENCE}\n", "x = 1\n\ny = 2"),
        (f"1. Do:\n   {FENCE}sh\n   ls\n     -l\n   {FENCE}\n", "ls\n  -l"),
        (f"{FENCE}`md\n{FENCE}\ninner\n{FENCE}\n{FENCE}`", f"{FENCE}\ninner\n{FENCE}"),
        (f"{FENCE}a{FENCE} is no block\n~~~\nthis\n~~~", "this"),
        (f"{FENCE}\n{FENCE}", ""),
    ],
)
def test_the_first_fenced_block_is_found(text: str, block: str) -> None:
    assert first_block(text) == block


@pytest.mark.parametrize("text", ["", "no block", f"{FENCE}python\nit was cut"])
def test_an_answer_without_a_whole_fenced_block_is_an_error(text: str) -> None:
    with pytest.raises(LacliError, match="no complete fenced block"):
        first_block(text)


def test_extract_prints_the_block_alone() -> None:
    asked = ("-p", "Write a Python function is_empty: Return true if the queue is empty.", "-n", "60")
    whole, block = call("run", *asked), call("run", *asked, "-x")
    assert (block.code, block.out) == (0, f"{first_block(whole.out)}\n") and block.out.count("\n") > 1


def test_raw_continues_the_prompt_without_the_template(tiny: Path) -> None:
    spelled = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    by_template, raw = answer(str(tiny), "-p", "hi", "-n", "9"), answer(str(tiny), "--raw", "-p", spelled, "-n", "9")
    assert by_template["tokens"] == raw["tokens"]
    assert answer(str(tiny), "--raw", "-p", "hi", "-n", "1")["prompt_n"] == 2 < by_template["prompt_n"]


def test_a_full_context_ends_the_answer_and_is_said_and_a_reached_limit_is_not(tiny: Path) -> None:
    full = call("run", str(tiny), "--raw", "-p", "hi", "-c", "100", "--json")
    found = json.loads(full.out)
    assert found["finish_reason"] == "length"
    assert found["prompt_n"] + found["predicted_n"] == 256 + 1, "the last token needs no cell"
    assert "context of 256 tokens is full" in full.err
    cut = "lacli: the answer was cut after 4 tokens (-n)\n"
    assert call("run", str(tiny), "-n", "4", "-c", "512", "-p", QUESTION).err == cut
    assert call("run", "-q", str(tiny), "-n", "4", "-p", QUESTION).err == ""


def test_without_flags_the_model_is_smollm2_the_mode_auto_and_a_size_means_lookahead(
    reference: dict[str, Any], tiny: Path
) -> None:
    unnamed = call("run", "-p", "hi", "-n", "1", env={"LACLI_MODEL": ""})
    assert unnamed.err.startswith("lacli: no MODEL given: this is smollm2-135m\n")
    assert (reference["mode"], reference["auto_rows"], reference["window"]) == ("auto", 64, 15)
    asked = (str(tiny), "-p", "hi", "-n", "1")
    for flags, mode in {"-W 3": "lookahead", "--preset 34b": "lookahead", "-W 3 --mode auto": "auto"}.items():
        assert answer(*asked, *flags.split())["mode"] == mode
    assert answer(*asked, env={"LACLI_WINDOW": "3"})["mode"] == "lookahead"


SHOWN = ("run", "--mode", "lookahead", "-p", QUESTION, "-n", str(SIZE))


ENDLESS = ("run", "-q", "--raw", "-p", "def f(x):", "-c", "16384", "--ignore-eos")
"""Arguments of an answer of half a minute, so that it still runs after a late Ctrl-C."""


@pytest.mark.parametrize(("calls", "tokens"), [(0, 0), (4, 3)], ids=["in the prompt", "in the answer"])
def test_ctrl_c_leaves_the_object_and_the_report_of_the_part_that_was_answered(
    calls: int, tokens: int, reference: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, left = LlamaContext.decode, iter(range(calls))

    def interrupted(engine: LlamaContext, batch: Batch) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return decode(engine, batch)

    monkeypatch.setattr(LlamaContext, "decode", interrupted)
    done = call("run", "-q", "--json", "--stats", "--mode", "plain", "-p", QUESTION)
    found = json.loads(done.out)
    assert (done.code, found["finish_reason"]) == (130, "interrupt")
    assert re.match(rf"\d+ prompt tokens in .*; {tokens} tokens in" if tokens else "no token", done.err)
    assert found["tokens"] == reference["tokens"][:tokens]
    assert reference["text"].startswith(found["text"])


def test_help_names_the_commands_and_is_shown_without_one() -> None:
    for arguments in (["--help"], ["-h"], []):
        done = call(*arguments)
        assert (done.code, done.err) == (0, "") and "Usage: lacli" in done.out and "run" in done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_fits_on_one_screen(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, everything = call(command, "-h").out, call(command, "--help-all").out
    assert len(short.splitlines()) <= 45 and max(map(len, short.splitlines())) <= 80
    assert set(re.findall(r"--[a-z-]+", short)) - {"--help-all"} <= set(re.findall(r"--[a-z-]+", everything))


@pytest.mark.parametrize(
    "arguments", [["-m", "lacli", "--help"], ["-m", "lacli", "run", "--help"], ["-c", "import lacli"]]
)
def test_help_and_import_load_none_of_the_large_libraries(arguments: list[str]) -> None:
    done = run(*arguments, program=(sys.executable, "-X", "importtime"))
    assert done.code == 0
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.err.splitlines()}
    assert "lacli" in imported
    assert not imported & {"llama_cpp", "huggingface_hub", "numpy", "rich"}


def test_escape_codes_come_only_if_they_are_wanted() -> None:
    for flags, env in (["--show-accepted"], {"NO_COLOR": "1"}), (["-q"], {}):
        assert "\x1b" not in finish(on_terminal(*SHOWN, *flags, env=env)).out
    plain = call(*SHOWN, "--show-accepted").out
    assert "\x1b" not in plain
    shown = finish(on_terminal(*SHOWN, "-q", "--show-accepted")).out
    assert ANSWER_COLOUR.search(shown) and ESCAPE.sub("", shown) == plain
    coloured = call(*SHOWN, "--show-accepted", "--color", "on", env={"NO_COLOR": "1"})
    assert ANSWER_COLOUR.search(coloured.out) and ESCAPE.sub("", coloured.out) == plain
    assert "accepted in parallel: " in ESCAPE.sub("", coloured.err)
    assert "\x1b" not in finish(on_terminal(*SHOWN, "--show-accepted", "--color", "off")).out


@pytest.mark.parametrize("when", ["loading", "answering"])
def test_an_interrupt_ends_a_process_with_130_and_no_traceback(when: str) -> None:
    with start(*ENDLESS, "-v", "--stats") as process:
        assert process.stdout and process.stderr
        assert process.stderr.readline()
        if when == "answering":
            # This line of the log is among the last ones before the answer.
            for line in process.stderr:
                if b"sched_reserve" in line:
                    break
            assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert exit_code(process.returncode) == 130
    assert b"Traceback" not in err and b"ignored" not in err
    assert not out or out.endswith(b"\n")
