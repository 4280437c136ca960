"""`lacli pull`, `list`, `show` and `rm` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pyte
import pytest

from lacli.resolve import demo_model
from tests import hub_cache, program
from tests.fake_hub import FakeHub, Repository
from tests.fakes import tiny_models

OFFLINE = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": ""}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return hub_cache.small_model(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a cache and folders of their own, and no network."""
    folders = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "XDG_CONFIG_HOME": str(tmp_path / "c")}
    return {**folders, **OFFLINE}


def test_list_json_is_what_is_on_the_disk(home: dict[str, str], model: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    parts = tiny_models.write_llama_split(tmp_path)
    links = [hub_cache.add(hub, "me/split", file.name, file) for file in parts]
    link = hub_cache.add(hub, "me/a", "a-Q8_0.gguf", model)
    hub_cache.add(hub, "me/a", "a-Q4_0.gguf", model.read_bytes()[:5000])
    broken_off = hub_cache.add_unfinished(hub, "me/b", 99)
    done = program.run("list", "--json", env=home)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    there = {each["path"]: each["size"] for each in found["models"] if each["repository"]}
    assert there == {
        str(links[0]): sum(part.stat().st_size for part in parts),
        str(link): model.stat().st_size,
        str(link.with_name("a-Q4_0.gguf")): 5000,
    }
    problems = {each["file"]: each["problem"] for each in found["models"]}
    assert problems["a-Q8_0.gguf"] is None and problems["a-Q4_0.gguf"].startswith("damaged:")
    assert [each["path"] for each in found["unfinished"]] == [str(broken_off)]
    assert [each["path"] for each in found["models"] if each["name"] is None] == [str(demo_model())]


def test_list_shows_a_damaged_file_and_all_others(home: dict[str, str], model: Path, tmp_path: Path) -> None:
    hub_cache.add(tmp_path / "hub", "me/a", "a-Q4_0.gguf", b"GGUF and no more")
    hub_cache.add(tmp_path / "hub", "me/a", "a-Q8_0.gguf", model)
    done = program.run("list", env=home)
    assert done.code == 0
    assert "me/a:Q8_0" in done.out and "damaged: a-Q4_0.gguf" in done.out
    assert "\x1b" not in done.out


def test_list_marks_the_users_own_names(home: dict[str, str], model: Path, tmp_path: Path) -> None:
    own = tmp_path / "c" / "lacli" / "models.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine me/a Q8_0 my own\n")
    hub_cache.add(tmp_path / "hub", "me/a", "a-Q8_0.gguf", model)
    (line,) = (line for line in program.run("list", env=home).out.split("\n") if line.startswith("mine"))
    assert line.split() == ["mine", "*+", "my", "own", "me/a:Q8_0"]


@pytest.mark.parametrize("command", [["list"], ["show", "me/a"], ["pull", "--offline", "mine"], ["rm", "-y", "mine"]])
def test_a_broken_line_among_the_users_own_names_is_told_once_and_stops_nothing(
    command: list[str], home: dict[str, str], model: Path, tmp_path: Path
) -> None:
    own = tmp_path / "c" / "lacli" / "models.txt"
    own.parent.mkdir(parents=True)
    own.write_text("broken\nmine me/a\n")
    hub_cache.add(tmp_path / "hub", "me/a", "a-Q8_0.gguf", model)
    done = program.run(*command, env=home)
    assert done.code == 0, done.err
    assert done.err.count("models.txt, line 1: no repository") == 1


def test_unfinished_downloads_need_no_name_and_models_do(home: dict[str, str], tmp_path: Path) -> None:
    broken_off = hub_cache.add_unfinished(tmp_path / "hub", "me/a", 1000)
    assert "no MODEL is given" in program.call("rm", "-y", env=home).err
    done = program.run("rm", "--unfinished", "-y", env=home)
    assert (done.code, broken_off.exists()) == (0, False)
    assert "unfinished downloads of me/a" in done.err and "1 kB freed" in done.err


def test_list_fits_a_terminal_of_60_columns(home: dict[str, str], model: Path, tmp_path: Path) -> None:
    hub_cache.add(tmp_path / "hub", "owner-of-models/a-model-with-a-long-name-GGUF", "a-Q8_0.gguf", model)
    terminal = program.on_terminal("list", env={**home, "COLUMNS": "60"})
    shown = pyte.Screen(60, 200)
    pyte.Stream(shown).feed(terminal.read())
    lines = [line.rstrip() for line in shown.display]
    assert "owner-of-models/a-model-with-a-long-name-GGUF:Q8_0" in lines


def test_show_names_the_model_its_modes_and_its_memory(home: dict[str, str]) -> None:
    done = program.run("show", str(demo_model()), "-c", "1024", env=home)
    assert (done.code, done.err) == (0, "")
    for words in ("pystdlib 7M", "Q8_0", "plain, jacobi, lookup, lookahead", "MiB of weights", "1024"):
        assert words in done.out


def test_show_json_is_one_object_with_the_memory_asked_for(home: dict[str, str]) -> None:
    flags = ("-c", "512", "-ctk", "q8_0", "-ctv", "q8_0", "-W", "3", "-N", "4", "-G", "2")
    found = json.loads(program.run("show", "-q", "--json", *flags, env=home).out)
    assert (found["cache_type_k"], found["window"], found["ngram"], found["guesses"]) == ("q8_0", 3, 4, 2)
    assert [each["context"] for each in found["memory"]] == [512]


def test_show_finds_a_model_of_the_cache_by_name(home: dict[str, str], model: Path, tmp_path: Path) -> None:
    link = hub_cache.add(tmp_path / "hub", "me/a", "a-Q8_0.gguf", model)
    for name in ("me/a:q8_0", "me/a", "hf:me/a/a-Q8_0.gguf", str(link)):
        assert json.loads(program.run("show", name, "--json", env=home).out)["path"] == str(link)


def test_show_fetches_nothing(home: dict[str, str], tmp_path: Path) -> None:
    with FakeHub({"me/a": Repository({"a-Q4_K_M.gguf": b"GGUF"})}).running() as hub:
        done = program.run("show", "me/a", env=hub.environment(tmp_path))
        assert done.code == 1
        assert "not on this disk" in done.err and "lacli pull me/a" in done.err
        assert not hub.requests


def test_show_template_prints_it_whole(home: dict[str, str], model: Path) -> None:
    assert program.run("show", str(model), "--template", env=home).out == tiny_models.CHAT_TEMPLATE + "\n"


def test_rm_asks_on_a_terminal_and_does_what_is_answered(home: dict[str, str], model: Path, tmp_path: Path) -> None:
    link = hub_cache.add(tmp_path / "hub", "me/a", "a-Q8_0.gguf", model)
    for answer, code in (("", 1), ("n", 1), ("y", 0)):
        terminal = program.on_terminal("rm", "me/a", env=home)
        terminal.expect_exact("[y/N]")
        assert link.exists()
        terminal.sendline(answer)
        done = program.finish(terminal)
        assert done.code == code
        assert link.exists() is (code == 1)
        assert ("nothing was removed" in done.out) is (code == 1)


def test_ctrl_c_at_the_question_removes_nothing_and_ends_the_line(
    home: dict[str, str], model: Path, tmp_path: Path
) -> None:
    link = hub_cache.add(tmp_path / "hub", "me/a", "a-Q8_0.gguf", model)
    terminal = program.on_terminal("rm", "me/a", env=home)
    terminal.expect_exact("[y/N]")
    terminal.sendintr()
    done = program.finish(terminal)
    assert (done.code, done.out.endswith("\n"), link.exists()) == (130, True, True)


@pytest.mark.parametrize("kind", ["RuntimeError", "OSError"])
def test_where_llama_cpp_does_not_load_one_line_says_so(
    kind: str, home: dict[str, str], model: Path, tmp_path: Path
) -> None:
    link = hub_cache.add(tmp_path / "hub", "me/a", "a-Q8_0.gguf", model)
    package = tmp_path / "broken" / "llama_cpp" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text(f"raise {kind}('Failed to load libllama.so: libcuda.so.1')\n")
    env = {**home, "PYTHONPATH": f"{package.parents[1]}:{program.ROOT}"}
    for arguments in (("list",), ("show", "me/a"), ("run", "-p", "hi")):
        done = program.run(*arguments, env=env)
        said = (
            "lacli: llama.cpp does not load: Failed to load libllama.so: libcuda.so.1 (lacli doctor says what to do)\n"
        )
        assert (done.code, done.out, done.err) == (1, "", said)
    # What reads no model works.
    assert program.run("pull", "--offline", "me/a:Q8_0", env=env).out == f"{link}\n"
    assert program.run("rm", "-y", "me/a", env=env).code == 0 and not link.is_symlink()


def test_rm_without_a_terminal_wants_yes(home: dict[str, str], model: Path, tmp_path: Path) -> None:
    link = hub_cache.add(tmp_path / "hub", "me/a", "a-Q8_0.gguf", model)
    done = program.run("rm", "me/a", stdin=b"y\n", env=home)
    assert done.code == 2 and "-y removes without asking" in done.err
    assert link.exists()
    closed = program.run("rm", "me/a", env=home, program=("sh", "-c", 'exec "$@" <&-', "sh", *program.PROGRAM))
    assert (closed.code, closed.err) == (2, done.err)
    assert link.exists()
    done = program.run("rm", "me/a", "--yes", "--json", env=home)
    assert json.loads(done.out)["removed"][0]["name"] == "me/a:Q8_0"
    assert (done.code, link.exists()) == (0, False)
    assert len(done.err.splitlines()) == 1


def test_rm_touches_neither_files_nor_the_bundled_model(home: dict[str, str], model: Path) -> None:
    for path in (model, demo_model()):
        done = program.run("rm", "-y", str(path), env=home)
        assert done.code == 2 and "outside" in done.err
        assert path.exists()


@pytest.mark.parametrize("command", ["rm", "pull"])
def test_a_missing_name_is_asked_for(home: dict[str, str], command: str) -> None:
    done = program.run(command, env=home)
    assert done.code == 2 and "no MODEL is given" in done.err


def test_pull_prints_paths_that_can_be_opened_and_fetches_once(model: Path, tmp_path: Path) -> None:
    files = {f"a-{quant}.gguf": model.read_bytes() + quant.encode() for quant in ("Q4_K_M", "Q8_0")}
    with FakeHub({"me/a": Repository(files)}).running() as hub:
        env = hub.environment(tmp_path / "home")
        done = program.run("pull", "me/a", "me/a:Q8_0", env=env)
        assert done.code == 0
        assert [Path(line).read_bytes() for line in done.out.splitlines()] == list(files.values())
        transfers = len(hub.transfers())
        again = program.run("pull", "me/a", "--json", env=env)
        (found,) = json.loads(again.out)["models"]
        assert (found["path"], found["size"]) == (done.out.splitlines()[0], len(files["a-Q4_K_M.gguf"]))
        assert len(hub.transfers()) == transfers
        listed = json.loads(program.run("list", "--json", env=env).out)
        assert {each["path"] for each in listed["models"]} >= set(done.out.splitlines())


def test_pull_of_what_the_hub_has_not_is_one_line(tmp_path: Path) -> None:
    with FakeHub({}).running() as hub:
        done = program.run("pull", "me/a", env=hub.environment(tmp_path))
        assert (done.code, done.out) == (1, "")
        assert len(done.err.splitlines()) == 1 and "me/a" in done.err
