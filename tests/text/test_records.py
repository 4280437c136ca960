"""The file of records and texts: what comes back, what other processes and damage do to it, what lies in its place."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.text import records
from lacli.text.records import (
    NAME,
    VERSION,
    Records,
    Unusable,
    model_identity,
    state_file,
)
from tests.program import ROOT, environment

KEY = {"model": "toy.gguf", "rows": [1, 2], "text": "ä"}
MANY = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / NAME


@pytest.fixture
def filled(path: Path) -> Path:
    kept = Records(path)
    assert kept.save("cost", KEY, {"times": [0.1, 2.5]}) == ""
    kept.add_text("toy", b"abcd", MANY)
    return path


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), values),
    max_leaves=9,
)


@given(plain, plain)
@settings(max_examples=20)
def test_a_record_comes_back_as_it_was_and_replaces_an_older_one(
    tmp_path_factory: pytest.TempPathFactory, key: object, value: object
) -> None:
    kept = Records(tmp_path_factory.mktemp("records") / NAME)
    assert kept.read("cost", key) is None
    for each in ("older", value):
        assert kept.save("cost", key, each) == ""
    assert kept.read("cost", key) == value and kept.all("cost") == [(key, value)]
    assert kept.read("trial", key) is None


def test_a_key_is_known_in_any_order_and_other_keys_are_others(filled: Path) -> None:
    kept = Records(filled)
    assert kept.read("cost", dict(reversed(KEY.items()))) == {"times": [0.1, 2.5]}
    assert kept.read("cost", {**KEY, "rows": [2, 1]}) is None


def test_a_kind_is_forgotten_and_the_others_stay(filled: Path) -> None:
    kept = Records(filled)
    kept.save("trial", 1, "fault")
    kept.save("trial", {"b": 1, "a": 2}, "fault")
    kept.forget("trial", {"a": 2, "b": 1})
    assert kept.all("trial") == [(1, "fault")]
    kept.forget("trial")
    assert kept.all("trial") == [] and len(kept.all("cost")) == 1


def test_reading_and_forgetting_make_no_file_and_writing_makes_one_for_its_owner_alone(path: Path) -> None:
    kept, before = Records(path), os.umask(0)
    try:
        kept.check()
        kept.forget("cost")
        assert (kept.read("cost", 1), kept.all("cost"), kept.texts("toy", MANY)) == (None, [], [])
        assert not path.parent.exists()
        kept.save("cost", 1, 2)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [(each.name, stat.S_IMODE(each.stat().st_mode)) for each in path.parent.iterdir()] == [(NAME, 0o600)]


def test_texts_come_back_by_model_in_their_order_each_once(path: Path) -> None:
    kept = Records(path)
    for text in (b"one.", b"two.", b"one.", b"four"):
        kept.add_text("toy", text, MANY)
    kept.add_text("other", b"else", MANY)
    assert kept.texts("toy", MANY) == [b"one.", b"two.", b"four"]
    assert kept.texts("toy", 9) == [b"two.", b"four"] and kept.texts("none", MANY) == []


def test_of_too_many_texts_the_newest_half_stays(path: Path) -> None:
    kept = Records(path)
    kept.add_text("other", b"x" * 90, 100)
    for number in range(40):
        kept.add_text("toy", b"%010d" % number, 100)
        texts = kept.texts("toy", MANY)
        assert texts == [b"%010d" % each for each in range(number + 1 - len(texts), number + 1)]
        assert min(number + 1, 5) <= len(texts) <= 10
    assert len(kept.texts("other", MANY)) == 1


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def overwritten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * 20000)


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def zeros(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def changed(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            for statement in statements:
                db.execute(statement)
            db.commit()

    return change


FOREIGN = {
    "cut off": truncated,
    "overwritten": overwritten,
    "noise": noise,
    "zeros": zeros,
    "a folder": folder,
    "a pipe": pipe,
    "an endless file": endless,
    "a later version": changed(f"PRAGMA user_version = {VERSION + 1}"),
    "another program's": changed("DROP TABLE texts", "CREATE TABLE texts (anything)"),
    "a view": changed("DROP TABLE records", "CREATE VIEW records AS SELECT 1 AS kind, 2 AS key, 3 AS value"),
    "a trigger": changed("CREATE TRIGGER more AFTER INSERT ON records BEGIN DELETE FROM texts; END"),
}


@pytest.mark.parametrize("spoil", FOREIGN.values(), ids=FOREIGN)
def test_what_is_damaged_or_not_ours_is_set_aside_with_a_sentence_and_the_next_write_begins_anew(
    filled: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(filled)
    said: list[str] = []
    kept = Records(filled, said.append)
    kept.check()
    assert len(said) == 1 and str(filled) in said[0] and f"set aside as {NAME}.aside" in said[0]
    assert not filled.exists() and os.path.lexists(filled.with_name(f"{NAME}.aside"))
    assert kept.read("cost", KEY) is None and kept.texts("toy", MANY) == []
    assert kept.save("cost", KEY, 1) == "" and kept.read("cost", KEY) == 1 and len(said) == 1


def test_a_second_file_set_aside_takes_the_place_of_the_first(filled: Path) -> None:
    for content in (b"first" * 99, b"second" * 99):
        filled.write_bytes(content)
        Records(filled).check()
        assert filled.with_name(f"{NAME}.aside").read_bytes() == content


def test_a_file_that_another_process_has_set_aside_and_made_anew_stays(filled: Path) -> None:
    class Overtaken(Records):
        def _set_aside(self, found: os.stat_result | None, why: str) -> None:
            filled.rename(filled.with_name("other"))
            Records(filled).save("cost", KEY, "of the other process")
            super()._set_aside(found, why)

    noise(filled)
    said: list[str] = []
    Overtaken(filled, said.append).check()
    assert said == [] and Records(filled).read("cost", KEY) == "of the other process"


def test_values_that_are_no_records_are_as_good_as_absent(filled: Path) -> None:
    changed(
        "UPDATE records SET value = '{'",
        "INSERT INTO records VALUES ('cost', 7, NULL), ('cost', '1', x'ff'), ('cost', '2', '3')",
        f"INSERT INTO records VALUES ('cost', '4', '{'[' * 100_000}')",
        "INSERT INTO texts (model, tokens) VALUES ('toy', 5), ('toy', NULL), ('toy', 'words')",
    )(filled)
    kept = Records(filled)
    assert kept.read("cost", KEY) is None and ("2", "3") not in kept.all("cost")
    assert (2, 3) in kept.all("cost") and all(key != 1 for key, _ in kept.all("cost"))
    assert kept.texts("toy", MANY) == [b"abcd"]
    kept.add_text("toy", b"more", MANY)


def test_a_record_larger_than_any_of_ours_is_not_read(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed("UPDATE records SET value = zeroblob(100000)")(filled)
    monkeypatch.setattr(records, "MAX_VALUE", 50_000)
    assert Records(filled).read("cost", KEY) is None


def test_a_process_that_does_not_let_go_is_a_reason_and_what_is_there_is_read(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BUSY_S", 0.0)
    kept = Records(filled)
    with closing(sqlite3.connect(filled, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert kept.save("cost", 1, 1) == f"cannot keep it in {filled}: another program writes to it"
        with pytest.raises(Unusable, match="another program"):
            kept.add_text("toy", b"more", MANY)
        assert kept.read("cost", KEY) and kept.texts("toy", MANY)
    assert kept.save("cost", 1, 1) == ""


def test_a_disk_that_is_full_is_a_reason_and_loses_nothing(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def full(*arguments: Any, **options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*arguments, **options)
        db.execute("PRAGMA max_page_count = 1")
        return db

    monkeypatch.setattr(sqlite3, "connect", full)
    assert "full" in Records(filled).save("cost", 1, "x" * 100_000)
    assert Records(filled).read("cost", KEY) == {"times": [0.1, 2.5]}


def test_a_place_that_cannot_be_is_a_reason_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Records(tmp_path / "file" / NAME)
    kept.check()
    kept.forget("cost")
    assert kept.save("cost", 1, 1).endswith(": Not a directory") and kept.read("cost", 1) is None
    with pytest.raises(Unusable):
        kept.texts("toy", MANY)


def test_a_damaged_file_that_cannot_be_set_aside_is_said_to_stay(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    noise(filled)
    monkeypatch.setattr(os, "replace", refused)
    said: list[str] = []
    Records(filled, said.append).check()
    assert said == [f"{filled} is damaged and cannot be set aside: Permission denied"] and filled.exists()


WRITER = """
import sys
from pathlib import Path
from lacli.text import records
records.BUSY_S = 60.0
kept = records.Records(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    assert kept.save("cost", [sys.argv[2], number], number) == ""
    kept.add_text("toy", b"%s %09d" % (sys.argv[2].encode(), number), 1 << 30)
    print(number, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def test_processes_that_write_at_once_into_a_file_not_yet_made_lose_nothing(path: Path) -> None:
    with writer(path, "a", 20) as first, writer(path, "b", 20) as second:
        for process in (first, second):
            assert process.stdin
            print(file=process.stdin, flush=True)
        assert first.wait() == second.wait() == 0
    kept = Records(path)
    assert sorted(key for key, _ in kept.all("cost")) == [[name, number] for name in "ab" for number in range(20)]
    texts = kept.texts("toy", MANY)
    assert [text for text in texts if text[:1] == b"a"] == [b"a %09d" % number for number in range(20)]
    assert len(texts) == 40


def test_a_process_killed_while_it_writes_loses_at_most_what_it_was_writing(path: Path) -> None:
    with writer(path, "a", MANY) as process:
        assert process.stdin and process.stdout
        print(file=process.stdin, flush=True)
        for _ in range(9):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        done = [8, *map(int, process.stdout.read().split())][-1]
    said: list[str] = []
    kept = Records(path, said.append)
    kept.check()
    assert done + 1 <= len(kept.texts("toy", MANY)) <= len(kept.all("cost")) <= done + 2 and said == []
    assert kept.save("cost", KEY, 1) == ""


def test_the_file_lies_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert state_file() == tmp_path / "lacli" / NAME


def test_a_model_is_known_by_its_name_size_and_ends_and_not_by_its_place(tmp_path: Path) -> None:
    path, copy = tmp_path / "toy.gguf", tmp_path / "copies" / "toy.gguf"
    copy.parent.mkdir()
    for size in (4, 3 * records.HASHED):
        content = bytearray(size)
        path.write_bytes(content)
        copy.write_bytes(content)
        assert model_identity(path) == model_identity(copy)
        for place in (0, -1):
            other = bytearray(content)
            other[place] ^= 1
            copy.write_bytes(other)
            assert model_identity(path) != model_identity(copy)
