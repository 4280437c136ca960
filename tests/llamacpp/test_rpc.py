"""RPC: the errors without a server or without RPC in the build, and the devices of servers."""

from __future__ import annotations

import socket

import pytest

from lacli.errors import LacliError
from lacli.llamacpp import rpc
from lacli.llamacpp.build import PYTHON
from lacli.llamacpp.probe import run_python
from lacli.llamacpp.rpc import check_servers
from tests.fakes.rpc_servers import HERE, Pretender, hello, rpc_server, with_rpc
from tests.program import SECONDS, call

LISTED = """
import sys
from lacli.llamacpp import devices, rpc
for endpoint in sys.argv[1:]:
    rpc.register(endpoint)
for device in devices.devices():
    if device.is_gpu and device.total:
        print(device.name, device.description)
"""


def test_a_build_without_rpc_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_address", lambda function: 0)
    with pytest.raises(LacliError, match="built without RPC") as caught:
        check_servers([f"{HERE}:1"])
    assert "-DGGML_RPC=on" in caught.value.hint and "pip install --force-reinstall" in caught.value.hint
    done = call("rpc-server")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1 and "CMAKE_ARGS=" in done.err


def test_a_port_in_use_and_a_foreign_address_are_said() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LacliError, match=f"cannot listen at {HERE}:{port}: .* in use .*-p 0"):
            rpc.free_port(HERE, port)
    assert rpc.free_port(HERE, 0) > 0
    with pytest.raises(LacliError, match="cannot listen at 192.0.2.1:0"):
        rpc.free_port("192.0.2.1", 0)


@with_rpc
def test_devices_are_numbered_in_the_order_of_their_servers_and_a_server_at_fault_is_named() -> None:
    with rpc_server() as one, rpc_server() as other:
        endpoints = [other.endpoint, one.endpoint]
        check_servers(endpoints)
        listed = run_python([PYTHON, "-P", "-c", LISTED, *endpoints], SECONDS)
        assert listed.stdout.decode() == f"RPC0 {other.endpoint}\nRPC1 {one.endpoint}\n"
        with (
            Pretender(hello(6, 0, 0)) as old,
            pytest.raises(LacliError, match=f"server at {old.endpoint} cannot be used: .*version mismatch: 6.0.0"),
        ):
            check_servers([one.endpoint, old.endpoint])


@with_rpc
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "malformed response"),
        (None, "no answer; it serves one client at a time"),
    ],
)
def test_a_server_of_another_version_or_none_is_said_in_one_line(
    answer: bytes | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "ANSWER_S", rpc.ANSWER_S if answer else 3.0)
    with Pretender(answer) as pretender:
        with pytest.raises(LacliError, match=f"{pretender.endpoint} cannot be used: .*{words}") as caught:
            check_servers([pretender.endpoint])
        assert pretender.heard and "\n" not in str(caught.value)


@with_rpc
def test_the_process_that_asks_ends_by_itself_before_ggml_aborts_it() -> None:
    with Pretender(b"") as pretender:
        done = run_python([PYTHON, "-P", "-m", rpc.__name__, pretender.endpoint], rpc.ANSWER_S)
    assert (done.returncode, done.stdout) == (1, b"") and b"Remote RPC server crashed" in done.stderr
