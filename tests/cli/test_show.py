"""`lacli show` as a person meets it."""

from __future__ import annotations

import pytest

from tests.fakes import tiny_models
from tests.fakes.fake_hub import FakeHub, Repository
from tests.fakes.hub_commands import Home
from tests.here import looking_up
from tests.loading import STDLIB_7M


def test_show_names_the_model_its_modes_and_its_memory(home: Home) -> None:
    done = home.call("show", str(STDLIB_7M), "-c", "1024", "-W", "3")
    assert (done.code, done.err) == (0, "")
    for words in ("pystdlib 7M", "Q8_0", "plain, jacobi, lookup, lookahead", "MB of weights", "1,024", "-W 3"):
        assert words in done.out


def test_nothing_is_fetched(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeHub({"me/a": Repository({"a-Q4_K_M.gguf": b"GGUF"})}).running() as hub:
        with looking_up(hub, home.cache, monkeypatch):
            done = home.call("show", "me/a")
        assert done.code == 1 and not hub.requests
        assert "not on this disk" in done.err and "lacli pull me/a" in done.err


def test_the_template_is_printed_whole_or_said_to_be_missing(home: Home) -> None:
    assert home.call("show", str(home.model), "--template").out == tiny_models.CHAT_TEMPLATE + "\n"
    home.model.write_bytes(home.model.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.none_template"))
    done = home.call("show", str(home.model), "--template")
    assert (done.code, done.out) == (1, "") and "has no chat template" in done.err
