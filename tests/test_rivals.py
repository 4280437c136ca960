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

from lacli import load
from lacli.bench import rival_server
from lacli.bench.rivals import (
    RIVALS,
    Patience,
    Program,
    RivalRun,
    Server,
    find_rivals,
)
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.resolve import demo_model
from lacli.settings import DecodeSettings
from tests import fake_rivals
from tests.fake_rivals import Fake

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
    name: str, *, patience: Patience | None = None, loading: ModelSettings = LOADING, offloaded: bool = True
) -> Program | Server:
    (rival,) = find_rivals([name])
    return rival.open(MODEL, loading, offloaded=offloaded, patience=patience or Patience(60, 60))


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
    answered("llama-lookup", offloaded=False, loading=replace(LOADING, flash_attention="auto", repack=False))
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


@pytest.mark.parametrize("log", ["n_tokens: 30, took 2 s", LOOKAHEAD_LOG.replace("n_accept", "accepted")])
def test_an_unknown_form_of_statistics_is_one_line(make: Make, log: str) -> None:
    fake = make("llama-lookahead", log=log)
    with pytest.raises(LacliError, match="llama-lookahead prints no statistics that lacli can read") as error:
        answered("llama-lookahead")
    assert "\n" not in str(error.value)
    assert len(fake.calls) == 10


def test_a_program_that_reads_other_tokens_in_the_prompt_is_refused(make: Make) -> None:
    make("llama-lookahead", log=LOOKAHEAD_LOG.replace("encoded    3", "encoded    4"))
    with pytest.raises(LacliError, match="reads 4 tokens in a prompt of 3"):
        answered("llama-lookahead")


def test_a_program_that_fails_says_why(make: Make) -> None:
    make("llama-lookup", log="loading\n0.00.024.062 E main: prompt too long, failed\nbye\n\n", code=1)
    with pytest.raises(LacliError, match=r"llama-lookup ended with exit code 1: main: prompt too long, failed \("):
        answered("llama-lookup")


def test_a_program_that_crashes_says_its_signal(make: Make) -> None:
    make("llama-lookup", log="ggml.c:1: GGML_ASSERT(n > 0)\nno core dumped", signal=signal.SIGKILL)
    with pytest.raises(LacliError, match=r"was ended by signal 9: ggml.c:1: GGML_ASSERT\(n > 0\)"):
        answered("llama-lookup")


def test_a_program_that_hangs_is_ended(make: Make) -> None:
    make("llama-lookup", hangs=True)
    with pytest.raises(LacliError, match=r"llama-lookup did not finish within 0\.2 seconds"):
        answered("llama-lookup", patience=Patience(start_s=0.1, answer_s=0.1))


def test_a_name_that_is_no_rival_is_a_usage_error_that_names_them() -> None:
    for name in ("llama-bench", "", "llama-lookup:ngram-mod", "lookup"):
        with pytest.raises(UsageError, match="llama-lookahead, llama-lookup, llama-server") as error:
            find_rivals([name])
        assert repr(name) in error.value.what


@pytest.mark.parametrize("name", RIVALS)
def test_a_program_that_is_not_on_path_says_where_to_get_it(make: Make, name: str) -> None:
    with pytest.raises(LacliError, match=f"{name} is not on PATH .*build/bin on PATH"):
        find_rivals([name])


def test_rivals_answer_greedily_only(make: Make) -> None:
    make("llama-lookup")
    with pytest.raises(UsageError, match="greedy"):
        find_rivals(["llama-lookup"], SamplingSettings(temp=0.8))
    assert find_rivals([], SamplingSettings(temp=0.8)) == []
    assert len(find_rivals(["llama-lookup", "llama-lookup"], SamplingSettings())) == 1


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
    for kind in ("ngram-best", "draft-simple"):
        with pytest.raises(UsageError, match="this one has none, ngram-simple, ngram-mod"):
            find_rivals([f"llama-server:{kind}"])


def test_a_server_from_before_such_speculation_is_said(make: Make) -> None:
    make("llama-server", help="--draft N    tokens to draft")
    with pytest.raises(LacliError, match="only with a draft model"):
        find_rivals(["llama-server"])


def test_a_server_gets_token_ids_and_its_first_token_is_not_counted(make: Make) -> None:
    fake = make("llama-server", help=HELP, reply=REPLY, loading=2)
    run = answered("llama-server:ngram-simple")
    assert (run.tokens, run.accepted, run.steps, run.drafted) == (4, 1, 3, 9)
    assert (run.seconds, run.prompt_tokens, run.prompt_s) == (2.0, 3, 0.25)
    assert (run.ids, run.text) == ((1, 2, 3, 4, 5), "abcde")
    (asked,) = fake.asked
    expected = {"prompt": IDS, "n_predict": 31, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    assert asked == {"path": "/completion", **expected}
    given = flags(fake.calls[-1]["arguments"])
    assert given.items() >= {"-m": "model.gguf", "-c": "512", "-np": "1", "--spec-type": "ngram-simple"}.items()
    assert given["--host"] == "127.0.0.1", "nobody else reaches it"


def test_a_server_that_drafted_nothing_took_a_step_a_token(make: Make) -> None:
    make("llama-server", help=HELP, reply={**REPLY, "timings": TIMINGS})
    run = answered("llama-server:none")
    assert (run.steps, run.drafted, run.accepted) == (4, 0, 0)


def test_guesses_accepted_behind_the_end_do_not_make_steps_vanish(make: Make) -> None:
    make("llama-server", help=HELP, reply={**REPLY, "timings": {**TIMINGS, "draft_n": 48, "draft_n_accepted": 40}})
    assert answered("llama-server:ngram-simple").steps == 1


def test_an_answer_of_one_token_was_not_decoded(make: Make) -> None:
    make("llama-server", help=HELP, reply={**REPLY, "timings": {**TIMINGS, "predicted_n": 1}})
    run = answered("llama-server:none")
    assert (run.tokens, run.steps) == (0, 0)


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
        from lacli.bench.rivals import find_rivals
        from lacli.settings import ModelSettings
        held = open({str(pipe)!r}, "w")
        server = find_rivals(["llama-server:none"])[0].open(Path("m"), ModelSettings(512, threads=1), offloaded=True)
        server.answer("", [1], 1)
        os.kill(os.getpid(), 9)
    """
    root, env = Path(__file__).parent.parent, {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.Popen([sys.executable, "-c", script], cwd=root, env=env)
    # The script and the server hold its other end, so it ends when both do.
    ended, _, _ = select.select([reader], [], [], 60)
    assert ended and os.read(reader, 1) == b""
    os.close(reader)
    assert done.wait() == -signal.SIGKILL


def test_a_server_that_dies_while_it_loads_says_why(make: Make) -> None:
    last = "E srv  load_model: failed to load model 'model.gguf'"
    make(
        "llama-server", help=HELP, dies=f"{last}\n0.00.004.516 E srv  llama_server: exiting due to model loading error"
    )
    with pytest.raises(LacliError, match=r"exit code 1: E srv  load_model: failed to load model 'model.gguf' \("):
        answered("llama-server:none")


def test_a_port_that_somebody_took_meanwhile_is_said(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make("llama-server", help=HELP, reply=REPLY)
    with socket.socket() as holder:
        holder.bind((rival_server.HOST, 0))
        monkeypatch.setattr(rival_server, "_free_port", lambda: holder.getsockname()[1])
        with pytest.raises(LacliError, match="couldn't bind HTTP server socket"):
            answered("llama-server:none")


@pytest.mark.parametrize("state", [{"hangs": True}, {"loading": 10**6}])
def test_a_server_that_never_gets_ready_is_ended(make: Make, state: dict[str, object]) -> None:
    fake = make("llama-server", help=HELP, **state)
    with pytest.raises(LacliError, match=r"was not ready within 0\.3 seconds"):
        answered("llama-server:none", patience=Patience(start_s=0.3))
    with pytest.raises(ProcessLookupError):
        os.kill(fake.calls[-1]["process"], 0)


def test_a_server_that_dies_over_an_answer_says_why(make: Make) -> None:
    make("llama-server", help=HELP, falls="CUDA error: out of memory")
    with pytest.raises(LacliError, match="exit code 1: CUDA error: out of memory"):
        answered("llama-server:none")


def test_a_server_that_hangs_up_is_said(make: Make) -> None:
    make("llama-server", help=HELP, breaks=True)
    with pytest.raises(LacliError, match="llama-server broke the connection"):
        answered("llama-server:none", patience=Patience(end_s=0.01))


def test_a_server_that_does_not_answer_in_time_is_ended(make: Make) -> None:
    fake = make("llama-server", help=HELP, silent=True)
    with pytest.raises(LacliError, match=r"did not answer within 0\.1 seconds"):
        answered("llama-server:none", patience=Patience(answer_s=0.1))
    with pytest.raises(ProcessLookupError):
        os.kill(fake.calls[-1]["process"], 0)


def test_a_prompt_that_the_server_refuses_is_one_line(make: Make) -> None:
    reply = {"error": {"code": 400, "message": "the request exceeds the available context size", "type": "x"}}
    make("llama-server", help=HELP, status=400, reply=reply)
    with pytest.raises(LacliError, match="refuses the prompt: the request exceeds the available context size"):
        answered("llama-server:none")


@pytest.mark.parametrize(
    "reply",
    [
        "no JSON",
        [],
        {"content": "abc"},
        {**REPLY, "tokens": "abc"},
        {**REPLY, "timings": {"predicted_n": 3}},
        {**REPLY, "timings": {**TIMINGS, "predicted_ms": None}},
    ],
)
def test_a_reply_of_another_form_is_one_line(make: Make, reply: object) -> None:
    make("llama-server", help=HELP, reply=reply)
    with pytest.raises(LacliError, match="replies in a form that lacli cannot read") as error:
        answered("llama-server:none")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["llama-lookup", "llama-server:none"])
def test_a_program_that_cannot_be_started_is_one_line(make: Make, name: str) -> None:
    fake = make(name.partition(":")[0], help=HELP)
    with opened(name) as program:
        fake.path.write_text("#!/nowhere/at/all\n")
        with pytest.raises(LacliError, match=f"{fake.path.name} .*No such file") as error:
            program.answer(PROMPT, IDS, 1)
    assert "\n" not in str(error.value)


def test_a_server_that_cannot_even_say_its_help_is_one_line(make: Make) -> None:
    make("llama-server").path.write_text(
        "#!/bin/sh\necho error while loading shared libraries: libllama.so >&2; exit 127"
    )
    with pytest.raises(LacliError, match="ended with exit code 127: error while loading shared libraries"):
        find_rivals(["llama-server"])


def test_answers_are_the_same_as_far_as_both_go() -> None:
    run = RivalRun(3, 1.0, 3, 0, None, 1, 0.1, ids=(4, 5, 6))
    assert run.identical([4, 5], "") and run.identical([4, 5, 6, 7], "")
    assert run.identical([4, 9], "") is False
    text = replace(run, ids=None, text="one two<|end|>")
    assert text.identical([], "one two") and text.identical([], "one two<|end|> three")
    assert text.identical([], "one three") is False
    assert replace(run, ids=None).identical([4], "one") is None


@pytest.mark.parametrize("name", RIVALS)
def test_the_real_programs_say_what_plain_decoding_says(name: str) -> None:
    if not shutil.which(name):
        pytest.skip(f"{name} is not on PATH")
    loading = ModelSettings(context=512, threads=1, threads_batch=1, gpu_layers=0)
    question, limit = "Show me the source code of `textwrap.dedent`.", 24
    with load(decode_settings=DecodeSettings(mode="plain"), model_settings=loading) as session:
        prompt = session.prompt(question)
        text = b"".join(session.model.piece(token, special=True) for token in prompt).decode()
        generation = session.generate(prompt, limit)
        plain = "".join(piece.text for piece in generation)
        tokens = generation.answer().tokens
    for rival in find_rivals([name]):
        with rival.open(demo_model(), loading, offloaded=False) as program:
            run = program.answer(text, prompt, limit)
        assert run.identical(tokens, plain), rival.name
        assert (run.ids or run.text) and run.tokens >= limit, rival.name
        assert 0 < run.steps <= run.tokens and run.seconds > 0 and run.prompt_tokens == len(prompt), rival.name
