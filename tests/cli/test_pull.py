"""Models of the hub as a person fetches them: `lacli pull`, and the commands that take a name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import program
from tests.here import NAME, Here
from tests.program import Done

ONE_TOKEN = ("-p", "hi", "-n", "1", "--json")


def call(here: Here, *arguments: str, stdin: bytes = b"") -> Done:
    return program.call(*arguments, env=here.hub.environment(here.cache.parent), stdin=stdin)


def pulled(done: Done) -> list[Path]:
    """The files that a pull printed."""
    assert done.code == 0, done.err
    return [Path(line) for line in done.out.splitlines()]


def complaint(done: Done, code: int = 1) -> str:
    """The one line of a run that failed, after the note of what is fetched."""
    lines = [line for line in done.err.splitlines() if ": fetching " not in line]
    assert done.code == code and not done.out, done
    assert len(lines) == 1 and re.fullmatch(r"lacli: \S.* \(\S.*\)", lines[0]), done.err
    return lines[0]


def test_a_model_is_fetched_once_and_its_name_explained(here: Here, tmp_path: Path, tiny: bytes) -> None:
    hub = here.hub
    first = program.run("run", NAME, *ONE_TOKEN, env=hub.environment(tmp_path))
    assert first.code == 0, first.err
    path = Path(json.loads(first.out)["model"])
    assert path.is_relative_to(tmp_path / "hub") and path.name == "tiny-Q4_K_M.gguf" and path.read_bytes() == tiny
    assert f"{NAME} is tiny-Q4_K_M.gguf: fetching" in first.err and "\r" not in first.err
    assert hub.transfers() == [("tiny-Q4_K_M.gguf", "")]
    hub.requests.clear()
    second = call(here, "run", NAME, *ONE_TOKEN)
    assert json.loads(second.out)["model"] == str(path) and "tiny-Q4_K_M.gguf, from the cache" in second.err
    assert hub.requests == []


@pytest.mark.parametrize("offline", ["LACLI_OFFLINE", "LLAMA_ARG_OFFLINE", "HF_HUB_OFFLINE"])
def test_the_environment_can_forbid_the_network(offline: str, here: Here) -> None:
    # The library reads its own variable once, when it is imported.
    run = program.run if offline == "HF_HUB_OFFLINE" else program.call
    line = complaint(run("run", NAME, *ONE_TOKEN, env=here.hub.environment(here.cache.parent, **{offline: "1"})))
    assert ("HF_HUB_OFFLINE is set" if offline == "HF_HUB_OFFLINE" else f"lacli pull {NAME}") in line
    assert here.hub.requests == []


@pytest.mark.parametrize("command", ["run", "chat", "check", "bench", "cost"])
def test_every_command_that_takes_a_model_takes_a_name(command: str, here: Here) -> None:
    done = call(here, command, NAME, "--offline", stdin=b"hi")
    assert f"{NAME} is not in the cache (lacli pull {NAME} fetches it" in complaint(done)


def test_paths_are_printed_in_order_and_nothing_is_fetched_twice(here: Here, tiny: bytes) -> None:
    paths = pulled(call(here, "pull", NAME, f"{NAME}:Q8_0"))
    assert [path.read_bytes() for path in paths] == [tiny, tiny + b"8"]
    (again,) = json.loads(call(here, "pull", NAME, "--json").out)["models"]
    assert again == {"name": NAME, "model": NAME, "path": str(paths[0]), "size": len(tiny)}
    assert len(here.hub.transfers()) == 2
    listed = json.loads(call(here, "list", "--json").out)
    assert {each["path"] for each in listed["models"]} >= set(map(str, paths))


def test_a_pull_that_gets_no_newest_fails(here: Here) -> None:
    assert pulled(call(here, "pull", "-q", f"{NAME}:Q8_0"))
    here.hub.status = 503
    assert "answers 503" in complaint(call(here, "pull", "-q", f"{NAME}:Q8_0"))


def test_what_was_pulled_before_one_fails_is_told(here: Here) -> None:
    done = call(here, "pull", "--json", NAME, "no/body")
    assert done.code == 1 and "no/body" in done.err
    assert [each["name"] for each in json.loads(done.out)["models"]] == [NAME]
    assert "no MODEL is given" in complaint(call(here, "pull"), 2)
