"""--store: what runs and chats keep for later ones, what they say where they cannot, and nothing without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lacli.auto.past_texts import TextStore, text_key
from lacli.llamacpp import probe
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.text.records import NAME
from tests.loading import STDLIB_7M
from tests.program import Done, call


def run(folder: Path, *flags: str, prompt: str = "one", mode: str = "auto") -> Done:
    done = call("run", "-n", "4", "--mode", mode, "-p", prompt, *flags, env={"XDG_CACHE_HOME": str(folder)})
    assert done.code == 0 and done.out
    return done


def state_in(folder: Path) -> Path:
    return folder / "lacli" / NAME


def kept_texts(folder: Path) -> list[list[int]]:
    store = TextStore(state_in(folder), *text_key(STDLIB_7M))
    assert store.notes == []
    return [text.tolist() for text in store.texts]


def test_runs_with_a_store_keep_their_texts_once_and_answer_as_those_without(tmp_path: Path) -> None:
    without = [run(tmp_path, prompt=prompt).out for prompt in ("one", "two")]
    assert kept_texts(tmp_path) == []
    assert [run(tmp_path, "--store", prompt=prompt).out for prompt in ("one", "two")] == without
    texts = kept_texts(tmp_path)
    with Session(
        STDLIB_7M, ModelSettings(threads=1, gpu_layers=0), DecodeSettings(mode="plain"), SamplingSettings()
    ) as session:
        prompt = session.prompt("one")
        generation = session.generate(prompt, 4)
        assert "".join(piece.text for piece in generation) == without[0].removesuffix("\n")
    assert len(texts) == 2 and texts[0] == [*prompt, *generation.answer().tokens]
    assert run(tmp_path, "--store", prompt="one").out == without[0]
    run(tmp_path, "--no-store", prompt="three")
    run(tmp_path, prompt="three")
    assert kept_texts(tmp_path) == texts
    assert call("run", "-n", "1", "-p", "x", env={"LACLI_STORE": "1", "XDG_CACHE_HOME": str(tmp_path)}).code == 0
    assert len(kept_texts(tmp_path)) == 3


def test_json_has_the_notes_on_the_store_and_no_source_that_is_not_there(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, "--json").out)
    assert found["auto_sources"] == ["suffix", "recycling", "pool", "window"] and found["notes"] == []
    plain = run(tmp_path, "--json", "--store", mode="plain")
    assert json.loads(plain.out)["notes"] == ["--store has no effect in mode plain; --mode auto uses it"]
    assert plain.err.count("--store has no effect") == 1 and kept_texts(tmp_path) == []
    run(tmp_path, "--store", prompt="two")
    assert "store" in json.loads(run(tmp_path, "--json", "--store").out)["auto_sources"]


def test_every_turn_of_a_chat_is_kept_once_also_where_another_mode_begins(tmp_path: Path) -> None:
    chat, env = ("chat", "--commands", "-n", "4", "--mode", "plain", "--store"), {"XDG_CACHE_HOME": str(tmp_path)}
    done = call(*chat, stdin=b"one\n/mode auto\ntwo\n", env=env)
    assert done.code == 0 and done.err.count("nothing is guessed from it in mode plain") == 1
    first, second = kept_texts(tmp_path)
    run(tmp_path, "--store")
    assert kept_texts(tmp_path) == [first, second] and second[: len(first)] != first
    again = call(*chat, stdin=b"/set sources\n/mode auto\n/set sources\n", env=env)
    assert again.err.count("sources is suffix recycling pool window store (the default)") == 2
    assert call("chat", "-n", "4", "--mode", "auto", stdin=b"three\n", env=env).code == 0
    assert len(kept_texts(tmp_path)) == 2


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


@pytest.mark.parametrize("command", [("run", "-p", "one"), ("chat", "-p", "one")])
def test_where_nothing_can_be_kept_the_answer_goes_on_and_it_is_said_once(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "lacli").write_text("in the way")
    flags = (*command, "-n", "4", "--mode", "auto")
    done, without = (call(*flags, *store, env={"XDG_CACHE_HOME": str(tmp_path)}) for store in (("--store",), ()))
    assert done.code == 0 and done.err.count(f"lacli: the texts in {state_in(tmp_path)} cannot be used") == 1
    assert done.err.count(str(state_in(tmp_path))) == 1 and done.out == without.out


@pytest.mark.parametrize("mode", ["auto", "plain"])
def test_a_damaged_file_is_set_aside_and_said_once_by_any_command(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.session.session.proven", probe.proven)
    clean = run(tmp_path, mode=mode).out
    state_in(tmp_path).parent.mkdir(exist_ok=True)
    state_in(tmp_path).write_bytes(b"no database" * 99)
    probe.trouble_with.cache_clear()
    done = run(tmp_path, mode=mode)
    assert done.err.count(f"{state_in(tmp_path)} is damaged; it is set aside") == 1 and done.out == clean
    probe.trouble_with.cache_clear()
    assert "set aside" not in run(tmp_path, "--store").err and len(kept_texts(tmp_path)) == 1
