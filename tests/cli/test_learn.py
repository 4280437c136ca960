"""--learn: what answers leave for later ones, numbers alone, and nothing where that is not wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lacli.auto.model_cost import LEARNED
from lacli.settings import SOURCES
from lacli.text.records import NAME, Records
from tests.fakes.tiny_models import write_llama
from tests.program import Done, call

QUESTION = "one two three one two three one two three"
RUN = ("run", "-q", "-n", "16", "-p", QUESTION)


@pytest.fixture
def learns(tmp_path: Path) -> dict[str, str]:
    """Learns, in a cache folder of the test's own."""
    return {"XDG_CACHE_HOME": str(tmp_path), "LACLI_LEARN": "1"}


def done(env: dict[str, str], *arguments: str, stdin: bytes = b"", code: int = 0) -> Done:
    finished = call(*arguments, env=env, stdin=stdin)
    assert finished.code == code, finished.err
    return finished


def kept(env: dict[str, str]) -> list[tuple[Any, Any]]:
    return Records(Path(env["XDG_CACHE_HOME"]) / "lacli" / NAME).all(LEARNED)


def tries(value: dict[str, Any]) -> float:
    return float(sum(tries for _, tries in value["suffix"]))


def test_a_run_goes_on_from_what_the_one_before_has_learned_and_says_the_same(learns: dict[str, str]) -> None:
    texts, counts = set(), []
    for _ in range(3):
        texts.add(done(learns, *RUN).out)
        ((key, value),) = kept(learns)
        counts.append(tries(value))
    assert len(texts) == 1 and counts == sorted(set(counts))
    assert key["sampled"] is False
    done(learns, *RUN, "--temp", "1", "-s", "3")
    assert [key["sampled"] for key, _ in kept(learns)] == [False, True]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield value


def test_nothing_but_numbers_under_known_names_is_kept_of_an_answer(learns: dict[str, str]) -> None:
    done(learns, *RUN)
    ((_, value),) = kept(learns)
    sources = {*SOURCES, *(f"{source}_account" for source in SOURCES)}
    assert set(value) == {"saved_at", *sources, "rewriting", "window_pause", "budget", "steps"}
    assert set(value["steps"]) == {"plain_s", "context", "return_cost", "sizes"}
    assert {type(each) for each in leaves(value)} <= {int, float, type(None)}
    # Short for a text: two numbers for each of some seventy kinds of guesses.
    assert len(json.dumps(value)) < 3000


@pytest.mark.parametrize(
    ("flags", "learn"),
    [
        (("--no-learn",), "1"),
        ((), "0"),
        (("--mode", "plain"), "1"),
        (("--mode", "lookahead", "-n", "4", "-W", "4"), "1"),
    ],
)
def test_what_is_not_to_be_learned_is_neither_written_nor_read(
    learns: dict[str, str], flags: tuple[str, ...], learn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(learns, *RUN)
    before = kept(learns)
    read = Records.read

    def refusing(records: Records, kind: str, key: object) -> Any:
        assert kind != LEARNED
        return read(records, kind, key)

    monkeypatch.setattr(Records, "read", refusing)
    for arguments in (RUN, ("chat", "-q", "-n", "4", "-p", QUESTION)):
        done({**learns, "LACLI_LEARN": learn}, *arguments, *flags)
    assert kept(learns) == before


def test_every_turn_of_a_chat_in_mode_auto_is_learned_from(learns: dict[str, str]) -> None:
    seen: list[float] = []

    def noting(records: Records, kind: str, key: object, value: Any) -> str:
        seen.append(tries(value))
        return save(records, kind, key, value)

    save = Records.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Records, "save", noting)
        lines = f"{QUESTION}\n/mode plain\n{QUESTION}\n/mode auto\n{QUESTION}\n/set temp 1\n{QUESTION}\n"
        done(learns, "chat", "-q", "-n", "12", "--commands", stdin=lines.encode())
    # Plain decoding teaches nothing, and drawn tokens nothing about those that are not.
    assert seen[0] < seen[1] == seen[2] and seen[3]
    assert [(key["sampled"], tries(value)) for key, value in kept(learns)] == [(False, seen[1]), (True, seen[3])]


def test_an_answer_that_is_stopped_has_been_learned_from_too(
    learns: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(screen: object, pieces: Iterator[object]) -> None:
        for count, _ in enumerate(pieces):
            if count == 8:
                raise KeyboardInterrupt

    monkeypatch.setattr("lacli.terminal.screen.Screen.write", stopping)
    done(learns, *RUN, code=130)
    assert len(kept(learns)) == 1


def test_a_folder_in_which_nothing_can_be_kept_is_no_word_worth(learns: dict[str, str]) -> None:
    expected = done(learns, *RUN).out
    (Path(learns["XDG_CACHE_HOME"]) / "lacli" / NAME).unlink()
    (Path(learns["XDG_CACHE_HOME"]) / "lacli").rmdir()
    (Path(learns["XDG_CACHE_HOME"]) / "lacli").write_text("in the way")
    finished = done(learns, *RUN[:1], *RUN[2:])
    assert finished.out == expected and NAME not in finished.err


def test_checks_and_benchmarks_begin_and_end_without_what_was_learned(
    learns: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise AssertionError("it was asked for")

    monkeypatch.setattr("lacli.session.session.Session.use_known", refusing)
    model, prompts = str(tmp_path / "tiny.gguf"), tmp_path / "prompts.jsonl"
    write_llama(Path(model))
    prompts.write_text('{"prompt": "one two"}\n')
    done(learns, "check", model, "-q", "-c", "128", "-n", "4", "--each", "1")
    done(learns, "bench", model, "-q", "--modes", "auto", "--prompts", str(prompts), "-n", "4", "--seconds", "6")
    assert kept(learns) == []
