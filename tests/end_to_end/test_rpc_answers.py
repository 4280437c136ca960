"""Answers over RPC: the text is one device's, whatever is split or shared, and also when servers go away."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.fakes.rpc_servers import HERE, rpc_server, with_rpc
from tests.fakes.tiny_models import write_llama
from tests.program import Done, run

pytestmark = with_rpc

PROMPT = "the cat sat on the mat. the cat"
LIMIT = 120
MODES = {"plain": ("--mode", "plain"), "lookahead": ("-W", "5", "-N", "3", "-G", "4"), "auto": ()}

MIDDLE = 10_000
"""Bytes of a server that are in the middle of an answer: loading takes hundreds, each row of a step 1.2 kB."""


class Relay:
    """Passes on what goes between one client at a time and a server; breaks off for good after `most` bytes of it."""

    def __init__(self, server: str, *, most: int) -> None:
        host, _, port = server.partition(":")
        self._server, self._left = (host, int(port)), most
        self._listening = socket.create_server((HERE, 0))
        self.endpoint = f"{HERE}:{self._listening.getsockname()[1]}"
        self._over, self._sockets = Event(), list[socket.socket]()
        self._threads = [Thread(target=self._accept)]

    def __enter__(self) -> Relay:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # It wakes whoever accepts, which closing alone does not.
        socket.create_connection(self._listening.getsockname()).close()
        self._threads[0].join()
        self._break_off()
        for thread in self._threads:
            thread.join()
        for each in (*self._sockets, self._listening):
            each.close()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            self._sockets.append(client)
            if self._over.is_set():
                return
            server = socket.create_connection(self._server)
            self._sockets.append(server)
            for pair in ((client, server), (server, client)):
                self._threads.append(Thread(target=self._pass_on, args=(*pair, pair[0] is server)))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                self._left -= len(piece) if from_server else 0
                if self._left < 0:
                    self._break_off()
                target.sendall(piece)
            target.shutdown(socket.SHUT_RDWR)

    def _break_off(self) -> None:
        for each in [*self._sockets]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


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


@pytest.mark.parametrize(("mode", "most"), [("plain", MIDDLE), ("lookahead", 20 * MIDDLE)])
def test_a_server_that_is_lost_ends_the_program_with_one_line_and_the_text_so_far(
    mode: str, most: int, tiny: Path, servers: tuple[str, str], one_device: str
) -> None:
    with Relay(servers[0], most=most) as network:
        done = asked(tiny, mode, "--rpc", network.endpoint)
    assert done.code == 1 and done.err.count("\n") == 1 and "an RPC server went away" in done.err, done.err
    so_far = done.out.removesuffix("\n")
    assert so_far and one_device.startswith(so_far) and so_far != one_device


def test_a_server_that_is_lost_ends_a_program_that_has_loaded_a_model(tiny: Path, servers: tuple[str, str]) -> None:
    with Relay(servers[0], most=MIDDLE) as network:
        program = f"""
import lacli
wanted = lacli.ModelSettings(rpc=({network.endpoint!r},))
model = lacli.load({str(tiny)!r}, mode="plain", template=None, model_settings=wanted)
model.generate({PROMPT!r}, raw=True, max_tokens={LIMIT})
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("lacli: an RPC server went away")
