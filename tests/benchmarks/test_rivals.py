"""Other programs beside lacli: found on PATH, started with the same model and flags, read, and ended.

Scripts stand in for llama.cpp's programs; where the real ones are on PATH they are run too.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals import server as rival_server
from benchmarks.rivals.found import RIVALS, find_rivals
from benchmarks.rivals.programs import Program
from benchmarks.rivals.runs import Patience, RivalRun
from benchmarks.rivals.server import Server
from lacli.bench.rounds import Trial
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.fakes import fake_rivals
from tests.fakes.fake_rivals import Fake
from tests.loading import STDLIB_7M, load

LOADING = ModelSettings(context=512, threads=2, threads_batch=3, flash_attention="on", cache_type_k="q8_0")
MODEL = Path("model.gguf")
PROMPT = "say: \\n is a line break\n"
IDS = [5, 6, 7]

LOOKAHEAD_LOG = """Read 20 bytes from binary file prompt
0.00.318.030 I encoded    3 tokens in    0.250 seconds, speed:   12.000 t/s
0.00.318.031 I decoded   30 tokens in    2.000 seconds, speed:   15.000 t/s
0.00.318.031 I W = 15
0.00.318.032 I n_predict = 30
0.00.318.032 I n_accept  = 6
"""
LOOKUP_LOG = """0.00.036.605 I encoded    3 tokens in    0.250 seconds, speed: 13566.847 t/s
0.00.036.632 I decoded   31 tokens in    0.011 seconds, speed: 3100.000 t/s
0.00.036.661 I n_draft      = 3
0.00.036.689 I n_drafted    = 9
0.00.036.730 I n_accept     = 6
"""
HELP = "--spec-type none,draft-simple,ngram-simple,ngram-mod    comma-separated list of types\n"
TIMINGS: dict[str, object] = {"prompt_n": 3, "prompt_ms": 250.0, "predicted_n": 5, "predicted_ms": 2000.0}
REPLY: dict[str, object] = {
    "tokens": [1, 2, 3, 4, 5],
    "content": "abcde",
    "timings": {**TIMINGS, "draft_n": 9, "draft_n_accepted": 1},
}

Make = Callable[..., Fake]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("PATH", str(tmp_path))
    return lambda name, **told: fake_rivals.make(tmp_path, name, **told)


def opened(
    name: str, *, patience: Patience | None = None, model_settings: ModelSettings = LOADING, offloaded: bool = True
) -> Program | Server:
    (rival,) = find_rivals([name])
    return rival.open(MODEL, model_settings, offloaded=offloaded, patience=patience or Patience(60, 60))


def answered(name: str, limit: int = 30, **options: Any) -> RivalRun:
    with opened(name, **options) as program:
        return program.answer(PROMPT, IDS, limit)


def flags(arguments: list[str]) -> dict[str, str]:
    return dict(zip(arguments, [*arguments[1:], ""], strict=True))


def test_lookahead_counts_a_step_for_every_token_that_was_not_accepted(make: Make) -> None:
    make("llama-lookahead", log=LOOKAHEAD_LOG)
    run = answered("llama-lookahead")
    assert (run.tokens, run.accepted, run.steps, run.drafted) == (30, 6, 24, None)
    assert run.tokens / run.seconds == pytest.approx(15)
    assert (run.prompt_tokens, run.prompt_s) == (3, 0.25)


def test_lookup_s_first_token_comes_out_of_the_prefill_and_is_not_counted(make: Make) -> None:
    make("llama-lookup", log=LOOKUP_LOG)
    run = answered("llama-lookup")
    assert (run.tokens, run.accepted, run.steps, run.drafted) == (30, 6, 24, 9)
    assert run.seconds == pytest.approx(0.01), "from the speed: the log rounds the seconds to milliseconds"


@pytest.mark.parametrize(("name", "log", "last"), [("llama-lookahead", LOOKAHEAD_LOG, "29"),
                                                  ("llama-lookup", LOOKUP_LOG, "30")])  # fmt: skip
def test_programs_get_the_prompt_as_it_is_and_lacli_s_own_settings(make: Make, name: str, log: str, last: str) -> None:
    fake = make(name, log=log)
    answered(name, 30)
    (call,) = fake.calls
    given = flags(call["arguments"])
    assert call["prompt"] == PROMPT
    assert "--no-escape" in given, "they would read \\n as a line break"
    same = {"-m": "model.gguf", "-c": "512", "-t": "2", "-tb": "3", "-ngl": "999", "-fa": "on", "-ctk": "q8_0"}
    assert given.items() >= {**same, "-ctv": "f16", "--temp": "0"}.items()
    assert given["-n"] == last, "they stop one token later"


def test_where_lacli_computes_on_the_cpu_so_must_they(make: Make) -> None:
    fake = make("llama-lookup", log=LOOKUP_LOG)
    answered("llama-lookup", offloaded=False, model_settings=replace(LOADING, flash_attention="auto", repack=False))
    given = flags(fake.calls[0]["arguments"])
    assert (given["-ngl"], given["--device"], given["-fa"]) == ("0", "none", "off")
    assert "--no-repack" in given


def test_llama_cpp_s_own_environment_does_not_reach_them(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "64")
    monkeypatch.setenv("GGML_CPU_TILED_MM", "0")
    fake = make("llama-lookup", log=LOOKUP_LOG)
    answered("llama-lookup")
    seen = fake.calls[0]["environment"]
    assert "LLAMA_ARG_THREADS" not in seen
    assert seen["GGML_CPU_TILED_MM"] == "0", "lacli's own kernels are switched there"


def test_the_text_is_what_follows_the_prompt_without_colours(make: Make) -> None:
    out = f"\n\n<s>{PROMPT}one \x1b[0;96mtwo\x1b[0m\n three<|end|>\n\n\n"
    make("llama-lookahead", log=LOOKAHEAD_LOG, out=out)
    assert answered("llama-lookahead").text == "one two\n three<|end|>"


def test_lost_statistics_are_asked_for_again(make: Make) -> None:
    fake = make("llama-lookahead", log=LOOKAHEAD_LOG, lost=2)
    assert answered("llama-lookahead").tokens == 30
    assert len(fake.calls) == 3


LAST = "E srv  load_model: failed to load model 'model.gguf'"
UNREADABLE: list[object] = [
    *("no JSON", [], {"content": "abc"}, {**REPLY, "tokens": "abc"}, {**REPLY, "timings": {"predicted_n": 3}}),
    {**REPLY, "timings": {**TIMINGS, "predicted_ms": None}},
]
FAILURES: list[tuple[str, dict[str, object], str, Patience | None]] = [
    ("llama-lookahead", {"log": "n_tokens: 30, took 2 s"}, "prints no statistics that lacli can read", None),
    ("llama-lookahead", {"log": LOOKAHEAD_LOG.replace("n_accept", "acc")}, "prints no statistics that lacli", None),
    ("llama-lookahead", {"log": LOOKAHEAD_LOG.replace("encoded    3", "encoded    4")},
     "reads 4 tokens in a prompt of 3", None),
    ("llama-lookup", {"log": "loading\n0.00.024.062 E main: prompt too long, failed\nbye\n\n", "code": 1},
     r"llama-lookup ended with exit code 1: main: prompt too long, failed \(", None),
    ("llama-lookup", {"log": "ggml.c:1: GGML_ASSERT(n > 0)\nno core dumped", "signal": signal.SIGKILL},
     r"was ended by signal 9: ggml.c:1: GGML_ASSERT\(n > 0\)", None),
    ("llama-lookup", {"hangs": True}, r"did not finish within 0\.2 seconds", Patience(start_s=0.1, answer_s=0.1)),
    ("llama-server:none", {"dies": f"{LAST}\n0.00.004.516 E srv  llama_server: exiting due to model loading error"},
     r"exit code 1: E srv  load_model: failed to load model 'model.gguf' \(", None),
    ("llama-server:none", {"hangs": True}, r"was not ready within 0\.3 seconds", Patience(start_s=0.3)),
    ("llama-server:none", {"loading": 10**6}, r"was not ready within 0\.3 seconds", Patience(start_s=0.3)),
    ("llama-server:none", {"falls": "CUDA error: out of memory"}, "exit code 1: CUDA error: out of memory", None),
    ("llama-server:none", {"breaks": True}, "llama-server broke the connection", Patience(end_s=0.01)),
    ("llama-server:none", {"silent": True}, r"did not answer within 0\.1 seconds", Patience(answer_s=0.1)),
    ("llama-server:none", {"status": 400, "reply": {"error": {"code": 400, "message": "the request is too large"}}},
     "refuses the prompt: the request is too large", None),
]  # fmt: skip


FAILURES += [
    ("llama-server:none", {"reply": reply}, "replies in a form that lacli cannot read", None) for reply in UNREADABLE
]


@pytest.mark.parametrize(("name", "told", "words", "patience"), FAILURES)
def test_what_fails_is_one_line_and_leaves_no_process(
    make: Make, name: str, told: dict[str, object], words: str, patience: Patience | None
) -> None:
    fake = make(name.partition(":")[0], help=HELP, **told)
    with pytest.raises(LacliError, match=words) as error:
        answered(name, patience=patience)
    assert "\n" not in str(error.value)
    with pytest.raises(ProcessLookupError):
        os.kill(fake.calls[-1]["process"], 0)


@pytest.mark.parametrize("name", ["llama-lookup", "llama-server:none"])
def test_a_program_that_cannot_be_started_is_one_line(make: Make, name: str) -> None:
    fake = make(name.partition(":")[0], help=HELP)
    with opened(name) as program:
        fake.path.write_text("#!/nowhere/at/all\n")
        with pytest.raises(LacliError, match=f"{fake.path.name} .*No such file"):
            program.answer(PROMPT, IDS, 1)
    fake.path.write_text("#!/bin/sh\necho error while loading shared libraries: libllama.so >&2; exit 127")
    if name == "llama-server:none":
        with pytest.raises(LacliError, match="exit code 127: error while loading shared libraries"):
            find_rivals(["llama-server"])


def test_a_name_that_is_no_rival_is_a_usage_error_that_names_them() -> None:
    for name in ("llama-bench", "", "llama-lookup:ngram-mod", "lookup"):
        with pytest.raises(UsageError, match="llama-lookahead, llama-lookup, llama-server") as error:
            find_rivals([name])
        assert repr(name) in error.value.what


@pytest.mark.parametrize("name", RIVALS)
def test_a_program_that_is_not_on_path_says_where_to_get_it(make: Make, name: str) -> None:
    with pytest.raises(LacliError, match=f"{name} is not on PATH .*build/bin on PATH"):
        find_rivals([name])


def test_a_program_that_is_named_twice_answers_once(make: Make) -> None:
    make("llama-lookup")
    assert len(find_rivals(["llama-lookup", "llama-lookup"])) == 1


def test_llama_server_means_every_kind_of_n_grams_that_it_has(make: Make) -> None:
    make("llama-server", help=HELP)
    names = [rival.name for rival in find_rivals(["llama-server"])]
    assert names == ["llama-server ngram-simple", "llama-server ngram-mod"]
    assert [rival.kind for rival in find_rivals(["llama-server:none", "llama-server:ngram-mod"])] == [
        "none",
        "ngram-mod",
    ]


def test_a_kind_that_the_server_does_not_have_is_a_usage_error(make: Make) -> None:
    make("llama-server", help=HELP)
    for kind in ("ngram-best", "draft-mtp"):
        with pytest.raises(UsageError, match="this one has none, draft-simple, ngram-simple, ngram-mod"):
            find_rivals([f"llama-server:{kind}"])


def test_a_server_that_drafts_with_a_model_gets_it_and_computes_where_lacli_does(make: Make) -> None:
    fake = make("llama-server", help=HELP, reply=REPLY)
    (rival,) = find_rivals(["llama-server:draft-simple"])
    with replace(rival, draft=Path("small.gguf")).open(MODEL, LOADING, offloaded=False) as server:
        server.answer("", IDS, 30)
    given = flags(fake.calls[-1]["arguments"])
    assert given.items() >= {"--spec-type": "draft-simple", "-md": "small.gguf", "-ngld": "0", "-devd": "none"}.items()


def test_a_server_from_before_such_speculation_is_said(make: Make) -> None:
    make("llama-server", help="--draft N    tokens to draft")
    with pytest.raises(LacliError, match="only with a draft model"):
        find_rivals(["llama-server"])


def test_a_server_gets_token_ids_and_its_first_token_is_not_counted(make: Make) -> None:
    fake = make("llama-server", help=HELP, reply=REPLY, model_settings=2)
    run = answered("llama-server:ngram-simple")
    assert (run.tokens, run.accepted, run.steps, run.drafted) == (4, 1, 3, 9)
    assert (run.seconds, run.prompt_tokens, run.prompt_s) == (2.0, 3, 0.25)
    assert (run.ids, run.text) == ((1, 2, 3, 4, 5), "abcde")
    (asked,) = fake.asked
    expected = {"prompt": IDS, "n_predict": 31, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    assert asked == {"path": "/completion", **expected}
    given = flags(fake.calls[-1]["arguments"])
    assert given.items() >= {"-m": "model.gguf", "-c": "512", "-np": "1", "--spec-type": "ngram-simple"}.items()
    assert given["--host"] == "127.0.0.1", "no other machine reaches it"


@pytest.mark.parametrize(
    ("timings", "counted"),
    [
        ({}, (4, 4, 0, 0)),
        ({"draft_n": 9, "draft_n_accepted": 1}, (4, 3, 9, 1)),
        ({"draft_n": 48, "draft_n_accepted": 40}, (4, 1, 48, 3)),
        ({"predicted_n": 1}, (0, 0, 0, 0)),
    ],
    ids=["nothing-drafted", "drafted", "accepted-behind-the-end", "one-token"],
)
def test_a_servers_steps_follow_from_its_tokens_and_accepted_guesses(
    make: Make, timings: dict[str, object], counted: tuple[int, ...]
) -> None:
    make("llama-server", help=HELP, reply={**REPLY, "timings": {**TIMINGS, **timings}})
    run = answered("llama-server:ngram-simple")
    assert (run.tokens, run.steps, run.drafted, run.accepted) == counted


@pytest.mark.parametrize(("kind", "starts"), [("ngram-simple", 1), ("ngram-mod", 3)])
def test_only_a_server_that_forgets_a_prompt_answers_the_next(make: Make, kind: str, starts: int) -> None:
    fake = make("llama-server", help=HELP, reply=REPLY)
    with opened(f"llama-server:{kind}") as server:
        for _ in range(3):
            server.answer(PROMPT, IDS, 30)
        running = fake.calls[1:]  # the first call was for --help
    assert len({call["process"] for call in running}) == len(running) == starts
    for call in running:
        with pytest.raises(ProcessLookupError):
            os.kill(call["process"], 0)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, LacliError("something else")])
def test_a_server_ends_after_ctrl_c_and_errors_too(make: Make, stop: BaseException) -> None:
    fake = make("llama-server", help=HELP, reply=REPLY)
    with pytest.raises((KeyboardInterrupt, LacliError)), opened("llama-server:none") as server:
        server.answer(PROMPT, IDS, 30)
        raise stop
    with pytest.raises(ProcessLookupError):
        os.kill(fake.calls[-1]["process"], 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a killed process")
def test_a_server_ends_even_when_lacli_is_killed(make: Make, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    make("llama-server", help=HELP, reply=REPLY, pipe=str(pipe))
    script = f"""if True:
        import os
        from pathlib import Path
        from benchmarks.rivals.found import find_rivals
        from lacli.llamacpp.settings import ModelSettings
        held = open({str(pipe)!r}, "w")
        server = find_rivals(["llama-server:none"])[0].open(Path("m"), ModelSettings(512, threads=1), offloaded=True)
        server.answer("", [1], 1)
        os.kill(os.getpid(), 9)
    """
    root, env = Path(__file__).parents[2], {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.Popen([sys.executable, "-c", script], cwd=root, env=env)
    # The script and the server hold its other end, so it ends when both do.
    ended, _, _ = select.select([reader], [], [], 60)
    assert ended and os.read(reader, 1) == b""
    os.close(reader)
    assert done.wait() == -signal.SIGKILL


def test_a_port_that_somebody_took_meanwhile_is_said(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make("llama-server", help=HELP, reply=REPLY)
    with socket.socket() as holder:
        holder.bind((rival_server.HOST, 0))
        monkeypatch.setattr(rival_server, "_free_port", lambda: holder.getsockname()[1])
        with pytest.raises(LacliError, match="couldn't bind HTTP server socket"):
            answered("llama-server:none")


@pytest.mark.parametrize("name", RIVALS)
def test_the_real_programs_say_what_plain_decoding_says(name: str) -> None:
    if not shutil.which(name):
        pytest.skip(f"{name} is not on PATH")
    model_settings = ModelSettings(context=512, threads=1, threads_batch=1, gpu_layers=0)
    question, limit = "Show me the source code of `textwrap.dedent`.", 24
    with load(decode_settings=DecodeSettings(mode="plain"), model_settings=model_settings) as session:
        prompt = session.prompt(question)
        text = b"".join(session.model.piece(token, special=True) for token in prompt).decode()
        generation = session.generate(prompt, limit)
        plain = "".join(piece.text for piece in generation)
        tokens = tuple(generation.answer().tokens)
    for rival in find_rivals([name]):
        with rival.open(STDLIB_7M, model_settings, offloaded=False) as program:
            run = program.answer(text, prompt, limit)
        said = Trial(run.ids, run.text, run.tokens, run.steps, None, None, 0, 1.0, 1.0, 1.0, own_limit=True)
        assert said.same(Trial(tokens, plain, len(tokens), 1, 1, 0, 0, 1.0, 1.0, 1.0)), rival.name
        assert (run.ids or run.text) and run.tokens >= limit, rival.name
        assert 0 < run.steps <= run.tokens and run.seconds > 0 and run.prompt_tokens == len(prompt), rival.name


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long a thread had a processor")
def test_a_server_of_several_slots_answers_prompts_at_once(make: Make) -> None:
    fake = make("llama-server", help=HELP, reply='data: {"tokens":[5],"stop":false}\n\ndata: {"stop":true}\n\n')
    with Server(fake.path, MODEL, LOADING, "none", offloaded=False, slots=2) as server:
        answers = server.answer_together([IDS, IDS[:1]], 1)
    assert [len(times) for times in answers] == [2, 2]
    assert "-np 2" in " ".join(fake.calls[0]["arguments"])
    warm_up, *asked = fake.asked
    assert sorted((request["prompt"] for request in asked), key=len) == [IDS[:1], IDS]
    assert all(request["stream"] and request["ignore_eos"] and request["n_predict"] == 1 for request in asked)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long a thread had a processor")
def test_a_server_whose_answer_is_shorter_than_asked_is_said(make: Make) -> None:
    fake = make("llama-server", help=HELP, reply='data: {"tokens":[5],"stop":false}\n\ndata: {"stop":true}\n\n')
    server = Server(fake.path, MODEL, LOADING, "none", offloaded=False)
    with server, pytest.raises(LacliError, match="2 events for 3 tokens"):
        server.answer_together([IDS], 3)
