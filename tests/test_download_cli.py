"""Models of the hub as a person fetches them: in processes of their own, whose environment decides."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_hub import FakeHub, Repository
from tests.here import (
    NAME,
    Here,
    add_large,
    looking_up,
    tiny_hub,
    tiny_model,
)
from tests.program import (
    Done,
    finish,
    on_terminal,
    run,
    start,
)

ONE_TOKEN = ("-p", "hi", "-n", "1", "--json")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_model(tmp_path_factory.mktemp("models"))


@pytest.fixture
def hub(tiny: bytes) -> Iterator[FakeHub]:
    with tiny_hub(tiny).running() as running:
        yield running


@pytest.fixture
def large(hub: FakeHub, tiny: bytes) -> Repository:
    return add_large(hub, tiny)


@pytest.fixture
def here(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with looking_up(hub, tmp_path / "hub", monkeypatch) as found:
        yield found


def ask(hub: FakeHub, home: Path, name: str, *options: str, **environment: str) -> Done:
    """Run a model of the hub for one token."""
    return run("run", name, *ONE_TOKEN, *options, env=hub.environment(home, **environment))


def opened(done: Done) -> Path:
    """The file that a run opened."""
    assert done.code == 0, done.err
    return Path(json.loads(done.out)["model"])


def complaint(done: Done, code: int = 1) -> str:
    """The one line of a run that failed, after the note of what is fetched."""
    lines = [line for line in done.err.splitlines() if ": fetching " not in line]
    assert done.code == code and not done.out, done
    assert len(lines) == 1 and re.fullmatch(r"lacli: \S.* \(\S.*\)", lines[0]), done.err
    return lines[0]


def test_a_model_is_fetched_once_and_its_name_explained(hub: FakeHub, tmp_path: Path, tiny: bytes) -> None:
    first = ask(hub, tmp_path, NAME)
    path = opened(first)
    assert path.is_relative_to(tmp_path / "hub") and path.name == "tiny-Q4_K_M.gguf" and path.read_bytes() == tiny
    assert f"{NAME} is tiny-Q4_K_M.gguf: fetching" in first.err and "\r" not in first.err
    assert hub.transfers() == [("tiny-Q4_K_M.gguf", "")]
    hub.requests.clear()
    second = ask(hub, tmp_path, NAME)
    assert opened(second) == path and "tiny-Q4_K_M.gguf, from the cache" in second.err
    assert hub.requests == []


def test_an_alias_of_ones_own(hub: FakeHub, tmp_path: Path) -> None:
    own = tmp_path / "config" / "lacli" / "models.txt"
    own.parent.mkdir(parents=True)
    own.write_text(f"mine {NAME} Q8_0\n", "utf-8")
    quiet = ask(hub, tmp_path, "MINE", "-q")
    assert opened(quiet).name == "tiny-Q8_0.gguf" and quiet.err == ""
    own.write_text("mine\n", "utf-8")
    assert "no such model: mine" in complaint(ask(hub, tmp_path, "mine", "-q"))
    assert f"{own}, line 1: no repository" in ask(hub, tmp_path, "mine").err


def test_ctrl_c_keeps_what_was_fetched(here: Here, tmp_path: Path, large: Repository) -> None:
    large.ending = "hold"
    with start("run", "someone/large", *ONE_TOKEN, env=here.hub.environment(tmp_path)) as process:
        assert here.hub.held.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    line = complaint(Done(process.returncode, out.decode(), err.decode()), 130)
    (partial,) = here.contents()
    there = partial.stat().st_size
    assert f"stopped with {there / 1e6:.1f} MB of 24.0 MB fetched" in line and there
    assert here.find("someone/large").read_bytes() == large.files["large-Q8_0.gguf"]
    assert here.hub.transfers()[-1] == ("large-Q8_0.gguf", f"bytes={there}-")


@pytest.mark.parametrize("offline", ["LACLI_OFFLINE", "LLAMA_ARG_OFFLINE", "HF_HUB_OFFLINE"])
def test_the_environment_can_forbid_the_network(offline: str, hub: FakeHub, tmp_path: Path) -> None:
    line = complaint(ask(hub, tmp_path, NAME, **{offline: "1"}))
    assert ("HF_HUB_OFFLINE is set" if offline == "HF_HUB_OFFLINE" else f"lacli pull {NAME}") in line
    assert hub.requests == []


@pytest.mark.parametrize("command", ["run", "chat", "check", "bench", "cost"])
def test_every_command_that_takes_a_model_takes_a_name(command: str, hub: FakeHub, tmp_path: Path) -> None:
    done = run(command, NAME, "--offline", env=hub.environment(tmp_path), stdin=b"hi")
    assert f"{NAME} is not in the cache (lacli pull {NAME} fetches it" in complaint(done)


def test_a_terminal_sees_a_bar_with_the_speed_unless_quiet(hub: FakeHub, tmp_path: Path) -> None:
    shown = {}
    for quiet in ([], ["-q"]):
        environment = hub.environment(tmp_path / "-".join(["home", *quiet]))
        shown[bool(quiet)] = finish(on_terminal("run", NAME, *ONE_TOKEN, *quiet, env=environment)).out
    assert re.search(r"tiny-Q4_K_M.gguf: 100%\|.*B/s\]", shown[False])
    assert "B/s" not in shown[True] and "tiny-Q4_K_M.gguf" not in shown[True].partition("{")[0]


def test_a_hub_with_a_password_in_its_address_does_not_show_it(hub: FakeHub, tmp_path: Path) -> None:
    endpoint = hub.address.replace("http://", "http://user:s3cret@")
    environment = hub.environment(tmp_path, HF_ENDPOINT=endpoint)
    for arguments in (("pull", "no/body"), ("pull", NAME), ("doctor", "--no-test")):
        done = run(*arguments, env=environment)
        assert hub.address in done.out + done.err
        assert "s3cret" not in done.out + done.err


def test_a_pull_that_does_not_reach_the_hub_says_so(hub: FakeHub, tmp_path: Path) -> None:
    assert run("pull", NAME, env=hub.environment(tmp_path)).code == 0
    hub.status = 503
    done = run("pull", NAME, env=hub.environment(tmp_path))
    assert (done.code, Path(done.out.strip()).name) == (0, "tiny-Q4_K_M.gguf")
    assert f"tiny-Q4_K_M.gguf, from the cache ({hub.address} answers 503)" in done.err


def test_what_was_pulled_before_one_fails_is_in_the_json(hub: FakeHub, tmp_path: Path) -> None:
    done = run("pull", "--json", NAME, "no/body", env=hub.environment(tmp_path))
    assert done.code == 1 and "no/body" in done.err
    assert [each["name"] for each in json.loads(done.out)["models"]] == [NAME]


def test_a_pull_that_gets_no_newest_says_so_quiet_or_not_and_takes_no_other_model(hub: FakeHub, tmp_path: Path) -> None:
    assert run("pull", "-q", f"{NAME}:Q8_0", env=hub.environment(tmp_path)).err == ""
    hub.status = 503
    done = run("pull", "-q", f"{NAME}:Q8_0", env=hub.environment(tmp_path))
    assert done.code == 0 and f"from the cache ({hub.address} answers 503)" in done.err
    assert "answers 503" in complaint(run("pull", "-q", NAME, env=hub.environment(tmp_path)))


def test_a_damaged_model_is_pulled_again(hub: FakeHub, tmp_path: Path, tiny: bytes) -> None:
    path = Path(run("pull", NAME, env=hub.environment(tmp_path)).out.strip())
    path.write_bytes(tiny[:5000])
    assert run("pull", NAME, env=hub.environment(tmp_path)).code == 0
    assert path.read_bytes() == tiny


@pytest.mark.parametrize("endpoint", ["user:s3cret@mirror.local", ""])
def test_an_address_that_is_none_is_said_by_pull_and_doctor_and_without_its_password(
    endpoint: str, hub: FakeHub, tmp_path: Path
) -> None:
    environment = hub.environment(tmp_path, HF_ENDPOINT=endpoint)
    for arguments in (("pull", NAME), ("doctor", "--no-test")):
        done = run(*arguments, env={**environment, "COLUMNS": "200"})
        assert "which is no address" in " ".join((done.out + done.err).split())
        assert "s3cret" not in done.out + done.err
