"""Answers over RPC: the text is one device's, whatever is split or shared, and also when servers go away."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.rpc_servers import rpc_server, with_rpc
from tests.program import PROGRAM, SECONDS, Done, run, start

pytestmark = with_rpc

PROMPT = "the cat sat on the mat. the cat"
LIMIT = 120
MODES = {"plain": ("--mode", "plain"), "lookahead": ("-W", "5", "-N", "3", "-G", "4"), "auto": ()}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """The addresses of two servers, which no test ends."""
    with rpc_server() as one, rpc_server() as other:
        yield one.endpoint, other.endpoint


@pytest.fixture(scope="module")
def one_device(tiny: Path) -> str:
    return answered(tiny, "plain")


def asked(tiny: Path, mode: str, *where: str) -> Done:
    """Ask in a process of its own: ggml keeps the servers of a process, and ends it without them.

    What llama.cpp takes for a GPU would get flash attention, whose sums round in another way.
    """
    asking = ("run", "-q", str(tiny), "--raw", "-p", PROMPT, "-n", str(LIMIT), "-c", "512", "-t", "1", "-fa", "off")
    return run(*asking, *MODES[mode], *where, env={"LACLI_N_GPU_LAYERS": "all"})


def answered(tiny: Path, mode: str, *where: str) -> str:
    done = asked(tiny, mode, *where)
    assert (done.code, done.err) == (0, ""), done.err
    return done.out.removesuffix("\n")


@pytest.mark.parametrize("mode", ["lookahead", "auto"])
def test_two_servers_as_replicas_give_the_text_of_one_device(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    assert answered(tiny, mode, "--rpc", ",".join(servers), "--device", "RPC0,RPC1", "--replicas", "2") == one_device


@pytest.mark.parametrize("mode", ["plain", "lookahead"])
def test_a_layer_split_over_two_servers_gives_the_text_of_one_device(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    assert answered(tiny, mode, "--rpc", ",".join(servers)) == one_device


def test_this_processor_and_a_server_answer_together(tiny: Path, servers: tuple[str, str], one_device: str) -> None:
    assert answered(tiny, "lookahead", "--rpc", servers[0], "--device", "CPU,RPC0", "--replicas", "2") == one_device


PROGRAM_OF_A_USER = """
import re
import sys
import lacli
settings = lacli.ModelSettings(rpc=(sys.argv[2],), context=8192)
model = lacli.load(sys.argv[1], mode="plain", template=None, model_settings=settings)
for piece in model.stream(sys.argv[3], raw=True, sampling=lacli.SamplingSettings(ignore_eos=True)):
    print(piece, end="", flush=True)
"""


@pytest.mark.parametrize("mode", ["plain", "lookahead", "a program of a user"])
def test_a_server_that_is_lost_ends_the_program_with_one_line_and_the_text_so_far(
    mode: str, tiny: Path, one_device: str
) -> None:
    with rpc_server() as server:
        endless = ("--ignore-eos", "-c", "8192", *MODES.get(mode, ()), "--rpc", server.endpoint)
        arguments: tuple[str, ...] = ("run", "-q", str(tiny), "--raw", "-p", PROMPT, "-t", "1", "-fa", "off", *endless)
        program = PROGRAM
        if mode not in MODES:
            arguments, program = (str(tiny), server.endpoint, PROMPT), (sys.executable, "-c", PROGRAM_OF_A_USER)
        with start(*arguments, env={"LACLI_N_GPU_LAYERS": "all"}, program=program) as process:
            assert process.stdout
            # Not through the buffer: what it reads ahead, `communicate` does not give.
            begun = os.read(process.stdout.fileno(), 3)
            server.kill()
            out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1 and err.decode().splitlines()[-1].startswith("lacli: an RPC server has ended"), err
    assert mode not in MODES or err.count(b"\n") == 1
    so_far = (begun + out).decode()
    assert so_far[:20] == one_device[:20] or one_device.startswith(so_far.removesuffix("\n"))


def test_a_prompt_cache_keeps_what_a_server_has_read(
    tiny: Path, servers: tuple[str, str], one_device: str, tmp_path: Path
) -> None:
    where = ("--rpc", servers[0], "--device", "RPC0", "--prompt-cache", str(tmp_path / "a.cache"))
    first, second = asked(tiny, "plain", *where), asked(tiny, "plain", *where, "--stats")
    assert first.out == second.out == f"{one_device}\n"
    prompt, cached = re.findall(r"(\d+) (?:prompt tokens|of them)", second.err)[:2]
    assert int(cached) == int(prompt) - 1
