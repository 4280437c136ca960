"""Answers over RPC: the text is one device's, whatever is split or shared, and also when servers go away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from tests.fakes.rpc_relay import Relay
from tests.fakes.rpc_servers import rpc_server, with_rpc
from tests.fakes.tiny_models import write_llama
from tests.program import run

pytestmark = with_rpc

PROMPT = "the cat sat on the mat. the cat"
LIMIT = 120
LOADING = ModelSettings(context=512, threads=1, flash_attention="off")
"""What llama.cpp takes for a GPU would get flash attention, whose sums round in another way."""

MODES = {
    "plain": DecodeSettings(mode="plain"),
    "lookahead": DecodeSettings(mode="lookahead", window=5, ngram=3, guesses=4),
    "auto": DecodeSettings(),
}
FEW = 8
"""Tokens for a slow network."""

MIDDLE = 10_000
"""Bytes of a server that are in the middle of an answer: loading takes hundreds, each row of a step 1.2 kB."""

EACH = (("RPC0",), ("RPC1",))


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


def answered(tiny: Path, mode: str, wanted: ReplicaSettings | None = None, *, limit: int = LIMIT) -> str:
    """The text of an answer."""
    with Session(tiny, LOADING, MODES[mode], SamplingSettings(), template=None, replicas=wanted) as session:
        assert not session.notes or mode == "plain", session.notes
        generation = session.generate(session.prompt(PROMPT), limit)
        for _ in generation:
            pass
        return generation.answer().text


@pytest.mark.parametrize("mode", MODES)
def test_two_servers_as_replicas_give_the_text_of_one_device(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    assert answered(tiny, mode, ReplicaSettings(EACH, rpc=servers)) == one_device


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_split_over_two_servers_gives_the_text_of_one_device(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    assert answered(tiny, mode, ReplicaSettings(rpc=servers)) == one_device


def test_this_processor_and_a_server_answer_together(tiny: Path, servers: tuple[str, str], one_device: str) -> None:
    wanted = ReplicaSettings((("CPU",), ("RPC0",)), rpc=servers[:1])
    assert answered(tiny, "lookahead", wanted) == one_device


@pytest.mark.parametrize("mode", ["plain", "lookahead"])
def test_a_server_that_is_lost_ends_the_program_with_one_line_and_the_text_so_far(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    with Relay(servers[0], most=MIDDLE, trouble="broken") as network:
        where = ("--rpc", network.endpoint, "--mode", mode, "-fa", "off", "-ngl", "all")
        done = run("run", str(tiny), "--raw", "-p", PROMPT, "-n", str(LIMIT), *where)
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
        wanted = ReplicaSettings(EACH, rpc=(near.endpoint, far.endpoint))
        text = answered(tiny, "lookahead", wanted, limit=FEW)
    assert text and one_device.startswith(text)
