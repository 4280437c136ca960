"""Other programs than lacli: found on PATH, started with the same model and flags, read, and ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import rivals
from benchmarks.fresh_table import Answer
from benchmarks.rivals import Rival
from lacli.llamacpp.settings import ModelSettings

LOADING = ModelSettings(context=512, threads=2, threads_batch=3, flash_attention="on", cache_type_k="q8_0")
PROMPT = "say: \\n is a line break\n"
IDS = [5, 6, 7]

LOOKAHEAD_LOG = """Read 20 bytes from binary file prompt
0.00.318.030 I encoded    3 tokens in    0.250 seconds, speed:   12.000 t/s
0.00.318.031 I decoded   30 tokens in    2.000 seconds, speed:   15.000 t/s
0.00.318.032 I n_predict = 30
0.00.318.032 I n_accept  = 6
"""
LOOKUP_LOG = """0.00.036.605 I encoded    3 tokens in    0.250 seconds, speed: 13566.847 t/s
0.00.036.632 I decoded   31 tokens in    0.011 seconds, speed: 3100.000 t/s
0.00.036.730 I n_accept     = 6
"""


def answered(rival: Rival, *, offloaded: bool = True) -> Answer:
    return rival.answer(PROMPT, IDS, 30, Path("model.gguf"), LOADING, offloaded=offloaded)


def flags(command: Sequence[str]) -> dict[str, str]:
    return dict(zip(command, [*command[1:], ""], strict=True))


@pytest.mark.parametrize(
    ("name", "log", "seconds", "last"),
    [("llama-lookahead", LOOKAHEAD_LOG, 2.0, "29"), ("llama-lookup", LOOKUP_LOG, 0.01, "30")],
)
def test_programs_get_the_prompt_and_lacli_s_settings_and_each_token_not_accepted_is_a_step(
    name: str, log: str, seconds: float, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def finished(command: Sequence[str]) -> tuple[bytes, str]:
        given = flags(command)
        calls.append((given, Path(given["-bf"]).read_text()))
        out = f"\n\n<s>{PROMPT}one \x1b[0;96mtwo\x1b[0m\n three<|end|>\n\n\n"
        return out.encode(), log if len(calls) == 3 else "warming up"

    monkeypatch.setattr(rivals, "_finished", finished)
    answer = answered(Rival(Path(name)))
    assert replace(answer, seconds=0.0) == Answer(30, 0.0, "one two\n three<|end|>", 24)
    assert answer.seconds == pytest.approx(seconds) and len(calls) == 3, "lost statistics are asked for again"
    given, prompt = calls[0]
    assert prompt == PROMPT and "--no-escape" in given, "they would read \\n as a line break"
    same = {"-m": "model.gguf", "-c": "512", "-t": "2", "-tb": "3", "-ngl": "999", "-fa": "on", "-ctk": "q8_0"}
    assert given.items() >= {**same, "-ctv": "f16", "--temp": "0"}.items()
    assert given["-n"] == last, "they stop one token later"


@pytest.mark.parametrize(
    ("timings", "counted"),
    [({}, (4, 4)), ({"draft_n_accepted": 1}, (4, 3)), ({"draft_n_accepted": 40}, (4, 1)), ({"predicted_n": 1}, (0, 0))],
    ids=["nothing-drafted", "drafted", "accepted-after-the-end", "one-token"],
)
def test_a_server_gets_token_ids_and_its_steps_follow_from_accepted_guesses(
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
