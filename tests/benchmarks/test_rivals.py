"""llama.cpp's programs: found on PATH, started with lacli's model and flags, read, and ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import rivals
from benchmarks.fresh_table import Answer
from benchmarks.rivals import Rival
from lacli.llamacpp.settings import ModelSettings

LOADING = ModelSettings(context=512, threads=2, threads_batch=3, flash_attention="on", cache_type_k="q8_0")
PROMPT = "say: \\n is a line break\n"
IDS = [5, 6, 7]


def answered(rival: Rival, *, offloaded: bool = True) -> Answer:
    return rival.answer(PROMPT, IDS, 30, Path("model.gguf"), LOADING, offloaded=offloaded)


def flags(command: Sequence[str]) -> dict[str, str]:
    return dict(zip(command, [*command[1:], ""], strict=True))


@pytest.mark.parametrize(
    ("timings", "counted"),
    [({}, (4, 4)), ({"draft_n_accepted": 1}, (4, 3)), ({"draft_n_accepted": 40}, (4, 1)), ({"predicted_n": 1}, (0, 0))],
    ids=["nothing-drafted", "drafted", "accepted-after-the-end", "one-token"],
)
def test_a_server_gets_token_ids_and_its_steps_follow_from_accepted_drafts(
    timings: dict[str, int], counted: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    @contextmanager
    def server(command: Sequence[str]) -> Iterator[str]:
        commands.append(flags(command))
        yield "http://here"

    def reply(address: str, body: object, seconds: float) -> object:
        wanted = {"prompt": IDS, "n_predict": 31, "temperature": 0, "cache_prompt": False}
        assert (address, json.loads(json.dumps(body))) == ("http://here/completion", wanted)
        return {"content": "abcde", "timings": {"prompt_n": 3, "predicted_n": 5, "predicted_ms": 2000.0, **timings}}

    monkeypatch.setattr(rivals, "_server", server)
    monkeypatch.setattr(rivals, "_reply", reply)
    answer = answered(Rival(Path("llama-server"), "draft-simple", Path("small.gguf")), offloaded=False)
    assert (answer.tokens, answer.steps, answer.seconds, answer.text) == (*counted, 2.0, "abcde")
    (given,) = commands
    assert given.items() >= {"-m": "model.gguf", "-c": "512", "-np": "1", "--spec-type": "draft-simple"}.items()
    assert given.items() >= {"-md": "small.gguf", "-ngld": "0", "-devd": "none"}.items()
