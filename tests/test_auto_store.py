"""Texts kept between runs: what comes back, what a killed or a second process does to them, what is no text of ours."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto import store as store_module
from lacli.auto.store import (
    HEADER,
    MAGIC,
    RECORD,
    StoreKey,
    TextStore,
    contents_of,
    open_store,
    store_for,
    store_key,
)
from lacli.cost.store import HASHED
from lacli.errors import ModelLoadError
from lacli.hub.download import find_model
from lacli.settings import DecodeSettings
from tests.program import ROOT, SECONDS, environment

KEY = StoreKey("toy 1.gguf", 4000, "some content", 1000, "some pieces")
TEXTS = [[1, 2, 3], [4, 5, 6, 7, 8], [999]]


def opened(folder: Path, key: StoreKey = KEY, **more: Any) -> TextStore:
    """A store with which nothing is wrong."""
    store, notes = open_store(folder, key, **more)
    assert notes == []
    return store


def kept(folder: Path, key: StoreKey = KEY, **more: Any) -> list[list[int]]:
    return [text.tolist() for text in opened(folder, key, **more).texts]


def file_in(folder: Path, key: StoreKey = KEY) -> Path:
    return folder / key.file_name


def filled(folder: Path, texts: Iterable[Sequence[int]] = TEXTS) -> bytes:
    store = opened(folder)
    for text in texts:
        assert store.add(text) == ""
    return file_in(folder).read_bytes()


def test_what_is_added_comes_back_in_this_order(tmp_path: Path) -> None:
    assert kept(tmp_path / "cache" / "store") == []
    filled(tmp_path / "cache" / "store")
    assert kept(tmp_path / "cache" / "store") == TEXTS


def test_nothing_is_made_before_something_is_added(tmp_path: Path) -> None:
    opened(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        filled(tmp_path / "store")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    files = list((tmp_path / "store").iterdir())
    assert file_in(tmp_path / "store") in files and len(files) == 2
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    assert file_in(tmp_path / "store").name.startswith("toy_1-")


def test_the_same_text_is_kept_once(tmp_path: Path) -> None:
    filled(tmp_path)
    filled(tmp_path, [TEXTS[1], TEXTS[1], [5, 4]])
    assert kept(tmp_path) == [*TEXTS, [5, 4]]


def test_of_a_conversation_every_turn_adds_what_is_new(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for turn in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 6], []):
        assert store.add(turn) == ""
    assert kept(tmp_path) == [[1, 2, 3], [4, 5], [6]]


def test_a_torn_text_is_left_out_and_cut_off_with_the_next(tmp_path: Path) -> None:
    whole = filled(tmp_path, [*TEXTS[:2], list(range(10))])
    before = len(whole) - RECORD.size - 40
    for length in range(before, len(whole)):
        file_in(tmp_path).write_bytes(whole[:length])
        store = opened(tmp_path)
        assert [text.tolist() for text in store.texts] == TEXTS[:2]
        assert file_in(tmp_path).stat().st_size == length
        assert store.add([7, 7]) == ""
        assert kept(tmp_path) == [*TEXTS[:2], [7, 7]]
        assert file_in(tmp_path).stat().st_size == before + RECORD.size + 8


def test_a_file_torn_anywhere_is_no_trouble(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    for length in range(len(whole)):
        contents = contents_of(whole[:length], KEY)
        assert not contents.trouble
        assert [text.tolist() for text in contents.texts] == TEXTS[: len(contents.texts)]
    file_in(tmp_path).write_bytes(whole[: HEADER.size // 2])
    assert opened(tmp_path).add([5]) == ""
    assert kept(tmp_path) == [[5]]


def test_a_damaged_byte_anywhere_costs_no_more_than_what_it_may_have_spoilt(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        file_in(tmp_path).write_bytes(damaged)
        store, notes = open_store(tmp_path, KEY)
        texts = [text.tolist() for text in store.texts]
        assert len(notes) == 1 and str(file_in(tmp_path)) in notes[0]
        assert len(texts) < 3 and all(text in TEXTS for text in texts)
        assert kept(tmp_path) == texts, "it was not mended"
        assert store.add([8, 9]) == "" and kept(tmp_path) == [*texts, [8, 9]]


def test_a_damaged_text_leaves_the_others(tmp_path: Path) -> None:
    damaged = bytearray(filled(tmp_path))
    damaged[HEADER.size + 2 * RECORD.size + 4 * 3 + 1] ^= 1
    file_in(tmp_path).write_bytes(damaged)
    store, notes = open_store(tmp_path, KEY)
    assert [text.tolist() for text in store.texts] == [TEXTS[0], TEXTS[2]]
    assert notes == [f"the store {file_in(tmp_path)} is damaged: 2 texts are left"]


def test_a_single_text_is_left_and_not_are(tmp_path: Path) -> None:
    damaged = bytearray(filled(tmp_path))
    damaged[HEADER.size + RECORD.size + 4 * len(TEXTS[0])] ^= 1
    file_in(tmp_path).write_bytes(damaged)
    assert open_store(tmp_path, KEY)[1][0].endswith(": 1 text is left")


@given(st.binary(max_size=200), st.integers(0, 60))
def test_whatever_is_in_a_file_only_whole_texts_are_read(garbage: bytes, place: int) -> None:
    header = KEY.header
    contents = contents_of(header[: max(len(header) - place, 0)] + garbage, KEY)
    assert contents.trouble or not contents.texts


def test_what_another_process_adds_to_a_damaged_file_stays(tmp_path: Path) -> None:
    damaged = bytearray(filled(tmp_path))
    damaged[-1] ^= 1
    store = opened(tmp_path)
    file_in(tmp_path).write_bytes(damaged)
    assert store.add([7]) == ""
    assert kept(tmp_path) == [*TEXTS[:2], [7]]


@pytest.mark.parametrize(
    "foreign",
    [b"not ours, but as long as a header is: " * 3, bytes(200), b"\0", HEADER.pack(MAGIC, 2, KEY.header[-32:])],
    ids=["text", "zeros", "short", "format"],
)  # fmt: skip
def test_a_foreign_file_begins_anew_and_says_so(tmp_path: Path, foreign: bytes) -> None:
    file_in(tmp_path).write_bytes(foreign)
    store, (note,) = open_store(tmp_path, KEY)
    assert store.texts == [] and "begins anew" in note
    assert kept(tmp_path) == []
    assert store.add([3]) == "" and kept(tmp_path) == [[3]]


def test_the_texts_of_another_key_are_never_read(tmp_path: Path) -> None:
    filled(tmp_path)
    others = [replace(KEY, **change) for change in (
        {"model": "other"}, {"size": 1}, {"content": "x"}, {"vocabulary": 7}, {"pieces": "x"}
    )]  # fmt: skip
    assert len({key.file_name for key in (KEY, *others)}) == 6
    for other in others:
        assert kept(tmp_path, other) == []
        file_in(tmp_path, other).write_bytes(file_in(tmp_path).read_bytes())
        store, (note,) = open_store(tmp_path, other)
        assert store.texts == [] and "another model" in note


def test_ids_that_the_vocabulary_does_not_have_are_no_text(tmp_path: Path) -> None:
    for wrong in (1000, -1):
        filled(tmp_path / str(wrong), [[1], [2], [5, wrong]])
        store, (note,) = open_store(tmp_path / str(wrong), KEY)
        assert [text.tolist() for text in store.texts] == [[1], [2]] and "damaged" in note


def test_a_full_file_keeps_its_newest_half(tmp_path: Path) -> None:
    for first in range(0, 1000, 10):
        store = opened(tmp_path, most=100)
        assert store.add(list(range(first, first + 10))) == ""
        texts = kept(tmp_path, most=100)
        together = [token for text in texts for token in text]
        assert together == list(range(first + 10 - len(together), first + 10))
        assert min(first + 10, 50) <= len(together) <= 100
    assert file_in(tmp_path).stat().st_size <= HEADER.size + 10 * (RECORD.size + 40)


def test_of_a_text_that_is_too_long_the_end_is_kept(tmp_path: Path) -> None:
    store = opened(tmp_path, most=100)
    store.add([1, 2, 3])
    store.add(list(range(500)))
    assert kept(tmp_path, most=100) == [list(range(450, 500))]


def test_a_file_larger_than_one_can_be_begins_anew(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    file_in(tmp_path).write_bytes(whole + bytes(3000))
    store, (note,) = open_store(tmp_path, KEY, most=100)
    assert store.texts == [] and "larger" in note and kept(tmp_path) == []


KILLED = f"""
import sys
from pathlib import Path
from lacli.auto.store import StoreKey, open_store
store, _ = open_store(Path(sys.argv[1]), {KEY!r})
for number in range(10**6):
    assert store.add([number % 1000] * 300 + [number // 1000]) == ""
    print(number, flush=True)
"""

ADDING = f"""
import sys
from pathlib import Path
from lacli.auto import store as store_module
from lacli.auto.store import StoreKey, open_store
# A slow disk keeps the other one busy for longer than a user would wait.
store_module.PATIENCE = {SECONDS}
store, notes = open_store(Path(sys.argv[1]), {KEY!r})
print(notes, flush=True)
sys.stdin.readline()
for number in range(40):
    print(store.add([number, int(sys.argv[2])] * 5), flush=True)
"""


def process(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def numbered(number: int) -> list[int]:
    return [number % 1000] * 300 + [number // 1000]


def test_a_process_killed_while_it_adds_loses_at_most_the_text_of_that_moment(tmp_path: Path) -> None:
    for lines in (1, 4, 9):
        folder = tmp_path / str(lines)
        with process(KILLED, str(folder)) as adding:
            assert adding.stdout
            seen = [int(adding.stdout.readline()) for _ in range(lines)][-1]
            adding.send_signal(signal.SIGKILL)
            seen = max([seen, *map(int, adding.stdout.read().split())])
        texts = kept(folder)
        assert len(texts) in (seen + 1, seen + 2)
        assert texts == [numbered(number) for number in range(len(texts))]
        assert opened(folder).add([5]) == "" and kept(folder) == [*texts, [5]]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("most", [100, 12])
def test_a_process_killed_between_any_two_calls_leaves_a_file_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    def die(*_: Any) -> NoReturn:
        raise Killed

    for number, name in enumerate(("fsync", "replace")):
        folder = tmp_path / str(number)
        filled(folder)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, die)
            with suppress(Killed):
                opened(folder, most=most).add([7, 8, 9, 10])
        texts = kept(folder)
        assert texts in (TEXTS, [*TEXTS, [7, 8, 9, 10]])
        assert opened(folder).add([5]) == "" and kept(folder) == [*texts, [5]]


def test_two_processes_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    with process(ADDING, str(tmp_path), "1") as first, process(ADDING, str(tmp_path), "2") as second:
        for adding in (first, second):
            assert adding.stdin and adding.stdout and adding.stdout.readline() == "[]\n"
        for adding in (first, second):
            assert adding.stdin
            print(file=adding.stdin, flush=True)
        for adding in (first, second):
            assert adding.stdout and adding.stdout.read() == "\n" * 40
    texts = kept(tmp_path)
    assert len(texts) == 80
    for each in (1, 2):
        assert [text for text in texts if text[1] == each] == [[number, each] * 5 for number in range(40)]


def test_a_process_that_does_not_let_go_is_a_reason_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PATIENCE", 0)
    filled(tmp_path)
    store = opened(tmp_path)
    with FileLock(file_in(tmp_path).with_suffix(".lock")):
        assert "another program" in store.add([5])
        assert store.add([6]) == ""
    assert kept(tmp_path) == TEXTS


def test_a_folder_that_cannot_be_is_a_reason_once_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store, notes = open_store(tmp_path / "file" / "store", KEY)
    reasons = [*notes, store.add([1, 2]), store.add([1, 2, 3])]
    assert len([reason for reason in reasons if reason]) == 1 and store.texts == []


def test_a_folder_in_the_files_place_is_a_reason_once_and_no_error(tmp_path: Path) -> None:
    file_in(tmp_path).mkdir()
    store, (note,) = open_store(tmp_path, KEY)
    assert "directory" in note and store.add([1]) == ""


@pytest.mark.parametrize("number", [28, 30])
def test_a_full_or_read_only_disk_is_a_reason_once_and_what_is_there_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    damaged = bytearray(filled(tmp_path))

    def fail(*_: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    store = opened(tmp_path)
    assert len(store.texts) == 3
    assert os.strerror(number) in store.add([1, 5]) and store.add([6]) == ""
    damaged[-1] ^= 1
    file_in(tmp_path).write_bytes(damaged)
    store, (note,) = open_store(tmp_path, KEY)
    assert len(store.texts) == 2 and os.strerror(number) in note and store.add([1]) == ""
    assert len(list(tmp_path.iterdir())) == 2


def test_the_key_is_the_models_and_its_vocabularys(tmp_path: Path) -> None:
    demo = find_model(None)
    key = store_key(demo)
    assert key.vocabulary == 4096 and key.size == demo.stat().st_size
    other = tmp_path / demo.name
    content = bytearray(demo.read_bytes())
    other.write_bytes(content)
    assert store_key(other) == key
    content[-HASHED // 2] ^= 1
    other.write_bytes(content)
    assert store_key(other).pieces == key.pieces and store_key(other) != key
    place = content.index("Ġreturn".encode())
    content[place + 2] = ord("x")
    other.write_bytes(content)
    assert store_key(other).pieces != key.pieces


def test_a_file_that_is_no_model_is_an_error_as_it_is_without_a_store(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match="model.gguf"):
        store_key(tmp_path / "model.gguf")


def test_other_modes_and_no_folder_open_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "no.gguf"
    assert store_for(missing, DecodeSettings(mode="auto"), None) == (None, [])
    store, (note,) = store_for(missing, DecodeSettings(mode="lookup"), tmp_path / "store")
    assert store is None and note == "--store has no effect in mode lookup; --mode auto uses it"
    store, (note,) = store_for(missing, DecodeSettings(mode="auto", sources=("pool",)), tmp_path / "store")
    assert store is None and "--sources leaves store out" in note


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (DecodeSettings(mode="lookup"), "in mode lookup; --mode auto uses it"),
        (DecodeSettings(mode="auto", sources=("pool",)), "where --sources leaves store out"),
    ],
)
def test_where_settings_may_change_the_texts_are_opened_in_every_mode(
    tmp_path: Path, settings: DecodeSettings, why: str
) -> None:
    store, (note,) = store_for(find_model(None), settings, tmp_path, changing=True)
    assert store and store.add([1, 2, 3]) == ""
    assert note == f"--store keeps what is said, and nothing is guessed from it {why}"
    store, notes = store_for(find_model(None), DecodeSettings(mode="auto"), tmp_path, changing=True)
    assert store and [text.tolist() for text in store.texts] == [[1, 2, 3]] and notes == []
