"""RPC with a llama.cpp that has it: servers that run, that are none, that are of another version, that say nothing."""

from __future__ import annotations

import signal
import socket
import sys

import pytest

from lacli.errors import LacliError
from lacli.rpc import found
from tests.fakes.rpc_servers import (
    HERE,
    Pretender,
    hello,
    rpc_server,
    with_rpc,
)
from tests.program import SECONDS, run

pytestmark = with_rpc

WITHOUT_A_LOOK_AT_THE_PORT = (
    "import lacli.rpc.server as server; server.free_port = lambda address, port: port; "
    "from lacli.__main__ import main; main()"
)
"""The program as it is where somebody takes the port between the look at it and ggml's own."""


def test_the_devices_of_two_servers_are_numbered_in_the_order_of_their_addresses() -> None:
    with rpc_server() as one, rpc_server() as other:
        for endpoints in ([one.endpoint, other.endpoint], [other.endpoint, one.endpoint]):
            devices = found(endpoints, 60.0)
            assert [device.name for device in devices] == ["RPC0", "RPC1"]
            assert [device.description for device in devices] == endpoints
            assert all(device.is_gpu and device.total for device in devices)


def test_a_server_says_what_it_serves_and_ends_at_ctrl_c_with_130_and_an_empty_stdout() -> None:
    with rpc_server() as server:
        assert any("serving CPU: " in line and "1 thread" in line for line in server.said)
        assert not any("warning" in line for line in server.said)
        found([server.endpoint], 60.0)
        server.process.send_signal(signal.SIGINT)
        out, err = server.process.communicate(timeout=SECONDS)
        assert (server.process.returncode, out, err) == (130, b"", b"")


def test_the_doctor_says_what_a_server_has() -> None:
    with rpc_server() as server:
        done = run("doctor", "--no-test", "--rpc", server.endpoint)
    assert f"RPC0: {server.endpoint}, " in done.out and " GiB free" in done.out
    gone = run("doctor", "--no-test", "--rpc", server.endpoint)
    assert gone.code == 1 and f"no RPC server listens at {server.endpoint}" in " ".join(gone.out.split())


def test_a_server_that_is_not_there_is_told_with_the_variable_that_names_it() -> None:
    with rpc_server() as server:
        gone = server.endpoint
    done = run("run", "-q", "-p", "x", env={"LLAMA_ARG_RPC": gone})
    assert done.code == 1 and "LLAMA_ARG_RPC sets --rpc" in done.err and done.err.count("\n") == 1
    typed = run("run", "-q", "-p", "x", "--rpc", gone, env={"LLAMA_ARG_RPC": "box:1"})
    assert typed.code == 1 and "--rpc: no RPC server listens" in typed.err and "LLAMA_ARG_RPC" not in typed.err


def test_a_verbose_server_shows_on_stderr_that_clients_come() -> None:
    with rpc_server("-v") as server:
        found([server.endpoint], 60.0)
        server.kill()
        out, err = server.process.communicate(timeout=SECONDS)
        assert out == b"" and b"Accepted client connection" in err


def test_other_machines_are_let_in_only_with_a_warning_that_comes_first() -> None:
    with rpc_server("-H", "0.0.0.0") as server:
        assert "no password" in server.said[0] and "no encryption" in server.said[0]
        assert len(found([server.endpoint], 60.0)) == 1


def test_a_client_that_talks_rubbish_or_leaves_in_the_middle_does_not_end_the_server() -> None:
    greeting = bytes([14]) + (24).to_bytes(8, "little") + bytes(24)
    unknown = greeting + bytes([200])
    with rpc_server() as server:
        host, _, port = server.endpoint.partition(":")
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", greeting[:5], greeting, unknown):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(said)
        assert len(found([server.endpoint], 60.0)) == 1


def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("rpc-server", "-p", port)
        assert (done.code, done.out) == (1, "")
        assert f"port {port} is in use" in done.err and done.err.count("\n") == 1


def test_a_port_that_is_taken_at_the_last_moment_ends_the_server_with_a_line_too() -> None:
    with Pretender(b"") as taken:
        done = run(
            "rpc-server",
            "-p",
            taken.endpoint.partition(":")[2],
            program=(sys.executable, "-c", WITHOUT_A_LOOK_AT_THE_PORT),
        )
        assert (done.code, done.out) == (1, "")
        assert f"server at {taken.endpoint} has ended" in done.err.splitlines()[-1]
        assert "Traceback" not in done.err


@pytest.mark.parametrize("version", [(6, 0, 0), (8, 1, 2), (7, 250, 0)])
def test_a_server_of_another_version_is_told_apart(version: tuple[int, int, int]) -> None:
    with Pretender(hello(*version)) as pretender:
        with pytest.raises(LacliError, match="speaks version {}.{}.{} of the protocol".format(*version)) as caught:
            found([pretender.endpoint], 60.0)
        assert pretender.endpoint in caught.value.what and pretender.heard


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", hello(7, 0, 0)[:20]])
def test_what_is_no_rpc_server_is_said(answer: bytes) -> None:
    with Pretender(answer) as pretender:
        with pytest.raises(LacliError, match=f"{pretender.endpoint} does not speak llama.cpp's RPC protocol"):
            found([pretender.endpoint], 60.0)
        assert pretender.heard


def test_a_server_that_never_answers_is_given_up_after_the_time_limit() -> None:
    with Pretender(None) as pretender:
        with pytest.raises(LacliError, match=f"{pretender.endpoint} does not answer within 0.5 s") as caught:
            found([pretender.endpoint], 0.5)
        assert "one client at a time" in caught.value.hint


def test_the_server_at_fault_is_named_among_good_ones() -> None:
    with rpc_server() as good, Pretender(hello(6, 0, 0)) as other:
        with pytest.raises(LacliError, match=f"server at {other.endpoint} speaks version 6.0.0"):
            found([good.endpoint, other.endpoint], 60.0)
        assert len(found([good.endpoint], 60.0)) == 1
