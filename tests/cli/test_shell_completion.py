"""Tab in a shell: commands, options, choices and models, through the protocols of bash, zsh and fish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lacli.cli.model_names import complete_model, complete_stored
from lacli.settings import MODES
from tests import hub_cache
from tests.program import (
    ROOT,
    Done,
    environment,
    run,
)


def completed(line: str, *, shell: str = "bash", env: dict[str, str] | None = None) -> list[str]:
    """What the shell is offered for the last word of a line."""
    words = line.split(" ")
    asked = {
        "_LACLI_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = run(env={**asked, **(env or {})})
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with models in it."""
    for name in (
        "a.gguf",
        "b b.gguf",
        "text.txt",
        ".hidden.gguf",
        "deep/deeper/one.gguf",
        "many/x.gguf",
        "many/y.gguf",
    ):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    for part in (1, 2):
        (tmp_path / "in" / f"split-0000{part}-of-00002.gguf").touch()
    (tmp_path / "in" / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    yield tmp_path / "in"


def test_commands_options_and_choices_are_completed() -> None:
    assert completed("lacli ru") == ["run"]
    assert completed("lacli run --mo") == ["--mode"]
    assert completed("lacli run --mode ") == list(MODES)
    assert completed("lacli bench --color o") == ["on", "off"]
    assert completed("lacli doctor --no-") == ["--no-test"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same(shell: str) -> None:
    offered = "\n".join(completed("lacli run --mode lo", shell=shell))
    assert "lookup" in offered and "lookahead" in offered and "plain" not in offered


@pytest.mark.parametrize("command", ["run", "chat", "bench", "check", "cost", "show", "pull"])
def test_a_models_alias_is_completed_in_every_command_that_takes_one(command: str) -> None:
    offered = completed(f"lacli {command} qwen3-")
    assert "qwen3-4b" in offered
    assert all(name.startswith("qwen3-") for name in offered)


@pytest.mark.parametrize("command", ["run", "chat", "show", "pull", "rm"])
def test_models_of_the_cache_are_offered(command: str, folder: Path, tmp_path: Path) -> None:
    for file in ("a-Q4_0.gguf", "b/b.gguf"):
        hub_cache.add(tmp_path / "home" / "hub", "a/me", file, b"GGUF")
    found = completed(f"lacli {command} a")
    assert "a/me:Q4_0" in found
    # Neither of them takes a path.
    assert ("a.gguf" in found) is (command not in ("pull", "rm"))
    assert completed(f"lacli {command} hf:") == ["hf:a/me/b/b.gguf"]


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "~/x"}, "x"),
        ({"HF_HOME": "$HOME/y"}, "y/hub"),
        ({"XDG_CACHE_HOME": "~/z"}, "z/huggingface/hub"),
        ({}, ".cache/huggingface/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "~/w", "HF_HOME": "~/y"}, "w"),
    ],
)
def test_the_cache_is_where_the_library_has_it(
    variables: dict[str, str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    hub_cache.add(tmp_path / place, "a/me", "a-Q4_0.gguf", b"GGUF")
    assert complete_stored("") == ["a/me:Q4_0"]
    ask = "import os; from huggingface_hub.constants import HF_HUB_CACHE; print(os.path.realpath(HF_HUB_CACHE))"
    library = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert library.stdout.strip() == os.path.realpath(tmp_path / place)


def test_files_and_folders_are_offered_and_what_is_no_model_is_not(folder: Path) -> None:
    assert complete_model("./") == [
        *("./a.gguf", "./b b.gguf", "./deep/", "./empty/", "./many/", "./split-00001-of-00002.gguf"),
    ]
    assert complete_model(".h") == [".hidden.gguf"]
    assert complete_model("no such folder/") == []
    assert set(complete_model("")) >= {"a.gguf", "deep/", "qwen3-4b"}


def test_the_only_folder_is_entered_down_to_its_models(folder: Path) -> None:
    assert complete_model("./dee") == ["./deep/deeper/one.gguf"]
    assert complete_model("man") == ["many/x.gguf", "many/y.gguf"]
    assert complete_model("emp") == ["empty/"]


def test_a_home_folder_stays_as_it_was_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert complete_model("~/many/") == ["~/many/x.gguf", "~/many/y.gguf"]


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_chat_templates_name_or_file_is_completed(command: str, folder: Path) -> None:
    for name in ("llama-mine.jinja", "llama.gguf", "deep/deeper/two.j2"):
        (folder / name).touch()
    assert completed(f"lacli {command} --chat-template lla") == ["llama2", "llama3", "llama-mine.jinja"]
    assert completed(f"lacli {command} --chat-template dee") == ["deepseek", "deep/deeper/two.j2"]


def test_bash_gets_names_with_spaces_as_it_would_type_them(folder: Path) -> None:
    assert completed("lacli run b") == ["b\\ b.gguf"]


def test_the_users_own_aliases_are_offered_and_a_broken_line_costs_its_name_only(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "config" / "lacli" / "models.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine owner/repo\n")
    assert complete_model("mi") == ["mine", "mistral-7b", "mistral-nemo-12b"]
    own.write_text("mine\nminor owner/repo\n")
    assert complete_model("mi") == ["minor", "mistral-7b", "mistral-nemo-12b"]
    assert complete_model("a.") == ["a.gguf"]


@pytest.mark.parametrize("command", ["run", "pull", "rm"])
def test_tab_loads_neither_llama_cpp_nor_huggingface_hub(command: str, folder: Path, tmp_path: Path) -> None:
    hub_cache.add(tmp_path / "home" / "hub", "qwen3-4b/me", "a-Q4_0.gguf", b"GGUF")
    env = {"_LACLI_COMPLETE": "complete_bash", "COMP_WORDS": f"lacli\n{command}\nqw", "COMP_CWORD": "2"}
    done = run(env=env, program=(sys.executable, "-X", "importtime", "-m", "lacli"))
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.err.splitlines()}
    assert "qwen3-4b" in done.out
    assert "lacli" in imported
    assert not imported & {"llama_cpp", "huggingface_hub", "numpy", "prompt_toolkit"}


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
def test_a_real_bash_completes_after_the_installation(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "lacli"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lacli "$@"\n')
    program.chmod(0o755)
    home = {"HOME": str(tmp_path), "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    installed = run("--install-completion", "bash", env=home)
    assert installed.code == 0 and ".bash_completions/lacli.sh" in (tmp_path / ".bashrc").read_text()
    script = '. ~/.bashrc; COMP_WORDS=(lacli ru); COMP_CWORD=1; _lacli_completion lacli; echo "${COMPREPLY[@]}"'
    shell = subprocess.run(["bash", "-c", script], env=environment(home), capture_output=True, text=True, timeout=60)
    assert Done(shell.returncode, shell.stdout, shell.stderr) == Done(0, "run\n", "")
