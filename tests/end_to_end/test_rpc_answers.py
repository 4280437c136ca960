"""Answers over RPC: the text is one device's, whatever is split or shared, and also when servers go away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.rpc_relay import Relay
from tests.fakes.rpc_servers import rpc_server, with_rpc
from tests.fakes.tiny_models import write_llama
from tests.program import Done, run

pytestmark = with_rpc

PROMPT = "the cat sat on the mat. the cat"
LIMIT = 120
MODES = {"plain": ("--mode", "plain"), "lookahead": ("-W", "5", "-N", "3", "-G", "4"), "auto": ()}
FEW = 8
"""Tokens for a slow network."""

MIDDLE = 10_000
"""Bytes of a server that are in the middle of an answer: loading takes hundreds, each row of a step 1.2 kB."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rpc") / "tiny.gguf"
    write_llama(path)
    return path


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """The addresses of two servers, which no test ends."""
    with rpc_server() as one, rpc_server() as other:
        yield one.endpoint, other.endpoint


@pytest.fixture(scope="module")
def one_device(tiny: Path) -> str:
    return answered(tiny, "plain")


def asked(tiny: Path, mode: str, *where: str, limit: int = LIMIT) -> Done:
    """Ask in a process of its own: ggml keeps the servers of a process, and ends it without them.

    What llama.cpp takes for a GPU would get flash attention, whose sums round in another way.
    """
    asking = ("run", "-q", str(tiny), "--raw", "-p", PROMPT, "-n", str(limit), "-c", "512", "-t", "1", "-fa", "off")
    return run(*asking, *MODES[mode], *where, env={"LACLI_N_GPU_LAYERS": "all"})


def answered(tiny: Path, mode: str, *where: str, limit: int = LIMIT) -> str:
    done = asked(tiny, mode, *where, limit=limit)
    assert (done.code, done.err) == (0, ""), done.err
    return done.out.removesuffix("\n")


@pytest.mark.parametrize("mode", MODES)
def test_two_servers_as_replicas_give_the_text_of_one_device(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    assert answered(tiny, mode, "--rpc", ",".join(servers), "--replicas", "RPC0,RPC1") == one_device


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_split_over_two_servers_gives_the_text_of_one_device(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    assert answered(tiny, mode, "--rpc", ",".join(servers)) == one_device


def test_this_processor_and_a_server_answer_together(tiny: Path, servers: tuple[str, str], one_device: str) -> None:
    assert answered(tiny, "lookahead", "--rpc", servers[0], "--replicas", "CPU,RPC0") == one_device


@pytest.mark.parametrize(("mode", "most"), [("plain", MIDDLE), ("lookahead", 20 * MIDDLE)])
def test_a_server_that_is_lost_ends_the_program_with_one_line_and_the_text_so_far(
    mode: str, most: int, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    with Relay(servers[0], most=most, trouble="broken") as network:
        done = asked(tiny, mode, "--rpc", network.endpoint)
    assert done.code == 1 and done.err.count("\n") == 1 and "an RPC server went away" in done.err, done.err
    so_far = done.out.removesuffix("\n")
    assert so_far and one_device.startswith(so_far) and so_far != one_device


def test_a_server_that_is_lost_ends_a_program_that_has_loaded_a_model(tiny: Path, servers: tuple[str, str]) -> None:
    with Relay(servers[0], most=MIDDLE, trouble="broken") as network:
        program = f"""
import lacli
wanted = lacli.ReplicaSettings(rpc=({network.endpoint!r},))
model = lacli.load({str(tiny)!r}, mode="plain", template=None, replicas=wanted)
model.generate({PROMPT!r}, raw=True, max_tokens={LIMIT})
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("lacli: an RPC server went away")


def test_a_slow_network_changes_nothing_about_the_text(tiny: Path, servers: tuple[str, str], one_device: str) -> None:
    with Relay(servers[0], delay_s=0.003) as near, Relay(servers[1], delay_s=0.006) as far:
        where = ("--rpc", f"{near.endpoint},{far.endpoint}", "--replicas", "RPC0,RPC1")
        text = answered(tiny, "lookahead", *where, limit=FEW)
    assert text and one_device.startswith(text)
