"""Saved chats: what is written comes back whole, and a broken file gives one clear line."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Message
from lacli.chat.saved import (
    FORMAT,
    SavedChat,
    read_chat,
    write_chat,
)
from lacli.errors import LacliError
from lacli.llamacpp.sampling import HUGE, RANGES, SamplingSettings
from lacli.settings import MODES, SOURCES, DecodeSettings

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
BIAS = st.tuples(st.integers(0, 10**6), st.one_of(st.just(-math.inf), st.floats(-HUGE, HUGE)))


def within(name: str) -> st.SearchStrategy[Any]:
    least, most = RANGES[name]
    if isinstance(getattr(SamplingSettings(), name), int):
        return st.integers(int(least), int(most))
    return st.floats(least, most)


SAMPLING = st.builds(
    SamplingSettings,
    # Mirostat and small temperatures are refused in combinations that are not this test's subject.
    **{name: within(name) for name in RANGES if name not in ("temp", "mirostat")},
    temp=st.sampled_from([0.0, 1e-6, 0.1, 0.8, 1 / 3]),
    dry_sequence_breaker=st.lists(TEXT.filter(lambda text: text and "\0" not in text)).map(tuple),
    logit_bias=st.lists(BIAS).map(tuple),
    ignore_eos=st.booleans(),
    json_schema=TEXT,
    verify=st.sampled_from(["match", "rejection"]),
)
DECODING = st.builds(
    DecodeSettings,
    mode=st.sampled_from(MODES),
    window=st.integers(0, 100),
    ngram=st.integers(2, 9),
    guesses=st.integers(0, 100),
    window_init=st.sampled_from(["prompt", "random", "pool"]),
    pool_prompt=st.booleans(),
    pool_keys=st.integers(1, 10**9),
    sources=st.lists(st.sampled_from(SOURCES), unique=True).map(tuple),
    auto_rows=st.integers(1, 256),
    strict=st.booleans(),
)
CHATS = st.builds(
    SavedChat,
    model=TEXT,
    system=TEXT,
    messages=st.lists(TEXT, max_size=5).map(
        lambda texts: tuple(Message("assistant" if at % 2 else "user", text) for at, text in enumerate(texts))
    ),
    adjusted=st.builds(
        Adjusted, DECODING, SAMPLING, st.integers(-1, 10**9), st.lists(TEXT.filter(bool), max_size=3).map(tuple)
    ),
    template=TEXT,
)

CHAT = SavedChat("demo", "be brief", (Message("user", "a"), Message("assistant", "b")), Adjusted())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(CHATS)
def test_what_is_written_is_read_again(tmp_path: Path, chat: SavedChat) -> None:
    write_chat(tmp_path / "chat.json", chat)
    assert read_chat(tmp_path / "chat.json") == chat


def test_the_file_is_indented_json_in_utf_8_with_no_infinity(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    sampling = SamplingSettings(logit_bias=((3, -math.inf),))
    write_chat(path, replace(CHAT, system="größe", adjusted=Adjusted(sampling=sampling)))
    text = path.read_text(encoding="utf-8")
    assert "größe" in text and '\n  "format": "lacli chat"' in text and text.endswith("}\n")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["settings"]["logit_bias"] == ["3-inf"]


def test_what_the_model_decides_is_not_written(tmp_path: Path) -> None:
    decoding = DecodeSettings(strict=True, ordered=True, least_outputs=2)
    write_chat(tmp_path / "chat.json", replace(CHAT, adjusted=Adjusted(decoding)))
    assert read_chat(tmp_path / "chat.json").adjusted.decoding == DecodeSettings(strict=True)


def test_settings_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"format": FORMAT, "version": 1, "messages": [], "settings": {"temp": 1}}))
    assert read_chat(path) == SavedChat("", "", (), Adjusted(sampling=SamplingSettings(temp=1.0)))
    assert type(read_chat(path).adjusted.sampling.temp) is float


def test_a_torn_write_leaves_the_old_chat_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat.json"
    write_chat(path, CHAT)

    def full(descriptor: int) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LacliError, match="No space left"):
        write_chat(path, replace(CHAT, system="new"))
    assert read_chat(path) == CHAT
    assert os.listdir(tmp_path) == ["chat.json"]


def test_whoever_reads_while_a_chat_is_written_over_reads_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    write_chat(path, CHAT)
    text = path.read_text()
    with path.open() as reader:
        write_chat(path, replace(CHAT, system="new"))
        assert reader.read() == text


def test_a_chat_is_its_owners_alone_and_keeps_other_permissions_where_it_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    write_chat(path, CHAT)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write_chat(path, replace(CHAT, system="new"))
    assert path.stat().st_mode & 0o777 == 0o640 and read_chat(path).system == "new"


def test_no_link_is_followed_to_where_a_chat_would_be_written(tmp_path: Path) -> None:
    path, link, dangling = tmp_path / "chat.json", tmp_path / "link", tmp_path / "dangling"
    write_chat(path, CHAT)
    link.symlink_to(path)
    dangling.symlink_to(tmp_path / "made")
    for name in (link, dangling):
        with pytest.raises(LacliError, match="is a link"):
            write_chat(name, replace(CHAT, system="new"))
    assert read_chat(path) == CHAT and not (tmp_path / "made").exists()


def test_the_home_folder_may_be_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_chat("~/chat.json", CHAT)
    assert read_chat("~/chat.json") == CHAT and (tmp_path / "chat.json").exists()


def test_nothing_but_a_chat_is_written_over(tmp_path: Path) -> None:
    notes, empty = tmp_path / "notes.txt", tmp_path / "empty"
    notes.write_text("dear diary")
    with pytest.raises(LacliError, match="exists and is no saved chat"):
        write_chat(notes, CHAT)
    assert notes.read_text() == "dear diary"
    empty.touch()
    write_chat(empty, CHAT)
    with pytest.raises(LacliError, match="is a folder"):
        write_chat(tmp_path, CHAT)
    with pytest.raises(LacliError, match="a folder that is there"):
        write_chat(tmp_path / "none" / "chat.json", CHAT)
    with pytest.raises(LacliError, match="a folder that is there"):
        write_chat(notes / "chat.json", CHAT)
    with pytest.raises(LacliError, match="no ordinary file"):
        write_chat("/dev/null", CHAT)
    with pytest.raises(LacliError, match="cannot write"):
        write_chat("a\0b", CHAT)
    with pytest.raises(LacliError, match="not UTF-8"):
        write_chat(tmp_path / "chat.json", replace(CHAT, system="\ud800"))
    assert sorted(os.listdir(tmp_path)) == ["empty", "notes.txt"]


def changed(**what: object) -> str:
    return json.dumps({"format": FORMAT, "version": 1, "messages": [], "settings": {}} | what)


BROKEN = {
    "nothing": ("", "not JSON"),
    "words": ("hello", "line 1, column 1"),
    "torn": (changed()[:-5], "not JSON"),
    "a list": ("[]", '"format"'),
    "a number": ("3", '"format"'),
    "another kind": ('{"messages": []}', '"format"'),
    "NaN": ('{"format": NaN}', "NaN"),
    "a huge number": ("9" * 5000, "no saved chat"),
    "deep": ("[" * 100_000, "no saved chat"),
    "a newer format": (changed(version=2), "use a newer lacli"),
    "no version": (changed(version="1"), "version"),
    "a true version": (changed(version=True), "version"),
    "no messages": (changed(messages=None), '"messages" is not a list'),
    "a text as message": (changed(messages=["hi"]), "is no message"),
    "a message without content": (changed(messages=[{"role": "user"}]), '"content" is not a text'),
    "a number as content": (changed(messages=[{"role": "user", "content": 3}]), '"content" is not a text'),
    "a system message": (changed(messages=[{"role": "system", "content": "x"}]), "take turns"),
    "two questions": (changed(messages=[{"role": "user", "content": "x"}] * 2), "take turns"),
    "half a character": (changed(messages=[{"role": "user", "content": "\ud800"}]), "half of a character"),
    "a number as system": (changed(system=3), '"system" is not a text'),
    "settings as a list": (changed(settings=[]), '"settings" is not an object'),
    "unknown settings": (changed(settings={"warmth": 1, "zeal": 2}), "warmth, zeal"),
    "a text as number": (changed(settings={"temp": "1"}), '"temp" is not a number'),
    "a truth as number": (changed(settings={"temp": True}), '"temp" is not a number'),
    "a fraction as whole number": (changed(settings={"window": 1.5}), '"window" is not a whole number'),
    "a number as truth": (changed(settings={"ignore_eos": 1}), '"ignore_eos" is not true or false'),
    "a number as strict": (changed(settings={"strict": 1}), '"strict" is not true or false'),
    "out of range": (changed(settings={"top_p": 7}), "must be from 0 to 1"),
    "a number too large": (changed(settings={"temp": 10**400}), '"temp" is too large'),
    "another mode": (changed(settings={"mode": "fast"}), "\"mode\" is 'fast'"),
    "another source": (changed(settings={"sources": ["pool", "magic"]}), "there is no source 'magic'"),
    "a text as list": (changed(settings={"stops": "x"}), '"stops" is not a list'),
    "numbers as texts": (changed(settings={"stops": [1]}), '"stops" is not a text'),
    "no biases": (changed(settings={"logit_bias": ["x"]}), "logit-bias"),
    "a contradiction": (changed(settings={"grammar": "x", "json_schema": "y"}), "both given"),
}


@pytest.mark.parametrize(("text", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_gives_one_line_that_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text)
    with pytest.raises(LacliError) as caught:
        read_chat(path)
    line = str(caught.value)
    assert words in line and "chat.json" in line and "\n" not in line and caught.value.hint


def test_what_is_no_text_file_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b'{"format": "\xff"}')
    for name, words in (("bytes", "not UTF-8"), (".", "directory"), ("none", "No such file"), ("a\0b", "cannot read")):
        with pytest.raises(LacliError, match=words) as caught:
            read_chat(f"{tmp_path}/{name}")
        assert "\n" not in str(caught.value)
