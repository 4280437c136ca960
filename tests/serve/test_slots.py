"""POST /slots/ID: a slot's cells are saved, restored and erased, and each API key has files of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import lacli
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve.run import access_for
from tests.serve.conftest import app_of

PROMPT = "def add(a, b):\n    return a + b\n\n\n" * 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slots").mkdir()
    return tmp_path / "slots"


def client_of(model: lacli.Model, folder: Path | None, *keys: str) -> TestClient:
    app = app_of(model, access_for(["127.0.0.1"], keys), slot_save_path=str(folder or ""))
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@pytest.fixture
def client(model: lacli.Model, folder: Path) -> TestClient:
    client = client_of(model, folder)
    for slot in range(2):
        assert client.post(f"/slots/{slot}?action=erase").status_code == 200
    return client


def complete(client: TestClient, prompt: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.post("/completion", json={"prompt": prompt, "n_predict": 4, **more}).json()
    return found


def change(client: TestClient, slot: int, action: str, key: str = "", **body: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    reply = client.post(f"/slots/{slot}?action={action}", json=body, headers=headers)
    return reply.status_code, reply.json()


def test_a_saved_slot_is_restored_and_reused_by_the_next_request_with_its_beginning(
    client: TestClient, folder: Path
) -> None:
    first = complete(client, PROMPT)
    slot, total = first["id_slot"], first["timings"]["prompt_n"]
    status, saved = change(client, slot, "save", filename="a.bin")
    assert status == 200 and saved["id_slot"] == slot and saved["filename"] == "a.bin"
    assert saved["n_saved"] == total + 3 and saved["n_written"] == (folder / "a.bin").stat().st_size
    status, erased = change(client, slot, "erase")
    assert (status, erased) == (200, {"id_slot": slot, "n_erased": saved["n_saved"]})
    assert complete(client, PROMPT)["timings"]["prompt_n"] == total
    for each in range(2):
        change(client, each, "erase")
    status, restored = change(client, 1, "restore", filename="a.bin")
    assert status == 200 and (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    again = complete(client, PROMPT)
    assert (again["id_slot"], again["timings"]["prompt_n"]) == (1, 1)
    assert again["content"] == first["content"]


@pytest.mark.parametrize(
    "name", ["", "../a", "a/b", ".hidden", "..", "a b", "/etc/passwd", "a\\b", "a\0", "x" * 101, None]
)
def test_only_bare_names_are_files(name: str | None, client: TestClient, folder: Path) -> None:
    for action in ("save", "restore"):
        status, reply = change(client, 0, action, filename=name or "")
        assert status == 400 and "letters, digits" in reply["error"]["message"]
    assert not [*folder.iterdir()]


@pytest.mark.parametrize(("slot", "action"), [(2, "save"), (0, "copy"), (0, "")])
def test_other_slots_and_actions_are_refused(slot: int, action: str, client: TestClient) -> None:
    status, reply = change(client, slot, action, filename="a")
    assert status == 400 and "there are slots 0 to 1" in reply["error"]["message"]


def test_a_damaged_missing_or_foreign_file_is_refused_and_left_alone(client: TestClient, folder: Path) -> None:
    complete(client, PROMPT)
    change(client, 0, "save", filename="a")
    raw = (folder / "a").read_bytes()
    (folder / "a").write_bytes(raw[:-9])
    (folder / "notes").write_text("of the operator")
    for name, action in (("a", "restore"), ("missing", "restore"), ("notes", "restore"), ("notes", "save")):
        status, reply = change(client, 0, action, filename=name)
        assert status == 400 and name in reply["error"]["message"], (name, action)
    assert (folder / "notes").read_text() == "of the operator"


def test_a_file_belongs_to_the_key_that_saved_it(model: lacli.Model, folder: Path) -> None:
    client = client_of(model, folder, "one", "two")
    assert change(client, 0, "save", filename="a")[0] == 401
    headers = {"X-Api-Key": "one"}
    slot = client.post("/completion", json={"prompt": PROMPT, "n_predict": 4}, headers=headers).json()["id_slot"]
    assert change(client, slot, "save", "one", filename="a")[0] == 200
    (file,) = folder.iterdir()
    assert change(client, slot, "restore", "two", filename="a")[0] == 400
    assert change(client, slot, "restore", "two", filename=file.name)[0] == 400
    assert change(client, slot, "save", "two", filename="a")[0] == 200 and len([*folder.iterdir()]) == 2
    assert client.post(f"/slots/{slot}?action=restore", json={"filename": "a"}, headers=headers).status_code == 200


def test_a_slot_with_an_answer_on_its_way_can_be_saved_and_not_changed(client: TestClient, model: lacli.Model) -> None:
    with model.stream(PROMPT, raw=True, sampling=SamplingSettings(ignore_eos=True)) as stream:
        pieces = iter(stream)
        next(pieces)
        assert stream.sequence
        slot = stream.sequence.cells.first_id // model.engine.settings.ids
        for action in ("erase", "restore"):
            assert change(client, slot, "save", filename="a")[0] == 200
            status, reply = change(client, slot, action, filename="a")
            assert status == 400 and "in use by an answer" in reply["error"]["message"]


def test_without_a_folder_slots_are_only_shown(model: lacli.Model) -> None:
    client = client_of(model, None)
    assert change(client, 0, "save", filename="a")[0] == 501
    assert client.get("/slots").status_code == 200
