"""Programs that people use with a server: lacli's own chat, and Simon Willison's llm as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import pytest

import lacli
from lacli.chat.connected import ConnectedChat, Server
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Conversation
from lacli.chat.transcript import read_chat
from tests.program import SECONDS, call, environment
from tests.serve.conftest import NAME

QUESTION = "Write a function that adds two numbers."

LlmCall = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_chat_with_the_server_says_what_the_model_says(address: str, model: lacli.Model) -> None:
    with closing(Server(address)) as server:
        chat = ConnectedChat(server, ChatSettings(max_tokens=40), Conversation())
        pieces = [*chat.ask(QUESTION)]
        expected = model.chat([{"role": "user", "content": QUESTION}], max_tokens=40)
        assert chat.conversation.last_answer == expected.text == "".join(piece.text for piece in pieces)
        assert chat.last and chat.last.statistics.tokens == len(expected.tokens)
        assert server.name == NAME and server.cells == model.context and chat.tokens_of("def f") > 0


def test_a_chat_with_a_server_is_saved_without_the_servers_name_of_the_model(address: str, tmp_path: Path) -> None:
    file = tmp_path / "chat"
    done = call("chat", NAME, "--connect", address, "--commands", stdin=f"/show\n/save {file}\n".encode())
    assert done.code == 0 and f"model     {NAME}" in done.err and read_chat(file).model == ""


def test_an_answer_that_is_stopped_gives_its_place_back(address: str, model: lacli.Model) -> None:
    with closing(Server(address)) as server:
        settings = ChatSettings(max_tokens=1500)
        endless = settings.with_values({"ignore_eos": True, "temp": 1.0})
        chat = ConnectedChat(server, endless, Conversation())
        with closing(chat.ask(QUESTION)) as pieces:
            next(pieces)
            assert sum(model.load) == 1
        began = monotonic()
        while sum(model.load):
            assert monotonic() - began < SECONDS
    assert chat.last and chat.last.finish_reason == "interrupt" and not chat.conversation.is_open
    assert chat.used == chat.last.statistics.prompt_tokens + chat.last.statistics.tokens > len(QUESTION.split())


@pytest.fixture(scope="module")
def ask_llm(address: str, tmp_path_factory: pytest.TempPathFactory) -> LlmCall:
    if not find_spec("llm"):
        pytest.skip("llm is not installed")
    home: Path = tmp_path_factory.mktemp("llm")
    lines = ["- model_id: local", f"  model_name: {NAME}", f"  api_base: {address}/v1", "  supports_schema: true"]
    (home / "extra-openai-models.yaml").write_text("\n".join(lines))

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "llm", "prompt", "--no-log", "-m", "local", "-o", "max_tokens", *arguments],
            env=environment({"LLM_USER_PATH": str(home)}), capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    return ask


@pytest.mark.parametrize("how", [(), ("--no-stream",)])
def test_llm_shows_an_answer_in_pieces_and_whole(how: tuple[str, ...], ask_llm: LlmCall, model: lacli.Model) -> None:
    expected = model.chat([{"role": "user", "content": QUESTION}], max_tokens=20)
    done = ask_llm("20", *how, QUESTION)
    assert done.stdout.rstrip("\n") == expected.text.rstrip("\n"), done.stderr


def test_llm_gets_an_answer_that_keeps_to_a_schema(ask_llm: LlmCall) -> None:
    done = ask_llm("60", "--schema", "count int", "A number.")
    assert type(json.loads(done.stdout)["count"]) is int, done.stderr


def test_llm_shows_what_the_server_refuses(ask_llm: LlmCall) -> None:
    done = ask_llm("-7", QUESTION)
    assert done.returncode == 1 and "max_tokens: has to be -1 or more" in done.stderr
