"""Tab in a shell: commands, options, choices and models, through the protocols of bash, zsh and fish."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lacli.cli.model_names import complete_model
from lacli.settings import MODES
from tests.fakes import hub_cache
from tests.program import Done, call, run


def completed(line: str, shell: str = "bash", start: Callable[..., Done] = call, **env: str) -> list[str]:
    """What the shell is offered for the last word of a line. `start`: a process that has read no environment yet."""
    words = line.split(" ")
    asked = {
        "_LACLI_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = start(env={**asked, **env})
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("lacli ru", ["run"]),
        ("lacli run --mod", ["--model", "--mode"]),
        ("lacli run --mode ", list(MODES)),
        ("lacli bench --color o", ["on", "off"]),
        ("lacli bench phi-4 --modes loo", ["lookup", "lookahead"]),
        ("lacli bench phi-4 --modes plain,ja", ["plain,jacobi"]),
        ("lacli run --chat-template lla", ["llama3"]),
    ],
)
def test_commands_options_choices_and_names_are_completed(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize("command", ["run", "pull", "rm"])
def test_aliases_and_models_of_the_cache_are_offered_where_they_are_taken(command: str, tmp_path: Path) -> None:
    for file in ("a-Q4_0.gguf", "b/b.gguf"):
        hub_cache.add(tmp_path / "hub", "a/me", file, b"GGUF")
    env = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    assert completed(f"lacli {command} a", start=run, **env) == ["a/me:Q4_0"]
    assert completed(f"lacli {command} hf:", start=run, **env) == ["hf:a/me/b/b.gguf"]
    aliases = completed(f"lacli {command} qwen3-")
    assert ("qwen3-4b" in aliases) is (command != "rm")
    assert all(name.startswith("qwen3-") for name in aliases if name)


def test_the_users_own_aliases_are_offered_and_a_broken_line_costs_its_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = tmp_path / "lacli" / "models.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine\nminor owner/repo\n")
    assert complete_model("mi") == ["minor", "mistral-7b", "mistral-nemo-12b"]


def test_tab_loads_no_llama_cpp() -> None:
    env = {"_LACLI_COMPLETE": "complete_bash", "COMP_WORDS": "lacli\nrun\nqw", "COMP_CWORD": "2"}
    done = run(env=env, program=(sys.executable, "-X", "importtime", "-m", "lacli"))
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.err.splitlines()}
    assert "qwen3-4b" in done.out and "lacli" in imported
    assert not imported & {"llama_cpp", "numpy", "prompt_toolkit"}
