"""`lacli list` as a person meets it, and what all commands on the cache share."""

from __future__ import annotations

import json

import pytest

from tests import program
from tests.fakes import tiny_models
from tests.fakes.hub_commands import Home
from tests.loading import smollm2


def test_json_is_what_is_on_the_disk(home: Home) -> None:
    parts = tiny_models.write_llama_split(home.folder)
    links = [home.add("me/split", part.name, part.read_bytes()) for part in parts]
    link = home.add("me/a", "a-Q8_0.gguf")
    damaged = home.add("me/a", "a-Q4_0.gguf", home.model.read_bytes()[:5000])
    done = home.call("list", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert {each["path"]: each["size"] for each in found["models"] if each["repository"]} == {
        str(links[0]): sum(part.stat().st_size for part in parts),
        str(link): home.model.stat().st_size,
        str(damaged): 5000,
    }
    problems = {each["file"]: each["problem"] for each in found["models"]}
    assert problems["a-Q8_0.gguf"] is None and problems["a-Q4_0.gguf"].startswith("damaged:")
    assert [each["path"] for each in found["models"] if each["name"] == "smollm2-135m"] == [str(smollm2())]


def test_a_pipe_gets_plain_lines_with_damaged_files_and_the_users_own_names(home: Home) -> None:
    home.alias("mine me/a Q8_0 my own")
    home.add("me/a", "a-Q4_0.gguf", b"GGUF and no more")
    home.add("me/a", "a-Q8_0.gguf")
    done = home.call("list")
    assert done.code == 0 and "\x1b" not in done.out
    assert "me/a:Q8_0" in done.out and "damaged: a-Q4_0.gguf" in done.out
    (line,) = (line for line in done.out.split("\n") if line.startswith("mine"))
    assert line.split()[:2] == ["mine", "*+"] and line.split()[-3:] == ["my", "own", "me/a:Q8_0"]


def test_words_that_nothing_has_are_said_and_no_error(home: Home) -> None:
    done = home.call("list", "no-such-model")
    assert (done.code, done.out) == (0, "") and "nothing here has no-such-model" in done.err
    assert json.loads(home.call("list", "no-such-model", "--json").out)["models"] == []


@pytest.mark.parametrize("command", [["list"], ["show", "me/a"], ["pull", "--offline", "mine"], ["rm", "-y", "mine"]])
def test_a_broken_line_among_the_users_own_names_is_told_once_and_stops_nothing(command: list[str], home: Home) -> None:
    home.alias("broken", "mine me/a")
    home.add("me/a", "a-Q8_0.gguf")
    done = home.call(*command)
    assert done.code == 0, done.err
    assert done.err.count("models.txt, line 1: no repository") == 1


def test_where_llama_cpp_does_not_load_one_line_says_so_and_what_reads_no_model_works(home: Home) -> None:
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
