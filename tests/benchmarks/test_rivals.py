"""Other programs beside lacli: found on PATH, started with the same model and flags, read, and ended.

Scripts stand in for llama.cpp's programs; where the real ones are on PATH they are run too.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rivals
from benchmarks.fresh_table import Answer
from benchmarks.rivals import find_rival
from lacli.errors import LacliError
from lacli.llamacpp.settings import ModelSettings

LOADING = ModelSettings(context=512, threads=2, threads_batch=3, flash_attention="on", cache_type_k="q8_0")
MODEL = Path("model.gguf")
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
TIMINGS: dict[str, object] = {"prompt_n": 3, "predicted_n": 5, "predicted_ms": 2000.0}
REPLY: dict[str, object] = {"content": "abcde", "timings": {**TIMINGS, "draft_n_accepted": 1}}

HEAD = """#!{python} -IS
import json, os, sys
from pathlib import Path
from typing import Any
home, name = Path({home!r}), {name!r}
told = json.loads((home / (name + ".told")).read_text())
calls = home / (name + ".calls")
earlier = len(calls.read_text().splitlines()) if calls.exists() else 0
call = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "process": os.getpid()}}
if "-bf" in sys.argv:
    call["prompt"] = Path(sys.argv[sys.argv.index("-bf") + 1]).read_text()
with calls.open("a") as file:
    print(json.dumps(call), file=file)
"""

PROGRAM = """
import signal
if told.get("hangs"):
    signal.pause()
lost = earlier < told.get("lost", 0)
sys.stdout.write(told.get("out", ""))
sys.stderr.write("warming up" if lost else told.get("log", ""))
sys.stdout.flush(), sys.stderr.flush()
if told.get("signal"):
    os.kill(os.getpid(), told["signal"])
"""

SERVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer
print("srv load_model: loading", file=sys.stderr, flush=True)
if "dies" in told:
    print(told["dies"], file=sys.stderr, flush=True)
    sys.exit(1)
knocks = 0

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global knocks
        knocks += 1
        self.reply(503 if knocks <= told.get("loading", 0) else 200, {"status": "ok"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with (home / (name + ".asked")).open("a") as file:
            print(json.dumps({"path": self.path, **asked}), file=file)
        self.reply(200, told["reply"])

    def reply(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@dataclass(frozen=True)
class Fake:
    """One stand-in; `path` is the script."""

    path: Path

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Each start of it: arguments, environment, process id, and the prompt of a file named by -bf."""
        return self._rows("calls")

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Each request for a completion that a server got."""
        return self._rows("asked")

    def _rows(self, suffix: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.with_suffix(f".{suffix}").read_text().splitlines()]


def write_stand_in(folder: Path, name: str, **told: object) -> Fake:
    """Write a script that notes how it is called and does what it is told, into a folder that is on PATH."""
    path = folder / name
    body = SERVER if name == "llama-server" else PROGRAM
    path.write_text(HEAD.format(python=sys.executable, home=str(folder), name=name) + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    path.with_suffix(".told").write_text(json.dumps(told))
    return Fake(path)


Make = Callable[..., Fake]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("PATH", str(tmp_path))
    return lambda name, **told: write_stand_in(tmp_path, name, **told)


def answered(name: str, *, settings: ModelSettings = LOADING, offloaded: bool = True) -> Answer:
    return find_rival(name).answer(PROMPT, IDS, 30, MODEL, settings, offloaded=offloaded)


def flags(arguments: list[str]) -> dict[str, str]:
    return dict(zip(arguments, [*arguments[1:], ""], strict=True))


@pytest.mark.parametrize(
    ("name", "log", "seconds", "last"),
    [("llama-lookahead", LOOKAHEAD_LOG, 2.0, "29"), ("llama-lookup", LOOKUP_LOG, 0.01, "30")],
)
def test_programs_get_the_prompt_and_lacli_s_settings_and_each_token_not_accepted_is_a_step(
    make: Make, name: str, log: str, seconds: float, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "64")
    fake = make(name, log=log, out=f"\n\n<s>{PROMPT}one \x1b[0;96mtwo\x1b[0m\n three<|end|>\n\n\n", lost=2)
    answer = answered(name)
    assert replace(answer, seconds=0.0) == Answer(30, 0.0, "one two\n three<|end|>", 24)
    assert answer.seconds == pytest.approx(seconds)
    assert len(fake.calls) == 3, "lost statistics are asked for again"
    call = fake.calls[0]
    given = flags(call["arguments"])
    assert call["prompt"] == PROMPT and "LLAMA_ARG_THREADS" not in call["environment"]
    assert "--no-escape" in given, "they would read \\n as a line break"
    same = {"-m": "model.gguf", "-c": "512", "-t": "2", "-tb": "3", "-ngl": "999", "-fa": "on", "-ctk": "q8_0"}
    assert given.items() >= {**same, "-ctv": "f16", "--temp": "0"}.items()
    assert given["-n"] == last, "they stop one token later"


FAILURES: list[tuple[str, dict[str, object], str]] = [
    ("llama-lookahead", {"log": LOOKAHEAD_LOG.replace("n_accept", "acc")}, "prints no statistics"),
    ("llama-lookup", {"log": "ggml.c:1: GGML_ASSERT(n > 0)\nno core dumped", "signal": signal.SIGKILL},
     r"was ended by signal 9: ggml.c:1: GGML_ASSERT\(n > 0\)"),
    ("llama-lookup", {"hangs": True}, "did not finish in time"),
    ("llama-server:none", {"dies": "E srv load_model: failed to load model\nE srv: exiting due to model loading error"},
     "exit code 1: E srv load_model: failed to load model"),
    ("llama-server:none", {"loading": 10**6}, "was not ready within"),
    ("llama-server:none", {"reply": {**REPLY, "timings": {"predicted_n": 3}}}, "a form that cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "told", "words"), FAILURES)
def test_what_fails_is_one_line_and_leaves_no_process(
    make: Make, name: str, told: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told.keys() & {"hangs", "loading"}:
        monkeypatch.setattr(rivals, "START_S", 0.3)
        monkeypatch.setattr(rivals, "ANSWER_S", 0.1)
    fake = make(name.partition(":")[0], **told)
    with pytest.raises(LacliError, match=words) as error:
        answered(name)
    assert "\n" not in str(error.value)
    with pytest.raises(ProcessLookupError):
        os.kill(fake.calls[-1]["process"], 0)


@pytest.mark.parametrize(
    ("timings", "counted"),
    [
        ({}, (4, 4)),
        ({"draft_n_accepted": 1}, (4, 3)),
        ({"draft_n_accepted": 40}, (4, 1)),
        ({"predicted_n": 1}, (0, 0)),
    ],
    ids=["nothing-drafted", "drafted", "accepted-behind-the-end", "one-token"],
)
def test_a_server_gets_token_ids_and_its_steps_follow_from_accepted_guesses(
    make: Make, timings: dict[str, object], counted: tuple[int, int]
) -> None:
    fake = make("llama-server", reply={**REPLY, "timings": {**TIMINGS, **timings}})
    draft = replace(find_rival("llama-server:draft-simple"), draft=Path("small.gguf"))
    answer = draft.answer(PROMPT, IDS, 30, MODEL, LOADING, offloaded=False)
    assert (answer.tokens, answer.steps, answer.seconds, answer.text) == (*counted, 2.0, "abcde")
    (asked,) = fake.asked
    assert asked == {"path": "/completion", "prompt": IDS, "n_predict": 31, "temperature": 0, "cache_prompt": False}
    given = flags(fake.calls[-1]["arguments"])
    assert given.items() >= {"-m": "model.gguf", "-c": "512", "-np": "1", "--spec-type": "draft-simple"}.items()
    assert given.items() >= {"-md": "small.gguf", "-ngld": "0", "-devd": "none", "--host": "127.0.0.1"}.items()
    with pytest.raises(ProcessLookupError):
        os.kill(fake.calls[-1]["process"], 0)
