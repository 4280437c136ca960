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
from lacli.settings import DecodeSettings, ModelSettings
from lacli.tune.candidates import SEARCHED
from lacli.tune.kept import Tuned, TunedStore
from lacli.tune.preset import tuned_settings

LOADING = ModelSettings(threads=2, threads_batch=2)
LOOKUP = DecodeSettings(mode="lookup", lookup_match=3, lookup_draft=4)
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
    return store.folder / key.file_name


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
    assert store.load(key) == (None, "")
    tuned = replace(TUNED, settings=settings, low=None, high=None)
    assert store.save(key, TUNED) == store.save(key, tuned) == ""
    assert store.load(key) == (tuned, "")
    assert len(list(store.folder.iterdir())) == 1


def test_a_torn_file_is_as_good_as_none_and_said(store: TunedStore, key: MachineKey) -> None:
    store.save(key, TUNED)
    path = file_of(store, key)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 11):
        path.write_bytes(whole[:length])
        tuned, trouble = store.load(key)
        assert tuned is None and trouble.startswith(f"{path} cannot be read:") and "\n" not in trouble


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
def test_a_file_with_anything_else_in_it_is_as_good_as_none(
    store: TunedStore, key: MachineKey, path: str, value: Any
) -> None:
    store.save(key, TUNED)
    kept = json.loads(file_of(store, key).read_text())
    at = kept
    *steps, last = path.split(".")
    for step in steps:
        at = at[step]
    at[last] = value
    file_of(store, key).write_text(json.dumps(kept))
    tuned, trouble = store.load(key)
    assert tuned is None and "damaged, or not of this lacli" in trouble


@pytest.mark.parametrize("foreign", ["", "[]", "7", "null", "{}", "[" * 100_000])
def test_a_foreign_file_is_as_good_as_none(store: TunedStore, key: MachineKey, foreign: str) -> None:
    store.save(key, TUNED)
    file_of(store, key).write_text(foreign)
    assert store.load(key)[0] is None
    assert store.otherwise(replace(key, threads=1)) == ""


def test_a_folder_that_cannot_be_written_is_a_reason_and_no_error(tmp_path: Path, key: MachineKey) -> None:
    (tmp_path / "file").write_text("in the way")
    store = TunedStore(tmp_path / "file" / "tuned")
    assert "cannot keep it in" in store.save(key, TUNED)
    assert store.load(key)[0] is None and store.forget(key) == 0


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
    assert sorted(path.name for path in store.folder.iterdir()) == sorted([others.file_name, "mine.json"])


def test_a_damaged_file_is_forgotten_too(store: TunedStore, key: MachineKey) -> None:
    store.save(key, TUNED)
    file_of(store, key).write_text("torn")
    assert store.forget(key) == 1 and store.load(key) == (None, "")


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
    store.save(key, replace(TUNED, tuned_at=time() - 3 * 86400))
    chosen = DecodeSettings(strict=True, pool_keys=7)
    found, said = settled(store, model, chosen, EVERYTHING)
    assert found == replace(chosen, mode="lookup", lookup_match=3, lookup_draft=4)
    assert said == [
        "--preset tuned: lookup match 3 draft 4, 1.25 times plain decoding's speed when it was tuned 3 days ago"
    ]
    mine = replace(chosen, lookup_draft=9)
    assert settled(store, model, mine, EVERYTHING - {"lookup_draft"})[0] == replace(
        chosen, mode="lookup", lookup_match=3, lookup_draft=9
    )
    plainly = replace(chosen, mode="plain")
    assert settled(store, model, plainly, EVERYTHING - {"mode"})[0].mode == "plain"


def test_plain_is_remembered_as_what_nothing_beat(store: TunedStore, key: MachineKey, model: Path) -> None:
    store.save(key, replace(TUNED, settings=DecodeSettings(mode="plain"), speedup=1.0))
    found, (sentence,) = settled(store, model, DecodeSettings(), EVERYTHING)
    assert found.mode == "plain" and "plain, which nothing beat" in sentence


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
