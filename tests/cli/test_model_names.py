"""Tab in a shell: commands, options, choices and models, through the protocols of bash, zsh and fish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lacli.cli.model_names import complete_model
from lacli.settings import MODES
from tests.fakes import hub_cache
from tests.program import IN_BASH, ROOT, Done, call, environment, run

CACHE_PLACES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
FILES = ("a.gguf", "b b.gguf", "text.txt", ".hidden.gguf", "deep/deeper/one.gguf", "many/x.gguf", "many/y.gguf")
SPLIT = ("split-00001-of-00002.gguf", "split-00002-of-00002.gguf")


def completed(line: str, shell: str = "bash", start: Callable[..., Done] = call) -> list[str]:
    """What the shell is offered for the last word of a line. `start`: a process that has read no environment yet."""
    words = line.split(" ")
    asked = {
        "_LACLI_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = start(env=asked)
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with models in it."""
    here = tmp_path / "in"
    for name in (*FILES, *SPLIT, "empty/x"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    (here / "empty" / "x").unlink()
    monkeypatch.chdir(here)
    for name in CACHE_PLACES:
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "HF_HOME", "HOME"):
        monkeypatch.setenv(name, str(here if name == "HOME" else tmp_path / name))
    return here


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("lacli ru", ["run"]),
        ("lacli run --mod", ["--model", "--mode"]),
        ("lacli run --mode ", list(MODES)),
        ("lacli bench --color o", ["on", "off"]),
        ("lacli doctor --no-", ["--no-test"]),
        ("lacli run b", ["b\\ b.gguf"]),  # as bash would type it
    ],
)
def test_commands_options_choices_and_files_are_completed(line: str, offered: list[str], folder: Path) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same(shell: str) -> None:
    offered = "\n".join(completed("lacli run --mode lo", shell))
    assert "lookup" in offered and "lookahead" in offered and "plain" not in offered


@pytest.mark.parametrize("command", ["run", "pull", "rm"])
def test_aliases_models_of_the_cache_and_paths_are_offered_where_they_are_taken(command: str, folder: Path) -> None:
    for file in ("a-Q4_0.gguf", "b/b.gguf"):
        hub_cache.add(folder.parent / "HF_HOME" / "hub", "a/me", file, b"GGUF")
    found = completed(f"lacli {command} a", start=run)
    assert "a/me:Q4_0" in found
    assert ("a.gguf" in found) is (command not in ("pull", "rm"))
    assert completed(f"lacli {command} hf:", start=run) == ["hf:a/me/b/b.gguf"]
    aliases = completed(f"lacli {command} qwen3-")
    assert ("qwen3-4b" in aliases) is (command != "rm")
    assert all(name.startswith("qwen3-") for name in aliases if name)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("./", ["./a.gguf", "./b b.gguf", "./deep/", "./empty/", "./many/", f"./{SPLIT[0]}"]),
        (".h", [".hidden.gguf"]),
        ("no such folder/", []),
        ("./dee", ["./deep/deeper/one.gguf"]),  # the only folder is entered
        ("man", ["many/x.gguf", "many/y.gguf"]),
        ("emp", ["empty/"]),
        ("~/many/", ["~/many/x.gguf", "~/many/y.gguf"]),
    ],
)
def test_files_and_folders_are_offered_and_what_is_no_model_is_not(
    typed: str, offered: list[str], folder: Path
) -> None:
    assert complete_model(typed) == offered
    assert set(complete_model("")) >= {"a.gguf", "deep/", "qwen3-4b"}


def test_the_modes_of_a_benchmark_are_completed() -> None:
    assert completed("lacli bench phi-4 --modes loo") == ["lookup", "lookahead"]
    assert completed("lacli bench phi-4 --modes plain,ja") == ["plain,jacobi"]


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_chat_templates_name_or_file_is_completed(command: str, folder: Path) -> None:
    for name in ("llama-mine.jinja", "llama.gguf", "deep/deeper/two.j2"):
        (folder / name).touch()
    assert completed(f"lacli {command} --chat-template lla") == ["llama2", "llama3", "llama-mine.jinja"]
    assert completed(f"lacli {command} --chat-template dee") == ["deepseek", "deep/deeper/two.j2"]


def test_the_users_own_aliases_are_offered_and_a_broken_line_costs_its_name_only(folder: Path) -> None:
    own = folder.parent / "XDG_CONFIG_HOME" / "lacli" / "models.txt"
    own.parent.mkdir(parents=True)
    for text, name in (("mine owner/repo\n", "mine"), ("mine\nminor owner/repo\n", "minor")):
        own.write_text(text)
        assert complete_model("mi") == [name, "mistral-7b", "mistral-nemo-12b"]
    assert complete_model("a.") == ["a.gguf"]


@pytest.mark.parametrize("command", ["run", "pull", "rm"])
def test_tab_loads_no_llama_cpp(command: str, folder: Path) -> None:
    hub_cache.add(folder.parent / "HF_HOME" / "hub", "qwen3-4b/me", "a-Q4_0.gguf", b"GGUF")
    env = {"_LACLI_COMPLETE": "complete_bash", "COMP_WORDS": f"lacli\n{command}\nqw", "COMP_CWORD": "2"}
    done = run(env=env, program=(sys.executable, "-X", "importtime", "-m", "lacli"))
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.err.splitlines()}
    assert "qwen3-4b" in done.out and "lacli" in imported
    assert not imported & {"llama_cpp", "numpy", "prompt_toolkit"}


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
def test_a_real_bash_completes_after_the_installation(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "lacli"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lacli "$@"\n')
    program.chmod(0o755)
    home = {"HOME": str(tmp_path), "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    installed = run("--install-completion", env=home, program=IN_BASH)
    assert installed.code == 0 and ".bash_completions/lacli.sh" in (tmp_path / ".bashrc").read_text()
    script = '. ~/.bashrc; COMP_WORDS=(lacli ru); COMP_CWORD=1; _lacli_completion lacli; echo "${COMPREPLY[@]}"'
    shell = subprocess.run(["bash", "-c", script], env=environment(home), capture_output=True, text=True, timeout=60)
    assert Done(shell.returncode, shell.stdout, shell.stderr) == Done(0, "run\n", "")
