"""RPC: addresses, what is said where no server answers, what servers have, and that a build may lack it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from lacli.errors import LacliError, UsageError
from lacli.llamacpp import rpc
from lacli.llamacpp.probe import python_environment
from lacli.llamacpp.rpc import check_endpoints, check_reachable, remote_devices
from tests.fakes.rpc_servers import HERE, Pretender, hello, rpc_server, with_rpc
from tests.program import call


@pytest.fixture
def without_rpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_address", lambda function: 0)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("192.168.1.2:50052", ("192.168.1.2:50052",)),
        ("box:1, Other.Lan:65535 ", ("box:1", "other.lan:65535")),
        ("box", ("box:50052",)),
    ],
)
def test_addresses_are_read_as_llama_cpp_writes_them(text: str, read: tuple[str, ...]) -> None:
    assert check_endpoints(text) == read


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty address"),
        ("box:1,,", "empty address"),
        ("box:0", "box:0 has no such port"),
        ("box:65536", "no such port"),
        ("box:port", "box:port is no address"),
        (":50052", "no address"),
        ("a box:1", "no address"),
        ("http://box:1", "no address"),
        ("[::1]:50052", "IPv6"),
        ("Box:1,box:1", "box:1 twice"),
        ("box,box:50052", "box:50052 twice"),
    ],
)
def test_what_is_no_address_is_said_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check_endpoints(text)
    assert caught.value.hint and "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["unknown", "a..b"])
def test_a_name_that_cannot_be_resolved_is_said(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, *_: object) -> None:
        name.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(LacliError, match=f"{host} cannot be resolved"):
        check_reachable((f"{host}:50052",), 1.0)


@pytest.mark.parametrize(
    ("error", "timeout_s", "words", "hint"),
    [
        (ConnectionRefusedError(), 1.0, f"no RPC server listens at {HERE}:7: connection refused", "rpc-server -p 7"),
        (TimeoutError("timed out"), 0.5, f"--rpc: {HERE}:7 does not answer within 0.5 s", "one client at a time"),
        (TimeoutError("timed out"), 60.0, f"does not answer within {rpc.CONNECT_S:g} s", "firewall"),
        (OSError(101, "Network is unreachable"), 1.0, f"cannot reach {HERE}:7: Network is unreachable", "network"),
    ],
)  # fmt: skip
def test_an_address_at_which_nothing_answers_is_given_up_in_time_with_the_reason(
    error: OSError, timeout_s: float, words: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def connect(address: tuple[str, int], limit_s: float) -> NoReturn:
        limits.append(limit_s)
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(LacliError, match=words) as caught:
        check_reachable((f"{HERE}:7",), timeout_s)
    assert hint in caught.value.hint and limits == [min(timeout_s, rpc.CONNECT_S)]


def test_a_busy_server_is_not_waited_for_as_long_as_a_step_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def ask(endpoints: tuple[str, ...], timeout_s: float) -> rpc.Answer:
        limits.append(timeout_s)
        return rpc.Answer([], "", in_time=False)

    monkeypatch.setattr(rpc, "need_support", lambda: None)
    monkeypatch.setattr(rpc, "check_reachable", lambda endpoints, timeout_s: None)
    monkeypatch.setattr(rpc, "_ask", ask)
    with pytest.raises(LacliError, match="does not answer within 5 s .it serves one client at a time"):
        remote_devices((f"{HERE}:1",), 60.0)
    assert limits == [5.0]


@pytest.mark.parametrize("use", [rpc.register, lambda endpoints: remote_devices(endpoints, 1.0)])
def test_a_build_without_rpc_says_how_to_get_one(use: Callable[[list[str]], object], without_rpc: None) -> None:
    assert not rpc.supported()
    with pytest.raises(LacliError, match="built without RPC") as caught:
        use([f"{HERE}:1"])
    assert "-DGGML_RPC=on" in caught.value.hint and "pip install --force-reinstall" in caught.value.hint


def test_the_command_without_rpc_in_the_build_is_one_line_and_exit_code_1(without_rpc: None) -> None:
    done = call("rpc-server")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1 and "CMAKE_ARGS=" in done.err


def test_a_port_in_use_and_a_foreign_address_are_said() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LacliError, match=f"port {port} is in use .*-p"):
            rpc.free_port(HERE, port)
    assert rpc.free_port(HERE, 0) > 0
    with pytest.raises(LacliError, match=f"{rpc.EXAMPLE[0]} is no address of this machine"):
        rpc.free_port(rpc.EXAMPLE[0], 0)


def test_the_own_address_is_the_one_that_others_reach_and_else_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda way, address: None)
    monkeypatch.setattr(socket.socket, "getsockname", lambda way: ("10.1.2.3", 4))
    assert rpc.own_address() == "10.1.2.3"

    def nowhere(*_: object) -> NoReturn:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", nowhere)
    assert rpc.own_address() == socket.gethostname()


def test_another_python_finds_what_this_one_finds_and_nothing_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "asked_for.py").write_text("import json; print(json.dumps('found'))")
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.syspath_prepend(str(tmp_path / "ours"))
    command = [sys.executable, "-P", "-m", "asked_for"]
    done = subprocess.run(command, cwd=tmp_path, env=python_environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == "found"
    assert rpc.LISTING[1] == "-P"


@with_rpc
def test_devices_are_numbered_in_the_order_of_their_servers_and_a_server_at_fault_is_named() -> None:
    with rpc_server() as one, rpc_server() as other:
        for endpoints in ([one.endpoint, other.endpoint], [other.endpoint, one.endpoint]):
            devices = remote_devices(endpoints, 60.0)
            assert [device.name for device in devices] == ["RPC0", "RPC1"]
            assert [device.description for device in devices] == endpoints
            assert all(device.is_gpu and device.total for device in devices)
        with (
            Pretender(hello(6, 0, 0)) as old,
            pytest.raises(LacliError, match=f"server at {old.endpoint} speaks version"),
        ):
            remote_devices([one.endpoint, old.endpoint], 60.0)


@with_rpc
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (hello(6, 0, 0), "speaks version 6.0.0 of the protocol"),
        (hello(8, 1, 2), "speaks version 8.1.2 of the protocol"),
        (hello(7, 250, 0), "speaks version 7.250.0 of the protocol"),
        (b"", "does not speak llama.cpp's RPC protocol"),
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "does not speak llama.cpp's RPC protocol"),
        (hello(7, 0, 0)[:20], "does not speak llama.cpp's RPC protocol"),
    ],
)
def test_a_server_of_another_version_and_what_is_no_rpc_server_are_told_apart(answer: bytes, words: str) -> None:
    with Pretender(answer) as pretender:
        with pytest.raises(LacliError, match=f"{pretender.endpoint} {words}"):
            remote_devices([pretender.endpoint], 60.0)
        assert pretender.heard


@with_rpc
def test_a_server_that_never_answers_is_given_up_after_the_time_limit() -> None:
    with Pretender(None) as pretender:
        with pytest.raises(LacliError, match=f"{pretender.endpoint} does not answer within 0.2 s") as caught:
            remote_devices([pretender.endpoint], 0.2)
        assert "one client at a time" in caught.value.hint


@with_rpc
def test_the_process_that_asks_ends_by_itself_where_ggml_would_abort_it() -> None:
    with Pretender(b"") as pretender:
        done = subprocess.run(
            [*rpc.LISTING, pretender.endpoint], env=python_environment(), capture_output=True, text=True
        )
    assert (done.returncode, done.stdout) == (1, "\n") and rpc.NO_SERVER in done.stderr
