"""`lacli list`, `pull`, `show` and `rm`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from starlette.responses import Response

from lacli.settings import MODES
from tests import program
from tests.fakes import hub_cache
from tests.fakes.fake_hub import NAME, FakeHub, Here, Repository, looking_up
from tests.fakes.hub_cache import Home
from tests.loading import STDLIB_7M, smollm2
from tests.program import Done

ONE_TOKEN = ("-p", "hi", "-n", "1", "--json")


def call(here: Here, *arguments: str, stdin: bytes = b"") -> Done:
    return program.call(*arguments, env=here.hub.environment(here.cache.parent), stdin=stdin)


def complaint(done: Done, code: int = 1) -> str:
    """Check that a run failed with one line on stderr, apart from notes about downloads; return the line."""
    lines = [line for line in done.err.splitlines() if ": fetching " not in line]
    assert done.code == code and not done.out, done
    assert len(lines) == 1 and re.fullmatch(r"lacli: \S.* \(\S.*\)", lines[0]), done.err
    return lines[0]


def test_models_on_the_disk_are_listed_with_damaged_files_and_the_users_own_names(home: Home) -> None:
    home.alias("broken", "mine me/a Q8_0 my own")
    link = home.add("me/a", "a-Q8_0.gguf")
    damaged = home.add("me/a", "a-Q4_0.gguf", home.model.read_bytes()[:5000])
    done = home.call("list", "--json")
    assert done.code == 0 and done.err.count("models.txt:1: the repository is missing") == len(done.err.splitlines())
    found = {each["path"]: each for each in json.loads(done.out)["models"]}
    assert found[str(link)]["size"] == home.model.stat().st_size and found[str(link)]["problem"] is None
    assert found[str(damaged)]["problem"].startswith("damaged:") and str(smollm2()) in found
    shown = home.call("list").out
    assert "\x1b" not in shown and "me/a:Q8_0" in shown and "damaged: a-Q4_0.gguf" in shown
    (line,) = (line for line in shown.split("\n") if line.startswith("mine"))
    assert line.split()[:2] == ["mine", "*"] and line.split()[-3:] == ["my", "own", "me/a:Q8_0"]


def test_if_llama_cpp_does_not_load_one_line_says_so_and_commands_without_a_model_work(home: Home) -> None:
    link = home.add("me/a", "a-Q8_0.gguf")
    package = home.folder / "broken" / "llama_cpp" / "__init__.py"
    package.parent.mkdir(parents=True)
    env = {**home.env, "PYTHONPATH": f"{package.parents[1]}:{program.ROOT}"}
    why = "Failed to load libllama.so: libcuda.so.1"
    for kind, command in (("RuntimeError", ["list"]), ("OSError", ["run", "-p", "hi"])):
        package.write_text(f"raise {kind}('{why}')\n")
        done = program.run(*command, env=env)
        assert (done.code, done.out) == (1, "")
        assert done.err == f"lacli: llama.cpp does not load: {why} (lacli doctor says what to do)\n"
    assert program.run("pull", "--offline", "me/a:Q8_0", env=env).out == f"{link}\n"
    assert program.run("rm", "-y", "me/a", env=env).code == 0 and not link.is_symlink()


def test_a_model_is_fetched_once_and_its_name_explained(here: Here, tmp_path: Path, content: bytes) -> None:
    hub = here.hub
    first = program.run("run", NAME, *ONE_TOKEN, env=hub.environment(tmp_path))
    assert first.code == 0, first.err
    path = Path(json.loads(first.out)["model"])
    assert path.is_relative_to(tmp_path / "hub") and path.name == "tiny-Q4_K_M.gguf" and path.read_bytes() == content
    assert f"{NAME} is tiny-Q4_K_M.gguf: fetching" in first.err and "\r" not in first.err
    assert hub.transfers() == ["tiny-Q4_K_M.gguf"]
    hub.requests.clear()
    second = call(here, "run", NAME, *ONE_TOKEN)
    assert json.loads(second.out)["model"] == str(path) and "tiny-Q4_K_M.gguf, from the cache" in second.err
    assert hub.requests == []


@pytest.mark.parametrize("offline", ["LACLI_OFFLINE", "LLAMA_ARG_OFFLINE", "HF_HUB_OFFLINE"])
def test_the_environment_can_forbid_the_network(offline: str, here: Here) -> None:
    # huggingface_hub reads HF_HUB_OFFLINE only when it is imported.
    run = program.run if offline == "HF_HUB_OFFLINE" else program.call
    line = complaint(run("run", NAME, *ONE_TOKEN, env=here.hub.environment(here.cache.parent, **{offline: "1"})))
    assert ("HF_HUB_OFFLINE is set" if offline == "HF_HUB_OFFLINE" else f"lacli pull {NAME}") in line
    assert here.hub.requests == []


@pytest.mark.parametrize("command", ["run", "chat", "check", "bench", "cost"])
def test_every_command_that_takes_a_model_takes_a_name(command: str, here: Here) -> None:
    done = call(here, command, NAME, "--offline", stdin=b"hi")
    assert f"{NAME} is not in the cache (lacli pull {NAME} fetches it" in complaint(done)


def test_paths_are_printed_in_order_and_nothing_is_fetched_twice(here: Here, content: bytes) -> None:
    for _ in range(2):
        paths = [Path(line) for line in call(here, "pull", NAME, f"{NAME}:Q8_0").out.splitlines()]
        assert [path.read_bytes() for path in paths] == [content, content + b"8"]
    assert len(here.hub.transfers()) == 2
    here.hub.answer = Response(status_code=429)
    done = call(here, "pull", f"{NAME}:Q8_0")
    assert (done.code, done.out) == (0, f"{paths[1]}\n")
    assert f"from the cache ({here.hub.address} answers 429)" in done.err


def test_a_removal_is_asked_for_on_a_terminal_and_wants_yes_elsewhere(home: Home) -> None:
    link = home.add("me/a", "a-Q8_0.gguf")
    done = program.call("rm", "me/a", stdin=b"y\n", env=home.env)
    assert done.code == 2 and "-y removes without asking" in done.err
    for answer, code in (("", 1), ("y", 0)):
        terminal = program.on_terminal("rm", "me/a", env=home.env)
        terminal.expect_exact("remove me/a:Q8_0")
        terminal.expect_exact("[y/N]")
        assert link.exists()
        terminal.sendline(answer)
        assert program.finish(terminal).code == code and link.exists() is (code == 1)


def test_one_wrong_name_removes_nothing_and_files_outside_are_not_touched(home: Home) -> None:
    links = [home.add("me/a", f"a-{quant}.gguf", quant.encode()) for quant in ("Q4_0", "Q8_0")]
    assert "not on this disk" in home.call("rm", "-y", "me/a:Q4_0", "me/b").err
    for path in (home.model, smollm2()):
        done = home.call("rm", "-y", "me/a:Q4_0", str(path))
        assert done.code == 2 and "remove it yourself" in done.err and path.exists()
    assert all(link.exists() for link in links)
    assert home.call("rm", "-y", "me/a:Q4_0", "me/a:q4_0", "me/a:Q8_0").code == 0
    assert not hub_cache.folder_of(home.cache, "me/a").exists(), "no empty folder stays after two removals"


def test_show_names_the_model_its_modes_and_its_memory_and_fetches_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = home.call("show", str(STDLIB_7M), "-c", "1024", "-W", "3")
    assert (done.code, done.err) == (0, "")
    for words in ("pystdlib 7M", "Q8_0", "plain, jacobi, lookup, lookahead", "MB of weights", "1,024", "-W 3"):
        assert words in done.out
    with FakeHub({"me/a": Repository({"a-Q4_K_M.gguf": b"GGUF"})}).running() as hub:
        with looking_up(hub, home.cache, monkeypatch):
            done = home.call("show", "me/a")
        assert done.code == 1 and not hub.requests
        assert "lacli pull me/a fetches it" in done.err


def completing(line: str) -> dict[str, str]:
    """Return the environment variables with which bash asks for completions of a line."""
    words = line.split(" ")
    return {"_LACLI_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}


@pytest.mark.parametrize(
    ("line", "offered"),
    [("lacli ru", ["run"]), ("lacli run --mod", ["--model", "--mode"]), ("lacli run --mode ", MODES)],
)
def test_a_shell_completes_commands_options_and_choices(line: str, offered: Sequence[str]) -> None:
    assert program.call(env=completing(line)).out.splitlines() == [*offered]


@pytest.mark.parametrize(
    "command", ["run", "chat", "serve", "pull", "show", "rm", "cost", "bench", "check", "run -m", "rm me/a"]
)
def test_a_shell_completes_the_names_of_models(command: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.folder)
    home.alias("broken", "Mine me/a Q8_0")
    for file in ("a-Q8_0.gguf", "a-mmproj-F16.gguf", "deep/a-F16.gguf", "README.md"):
        home.add("me/a", file)
    hub_cache.add(home.cache, "me/a", "a-Q8_0.gguf", home.model, "older")
    for begun, offered in {
        "M": ["Mine"],
        "smollm2-1": ["smollm2-135m", "smollm2-1.7b"],
        "me": ["me/a:Q8_0", "me/a:F16"],
        "mo": ["model.gguf"],
        "./": [],
    }.items():
        done = home.call(**completing(f"lacli {command} {begun}"))
        assert (done.out.split(), done.err) == (offered, "")


def test_a_completion_loads_neither_llama_cpp_nor_the_hubs_library(home: Home) -> None:
    home.add("me/a", "a-Q8_0.gguf")
    for name in ("llama_cpp", "huggingface_hub"):
        (home.folder / f"{name}.py").write_text("raise AssertionError")
    for place in ({}, {"HF_HUB_CACHE": f"{home.folder}/hub", "HF_HOME": "/no"}, {"XDG_CACHE_HOME": "/no"}):
        env = {**home.env, "PYTHONPATH": f"{home.folder}:{program.ROOT}", **place}
        assert program.run(env={**env, **completing("lacli run me")}).out == "me/a:Q8_0\n"
