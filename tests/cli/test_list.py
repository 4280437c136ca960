"""`lacli list` as a person meets it, and what all commands on the cache share."""

from __future__ import annotations

import json

import pytest

from tests import program
from tests.fakes.hub_commands import Home
from tests.loading import smollm2


def test_what_is_on_the_disk_is_listed_with_damaged_files_and_the_users_own_names(home: Home) -> None:
    home.alias("mine me/a Q8_0 my own")
    link = home.add("me/a", "a-Q8_0.gguf")
    damaged = home.add("me/a", "a-Q4_0.gguf", home.model.read_bytes()[:5000])
    done = home.call("list", "--json")
    assert (done.code, done.err) == (0, "")
    found = {each["path"]: each for each in json.loads(done.out)["models"]}
    assert found[str(link)]["size"] == home.model.stat().st_size and found[str(link)]["problem"] is None
    assert found[str(damaged)]["problem"].startswith("damaged:") and str(smollm2()) in found
    shown = home.call("list").out
    assert "\x1b" not in shown and "me/a:Q8_0" in shown and "damaged: a-Q4_0.gguf" in shown
    (line,) = (line for line in shown.split("\n") if line.startswith("mine"))
    assert line.split()[:2] == ["mine", "*"] and line.split()[-3:] == ["my", "own", "me/a:Q8_0"]


@pytest.mark.parametrize("command", [["list"], ["show", "me/a"], ["pull", "--offline", "mine"], ["rm", "-y", "mine"]])
def test_a_broken_line_among_the_users_own_names_is_told_once_and_stops_nothing(command: list[str], home: Home) -> None:
    home.alias("broken", "mine me/a")
    home.add("me/a", "a-Q8_0.gguf")
    done = home.call(*command)
    assert done.code == 0, done.err
    assert done.err.count("models.txt:1 is passed over: no repository") == 1


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
