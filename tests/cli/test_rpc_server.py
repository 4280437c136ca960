"""`lacli rpc-server`: the program with good and bad clients."""

from __future__ import annotations

import signal
import socket

from lacli.llamacpp.rpc import check_servers
from tests.fakes.rpc_servers import HERE, rpc_server, with_rpc
from tests.program import SECONDS, call, exit_code


@with_rpc
def test_what_cannot_be_served_is_one_line() -> None:
    with socket.create_server((HERE, 0)) as taken:
        in_use = call("rpc-server", "-p", str(taken.getsockname()[1]))
    for done, words in (
        (in_use, "cannot listen at"),
        (call("rpc-server", "-H", "no.such.invalid"), "(LACLI_DEBUG=1 shows where)"),
        (call("rpc-server", "-d", "CUDA7"), "there is no device 'CUDA7'"),
    ):
        assert done.code in (1, 2) and words in done.err and done.err.count("\n") == 1 and not done.out


@with_rpc
def test_a_server_says_what_it_serves_survives_bad_clients_and_ends_at_ctrl_c_with_130_and_an_empty_stdout() -> None:
    greeting = bytes([14]) + (24).to_bytes(8, "little") + bytes(24)
    unknown = greeting + bytes([200])
    with rpc_server() as server:
        assert any("serving CPU to one client" in line for line in server.said)
        assert not any("warning" in line for line in server.said)
        host, _, port = server.endpoint.partition(":")
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", greeting[:5], greeting, unknown):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(said)
        check_servers([server.endpoint])
        server.process.send_signal(signal.SIGINT)
        out, err = server.process.communicate(timeout=SECONDS)
        assert (exit_code(server.process.returncode), out, err) == (130, b"", b"")


@with_rpc
def test_other_machines_are_let_in_only_with_a_warning_and_a_verbose_server_shows_them_on_stderr() -> None:
    with rpc_server("-v", "-H", "0.0.0.0") as server:
        assert "without a password" in next(line for line in server.said if line.startswith("lacli: "))
        check_servers([server.endpoint])
        server.kill()
        out, err = server.process.communicate(timeout=SECONDS)
        assert out == b"" and b"Accepted client connection" in err


def test_a_missing_server_ends_a_run_in_one_line() -> None:
    with socket.create_server((HERE, 0)) as there:
        endpoint = f"{HERE}:{there.getsockname()[1]}"
    done = call("run", "-q", "-p", "x", env={"LLAMA_ARG_RPC": endpoint})
    assert (
        done.code == 1 and done.err.count("\n") == 1 and ("Failed to connect to" in done.err or "without" in done.err)
    )
