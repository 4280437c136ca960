"""A program that people use with a server: Simon Willison's llm, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import lacli
from tests.program import SECONDS, environment
from tests.serve.conftest import NAME

QUESTION = "Write a function that adds two numbers."

LlmCall = Callable[..., "subprocess.CompletedProcess[str]"]


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
