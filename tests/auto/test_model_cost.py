"""The cost of a model on a machine: what its key depends on, what is kept, and what mode auto is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from time import time
from typing import Any

import pytest

from lacli.auto.measure import MeasurePlan
from lacli.auto.mode import AutoModes, Experience
from lacli.auto.model_cost import KIND, cost_key, cost_of, device_names, known_cost
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.engine.load import ModelEngine
from lacli.llamacpp.devices import Device, with_threads
from lacli.llamacpp.library import devices
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.files import HASHED, NAME, Records
from tests.loading import load

COST = Cost(
    (
        StepCost(64, (Point(1, 0.1, 0.1, 0.01, 9), Point(4, 0.2 / 3, 0.05, 0.02, 3))),
        StepCost(1000, (Point(1, 0.3, 0.3),)),
    ),
    description="llama 7B Q4_0",
    devices="A fast card",
    notes=("one", "two"),
    measured_at=1.75e9,
    budget=20.0,
)
PLAN = MeasurePlan(seconds=20)
SETTINGS = ModelSettings(threads=2)
MODULE = "lacli.auto.model_cost"


@pytest.fixture(autouse=True)
def kernels_for_repacked_weights_are_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this build fails with them they would be off in any case."""
    monkeypatch.setattr(f"{MODULE}.proven", lambda settings: (with_threads(settings), ""))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF" + bytes(3 * HASHED))
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "cache" / NAME


def key_of(model: Path, settings: ModelSettings = SETTINGS, plan: MeasurePlan = PLAN) -> str:
    return json.dumps(cost_key(model, settings, plan))


def save(state: Path, key: object, cost: Cost = COST, **changes: Any) -> None:
    assert Records(state).save(KIND, key, {**asdict(cost), **changes}) == ""


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
def test_the_key_depends_on_what_changes_a_steps_time(model: Path, change: dict[str, Any]) -> None:
    assert key_of(model, replace(SETTINGS, **change)) != key_of(model)


def test_the_key_depends_on_the_models_content_and_the_build(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(model)
    assert key_of(model) == key
    monkeypatch.setattr(f"{MODULE}.build_files", lambda: [("libllama.so", 1, 2)])
    assert key_of(model) != key
    monkeypatch.undo()
    model.write_bytes(b"GGUG" + bytes(3 * HASHED))
    assert key_of(model) != key


def test_the_key_tells_apart_what_was_asked_for_and_not_room_that_is_not_used(model: Path) -> None:
    roomy = ModelSettings(threads=2, threads_batch=2, context=4096, batch=512)
    assert key_of(model, roomy, replace(PLAN, seconds=1)) == key_of(model)
    # Though no more than three rows were possible their notes differ.
    small = ModelSettings(threads=2, batch=3)
    asked = [MeasurePlan((64,), rows) for rows in ((1, 2), (2, 2), (1, 2, 4), (1, 2, 8))]
    assert len({key_of(model, small, each) for each in asked}) == 3
    assert len({key_of(model, ModelSettings(threads=2, context=100, batch=rows)) for rows in (3, 4)}) == 2


@pytest.mark.parametrize("gpu_layers", [0, -1])
def test_the_key_depends_on_every_device_of_the_build(
    model: Path, monkeypatch: pytest.MonkeyPatch, gpu_layers: int
) -> None:
    # With no layer on a GPU large batches are still computed there.
    processor, card = Device("CPU", "A processor", False), Device("CUDA0", "A card", True)
    keys = set()
    for found in ([processor], [card, processor], [card._replace(name="Vulkan0"), processor]):
        monkeypatch.setattr(f"{MODULE}.devices", lambda memory, found=found: found)
        keys.add(key_of(model, replace(SETTINGS, gpu_layers=gpu_layers)))
    assert len(keys) == 3


def test_the_key_depends_on_the_devices_named_and_on_how_they_share_the_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [Device(f"CUDA{number}", f"Card {number}", True) for number in range(2)]
    monkeypatch.setattr(f"{MODULE}.devices", lambda memory: [*cards, Device("CPU", "A processor", False)])
    both = ("CUDA0", "CUDA1")
    named = [("CPU",), ("CUDA0",), ("CUDA1",), ("CUDA1", "CUDA0"), ("RPC0",), ()]
    over_both: list[dict[str, Any]] = [{"tensor_split": (3, 1)}, {"tensor_split": (1, 3)}, {"split_mode": "row"}]
    placed = [*({"devices": names} for names in named), *({"devices": both, **how} for how in over_both)]
    assert len({key_of(model, replace(SETTINGS, **each)) for each in placed}) == len(placed)
    # The same that llama.cpp does by itself on this machine.
    keys = [cost_key(model, replace(SETTINGS, devices=each), PLAN) for each in (both, ())]
    assert [key["devices"] for key in keys] == ["CUDA0: Card 0, CUDA1: Card 1, CPU: A processor ('layer', (), 0)"] * 2
    assert device_names((), offloaded=True) == "Card 0, Card 1, A processor"
    assert device_names(("CUDA1",), offloaded=True) == "Card 1, A processor"
    assert device_names(("CUDA1",), offloaded=False) == "A processor"


def test_the_processor_named_on_a_machine_without_more_has_the_key_of_nothing_said(model: Path) -> None:
    if any(device.is_gpu for device in devices()):
        pytest.skip("this machine has more")
    assert key_of(model, replace(SETTINGS, devices=("CPU",))) == key_of(model)


def found(state: Path, plan: MeasurePlan = PLAN, cost: Cost = COST, *, fresh: bool = False) -> tuple[Cost, bool, str]:
    """What is found or measured, which it is, and what is said about it."""
    said: list[str] = []
    result = cost_of({"model": "toy.gguf"}, plan, state, lambda: cost, fresh=fresh, progress=said.append)
    return *result, " ".join(said)


def test_a_cost_is_measured_once_again_where_it_is_asked_for_and_where_it_was_hasty(state: Path) -> None:
    other = replace(COST, devices="another")
    assert found(state) == (COST, False, "")
    assert found(state, cost=other) == found(state, replace(PLAN, seconds=1), other) == (COST, True, "")
    assert found(state, cost=other, fresh=True) == (other, False, "") and found(state) == (other, True, "")
    assert found(state, replace(PLAN, seconds=60)) == (COST, False, "")


def test_rough_times_and_those_that_cannot_be_kept_are_said_to_be_lost(state: Path) -> None:
    rough = replace(COST, staircases=(StepCost(64, (Point(1, 1.0, 1.0, 0.7, 3),)),))
    _, _, said = found(state, cost=rough)
    assert "too rough" in said and not state.exists()
    state.parent.write_text("in the way")
    assert found(state)[2] == f"cannot save it in {state}: File exists"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("", None),
        ("", {}),
        ("unknown", 1),
        ("notes", None),
        ("staircases", 7),
        ("staircases", []),
        ("staircases.0.points", None),
        ("staircases.0.points.0", {"rows": 1}),
    ],
)
def test_a_record_that_is_no_cost_is_measured_again(state: Path, path: str, value: Any) -> None:
    kept: Any = {"cost": json.loads(json.dumps(asdict(COST)))}
    at, (*steps, last) = kept, ["cost", *(int(step) if step.isdigit() else step for step in path.split(".") if step)]
    for step in steps:
        at = at[step]
    at[last] = value
    Records(state).save(KIND, {"model": "toy.gguf"}, kept["cost"])
    assert found(state) == (COST, False, "") and found(state) == (COST, True, "")


@pytest.mark.parametrize(("reason", "is_kept"), [("", False), ("it keeps one state", True)])
def test_without_steps_a_cost_needs_a_reason(state: Path, reason: str, is_kept: bool) -> None:
    save(state, {"model": "toy.gguf"}, replace(COST, staircases=(), chain_only=reason))
    assert found(state)[1] is is_kept


def test_mode_auto_is_told_the_cost_with_most_steps_of_this_machine(state: Path, model: Path) -> None:
    key = cost_key(model, SETTINGS, PLAN)
    assert known_cost(state, model, SETTINGS) is None
    save(state, ["no", "key"])
    for change in ({"threads": 3}, {"content": "x"}, {"devices": "another"}, {"cache_type_k": "q8_0"}):
        save(state, {**key, **change})
    save(state, {**key, "rows": [1]}, staircases="damaged")
    for number, odd in enumerate((None, 7, "key", [key], {"model": [model.name]})):
        Records(state).save(KIND, odd, asdict(COST))
        Records(state).save(KIND, {**key, "odd": number}, odd)
    save(state, {**key, "rows": [7]}, replace(COST, staircases=(), chain_only="it keeps one state"))
    assert known_cost(state, model, SETTINGS) is None
    poor = replace(COST, staircases=COST.staircases[1:], budget=99.0)
    for asked, cost, best in (([2], poor, poor), ([3], COST, COST), ([4], poor, COST)):
        save(state, {**key, "rows": asked}, cost)
        assert known_cost(state, model, SETTINGS) == best
    longer = replace(COST, budget=30.0)
    save(state, {**key, "batch": 100}, longer)
    assert known_cost(state, model, SETTINGS) == longer


def test_a_model_of_another_name_is_not_even_read(state: Path, tmp_path: Path) -> None:
    save(state, {"model": "other.gguf"})
    assert known_cost(state, tmp_path / "missing.gguf", SETTINGS) is None


@pytest.fixture(scope="module")
def session() -> Iterator[ModelEngine]:
    model_settings = ModelSettings(context=256, threads=1, threads_batch=1, gpu_layers=0)
    with load(model_settings=model_settings, decode_settings=DecodeSettings(mode="auto")) as session:
        yield session


def test_a_session_decodes_with_what_it_was_told_also_in_a_mode_that_comes_later(session: ModelEngine) -> None:
    seen: list[Cost | None] = []

    class Seeing(Experience):
        def __init__(self, settings: DecodeSettings, cost: Cost | None = None, *more: Any, **others: Any) -> None:
            seen.append(cost)
            super().__init__(settings, cost, *more, **others)

    session.use_cost(COST)
    assert vars(session)["_make_mode"] == AutoModes(COST)
    assert vars(session.engine_in(session.context, session.settings))["_make_mode"] == AutoModes(COST)
    session.adapt(replace(session.settings, mode="plain"), session.sampling)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lacli.auto.mode.Experience", Seeing)
        session.adapt(replace(session.settings, mode="auto"), session.sampling)
        list(session.generate([1, 2, 3], 1))
    assert seen == [COST]
    with load(model_settings=session.model_settings, decode_settings=session.settings, cost=COST) as other:
        assert vars(other)["_make_mode"] == AutoModes(COST)


def test_a_session_measures_what_steps_cost_once_and_later_ones_know_it(
    session: ModelEngine, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.auto.step_cost.ROUGH", inf)
    plan, told = MeasurePlan((8,), (1, 2, 4), seconds=30, rounds=3), list[str]()
    for known in (False, True):
        with load(model_settings=session.model_settings, decode_settings=session.settings) as other:
            other.use_known(state)
            assert other.wants_cost is not known
            cost = other.learn_cost(plan, state, told.append)
            assert cost and not other.wants_cost and told[0].startswith("timing") and len(told) == 1
            assert [point.repeats for step_cost in cost.staircases for point in step_cost.points][1:] == [3, 3]


def test_on_a_busy_machine_a_session_soon_ends_measuring_and_tries_it_in_an_hour_again(
    session: ModelEngine, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.auto.step_cost.MIN_CORE_SHARE", 0.8)
    monkeypatch.setattr("lacli.auto.model_cost.process_time", lambda: 0.0)
    told = list[str]()
    with load(model_settings=session.model_settings, decode_settings=session.settings) as other:
        other.use_known(state)
        assert other.wants_cost
        cost = other.learn_cost(MeasurePlan((8, 16), (1, 2, 4), seconds=30, rounds=3), state, told.append)
        assert cost and not other.wants_cost and "busy" in told[-1]
        monkeypatch.setattr("lacli.auto.model_cost.time", lambda: time() + 3601)
        assert other.wants_cost
        assert [point.repeats for step_cost in cost.staircases for point in step_cost.points] == [1, 1, 1]
