"""The cost of a model on a machine: what its key depends on, what is kept, and what mode auto is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lacli.auto.mode import Experience
from lacli.auto.model_cost import KIND, cost_of, device_names, fit_plan, machine_key, saved_cost
from lacli.auto.step_cost import Cost, MeasurePlan, StepCost
from lacli.engine.load import ModelEngine
from lacli.llamacpp.devices import Device
from lacli.llamacpp.machine import with_threads
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings, ModeName
from lacli.text.records import HASHED, NAME, Records
from tests.loading import generate, load

COST = Cost(
    (StepCost(64, {1: 0.1, 8: 0.2 / 3}), StepCost(1000, {1: 0.3})),
    0.01,
    MeasurePlan((64, 1000), (1, 8), 20.0),
    "llama 7B Q4_0",
    "A fast card",
    measured_at=1.75e9,
)
SETTINGS = ModelSettings(threads=2)
MODULE = "lacli.auto.model_cost"


@pytest.fixture(autouse=True)
def kernels_for_repacked_weights_are_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this build fails with them they would be off in any case."""
    monkeypatch.setattr(f"{MODULE}.working_settings", lambda settings: (with_threads(settings), ""))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF" + bytes(3 * HASHED))
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "cache" / NAME


def key_of(model: Path, settings: ModelSettings = SETTINGS) -> str:
    return json.dumps(machine_key(model, settings))


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
    assert {device_names(replace(SETTINGS, devices=each)) for each in (both, ())} == {
        "CUDA0: Card 0, CUDA1: Card 1, CPU: A processor"
    }
    assert device_names(replace(SETTINGS, devices=("CUDA1",))) == "CUDA1: Card 1, CPU: A processor"


def found(
    model: Path, state: Path, plan: MeasurePlan = COST.plan, cost: Cost = COST, *, fresh: bool = False
) -> tuple[Cost, bool, str]:
    """What is saved or measured, which it is, and what is said about it."""
    said: list[str] = []
    result = cost_of(model, SETTINGS, plan, state, lambda: cost, fresh=fresh, progress=said.append)
    return *result, " ".join(said)


def test_a_cost_is_measured_again_on_request_and_if_less_was_measured_before(model: Path, state: Path) -> None:
    other = replace(COST, devices="another")
    assert saved_cost(state, model, SETTINGS) is None
    assert found(model, state) == (COST, False, "") and saved_cost(state, model, SETTINGS) == COST
    less = MeasurePlan((64,), (1,), 1.0)
    assert found(model, state, cost=other) == found(model, state, less, other) == (COST, True, "")
    assert found(model, state, cost=other, fresh=True) == (other, False, "")
    assert found(model, state) == (other, True, "")
    assert found(model, state, replace(COST.plan, rows=(1, 2))) == (COST, False, "")
    assert saved_cost(state, model, replace(SETTINGS, threads=3)) is None


def test_a_cost_that_cannot_be_saved_is_said_to_be_and_one_without_steps_is_not_saved(model: Path, state: Path) -> None:
    assert found(model, state, cost=replace(COST, by_context=()))[1] is False and not state.exists()
    state.parent.write_text("in the way")
    assert found(model, state)[2] == f"cannot save it in {state}: File exists"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("", None),
        ("", {}),
        ("unknown", 1),
        ("plan", None),
        ("by_context", 7),
        ("by_context", []),
        ("by_context.0.measured", None),
        ("by_context.0.measured", {"2": 1.0}),
        ("by_context.0.measured.4", "x"),
    ],
)
def test_a_record_that_is_no_cost_is_measured_again(model: Path, state: Path, path: str, value: Any) -> None:
    kept: Any = {"cost": json.loads(json.dumps(asdict(COST)))}
    at, (*steps, last) = kept, ["cost", *(path.split(".") if path else [])]
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[last] = value
    Records(state).save(KIND, machine_key(model, SETTINGS), kept["cost"])
    assert found(model, state) == (COST, False, "") and found(model, state) == (COST, True, "")


@pytest.mark.parametrize(
    ("settings", "cells", "contexts", "rows"),
    [
        ({}, 0, (64, 2048), (1, 8, 128)),
        ({"batch": 100}, 0, (64, 2048), (1, 8)),
        ({"context": 1000}, 0, (64, 872), (1, 8, 128)),
        ({}, 60, (52,), (1, 8)),
        ({"context": 2}, 0, (1,), (1,)),
    ],
)
def test_a_plan_is_cut_to_what_a_batch_and_the_context_have_room_for(
    settings: dict[str, int], cells: int, contexts: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    plan = fit_plan(MeasurePlan(rows=(1, 8, 128)), ModelSettings(**settings), cells)  # type: ignore[arg-type]  # numbers
    assert (plan.contexts, plan.rows) == (contexts, rows)


@pytest.fixture(scope="module")
def session() -> Iterator[ModelEngine]:
    model_settings = ModelSettings(context=256, threads=1, threads_batch=1, gpu_layers=0)
    with load(model_settings=model_settings, decode_settings=DecodeSettings(mode="auto")) as session:
        yield session


def test_a_session_decodes_with_what_it_was_told_also_in_a_mode_that_comes_later(session: ModelEngine) -> None:
    seen: list[Cost | None] = []

    class Seeing(Experience):
        def __init__(self, settings: DecodeSettings, cost: Cost | None = None) -> None:
            seen.append(cost)
            super().__init__(settings, cost)

    session.use_cost(COST)
    assert session.cost == COST
    session.adapt(replace(session.settings, mode="plain"), session.sampling)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lacli.engine.engine.Experience", Seeing)
        session.adapt(replace(session.settings, mode="auto"), session.sampling)
        list(session.generate([1, 2, 3], 1).pieces)
    assert seen == [COST]


@pytest.mark.parametrize(("mode", "sizes"), [("auto", [1, 2, 4, 8]), ("plain", None)])
def test_a_gpu_times_steps_when_a_model_is_loaded_unless_it_decodes_plainly(
    mode: ModeName, sizes: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(decode_settings=DecodeSettings(mode=mode)) as loaded:
        assert loaded.warm_up() is None
        monkeypatch.setattr(loaded.model, "offloaded", True)
        cost = loaded.warm_up()
        assert (cost and [*cost.at(0).measured]) == sizes
        assert generate(loaded, "import").tokens


def test_a_session_measures_what_steps_cost_once_and_later_ones_know_it(
    session: ModelEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan, told = MeasurePlan((8,), (1, 2, 8), seconds=3), list[str]()
    for known in (False, True):
        with load(model_settings=session.model_settings, decode_settings=session.settings) as other:
            assert bool(other.cost) is known
            other.learn_cost(plan, told.append)
            assert other.cost and told[0].startswith("timing") and len(told) == 1
