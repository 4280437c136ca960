"""What `lacli tune` remembers: files that come back whole or not at all, and --preset tuned, which reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import pytest

from lacli.cost.known import machine_key
from lacli.cost.store import HASHED, MachineKey
from lacli.errors import LacliError, UsageError
from lacli.settings import DecodeSettings, Mode, ModelSettings
from lacli.tune.candidates import SEARCHED
from lacli.tune.preset import tuned_settings
from lacli.tune.store import Tuned, TunedStore

LOADING = ModelSettings(threads=2, threads_batch=2)
LOOKUP = DecodeSettings(mode="lookup", lookup_match=3, lookup_draft=4)
LOOKAHEAD = DecodeSettings(mode="lookahead", window=2, ngram=3, guesses=2)
TUNED = Tuned(LOOKUP, 1.25, 1.1, 1.4, 1.05, 40, 1.75e9)
EVERYTHING = frozenset({"mode", *(name for names in SEARCHED.values() for name in names)})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF" + bytes(3 * HASHED))
    return path


@pytest.fixture
def key(model: Path) -> MachineKey:
    return machine_key(model, LOADING)


@pytest.fixture
def store(tmp_path: Path) -> TunedStore:
    return TunedStore(tmp_path / "config" / "tuned")


def file_of(store: TunedStore, key: MachineKey) -> Path:
    return store.path_of(key)


@pytest.mark.parametrize(
    "settings",
    [
        LOOKUP,
        DecodeSettings(mode="plain"),
        DecodeSettings(mode="lookahead", window=3, ngram=7, guesses=5),
        DecodeSettings(mode="auto"),
        DecodeSettings(mode="auto", sources=("suffix", "pool")),
    ],
)
def test_what_is_saved_comes_back(store: TunedStore, key: MachineKey, settings: DecodeSettings) -> None:
    assert store.load(key) is None
    tuned = replace(TUNED, settings=settings, low=None, high=None)
    assert store.save(key, TUNED) == store.save(key, tuned) == ""
    assert store.load(key) == tuned
    assert len(list(store.folder.iterdir())) == 1


def test_a_torn_file_is_said(store: TunedStore, key: MachineKey) -> None:
    store.save(key, TUNED)
    path = file_of(store, key)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 11):
        path.write_bytes(whole[:length])
        with pytest.raises(LacliError, match=r"cannot be read: .* \(lacli tune MODEL makes a new one\)") as raised:
            store.load(key)
        assert raised.value.what.startswith(str(path)) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", 2),
        ("key.threads", 3),
        ("key", []),
        ("tuned", None),
        ("tuned.settings", 7),
        ("tuned.settings.mode", "magic"),
        ("tuned.settings.mode", ["lookup"]),
        ("tuned.settings.mode", "lookahead"),
        ("tuned.settings.lookup_draft", 0),
        ("tuned.settings.lookup_draft", "many"),
        ("tuned.speedup", "fast"),
        ("tuned.low", []),
        ("tuned.tuned_at", None),
    ],
)
def test_a_file_with_anything_else_in_it_is_said(store: TunedStore, key: MachineKey, path: str, value: Any) -> None:
    store.save(key, TUNED)
    kept = json.loads(file_of(store, key).read_text())
    at = kept
    *steps, last = path.split(".")
    for step in steps:
        at = at[step]
    at[last] = value
    file_of(store, key).write_text(json.dumps(kept))
    with pytest.raises(LacliError, match="damaged, or not of this lacli"):
        store.load(key)


@pytest.mark.parametrize("foreign", ["", "[]", "7", "null", "{}", "[" * 100_000])
def test_a_foreign_file_is_said(store: TunedStore, key: MachineKey, foreign: str) -> None:
    store.save(key, TUNED)
    file_of(store, key).write_text(foreign)
    with pytest.raises(LacliError, match="damaged"):
        store.load(key)
    assert store.otherwise(replace(key, threads=1)) == ""


def test_a_folder_that_cannot_be_written_is_a_reason_and_no_error(tmp_path: Path, key: MachineKey) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "tuned"):
        store = TunedStore(folder)
        assert store.save(key, TUNED) == f"cannot keep it in {folder}: it is no folder"
        with pytest.raises(LacliError, match=r"file(/tuned)? is no folder \(lacli doctor shows the folders\)"):
            store.load(key)
        assert store.forget(key) == 0


def test_a_result_belongs_to_the_content_whatever_the_file_is_called(
    store: TunedStore, key: MachineKey, model: Path
) -> None:
    store.save(key, TUNED)
    renamed = machine_key(model.rename(model.with_name("copy of [it].gguf")), LOADING)
    assert renamed != key and store.load(renamed) == TUNED
    later = replace(TUNED, tuned_at=2e9)
    assert store.save(renamed, later) == "" and store.load(key) == later
    assert [path.name.startswith("toy-") for path in store.folder.iterdir()] == [True]
    assert store.forget(renamed) == 1 and store.load(key) is None
    store.save(renamed, TUNED)
    assert [path.name.startswith("copy_of__it_-") for path in store.folder.iterdir()] == [True]


def test_another_content_of_the_same_name_has_its_own_result(store: TunedStore, key: MachineKey, model: Path) -> None:
    store.save(key, TUNED)
    model.write_bytes(b"GGUF" + bytes(3 * HASHED - 1) + b"1")
    other = machine_key(model, LOADING)
    assert other.model == key.model and store.load(other) is None
    store.save(other, replace(TUNED, speedup=2.0))
    assert store.forget(other) == 1 and store.load(key) == TUNED


def test_forgetting_takes_all_of_a_model_and_nothing_of_others(
    store: TunedStore, key: MachineKey, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    others = machine_key(other, LOADING)
    for each in (key, replace(key, threads=1), replace(key, flash_attention="on"), others):
        store.save(each, TUNED)
    (store.folder / "mine.json").write_text("not lacli's")
    assert store.forget(key) == 3
    assert store.forget(key) == 0
    assert sorted(store.folder.iterdir()) == sorted([file_of(store, others), store.folder / "mine.json"])


def test_a_damaged_file_is_forgotten_too(store: TunedStore, key: MachineKey) -> None:
    store.save(key, TUNED)
    file_of(store, key).write_text("torn")
    assert store.forget(key) == 1 and store.load(key) is None


def test_a_file_that_cannot_be_removed_is_one_line(store: TunedStore, key: MachineKey) -> None:
    file_of(store, key).mkdir(parents=True)
    with pytest.raises(LacliError, match="cannot remove"):
        store.forget(key)


def settled(
    store: TunedStore, model: Path, chosen: DecodeSettings, left: frozenset[str], loading: ModelSettings = LOADING
) -> tuple[DecodeSettings, list[str]]:
    said: list[str] = []
    return tuned_settings(chosen, left, model, loading, store, said.append), said


def test_the_preset_fills_in_what_was_left_open_and_no_more(store: TunedStore, key: MachineKey, model: Path) -> None:
    store.save(key, replace(TUNED, tuned_at=time() - 3 * 86400, temp=0.8))
    found, said = settled(store, model, DecodeSettings(), EVERYTHING)
    assert found == LOOKUP
    assert said == [
        "--preset tuned: lookup match 3 draft 4, 1.25 times plain decoding's speed when it was tuned 3 days ago at "
        "temperature 0.8"
    ]
    same = replace(DecodeSettings(), lookup_draft=4)
    assert settled(store, model, same, EVERYTHING - {"lookup_draft"}) == (found, said)


def test_flags_beside_the_preset_win_and_are_said_and_the_speed_is_not(
    store: TunedStore, key: MachineKey, model: Path
) -> None:
    store.save(key, TUNED)
    mine = DecodeSettings(lookup_draft=9)
    found, said = settled(store, model, mine, EVERYTHING - {"lookup_draft"})
    assert found == replace(LOOKUP, lookup_draft=9)
    assert said == ["--preset tuned: lookup match 3 draft 4, but with --lookup-draft 9"]
    mine = DecodeSettings(strict=True, pool_text=False, pool_keys=7)
    found, said = settled(store, model, mine, EVERYTHING)
    assert found == replace(mine, mode="lookup", lookup_match=3, lookup_draft=4)
    assert said == ["--preset tuned: lookup match 3 draft 4, but with --no-pool-text --pool-keys 7 --strict"]


@pytest.mark.parametrize("mode", ["auto", "plain", "jacobi"])
def test_another_mode_beside_the_preset_takes_nothing_of_it(
    store: TunedStore, key: MachineKey, model: Path, mode: Mode
) -> None:
    store.save(key, replace(TUNED, settings=LOOKAHEAD))
    mine = DecodeSettings(mode=mode)
    assert settled(store, model, mine, EVERYTHING - {"mode"}) == (
        mine,
        [f"--preset tuned: lookahead W=2 N=3 G=2 is not used, because of --mode {mode}"],
    )


def test_plain_is_remembered_as_what_nothing_beat(store: TunedStore, key: MachineKey, model: Path) -> None:
    store.save(key, replace(TUNED, settings=DecodeSettings(mode="plain"), speedup=1.0))
    found, (sentence,) = settled(store, model, DecodeSettings(), EVERYTHING)
    assert found.mode == "plain" and "plain, which nothing beat" in sentence
    assert settled(store, model, DecodeSettings(window=7), EVERYTHING - {"window"})[1] == [sentence]


def test_without_a_result_the_preset_names_the_command_that_finds_one(
    store: TunedStore, key: MachineKey, model: Path
) -> None:
    with pytest.raises(UsageError, match=r"no tuned setting of toy.gguf \(lacli tune MODEL finds one\)"):
        settled(store, model, DecodeSettings(), EVERYTHING)
    store.save(key, TUNED)
    with pytest.raises(UsageError, match="with these flags on this machine, only with 2 threads"):
        settled(store, model, DecodeSettings(), EVERYTHING, replace(LOADING, threads=1))
    with pytest.raises(UsageError, match="only with another -ctk"):
        settled(store, model, DecodeSettings(), EVERYTHING, replace(LOADING, cache_type_k="q8_0"))
    file_of(store, key).write_text("torn")
    with pytest.raises(UsageError, match=r"cannot be read: .* \(lacli tune MODEL makes a new one\)"):
        settled(store, model, DecodeSettings(), EVERYTHING)
