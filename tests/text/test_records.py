"""Saved records are private, complete or missing, and identify a model by its file."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lacli.text.records import HASHED, NAME, Records, model_identity

KEY = {"b": 1, "a": [1, 2]}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "cache" / NAME


def test_a_record_is_read_by_its_kind_and_key_until_it_is_forgotten(state: Path) -> None:
    records = Records(state)
    assert records.read("cost", KEY) is None and not records.kinds() and not state.exists()
    assert records.save("cost", KEY, {"x": 1.5}) == "" and records.save("trial", KEY, 7) == ""
    assert records.save("cost", "other", None) == "" and records.save("cost", KEY, {"x": 2.5}) == ""
    assert records.read("cost", {"a": [1, 2], "b": 1}) == {"x": 2.5}
    assert [*Records(state).kinds()["cost"].values()] == [{"x": 2.5}, None]
    records.forget("cost")
    assert "cost" not in records.kinds() and records.read("trial", KEY) == 7
    assert stat.S_IMODE(state.stat().st_mode) == 0o600 and stat.S_IMODE(state.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b'{"cost": 5}', b'{"cost": {"no key": 1}}', b"[" * 100_000], ids=repr
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(state: Path, content: bytes) -> None:
    state.parent.mkdir()
    state.write_bytes(content)
    records = Records(state)
    assert records.read("cost", KEY) is None
    assert records.save("cost", KEY, 1) == "" and records.read("cost", KEY) == 1
    json.loads(state.read_bytes())


def test_of_several_that_save_at_a_time_no_record_is_lost(state: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert {*threads.map(lambda key: Records(state).save("cost", key, key), range(40))} == {""}
    assert sorted(Records(state).kinds()["cost"].values()) == [*range(40)]


def test_a_model_is_known_by_its_name_size_and_ends(tmp_path: Path) -> None:
    found = []
    for name, change in (("a", None), ("a", 0), ("a", 3 * HASHED - 1), ("b", None)):
        content = bytearray(3 * HASHED)
        if change is not None:
            content[change] = 1
        (tmp_path / name).write_bytes(content)
        found.append(tuple(model_identity(tmp_path / name).values()))
    assert len(set(found)) == 4
