"""--store: what runs and chats keep for later ones, what they say where they cannot, and nothing without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lacli.auto.store import open_store, store_key
from lacli.hub.download import find_model
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from tests.program import Done, call


def run(folder: Path, *flags: str, prompt: str = "one", mode: str = "auto") -> Done:
    done = call("run", "-n", "4", "--mode", mode, "-p", prompt, *flags, env={"XDG_CACHE_HOME": str(folder)})
    assert done.code == 0 and done.out
    return done


def kept_of_demo(folder: Path) -> list[list[int]]:
    store, notes = open_store(folder / "lacli" / "store", store_key(find_model(None)))
    assert notes == []
    return [text.tolist() for text in store.texts]


def test_runs_with_a_store_keep_their_texts_and_answer_as_those_without(tmp_path: Path) -> None:
    without = [run(tmp_path, prompt=prompt).out for prompt in ("one", "two")]
    assert not list(tmp_path.iterdir())
    assert [run(tmp_path, "--store", prompt=prompt).out for prompt in ("one", "two")] == without
    texts = kept_of_demo(tmp_path)
    assert len(texts) == 2
    assert run(tmp_path, "--store", prompt="one").out == without[0]
    assert kept_of_demo(tmp_path) == texts
    run(tmp_path, "--no-store", prompt="three")
    run(tmp_path, prompt="three")
    assert kept_of_demo(tmp_path) == texts


def test_a_kept_text_is_the_prompt_and_its_answer(tmp_path: Path) -> None:
    with Session(
        find_model(None), ModelSettings(threads=1, gpu_layers=0), DecodeSettings(mode="plain"), SamplingSettings()
    ) as session:
        prompt = session.prompt("one")
        generation = session.generate(prompt, 4)
        assert "".join(piece.text for piece in generation)
    run(tmp_path, "--store")
    assert kept_of_demo(tmp_path) == [[*prompt, *generation.answer().tokens]]


def test_an_environment_variable_opens_the_store_too(tmp_path: Path) -> None:
    folder = {"XDG_CACHE_HOME": str(tmp_path)}
    assert call("run", "-n", "1", "--mode", "auto", "-p", "one", env={"LACLI_STORE": "1", **folder}).code == 0
    assert len(kept_of_demo(tmp_path)) == 1


def test_a_store_in_another_mode_is_one_note_and_keeps_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "--store", mode="plain")
    assert done.err.count("--store has no effect in mode plain") == 1 and not list(tmp_path.iterdir())


def test_json_has_the_notes_on_the_store_and_no_source_that_is_not_there(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, "--json").out)
    assert found["auto_sources"] == ["suffix", "recycling", "pool", "window"] and found["notes"] == []
    plain = json.loads(run(tmp_path, "--json", "--store", mode="plain").out)
    assert plain["notes"] == ["--store has no effect in mode plain; --mode auto uses it"]
    run(tmp_path, "--store", prompt="two")
    assert "store" in json.loads(run(tmp_path, "--json", "--store").out)["auto_sources"]
    (file,) = (tmp_path / "lacli" / "store").glob("*.texts")
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    (note,) = json.loads(run(tmp_path, "--json", "--store").out)["notes"]
    assert "is damaged" in note


def test_a_chat_keeps_its_turns_also_where_another_mode_begins(tmp_path: Path) -> None:
    chat = ("chat", "--commands", "-n", "4", "--mode", "plain", "--store")
    done = call(*chat, stdin=b"one\n/mode auto\ntwo\n", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.code == 0 and done.err.count("nothing is guessed from it in mode plain") == 1
    assert len(kept_of_demo(tmp_path)) == 2
    again = call(*chat, stdin=b"/set sources\n/mode auto\n/set sources\n", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert again.err.count("sources is suffix recycling pool window store (the default)") == 2


@pytest.mark.parametrize("flags", [("--sources", "none"), ("--sources", ""), ("--sources", "store")])
def test_without_a_source_one_note_says_that_auto_decodes_plainly(tmp_path: Path, flags: tuple[str, str]) -> None:
    done = run(tmp_path, *flags)
    assert done.err.count("no source is left, so auto decodes plainly") == 1
    assert done.out == run(tmp_path, mode="plain").out
    assert "no source is left" not in run(tmp_path, *flags, mode="lookup").err


def test_a_chat_says_once_that_no_source_is_left_and_shows_those_in_use(tmp_path: Path) -> None:
    lines = b"/set sources\n/set\n/set sources none\n/set temp 0.5\n/set sources store\n"
    done = call("chat", "--commands", "--mode", "auto", stdin=lines, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.err.count("no source is left, so auto decodes plainly") == 2
    assert "sources is suffix recycling pool window (the default)" in done.err
    assert "sources suffix recycling pool window " in " ".join(done.err.split())
    assert "guessing" in done.err.splitlines()


def test_a_run_goes_on_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "lacli").write_text("in the way")
    done = run(tmp_path, "--store")
    assert done.err.count(str(tmp_path / "lacli" / "store")) == 1 and "lacli: " in done.err
    assert done.out == run(tmp_path).out


def test_a_run_mends_a_damaged_store_and_says_so_once(tmp_path: Path) -> None:
    run(tmp_path, "--store")
    (file,) = (tmp_path / "lacli" / "store").glob("*.texts")
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert "is damaged: it begins anew" in run(tmp_path, "--store", prompt="two").err
    assert "damaged" not in run(tmp_path, "--store", prompt="two").err
    assert len(kept_of_demo(tmp_path)) == 1


def test_every_turn_of_a_chat_is_kept_once(tmp_path: Path) -> None:
    chat = ("chat", "-n", "4", "--mode", "auto", "--store")
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert call(*chat, stdin=b"one\ntwo\n", env=env).code == 0
    first, second = kept_of_demo(tmp_path)
    run(tmp_path, "--store")
    assert kept_of_demo(tmp_path) == [first, second]
    assert second[: len(first)] != first
    assert call("chat", "-n", "4", "--mode", "auto", stdin=b"three\n", env=env).code == 0
    assert len(kept_of_demo(tmp_path)) == 2


def test_a_chat_goes_on_where_nothing_can_be_kept_and_says_so_once(tmp_path: Path) -> None:
    chat = ("chat", "-n", "4", "--mode", "auto", "--store")
    (tmp_path / "lacli").write_text("in the way")
    done = call(*chat, stdin=b"one\ntwo\n", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.code == 0 and done.err.count("lacli/store") == 1
