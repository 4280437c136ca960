"""The start of the program: Ctrl-C while modules load, in `python -m lacli` and in the installed command."""

from __future__ import annotations

import errno
import signal
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from lacli import __main__
from tests.program import IN_BASH, PROGRAM, ROOT, Done, call, run, start

INTERRUPTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            exec("signal.raise_signal(signal.SIGINT)")

sys.meta_path.insert(0, Interrupting())
"""
"""A start-up module for Python that raises Ctrl-C when the import of INTERRUPTED_IMPORT begins.

It raises it inside `exec`, as dataclasses run their code. Then the signal ends Python even if the program catches it.
"""

EARLY = ["lacli.cli.main", "typer", "lacli.cli.options", "lacli.settings"]
"""Modules that load before the command line is read, with the first and the last one."""

LATER = {"run": ["lacli.engine.load", "numpy", "llama_cpp"], "chat": ["lacli.chat.repl", "numpy", "llama_cpp"]}


def installed() -> Sequence[str]:
    """Return the command that runs the same Python as pip's script for the entry point."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["lacli"]
    module, _, function = entry.partition(":")
    return (sys.executable, "-c", f"import sys; from {module} import {function}; sys.exit({function}())")


def interrupted(at: str, folder: Path, *arguments: str, program: Sequence[str] = PROGRAM) -> Done:
    (folder / "sitecustomize.py").write_text(INTERRUPTING)
    env = {"PYTHONPATH": f"{folder}:{ROOT}", "INTERRUPTED_IMPORT": at}
    return run(*arguments, stdin=b"hi\n", env=env, program=program)


@pytest.mark.parametrize("program", [PROGRAM, installed()], ids=["module", "script"])
@pytest.mark.parametrize("at", EARLY)
def test_ctrl_c_while_the_program_loads_ends_it_with_130_and_nothing_else(
    at: str, program: Sequence[str], tmp_path: Path
) -> None:
    assert interrupted(at, tmp_path, "run", program=program) == Done(130, "", "")


@pytest.mark.parametrize(("command", "at"), [(command, at) for command in LATER for at in LATER[command]])
def test_ctrl_c_while_a_command_loads_what_it_needs_does_so_too(command: str, at: str, tmp_path: Path) -> None:
    assert interrupted(at, tmp_path, command) == Done(130, "", "")


def test_ctrl_c_that_python_calls_another_error_ends_with_130_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    ends: list[int] = []
    monkeypatch.setattr("lacli.cli.main.main", lambda: type("Made", (), {"field": Interrupting()}))
    monkeypatch.setattr("os.kill", lambda process, number: ends.append(number))
    monkeypatch.setattr("os._exit", ends.append)
    try:
        __main__.main()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert ends == [signal.SIGINT, 130], "a shell's loop ends with a program that the signal ended"


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    ("arguments", "unbuffered"), [("--help", ""), ("--version", "1"), ("--show-completion", ""), ("cost -h", "1")]
)
def test_what_cannot_be_written_is_one_line_on_stderr_and_exit_code_1(arguments: str, unbuffered: str) -> None:
    with FULL.open("wb") as full:
        done = run(*arguments.split(), stdout=full, env={"PYTHONUNBUFFERED": unbuffered}, program=IN_BASH)
    assert (done.code, done.err) == (1, "lacli: cannot write: No space left on device (check where stdout goes)\n")


@pytest.mark.parametrize("arguments", ["run -h", "list"])
def test_a_reader_that_goes_away_ends_a_command_as_the_signal_of_its_pipe_would(arguments: str) -> None:
    with start(*arguments.split()) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_what_the_system_refuses_is_one_line_and_a_traceback_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("lacli.cli.main.program", refuse)
    assert call("list") == Done(1, "", "lacli: Too many open files (LACLI_DEBUG=1 shows where)\n")
    with pytest.raises(OSError, match="Too many"):
        call("list", env={"LACLI_DEBUG": "1"})


def test_nothing_but_pythons_own_modules_is_loaded_before_ctrl_c_is_heard() -> None:
    """Until lacli handles Ctrl-C, Ctrl-C prints a traceback, and each import makes this time longer."""
    text = "import sys, lacli.__main__; print(*sys.modules)"
    loaded = run("-S", "-c", text, program=(sys.executable,)).out.split()
    own = {"__main__", *sys.stdlib_module_names}
    assert {name for name in loaded if name.split(".")[0] not in own} == {"lacli", "lacli.__main__"}


def test_a_background_jobs_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from lacli.__main__ import main; main()"
    done = interrupted("typer", tmp_path, "--help", program=(sys.executable, "-c", script))
    assert done.code == 0 and "Usage: lacli" in done.out
