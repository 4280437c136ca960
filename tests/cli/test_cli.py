"""The command line as a person uses it: pipes, flags, JSON, statistics, colours, Ctrl-C, help, the environment."""

from __future__ import annotations

import json
import re
import signal
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from lacli import __version__
from lacli.batch import Batch
from lacli.cli.main import COMMANDS
from lacli.llamacpp.context import LlamaContext
from lacli.text.files import read_question
from tests.fakes.tiny_models import write_llama
from tests.loading import STDLIB_7M
from tests.program import call, exit_code, finish, on_terminal, run, start

QUESTION = "Show me the source code of `json.dumps`."
SIZE = 30
"""Tokens of most answers here: enough for guesses to come true, and quick."""

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
ANSWER_COLOUR = re.compile(r"\x1b\[(?:3[1-6]|94)m(.*?)\x1b\[0m", re.DOTALL)


def answer(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON object of a run that has to end well."""
    done = call("run", "--json", *arguments, stdin=stdin, env=env)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def printed(text: str) -> str:
    """What stdout shows of an answer: its last line ended."""
    return text if text.endswith("\n") else f"{text}\n"


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """The answer to QUESTION that other runs are compared with."""
    return answer("-p", QUESTION, "-n", str(SIZE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> str:
    path = folder / "tiny-llama.gguf"
    write_llama(path)
    return str(path)


def test_one_line_says_which_model_runs_unless_it_was_named_or_quiet(tiny: str) -> None:
    unnamed = call("run", "-p", "hi", "-n", "1", env={"LACLI_MODEL": ""})
    assert unnamed.err.splitlines() == ["lacli: no MODEL given: this is smollm2-135m"]
    assert call("run", tiny, "-p", "hi", "-n", "1").err == "", "a limit that was chosen is not told"
    assert call("run", tiny, "-p", "hi", "-n", "1", "--json").err == call("run", "-q", "-p", "hi", "-n", "1").err == ""


@pytest.mark.parametrize("arguments", [[], ["-p", "-"], ["-f", "-"], [str(STDLIB_7M), "-"]])
def test_a_prompt_through_a_pipe_is_the_prompt_of_p(arguments: list[str], reference: dict[str, Any]) -> None:
    found = answer(*arguments, "-n", str(SIZE), stdin=f"{QUESTION}\n".encode())
    assert found["tokens"] == reference["tokens"]
    assert found["prompt_n"] == reference["prompt_n"]


@pytest.mark.parametrize(
    ("prompt", "file", "piped", "question"),
    [
        ("third", "first\n", "second\nline\n", "first\n\nsecond\nline\n\nthird"),
        ("third", None, "\nsecond\n\n\n", "second\n\nthird"),
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
    assert read_question(prompt, str(path) if file else None) == question


def test_a_run_says_that_its_input_added_something_and_can_be_told_to_leave_it(reference: dict[str, Any]) -> None:
    sizes = ("-n", str(SIZE))
    added = call("run", "-p", "hi", "-n", "1", stdin=b"1\n2").err
    assert added.endswith("lacli: added standard input to the prompt (--no-stdin adds none)\n")
    assert answer("--no-stdin", "-p", QUESTION, *sizes, stdin=b"1\n2")["tokens"] == reference["tokens"]


def test_raw_continues_the_prompt_without_the_template(tiny: str) -> None:
    spelled = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    by_template, raw = answer(tiny, "-p", "hi", "-n", "9"), answer(tiny, "--raw", "-p", spelled, "-n", "9")
    assert by_template["tokens"] == raw["tokens"]
    assert answer(tiny, "--raw", "-p", "hi", "-n", "1")["prompt_n"] == 2 < by_template["prompt_n"]


def test_a_full_context_ends_the_answer_and_is_said_and_a_reached_limit_is_not(tiny: str) -> None:
    full = call("run", tiny, "--raw", "-p", "hi", "-c", "100", "--json")
    found = json.loads(full.out)
    assert found["finish_reason"] == "length"
    assert found["prompt_n"] + found["predicted_n"] == 256 + 1, "the last token needs no cell"
    assert "context of 256 tokens is full" in full.err
    cut = call("run", tiny, "-n", "4", "-c", "300", "-p", QUESTION)
    assert "is full" not in cut.err


def test_json_is_one_flat_object_whose_counts_agree() -> None:
    done = call("run", "--json", "--mode", "lookahead", "-p", QUESTION, "-n", str(SIZE))
    assert done.out.count("\n") == 1
    found = json.loads(done.out)
    assert [key for key, value in found.items() if isinstance(value, dict)] == ["sources", "pool"]
    for kind, total in (("tried", "draft_n"), ("accepted", "draft_n_accepted")):
        assert sum(source[kind] for source in found["sources"].values()) == found[total]
    lengths = list(enumerate(found["accept_hist"], start=1))
    assert found["predicted_n"] == len(found["tokens"]) == sum(steps * length for length, steps in lengths)
    assert found["steps"] == sum(found["accept_hist"])
    assert found["tokens_per_step"] == pytest.approx(SIZE / found["steps"], abs=1e-3)
    assert 0 < found["draft_n_accepted"] <= found["draft_n"] and found["model"] == str(STDLIB_7M)


def test_stats_go_to_stderr() -> None:
    done = call("run", "-q", "--stats", "full", "-p", QUESTION, "-n", str(SIZE), "-W", "30", "-G", "1", "-N", "8")
    subjects = {line.split()[0] for line in done.err.splitlines()}
    assert subjects >= {"model", "mode", "prompt", "answer", "steps", "tokens", "rows", "drafts", "pool"}
    assert "W=30 N=8 G=1" in done.err and "tokens/s" not in done.out
    plain = call("run", "-q", "--stats", "--mode", "plain", "-p", "hi", "-n", "3").err
    assert re.fullmatch(r"3 tokens in [0-9.]+ s \([0-9.,]+ tokens/s\)\n", plain)


def test_without_flags_the_mode_is_auto_and_a_size_means_lookahead(reference: dict[str, Any], tiny: str) -> None:
    assert (reference["mode"], reference["auto_rows"], reference["window"]) == ("auto", 64, 15)
    asked = (tiny, "-p", "hi", "-n", "1")
    for flags, mode in {"-W 3": "lookahead", "--preset 34b": "lookahead", "-W 3 --mode auto": "auto"}.items():
        assert answer(*asked, *flags.split())["mode"] == mode
    assert answer(*asked, env={"LACLI_WINDOW": "3"})["mode"] == "lookahead"


SHOWN = ("run", "--mode", "lookahead", "-p", QUESTION, "-n", str(SIZE))


def test_accepted_tokens_are_coloured_on_a_terminal_and_a_legend_says_which_is_which() -> None:
    drafted = answer(*SHOWN[1:])
    out = finish(on_terminal(*SHOWN, "--show-accepted")).out
    *_, legend = ESCAPE.sub("", out).splitlines()
    assert printed(drafted["text"]) in ESCAPE.sub("", out)
    assert 0 < len(ANSWER_COLOUR.findall(out)) <= out.count("\x1b[0m")
    assert legend.startswith("lacli: accepted in parallel: ")
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", legend)}
    assert counts == {name: of["accepted"] for name, of in drafted["sources"].items() if of["accepted"]}
    quiet = finish(on_terminal(*SHOWN, "-q", "--show-accepted")).out
    assert ESCAPE.sub("", quiet) == printed(drafted["text"])
    assert 0 < len(ANSWER_COLOUR.findall(quiet)) == quiet.count("\x1b[0m") <= drafted["draft_n_accepted"]


ENDLESS = ("run", "-q", "--raw", "-p", "def f(x):", "-c", "16384", "--ignore-eos")
"""An answer that takes half a minute, so it goes on however late Ctrl-C comes."""


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
    assert done.err.startswith(f"{tokens} tokens in" if tokens else "no token")
    assert found["tokens"] == reference["tokens"][:tokens]
    assert reference["text"].startswith(found["text"])


def test_help_names_the_commands_and_version_is_the_packages() -> None:
    for arguments in (["--help"], ["-h"], []):
        done = call(*arguments)
        assert (done.code, done.err) == (0, "") and "Usage: lacli" in done.out and "run" in done.out
    for name in COMMANDS:
        done = call(name, "-h")
        assert done.code == 0 and f"Usage: lacli {name} " in done.out and "LACLI_ and a flag" in done.out
    assert call("--version").out.splitlines()[0] == f"lacli {__version__}"


@pytest.mark.parametrize(
    "arguments", [["-m", "lacli", "--help"], ["-m", "lacli", "run", "--help"], ["-c", "import lacli"]]
)
def test_help_and_import_load_none_of_the_large_libraries(arguments: list[str]) -> None:
    done = run(*arguments, program=(sys.executable, "-X", "importtime"))
    assert done.code == 0
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.err.splitlines()}
    assert "lacli" in imported
    assert not imported & {"llama_cpp", "huggingface_hub", "numpy", "rich"}


def test_no_escape_codes_where_they_are_not_wanted() -> None:
    for flags, env in (["--show-accepted"], {"NO_COLOR": "1"}), (["-q"], {}):
        assert "\x1b" not in finish(on_terminal(*SHOWN, *flags, env=env)).out
    assert "\x1b" not in call(*SHOWN, "--show-accepted").out
    coloured = call(*SHOWN, "-q", "--show-accepted", "--color", "on", env={"NO_COLOR": "1"}).out
    assert ANSWER_COLOUR.search(coloured) and ESCAPE.sub("", coloured) == call(*SHOWN, "-q").out
    assert "\x1b" not in finish(on_terminal(*SHOWN, "--show-accepted", "--color", "off")).out


@pytest.mark.parametrize("when", ["loading", "answering"])
def test_an_interrupt_ends_a_process_with_130_and_no_traceback(when: str) -> None:
    with start(*ENDLESS, "-v", "--stats") as process:
        assert process.stdout and process.stderr
        assert process.stderr.readline()
        if when == "answering":
            # The log of the cleared cache is among the last lines before the answer.
            for line in process.stderr:
                if b"sched_reserve" in line:
                    break
            assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert exit_code(process.returncode) == 130
    assert b"Traceback" not in err and b"ignored" not in err
    assert not out or out.endswith(b"\n")
