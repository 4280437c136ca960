"""The files that measured costs are kept in: what comes back, what is ignored, what a key depends on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lacli import load
from lacli.auto.experience import Experience
from lacli.cost.known import (
    cost_key,
    device_names,
    keep,
    known_cost,
    machine_key,
    tell,
)
from lacli.cost.measure import MeasurePlan
from lacli.cost.store import (
    HASHED,
    CostKey,
    CostStore,
    content_hash,
)
from lacli.decode import Decoder
from lacli.llamacpp.devices import Device, with_threads
from lacli.llamacpp.library import Backend, build, devices
from lacli.llamacpp.settings import ModelSettings, Placement
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.staircase import Cost, Point, Staircase

COST = Cost(
    (
        Staircase(64, (Point(1, 0.1, 0.1, 0.01, 9), Point(4, 0.2 / 3, 0.05, 0.02, 3))),
        Staircase(1000, (Point(1, 0.3, 0.3),)),
    ),
    description="llama 7B Q4_0",
    devices="A fast card",
    notes=("one", "two"),
    measured_at=1.75e9,
    budget=20.0,
)
PLAN = MeasurePlan(seconds=20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF" + bytes(3 * HASHED))
    return path


@pytest.fixture
def key(model: Path) -> CostKey:
    return cost_key(model, ModelSettings(threads=2), PLAN)


@pytest.fixture
def store(tmp_path: Path) -> CostStore:
    return CostStore(tmp_path / "cache" / "cost")


def file_of(store: CostStore, key: CostKey) -> Path:
    return store.folder / key.file_name


def test_what_is_saved_comes_back(store: CostStore, key: CostKey) -> None:
    assert store.load(key) is None
    assert store.save(key, COST) == ""
    assert store.load(key) == COST
    later = replace(COST, measured_at=1.76e9)
    assert store.save(key, later) == "" and store.load(key) == later
    assert [path.name for path in store.folder.iterdir()] == [key.file_name]


def test_a_person_can_read_it(store: CostStore, key: CostKey) -> None:
    store.save(key, COST)
    text = file_of(store, key).read_text()
    kept = json.loads(text)
    assert key.file_name.startswith("toy-") and len(text.splitlines()) > 20
    assert kept["key"]["model"] == "toy.gguf" and kept["key"]["threads"] == 2
    assert kept["cost"]["staircases"][0]["points"][1] == {
        "rows": 4, "every": 0.2 / 3, "first": 0.05, "spread": 0.02, "repeats": 3,
    }  # fmt: skip


def test_a_torn_file_is_as_good_as_none(store: CostStore, key: CostKey) -> None:
    store.save(key, COST)
    path = file_of(store, key)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        assert store.load(key) is None
    path.write_bytes(b"\xff\xfe" + whole)
    assert store.load(key) is None
    path.unlink()
    path.mkdir()
    assert store.load(key) is None


def changed(kept: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    at: Any = kept
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in steps:
        at = at[step]
    at[last] = value
    return kept


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", 0),
        ("key.threads", 3),
        ("key.content", "other"),
        ("cost", None),
        ("cost.staircases", 7),
        ("cost.staircases.0.context", "long"),
        ("cost.staircases.0.points", []),
        ("cost.staircases.0.points.0.rows", 2),
        ("cost.staircases.0.points.1.rows", 1),
        ("cost.staircases.0.points.0.every", 0),
        ("cost.staircases.0.points.0.every", -1),
        ("cost.staircases.0.points.0.first", float("nan")),
        ("cost.staircases.0.points.0.first", [1]),
        ("cost.budget", "much"),
    ],
)
def test_a_file_with_anything_else_in_it_is_as_good_as_none(
    store: CostStore, key: CostKey, path: str, value: Any
) -> None:
    store.save(key, COST)
    kept = json.loads(file_of(store, key).read_text())
    file_of(store, key).write_text(json.dumps(changed(kept, path, value)))
    assert store.load(key) is None


@pytest.mark.parametrize("foreign", ["", "[]", "7", "null", '"text"', "{}", "[" * 100_000])
def test_a_foreign_file_is_as_good_as_none(store: CostStore, key: CostKey, foreign: str) -> None:
    store.save(key, COST)
    file_of(store, key).write_text(foreign)
    assert store.load(key) is None


def test_the_key_depends_on_the_content_and_not_on_the_place(model: Path, key: CostKey, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    copy = folder / model.name
    copy.write_bytes(model.read_bytes())
    assert cost_key(copy, ModelSettings(threads=2), PLAN) == key
    for place in (4, 3 * HASHED):
        content = bytearray(model.read_bytes())
        content[place] ^= 1
        copy.write_bytes(content)
        assert cost_key(copy, ModelSettings(threads=2), PLAN).file_name != key.file_name


def test_a_small_file_is_hashed_whole(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF")
    first = content_hash(path)
    path.write_bytes(b"GGUG")
    assert content_hash(path) != first


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 3},
        {"threads_batch": 4},
        {"flash_attention": "on"},
        {"cache_type_k": "q8_0"},
        {"cache_type_v": "bf16"},
        {"repack": False},
        {"tiled": False},
        {"context": 1000},
        {"batch": 100},
        {"context": 2100},
    ],
)
def test_the_key_depends_on_what_changes_a_steps_time(
    model: Path, key: CostKey, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not key.repack:
        # This build fails with repacked weights.
        key = replace(key, repack=True)
        monkeypatch.setattr("lacli.cost.known.proven", lambda settings: (with_threads(settings), ""))
    assert cost_key(model, replace(ModelSettings(threads=2), **change), PLAN).file_name != key.file_name


@pytest.mark.parametrize("features", [("AVX2",), ("AVX2", "AMX_INT8"), ()])
def test_the_key_knows_the_instruction_sets_of_the_build(
    features: tuple[str, ...], model: Path, key: CostKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = build()
    monkeypatch.setattr("lacli.cost.known.build", lambda: here._replace(backends=(Backend("CPU", features),)))
    assert cost_key(model, ModelSettings(threads=2), PLAN).file_name != key.file_name


def test_the_key_knows_a_build_made_anew_with_the_same_instruction_sets(
    model: Path, key: CostKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.cost.known.build_files", lambda: [("libllama.so", 1, 2)])
    assert cost_key(model, ModelSettings(threads=2), PLAN).file_name != key.file_name


def test_the_key_does_not_depend_on_room_that_is_not_used(model: Path, key: CostKey) -> None:
    loading = ModelSettings(threads=2, threads_batch=2, context=4096, batch=512)
    assert cost_key(model, loading, replace(PLAN, seconds=1)) == key


def test_the_key_tells_apart_what_was_asked_for_though_no_more_was_possible(model: Path) -> None:
    # Their notes differ.
    loading = ModelSettings(threads=2, batch=3)
    names = {cost_key(model, loading, MeasurePlan((64,), rows)).file_name for rows in ((1, 2), (1, 2, 4), (1, 2, 8))}
    assert len(names) == 3
    assert len({cost_key(model, loading, MeasurePlan((64,), rows)).file_name for rows in ((1, 2), (2, 2))}) == 1


def test_the_key_depends_on_the_batch_also_where_the_context_is_the_bound(model: Path) -> None:
    names = {cost_key(model, ModelSettings(threads=2, context=100, batch=rows), PLAN).file_name for rows in (3, 4)}
    assert len(names) == 2


@pytest.mark.parametrize("gpu_layers", [0, -1])
def test_the_key_depends_on_every_device_of_the_build(
    model: Path, monkeypatch: pytest.MonkeyPatch, gpu_layers: int
) -> None:
    # With no layer on a GPU large batches are still computed there.
    processor, card = Device("CPU", "A processor", False), Device("CUDA0", "A card", True)
    builds = [processor], [card, processor], [card._replace(name="Vulkan0"), processor]
    names = set()
    for found in builds:
        monkeypatch.setattr("lacli.cost.known.devices", lambda found=found: found)
        names.add(cost_key(model, ModelSettings(threads=2, gpu_layers=gpu_layers), PLAN).file_name)
    assert len(names) == 3


def test_the_key_depends_on_the_devices_named_and_on_how_they_share_the_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [Device(f"CUDA{number}", "A card", True) for number in range(2)]
    found = [*cards, Device("CPU", "A processor", False)]
    monkeypatch.setattr("lacli.cost.known.devices", lambda: found)
    both = ("CUDA0", "CUDA1")
    placements = [
        Placement(("CPU",)),
        Placement(("CUDA0",)),
        Placement(("CUDA1",)),
        Placement(("CUDA1", "CUDA0")),
        Placement(both, tensor_split=(3, 1)),
        Placement(both, tensor_split=(1, 3)),
        Placement(both, "row"),
        Placement(both, "none"),
        Placement(both, "none", (), 1),
        Placement(("RPC0",)),
        Placement(),
    ]
    keys = [cost_key(model, ModelSettings(threads=2, placement=each), PLAN) for each in placements]
    assert len({key.file_name for key in keys}) == len(keys)
    # The same that llama.cpp does by itself on this machine.
    named = cost_key(model, ModelSettings(threads=2, placement=Placement(both)), PLAN)
    assert named.devices == keys[-1].devices == "CUDA0: A card, CUDA1: A card, CPU: A processor"


def test_the_processor_named_on_a_machine_without_more_has_the_key_of_nothing_said(model: Path) -> None:
    if any(device.is_gpu for device in devices()):
        pytest.skip("this machine has more")
    said = cost_key(model, ModelSettings(threads=2, placement=Placement(("CPU",))), PLAN)
    assert said == cost_key(model, ModelSettings(threads=2), PLAN)


def test_a_cost_names_what_took_part(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Device("CUDA0", "A card", True), Device("CUDA1", "Another", True), Device("CPU", "A processor", False)]
    monkeypatch.setattr("lacli.cost.known.devices", lambda: found)
    assert device_names(Placement(), offloaded=True) == "A card, Another, A processor"
    assert device_names(Placement(("CUDA1",)), offloaded=True) == "Another, A processor"
    assert device_names(Placement(("CUDA1",)), offloaded=False) == "A processor"


def test_a_hasty_measurement_does_not_stand_for_a_thorough_one(store: CostStore, key: CostKey) -> None:
    keep(key, COST, store)
    assert known_cost(key, PLAN, store) == known_cost(key, replace(PLAN, seconds=1), store) == COST
    assert known_cost(key, replace(PLAN, seconds=60), store) is None


def test_rough_times_are_not_kept(store: CostStore, key: CostKey) -> None:
    rough = replace(COST, staircases=(Staircase(64, (Point(1, 1.0, 1.0, 0.7, 3),)),))
    assert "vary too much" in keep(key, rough, store)
    assert store.load(key) is None


def test_a_folder_that_cannot_be_written_is_a_reason_and_no_error(tmp_path: Path, key: CostKey) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CostStore(tmp_path / "file" / "cost")
    assert "cannot keep" in store.save(key, COST)
    assert store.load(key) is None


def test_a_save_that_fails_leaves_the_older_file_alone(
    store: CostStore, key: CostKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(key, COST)

    def fail(*paths: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        assert "No space left" in store.save(key, replace(COST, budget=99.0))
    assert store.load(key) == COST
    assert len(list(store.folder.iterdir())) == 1


def test_the_richest_is_the_one_with_most_steps_whatever_was_asked_for(
    store: CostStore, key: CostKey, model: Path
) -> None:
    machine = machine_key(model, ModelSettings(threads=2))
    assert store.richest(machine) == (None, ()) and not store.holds(model.name)
    poor = replace(COST, staircases=COST.staircases[1:], budget=99.0)
    store.save(replace(key, contexts=(1000,), rows=(1,), cells=1128), poor)
    assert store.richest(machine).cost == poor and store.holds(model.name)
    store.save(key, COST)
    longer = replace(COST, budget=30.0)
    assert store.richest(machine).cost == COST
    store.save(replace(key, batch=100), longer)
    assert store.richest(machine) == (longer, ())


@pytest.mark.parametrize(
    "change", [{"threads": 3}, {"content": "other"}, {"devices": "another"}, {"cache_type_k": "q8_0"}]
)
def test_what_was_measured_elsewhere_is_neither_used_nor_broken(
    store: CostStore, key: CostKey, model: Path, change: dict[str, Any]
) -> None:
    store.save(replace(key, **change), COST)
    assert store.richest(machine_key(model, ModelSettings(threads=2))) == (None, ())


@pytest.mark.parametrize(
    "content",
    ["", "[]", "7", '"text"', "{}", "[" * 100_000, '{"format": 1, "key": 7}', '{"format": 1, "key": {"model": 7}}',
     '{"format": 1, "key": []}'],
)  # fmt: skip
def test_a_damaged_file_is_named_and_the_others_are_used(
    store: CostStore, key: CostKey, model: Path, content: str
) -> None:
    store.save(key, COST)
    damaged = store.folder / "toy-0123456789abcdef.json"
    damaged.write_text(content)
    assert store.richest(machine_key(model, ModelSettings(threads=2))) == (COST, (damaged,))


def test_a_damaged_cost_under_a_key_of_its_own_is_broken(store: CostStore, key: CostKey, model: Path) -> None:
    assert not store.broken(key)
    store.save(key, COST)
    assert not store.broken(key)
    kept = json.loads(file_of(store, key).read_text())
    file_of(store, key).write_text(json.dumps(changed(kept, "cost.staircases", 7)))
    assert store.broken(key)
    assert store.richest(machine_key(model, ModelSettings(threads=2))) == (None, (file_of(store, key),))


def test_the_file_of_another_key_and_strangers_with_like_names_are_told_apart(
    store: CostStore, key: CostKey, model: Path
) -> None:
    machine = machine_key(model, ModelSettings(threads=2))
    store.save(key, COST)
    moved = file_of(store, key).rename(store.folder / "toy-0123456789abcdef.json")
    for name in ("toy-0123456789abcdef.json.part", "toy-2-0123456789abcdef.json", "toys.json", "toy-0123.json"):
        (store.folder / name).write_text("no cost")
    assert store.richest(machine) == (None, (moved,))


def test_a_file_of_a_later_format_is_left_alone(store: CostStore, key: CostKey, model: Path) -> None:
    store.save(key, COST)
    kept = json.loads(file_of(store, key).read_text())
    file_of(store, key).write_text(json.dumps(changed(kept, "format", 2)))
    assert store.richest(machine_key(model, ModelSettings(threads=2))) == (None, ())


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    loading = ModelSettings(context=256, threads=1, threads_batch=1, gpu_layers=0)
    with load(model_settings=loading, decode_settings=DecodeSettings(mode="auto")) as session:
        yield session


def test_a_session_is_told_what_is_known_and_what_is_damaged_is_removed(session: Session, store: CostStore) -> None:
    told: list[Cost] = []
    key = cost_key(session.model.path, session.model_settings, replace(PLAN, rows=(1, 4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "use_cost", told.append)
        assert tell(session, store) == [] == told
        store.save(key, COST)
        damaged = file_of(store, key).with_name(f"{key.file_name[:-21]}0123456789abcdef.json")
        damaged.write_text("no cost")
        (sentence,) = tell(session, store)
        assert told == [COST] and str(damaged) in sentence and not damaged.exists()
        assert tell(session, store) == [] and len(told) == 2


def test_a_file_that_cannot_be_read_now_is_not_called_damaged_and_stays(session: Session, store: CostStore) -> None:
    key = cost_key(session.model.path, session.model_settings, PLAN)
    store.save(key, COST)
    path = file_of(store, key)

    def refused(self: Path, *given: Any, **more: Any) -> str:
        raise PermissionError(13, "Permission denied")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_text", refused)
        assert tell(session, store) == []
    assert store.load(key) == COST
    path.unlink()
    path.mkdir()
    assert tell(session, store) == [] and path.is_dir()


def test_a_damaged_file_that_stays_is_not_called_removed(session: Session, store: CostStore) -> None:
    key = cost_key(session.model.path, session.model_settings, PLAN)
    store.save(key, COST)
    file_of(store, key).write_text("no cost")

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        (sentence,) = tell(session, store)
    assert sentence == f"{file_of(store, key)} holds no measured cost and cannot be removed: Permission denied"


@pytest.mark.parametrize(("reason", "damaged"), [("", True), ("it keeps one state", False)])
def test_without_staircases_a_cost_needs_a_reason(store: CostStore, key: CostKey, reason: str, damaged: bool) -> None:
    store.save(key, replace(COST, staircases=(), chain_only=reason))
    assert store.broken(key) is damaged
    assert (store.load(key) is None) is damaged


def test_a_mode_that_comes_later_knows_what_was_told_before(session: Session, store: CostStore) -> None:
    store.save(cost_key(session.model.path, session.model_settings, PLAN), COST)
    session.adapt(replace(session.settings, mode="plain"), session.sampling)
    seen: list[Cost | None] = []

    class Seeing(Experience):
        def __init__(self, settings: DecodeSettings, cost: Cost | None = None, *more: Any, **others: Any) -> None:
            seen.append(cost)
            super().__init__(settings, cost, *more, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lacli.decode.Experience", Seeing)
        assert tell(session, store) == [] == seen
        session.adapt(replace(session.settings, mode="auto"), session.sampling)
    assert seen == [COST]


def test_a_session_decodes_with_what_it_was_told(session: Session) -> None:
    seen: list[Cost | None] = []

    class Told(Decoder):
        def __init__(self, *given: Any, cost: Cost | None = None, **more: Any) -> None:
            seen.append(cost)
            super().__init__(*given, cost=cost, **more)

    before = session.decoder
    session.use_cost(COST)
    session.decoder_in(session.engine, session.settings, Told)
    assert seen == [COST] and session.decoder is not before
    with load(model_settings=session.model_settings, decode_settings=session.settings, cost=COST) as other:
        other.decoder_in(other.engine, other.settings, Told)
    assert seen == [COST, COST]
