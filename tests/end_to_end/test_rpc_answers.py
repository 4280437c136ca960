"""Answers over RPC: the text is one device's, whatever is split or shared, and also when servers go away."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lacli.errors import LacliError, ReplicaLost
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.replicas.isolated import RemoteEngine
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from tests.fakes.clock import make_equally_fast
from tests.fakes.rpc_relay import Relay, Trouble
from tests.fakes.rpc_servers import Server, rpc_server, with_rpc
from tests.fakes.tiny_models import write_llama
from tests.program import ROOT, environment, run

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
    return answered(tiny, "plain")[0]


def answered(
    tiny: Path, mode: str, wanted: ReplicaSettings | None = None, *ending: Server, limit: int = LIMIT
) -> tuple[str, list[str]]:
    """The text, and what is said of copies that were lost. ending: servers that are killed in the middle."""
    with Session(tiny, LOADING, MODES[mode], SamplingSettings(), template=None, replicas=wanted) as session:
        assert not session.notes or mode == "plain", session.notes
        generation = session.generate(session.prompt(PROMPT), limit)
        for place, _ in enumerate(generation):
            if place == 20:
                for server in ending:
                    server.kill()
        return generation.answer().text, session.losses()


@pytest.fixture
def equally_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    make_equally_fast(RemoteEngine, monkeypatch)


@pytest.mark.parametrize("mode", MODES)
def test_two_servers_as_replicas_give_the_text_of_one_device(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    assert answered(tiny, mode, ReplicaSettings(EACH, rpc=servers)) == (one_device, [])


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_split_over_two_servers_gives_the_text_of_one_device(
    mode: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    assert answered(tiny, mode, ReplicaSettings(rpc=servers)) == (one_device, [])


def test_this_processor_and_a_server_answer_together(tiny: Path, servers: tuple[str, str], one_device: str) -> None:
    wanted = ReplicaSettings((("CPU",), ("RPC0",)), rpc=servers[:1])
    assert answered(tiny, "lookahead", wanted) == (one_device, [])


@pytest.mark.usefixtures("equally_fast")
def test_a_server_killed_in_the_middle_is_dropped_and_the_answer_goes_on(tiny: Path, one_device: str) -> None:
    with rpc_server() as one, rpc_server() as other:
        wanted = ReplicaSettings(EACH, rpc=(one.endpoint, other.endpoint))
        text, losses = answered(tiny, "lookahead", wanted, one)
    assert text == one_device
    assert len(losses) == 1 and "replica RPC0" in losses[0] and one.endpoint in losses[0]


def test_a_split_model_ends_with_a_clear_error_when_one_of_its_servers_is_killed(tiny: Path) -> None:
    with rpc_server() as one, rpc_server() as other:
        wanted = ReplicaSettings(rpc=(one.endpoint, other.endpoint))
        with pytest.raises(ReplicaLost, match="went away") as caught:
            answered(tiny, "lookahead", wanted, other)
    assert other.endpoint in caught.value.what and "\n" not in str(caught.value)


def test_when_all_servers_are_killed_the_answer_ends_with_an_error(tiny: Path) -> None:
    with rpc_server() as one, rpc_server() as other, pytest.raises(LacliError, match="went away"):
        answered(tiny, "lookahead", ReplicaSettings(EACH, rpc=(one.endpoint, other.endpoint)), one, other)


@pytest.mark.usefixtures("equally_fast")
@pytest.mark.parametrize("trouble", ["broken", "silent"])
def test_a_network_that_fails_in_the_middle_of_an_answer_drops_its_server(
    trouble: Trouble, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    with Relay(servers[0], most=MIDDLE, trouble=trouble) as network:
        wanted = ReplicaSettings(EACH, rpc=(network.endpoint, servers[1]), limit_s=3.0)
        text, losses = answered(tiny, "lookahead", wanted)
        assert network.passed > MIDDLE
    assert text == one_device and len(losses) == 1 and "replica RPC0" in losses[0]


@pytest.mark.parametrize(("trouble", "words"), [("broken", "went away"), ("silent", "within 3 s")])
def test_where_nothing_is_left_the_program_ends_with_one_line_and_the_text_so_far(
    trouble: Trouble, words: str, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    with Relay(servers[0], most=MIDDLE, trouble=trouble) as network:
        where = ("--rpc", network.endpoint, "--replica-timeout", "3", "--mode", "plain", "-fa", "off", "-ngl", "all")
        done = run("run", str(tiny), "--raw", "-p", PROMPT, "-n", str(LIMIT), *where)
    assert done.code == 1 and done.err.count("\n") == 1 and words in done.err, done.err
    so_far = done.out.removesuffix("\n")
    assert so_far and one_device.startswith(so_far) and so_far != one_device


def test_a_slow_network_changes_nothing_about_the_text(tiny: Path, servers: tuple[str, str], one_device: str) -> None:
    with Relay(servers[0], delay_s=0.01) as near, Relay(servers[1], delay_s=0.02) as far:
        wanted = ReplicaSettings(EACH, rpc=(near.endpoint, far.endpoint))
        text, losses = answered(tiny, "lookahead", wanted, limit=FEW)
    assert text and one_device.startswith(text) and not losses


SLOW_NETWORK = "ip link set lo up && tc qdisc add dev lo root netem delay 10ms"
"""The loopback of a network of one's own, 20 ms there and back."""

IN_IT = """
import json, sys
from pathlib import Path
from lacli.llamacpp.settings import ReplicaSettings
from tests.fakes.rpc_servers import rpc_server
from tests.end_to_end.test_rpc_answers import EACH, FEW, answered
with rpc_server() as one, rpc_server() as other:
    wanted = ReplicaSettings(EACH, rpc=(one.endpoint, other.endpoint))
    print(json.dumps(answered(Path(sys.argv[1]), "lookahead", wanted, limit=FEW)))
"""


def test_a_network_of_its_own_with_latency_gives_the_same_text(tiny: Path, one_device: str) -> None:
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        pytest.skip("unshare, ip and tc make such a network, and not all are here")
    network = ["unshare", "-rn", "sh", "-c"]
    made = subprocess.run([*network, SLOW_NETWORK], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this system makes no such network: {made.stderr.strip()}")
    program = [*network, f'{SLOW_NETWORK} && exec "$@"', "sh", sys.executable, "-c", IN_IT, str(tiny)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment(), cwd=ROOT, check=True)
    text, losses = json.loads(done.stdout)
    assert text and one_device.startswith(text) and not losses
