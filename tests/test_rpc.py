"""RPC without a server: how addresses are read, what is said where nobody is there or the build has no RPC."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lacli.child_python import python_environment
from lacli.doctor.versions import GIB
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.devices import Device
from lacli.llamacpp.library import Backend, Build
from lacli.rpc import (
    addresses,
    asking,
    check_endpoints,
    found,
    library,
    supported,
)
from lacli.rpc.addresses import look, own_address
from lacli.rpc.server import (
    ServerSettings,
    danger,
    free_port,
    served_devices,
    served_words,
)
from tests.doctored import (
    CARD,
    PROCESSOR,
    finding,
    machine,
)
from tests.doctored import library as library_of
from tests.fakes.rpc_servers import HERE
from tests.program import call

INTEGRATED = Device("Vulkan0", "Another card", True)
BLAS = Device("BLAS", "A library", False)


@pytest.fixture
def without_rpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_address", lambda function: 0)


@pytest.fixture
def with_rpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_address", lambda function: 1)
    monkeypatch.setattr(asking, "need_support", lambda: None)


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


def closed_port() -> int:
    """A port of the loopback at which nobody listens."""
    with socket.create_server((HERE, 0)) as server:
        return int(server.getsockname()[1])


def test_a_refused_connection_is_said_with_the_command_that_starts_a_server(with_rpc: None) -> None:
    port = closed_port()
    with pytest.raises(LacliError, match=f"{HERE}:{port}: connection refused") as caught:
        found((f"{HERE}:{port}",), 1.0)
    assert f"lacli rpc-server -p {port}" in caught.value.hint


@pytest.mark.parametrize("host", ["unknown", "a..b"])
def test_a_name_that_cannot_be_resolved_is_said(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, *_: object) -> None:
        name.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(LacliError, match=f"{host} cannot be resolved"):
        look((f"{host}:50052",), 1.0)


def test_an_address_that_does_not_answer_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def connect(address: tuple[str, int], limit_s: float) -> socket.socket:
        limits.append(limit_s)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(LacliError, match=f"{HERE}:1 does not answer within 0.5 s"):
        look((f"{HERE}:1",), 0.5)
    with pytest.raises(LacliError, match=f"within {addresses.CONNECT_S:g} s"):
        look((f"{HERE}:1",), 60.0)
    assert limits == [0.5, addresses.CONNECT_S]


def test_an_address_that_does_not_answer_may_be_a_busy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(LacliError, match="--rpc: .* does not answer") as caught:
        look((f"{HERE}:1",), 1.0)
    assert "one client at a time" in caught.value.hint and "firewall" in caught.value.hint


def test_a_busy_server_is_not_waited_for_as_long_as_a_step_may_take(
    with_rpc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def ask(endpoints: tuple[str, ...], limit_s: float) -> asking.Answer:
        limits.append(limit_s)
        return asking.Answer([], "", in_time=False)

    monkeypatch.setattr(asking, "look", lambda endpoints, limit_s: None)
    monkeypatch.setattr(asking, "_ask", ask)
    with pytest.raises(LacliError, match="does not answer within 5 s .it serves one client at a time"):
        found((f"{HERE}:1",), 60.0)
    assert limits == [5.0]


def test_an_unreachable_network_is_said_in_the_systems_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> socket.socket:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(LacliError, match=f"cannot reach {HERE}:1: Network is unreachable"):
        look((f"{HERE}:1",), 1.0)


def test_one_server_under_two_names_is_refused_because_it_serves_one_client_at_a_time() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=f"--rpc: {HERE}:{port} and localhost:{port} are the same RPC server"):
            look((f"{HERE}:{port}", f"localhost:{port}"), 5.0)


def test_a_build_without_rpc_says_how_to_get_one(without_rpc: None) -> None:
    assert not supported()
    with pytest.raises(LacliError, match="built without RPC") as caught:
        library.register((f"{HERE}:1",))
    assert f'CMAKE_ARGS="-DGGML_RPC=on" {sys.executable} -m pip install --force-reinstall' in caught.value.hint
    assert caught.value.hint.endswith("'") and "'llama-cpp-python" in caught.value.hint and "<" in caught.value.hint
    with pytest.raises(LacliError, match="built without RPC"):
        found((f"{HERE}:1",), 1.0)


def test_the_new_build_keeps_the_gpu(without_rpc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Build("", "", "", "", (Backend("CUDA"), Backend("CPU")))
    monkeypatch.setattr(library, "build", lambda: cuda)
    with pytest.raises(LacliError, match="-DGGML_CUDA=on -DGGML_RPC=on"):
        library.need_support()


def test_the_command_without_rpc_in_the_build_is_one_line_and_exit_code_1(without_rpc: None) -> None:
    done = call("rpc-server")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1 and "CMAKE_ARGS=" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "65536"), "-p is 65536"),
        (("--port", "-1"), "-p is -1"),
        (("-t", "-5"), "-t is -5"),
        (("-t", "-1"), "-t is -1"),
        (("-H", "127.0.0.1:50070"), "the port goes to -p: -H 127.0.0.1 -p 50070"),
        (("-H", "::1"), "-H ::1 is an IPv6 address"),
        (("-H", ""), "-H '' is no address"),
        (("-H", "two words"), "-H 'two words' is no address"),
        (("-d", "CPU,"), "--device 'CPU,' lacks a name"),
        (("-p", "many"), "'many', which is no whole number"),
    ],
)
def test_wrong_flags_of_the_server_are_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = call("rpc-server", *arguments)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1


def test_without_names_all_gpus_are_served_and_else_the_processor() -> None:
    assert served_devices([PROCESSOR, CARD, INTEGRATED], ()) == [CARD, INTEGRATED]
    assert served_devices([BLAS, PROCESSOR], ()) == [PROCESSOR]


def test_named_devices_are_served_in_their_order_and_only_once() -> None:
    assert served_devices([CARD, PROCESSOR], ("cpu", "CUDA0")) == [PROCESSOR, CARD]
    with pytest.raises(UsageError, match="--device has CPU twice"):
        served_devices([CARD, PROCESSOR], ("CPU", "CUDA0", "cpu"))
    with pytest.raises(UsageError, match="--device CUDA7 is not here .there is CUDA0, CPU"):
        served_devices([CARD, PROCESSOR], ("CPU", "CUDA7"))


def test_a_port_in_use_and_a_foreign_address_are_said() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LacliError, match=f"port {port} is in use") as caught:
            free_port(HERE, port)
    assert "-p" in caught.value.hint
    assert free_port(HERE, port) == port and free_port(HERE, 0) > 0
    # An address that is kept for examples.
    with pytest.raises(LacliError, match="192.0.2.1 is no address of this machine"):
        free_port("192.0.2.1", 0)


def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lacli.rpc import server
    from lacli.terminal.screen import Screen

    monkeypatch.setattr(server, "need_support", lambda: None)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LacliError, match="cannot make the folder .*file/rpc"):
        server.serve(ServerSettings(port=0, cache=tmp_path / "file" / "rpc"), Screen())


def test_what_is_served_and_how_it_is_used_is_said() -> None:
    said = served_words([CARD, PROCESSOR], "192.168.1.2", 7, 3)
    assert said[0] == "serving CUDA0: A card, 20.0 of 24.0 GiB free; CPU: A processor, 16.0 GiB; 3 threads"
    assert said[-1] == "use it with: lacli run --rpc 192.168.1.2:7"
    assert "thread" not in served_words([CARD], HERE, 7, 3)[0]
    assert served_words([CARD], "0.0.0.0", 7, 3)[-1].endswith(f"--rpc {own_address()}:7")


def test_the_own_address_is_the_one_that_others_reach_and_else_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[tuple[str, int]] = []
    monkeypatch.setattr(socket.socket, "connect", lambda way, address: ways.append(address))
    monkeypatch.setattr(socket.socket, "getsockname", lambda way: ("10.1.2.3", 4))
    assert own_address() == "10.1.2.3" and ways

    def nowhere(*_: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", nowhere)
    assert own_address() == socket.gethostname()


def test_the_servers_help_promises_no_variables_that_it_does_not_read() -> None:
    assert "LACLI_" not in call("rpc-server", "-h").out
    assert "LLAMA_ARG_THREADS" in call("rpc-server", "-h").out


def test_the_danger_is_said_in_words() -> None:
    words = str(danger("0.0.0.0"))
    assert all(part in words for part in ("0.0.0.0", "no password", "no encryption", "run code", "read"))


def test_the_doctor_says_whether_rpc_is_there_and_does_not_complain() -> None:
    there, absent = machine(library=lambda: library_of("RPC")), machine(library=lambda: library_of("CUDA"))
    for played, words in ((there, "built in"), (absent, "not built in")):
        said = finding("RPC", played)
        assert (said.state, said.todo) == ("fine", ()) and said.words.startswith(words)


def test_the_doctor_lists_what_servers_have() -> None:
    asked: list[object] = []

    def devices(endpoints: object) -> list[Device]:
        asked.append(endpoints)
        return [Device("RPC0", "box:1", True, 3 * GIB, 4 * GIB), Device("RPC1", "box:2", True, GIB, 2 * GIB)]

    said = finding("RPC", machine(rpc=("box:1", "box:2"), rpc_devices=devices))
    assert said.state == "fine" and asked == [("box:1", "box:2")]
    assert said.words == "RPC0: box:1, 3.0 of 4.0 GiB free; RPC1: box:2, 1.0 of 2.0 GiB free"


def test_the_doctor_says_why_a_server_is_of_no_use() -> None:
    def devices(endpoints: object) -> list[Device]:
        raise LacliError("nobody listens", "start a server")

    said = finding("RPC", machine(rpc=("box:1",), rpc_devices=devices))
    assert (said.state, said.words, said.todo) == ("broken", "nobody listens", ("start a server",))


def test_the_doctor_takes_addresses_from_the_variable_too_and_says_what_is_none() -> None:
    done = call("doctor", "--no-test", env={"LLAMA_ARG_RPC": "box:0"})
    assert done.code == 2 and "box:0 has no such port" in done.err and "LLAMA_ARG_RPC sets --rpc" in done.err


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
    assert asking.LISTING[1] == "-P"
