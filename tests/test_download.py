"""Models by name against a hub on the loopback: fetched once, resumed, refused in one line.

Most of it runs inside the test's process, with the library's constants pointing at that hub; what a person does and
sees, and what the environment decides, in processes of their own.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from filelock import FileLock
from huggingface_hub import constants

from lacli.errors import ModelLoadError
from lacli.hub.download import fetch_model
from lacli.hub.names import HubModel
from lacli.resolve import find_model
from tests.fake_hub import FakeHub, Repository
from tests.program import Done, finish, on_terminal, run, start
from tests.tiny_models import write_llama, write_llama_split

NAME = "someone/tiny-GGUF"
CLOSED = "http://127.0.0.1:9"
ONE_TOKEN = ("-p", "hi", "-n", "1", "--json")
LARGE = 24_000_000
"""The library writes 10 MB at a time, so less than that is not kept."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_llama(path)
    return path.read_bytes()


@pytest.fixture
def hub(tiny: bytes) -> Iterator[FakeHub]:
    files = {"README.md": b"tiny", "tiny-F16.gguf": b"GGUF", "tiny-Q4_K_M.gguf": tiny, "tiny-Q8_0.gguf": tiny + b"8"}
    with FakeHub({NAME: Repository(files)}).running() as running:
        yield running


@pytest.fixture
def large(hub: FakeHub, tiny: bytes) -> Repository:
    """A repository with one file of several of the library's pieces."""
    repository = Repository({"large-Q8_0.gguf": tiny + bytes(LARGE - len(tiny))}, break_after=LARGE - 1000)
    hub.repositories["someone/large"] = repository
    return repository


class Here:
    """Names looked up inside this process; `said` is what was told about them."""

    def __init__(self, hub: FakeHub, cache: Path) -> None:
        self.hub, self.cache = hub, cache
        self.said: list[str] = []

    def find(self, name: str, *, offline: bool = False) -> Path:
        return find_model(name, offline=offline, quiet=True, say=self.said.append)

    def refused(self, name: str, *, offline: bool = False) -> str:
        with pytest.raises(ModelLoadError) as caught:
            self.find(name, offline=offline)
        assert caught.value.hint and "\n" not in str(caught.value)
        return str(caught.value)

    def contents(self) -> list[Path]:
        """The files' contents in the cache, whole or not."""
        return sorted(self.cache.glob("models--*/blobs/*"))


@pytest.fixture
def here(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    point_at(hub.address, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    yield Here(hub, tmp_path / "hub")
    huggingface_hub.close_session()


def point_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


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


def test_the_cache_is_the_librarys_own(here: Here, tiny: bytes) -> None:
    path = here.find(f"{NAME}:q8_0")
    assert huggingface_hub.hf_hub_download(NAME, path.name, local_files_only=True) == str(path)
    scanned = huggingface_hub.scan_cache_dir(here.cache)
    (repository,) = scanned.repos
    assert scanned.warnings == []
    assert (repository.repo_id, repository.size_on_disk) == (NAME, len(tiny) + 1)


def test_what_another_program_put_into_the_cache_is_used(here: Here, tiny: bytes) -> None:
    folder = here.cache / f"models--{NAME.replace('/', '--')}"
    found = folder / "snapshots" / ("c" * 40) / "deep" / "x-Q6_K.gguf"
    for path, content in ((folder / "refs" / "main", b"c" * 40), (found, tiny)):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert here.find(f"{NAME}:Q6_K") == here.find(f"hf:{NAME}/deep/x-Q6_K.gguf") == found
    assert here.find(NAME, offline=True) == found
    assert here.hub.requests == []
    # Whether Q6_K is what the bare name means, only the hub knows.
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_a_name_means_the_same_file_whatever_else_is_in_the_cache(here: Here) -> None:
    assert here.find(f"{NAME}:Q8_0").name == "tiny-Q8_0.gguf"
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_a_repository_without_the_usual_quant_is_not_asked_again_either(here: Here, tiny: bytes) -> None:
    here.hub.repositories["a/b"] = Repository({"x-Q6_K.gguf": tiny, "y-Q2_K.gguf": b"GGUF"})
    path = here.find("a/b")
    here.hub.requests.clear()
    assert here.find("a/b") == path and path.name == "x-Q6_K.gguf"
    assert here.hub.requests == []


def test_the_newest_is_asked_for_where_that_is_wanted(here: Here, tiny: bytes) -> None:
    old = here.find(NAME)
    assert fetch_model(HubModel(NAME), quiet=True, fresh=True) == old
    assert len(here.hub.transfers()) == 1
    here.hub.repositories[NAME] = Repository({"tiny-Q4_K_M.gguf": tiny + b"new"})
    new = fetch_model(HubModel(NAME), quiet=True, fresh=True)
    assert new != old and new.read_bytes() == tiny + b"new"
    assert here.find(NAME) == new


def test_a_split_model_comes_with_all_its_parts(here: Here, tmp_path: Path) -> None:
    parts = write_llama_split(tmp_path)
    here.hub.repositories["a/b"] = Repository({f"deep/{part.name}": part.read_bytes() for part in parts})
    path = here.find("a/b")
    assert (path.name, path.parent.name) == (parts[0].name, "deep")
    assert [file for file, _ in here.hub.transfers()] == [part.name for part in parts]
    assert [(path.parent / part.name).read_bytes() for part in parts] == [part.read_bytes() for part in parts]


def test_a_part_that_the_repository_lacks_is_named(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({"x-Q8_0-00002-of-00002.gguf": b"GGUF"})
    for name in ("a/b", "hf:a/b/x-Q8_0-00002-of-00002.gguf"):
        assert "2 parts, missing x-Q8_0-00001-of-00002.gguf" in here.refused(name)


def test_a_lost_part_of_a_cached_model_is_fetched_again(here: Here, tmp_path: Path) -> None:
    parts = write_llama_split(tmp_path)
    here.hub.repositories["a/b"] = Repository({part.name: part.read_bytes() for part in parts})
    path = here.find("a/b")
    (path.parent / parts[1].name).resolve().unlink()
    here.hub.requests.clear()
    assert here.find("a/b") == path
    assert here.hub.transfers() == [(parts[1].name, "")]


def test_a_download_that_broke_off_goes_on_where_it_stopped(here: Here, large: Repository) -> None:
    assert "broke (the same command goes on from there)" in here.refused("someone/large")
    (partial,) = here.contents()
    there = partial.stat().st_size
    assert partial.suffix == ".incomplete" and 0 < there < LARGE
    assert here.find("someone/large").read_bytes() == large.files["large-Q8_0.gguf"]
    assert here.hub.transfers() == [("large-Q8_0.gguf", ""), ("large-Q8_0.gguf", f"bytes={there}-")]
    assert f"fetching {(LARGE - there) / 1e6:.1f} MB" in here.said[-1]
    assert len(here.contents()) == 1


def test_a_file_that_lies_elsewhere_comes_without_telling_the_token(
    here: Here, large: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    large.gated, large.elsewhere = here.hub.token, True
    monkeypatch.setenv("HF_TOKEN", here.hub.token)
    assert "broke" in here.refused("someone/large")
    assert here.find("someone/large").read_bytes() == large.files["large-Q8_0.gguf"]
    first, second = [span for method, path, span in here.hub.requests if path.startswith("/elsewhere/")]
    assert not first and re.fullmatch(r"bytes=[1-9]\d+-", second)


def test_a_connection_that_ends_early_is_made_again_at_once(here: Here, large: Repository) -> None:
    large.ending = "close"
    assert here.find("someone/large").read_bytes() == large.files["large-Q8_0.gguf"]
    (_, whole), (_, rest) = here.hub.transfers()
    assert not whole and re.fullmatch(r"bytes=[1-9]\d+-", rest)


def test_what_is_too_long_to_be_a_beginning_is_fetched_anew(here: Here, tiny: bytes) -> None:
    path = here.find(NAME).resolve()
    path.rename(path.with_name(f"{path.name}.incomplete")).write_bytes(tiny + b"more")
    assert here.find(NAME).read_bytes() == tiny


def test_another_program_that_fetches_the_same_is_waited_for(here: Here, tiny: bytes) -> None:
    folder = here.cache / ".locks" / f"models--{NAME.replace('/', '--')}"
    folder.mkdir(parents=True)
    other = FileLock(folder / f"{sha256(tiny).hexdigest()}.lock")
    other.acquire()

    def say(sentence: str) -> None:
        if "waiting" in sentence:
            assert here.hub.transfers() == []
            other.release()

    find_model(NAME, quiet=True, say=say)
    assert not other.is_locked and len(here.hub.transfers()) == 1


def test_a_listing_without_sizes_leaves_the_fetching_to_the_library(here: Here, tiny: bytes) -> None:
    here.hub.repositories[NAME].names_only = True
    assert here.find(NAME).read_bytes() == tiny
    assert "fetching" in here.said[-1]


def test_of_many_files_the_nearest_are_offered(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({f"x-Q{bits}_{kind}.gguf": b"" for bits in range(2, 9) for kind in "01K"})
    line = here.refused("hf:a/b/x-Q4_L.gguf")
    assert "x-Q4_K.gguf" in line and line.count(".gguf") == 4


@pytest.mark.parametrize("lie", [3, -3])
def test_a_file_of_another_size_than_the_hub_said_is_refused_and_not_kept(lie: int, here: Here, tiny: bytes) -> None:
    here.hub.repositories[NAME].lie = lie
    assert f"came with {len(tiny)} bytes instead of {len(tiny) + lie}" in here.refused(NAME)
    assert here.contents() == []


def test_a_file_that_is_no_model_is_refused_as_any_other(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({"x-Q8_0.gguf": b"<html>an error page</html>"})
    assert "x-Q8_0.gguf is not a GGUF file" in here.refused("a/b")


def test_a_gated_repository_says_what_to_do_and_works_with_a_token(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.hub.repositories[NAME].gated = "hf_friend"
    for token in ("", here.hub.token):
        monkeypatch.setenv("HF_TOKEN", token)
        line = here.refused(NAME)
        assert f"{NAME} wants its terms accepted and HF_TOKEN set (accept them at {here.hub.address}/{NAME};" in line
    here.hub.token = "hf_friend"
    monkeypatch.setenv("HF_TOKEN", "hf_friend")
    assert here.find(NAME).name == "tiny-Q4_K_M.gguf"


def test_a_token_that_the_hub_refuses_is_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    line = here.refused(NAME)
    assert f"{here.hub.address} refuses the token" in line and "hf_wrong" not in line


@pytest.mark.parametrize("token", ["", "hf_valid"])
def test_a_repository_that_does_not_exist(token: str, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    line = here.refused("no/body")
    assert line.startswith(f"there is no no/body on {here.hub.address}") and "private" in line


def test_a_file_that_does_not_exist_is_answered_with_those_that_do(here: Here) -> None:
    line = here.refused(f"hf:{NAME}/tiny-Q5_0.gguf")
    assert line == f"{NAME} has no tiny-Q5_0.gguf (there are tiny-F16.gguf, tiny-Q4_K_M.gguf, tiny-Q8_0.gguf)"


def test_what_the_quant_rule_refuses_is_one_line(here: Here) -> None:
    here.hub.repositories["a/b"] = Repository({"model.safetensors": b""})
    here.hub.repositories["a/c"] = Repository({"x/a-Q8_0.gguf": b"GGUF", "y/a-Q8_0.gguf": b"GGUF"})
    assert "a/b has no GGUF file" in here.refused("a/b")
    assert "choose one: hf:a/c/x/a-Q8_0.gguf, hf:a/c/y/a-Q8_0.gguf" in here.refused("a/c")
    assert f"{NAME} has no Q3_K (it has F16, Q4_K_M, Q8_0)" in here.refused(f"{NAME}:Q3_K")
    assert here.hub.transfers() == []


def test_a_hub_that_is_out_of_order_is_quoted(here: Here) -> None:
    here.hub.status = 503
    assert f"cannot fetch {NAME}: {here.hub.address} answers 503" in here.refused(NAME)


def test_without_a_network_the_cache_is_what_there_is(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    path = here.find(f"{NAME}:Q8_0")
    point_at(CLOSED, monkeypatch)
    assert f"no connection to {CLOSED}" in here.refused("someone/else")
    # The name means Q4_K_M, which is not here and cannot be fetched.
    assert here.find(NAME) == path and "tiny-Q8_0.gguf, from the cache" in here.said[-1]


def test_offline_only_the_cache_is_used_and_its_choices_are_listed(here: Here, tiny: bytes) -> None:
    here.hub.repositories["a/b"] = Repository({"x/a-Q8_0.gguf": tiny, "y/a-Q8_0.gguf": tiny + b" "})
    assert "a/b is not in the cache (lacli pull a/b fetches it" in here.refused("a/b", offline=True)
    assert here.hub.requests == []
    found = [here.find(f"hf:a/b/{folder}/a-Q8_0.gguf") for folder in "xy"]
    here.hub.requests.clear()
    assert "choose one: hf:a/b/x/a-Q8_0.gguf" in here.refused("a/b", offline=True)
    assert here.find("hf:a/b/y/a-Q8_0.gguf", offline=True) == found[1]
    assert here.hub.requests == []


def test_a_cache_that_cannot_be_written(here: Here) -> None:
    here.cache.write_bytes(b"no folder")
    line = here.refused(NAME)
    assert f"cannot fetch {NAME}: " in line and str(here.cache) in line and "HF_HOME" in line


def test_a_disk_without_room_is_seen_before_anything_is_fetched(
    here: Here, large: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [LARGE - 1_000_000]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[0]))
    line = here.refused("someone/large")
    assert line.startswith(f"someone/large needs 24.0 MB more in {here.cache}, where 23.0 MB are free (make room")
    assert here.hub.transfers() == [] and not here.cache.exists()
    free[0] = LARGE
    assert "broke" in here.refused("someone/large")
    # What is there already needs no room.
    (partial,) = here.contents()
    free[0] = LARGE - partial.stat().st_size
    assert here.find("someone/large").stat().st_size == LARGE


def test_an_alias_of_ones_own(hub: FakeHub, tmp_path: Path) -> None:
    own = tmp_path / "config" / "lacli" / "models.txt"
    own.parent.mkdir(parents=True)
    own.write_text(f"mine {NAME} Q8_0\n", "utf-8")
    quiet = ask(hub, tmp_path, "MINE", "-q")
    assert opened(quiet).name == "tiny-Q8_0.gguf" and quiet.err == ""
    own.write_text("mine\n", "utf-8")
    assert f"{own}, line 1: no repository" in complaint(ask(hub, tmp_path, "mine"))


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


@pytest.mark.parametrize("command", ["run", "check", "bench", "cost"])
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
