"""`lacli rpc-server`: what it serves and says, wrong flags, and the program with clients, good and bad."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from lacli.cli import doctor
from lacli.cli import rpc_server as command
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.build import GIB
from lacli.llamacpp.devices import Device
from lacli.llamacpp.rpc import remote_devices
from tests.fakes.rpc_servers import HERE, Pretender, rpc_server, with_rpc
from tests.program import SECONDS, call, exit_code, run

PROCESSOR = Device("CPU", "A processor", False, 16 * GIB, 16 * GIB)
CARD = Device("CUDA0", "A card", True, 20 * GIB, 24 * GIB)
INTEGRATED = Device("Vulkan0", "Another card", True)
BLAS = Device("BLAS", "A library", False)

WITHOUT_A_LOOK_AT_THE_PORT = (
    "import lacli.llamacpp.rpc as rpc; rpc.free_port = lambda address, port: port; "
    "from lacli.__main__ import main; main()"
)
"""The program as it is where somebody takes the port between the look at it and ggml's own."""


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
        (("-p", "many"), "Input should be a valid integer"),
    ],
)
def test_wrong_flags_are_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = call("rpc-server", *arguments)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1


def test_without_names_all_gpus_are_served_and_else_the_processor() -> None:
    assert command.served_devices([PROCESSOR, CARD, INTEGRATED], ()) == [CARD, INTEGRATED]
    assert command.served_devices([BLAS, PROCESSOR], ()) == [PROCESSOR]


def test_named_devices_are_served_in_their_order_and_only_once() -> None:
    assert command.served_devices([CARD, PROCESSOR], ("cpu", "CUDA0")) == [PROCESSOR, CARD]
    with pytest.raises(UsageError, match="--device has CPU twice"):
        command.served_devices([CARD, PROCESSOR], ("CPU", "CUDA0", "cpu"))
    with pytest.raises(UsageError, match="--device CUDA7 is not here .there is CUDA0, CPU"):
        command.served_devices([CARD, PROCESSOR], ("CPU", "CUDA7"))


def test_a_folder_for_weights_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LacliError, match="cannot make the folder .*file/rpc"):
        command.made_folder(tmp_path / "file" / "rpc")
    assert command.made_folder(tmp_path / "new" / "rpc").is_dir()


def test_what_is_served_how_it_is_used_and_the_danger_are_said() -> None:
    said = command.served_words([CARD, PROCESSOR], "0.0.0.0:7", "192.168.1.2:7", 3)
    assert said[0] == "serving CUDA0: A card, 20.0 of 24.0 GiB free; CPU: A processor, 16.0 GiB; 3 threads"
    assert said[1].startswith("listening at 0.0.0.0:7") and said[2] == "use it with: lacli run --rpc 192.168.1.2:7"
    assert "thread" not in command.served_words([CARD], "a:7", "a:7", 3)[0]
    warning = str(command.danger("0.0.0.0"))
    assert all(part in warning for part in ("0.0.0.0", "no password", "no encryption", "run code", "read"))


def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = str(taken.getsockname()[1])
        done = call("rpc-server", "-p", port)
    assert (done.code, done.out) == (1, "") and done.err.count("\n") == 1
    # A build without RPC says so first.
    assert f"port {port} is in use" in done.err or "built without RPC" in done.err


@with_rpc
def test_a_port_that_is_taken_at_the_last_moment_ends_the_server_with_a_line_too() -> None:
    with Pretender(b"") as taken:
        port = taken.endpoint.partition(":")[2]
        done = run("rpc-server", "-p", port, program=(sys.executable, "-c", WITHOUT_A_LOOK_AT_THE_PORT))
    assert (done.code, done.out) == (1, "")
    assert f"server at {taken.endpoint} has ended" in done.err.splitlines()[-1] and "Traceback" not in done.err


@with_rpc
def test_a_server_says_what_it_serves_survives_bad_clients_and_ends_at_ctrl_c_with_130_and_an_empty_stdout() -> None:
    greeting = bytes([14]) + (24).to_bytes(8, "little") + bytes(24)
    unknown = greeting + bytes([200])
    with rpc_server() as server:
        assert any("serving CPU: " in line and "1 thread" in line for line in server.said)
        assert not any("warning" in line for line in server.said)
        host, _, port = server.endpoint.partition(":")
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", greeting[:5], greeting, unknown):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(said)
        assert len(remote_devices([server.endpoint], 60.0)) == 1
        server.process.send_signal(signal.SIGINT)
        out, err = server.process.communicate(timeout=SECONDS)
        assert (exit_code(server.process.returncode), out, err) == (130, b"", b"")


@with_rpc
def test_other_machines_are_let_in_only_with_a_warning_and_a_verbose_server_shows_them_on_stderr() -> None:
    with rpc_server("-v", "-H", "0.0.0.0") as server:
        warning = next(line for line in server.said if line.startswith("lacli: "))
        assert "no password" in warning and "no encryption" in warning
        assert len(remote_devices([server.endpoint], 60.0)) == 1
        server.kill()
        out, err = server.process.communicate(timeout=SECONDS)
        assert out == b"" and b"Accepted client connection" in err


@with_rpc
def test_a_server_is_seen_by_the_doctor_and_missed_with_the_variable_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "check_kernels", lambda threads: doctor.Finding("fine", "not tried"))
    with rpc_server() as server:
        there = call("doctor", "--no-test", "--rpc", server.endpoint)
    assert f"RPC0: {server.endpoint}, " in there.out and " GiB free" in there.out
    gone = call("doctor", "--no-test", "--rpc", server.endpoint)
    assert gone.code == 1 and f"no RPC server listens at {server.endpoint}" in " ".join(gone.out.split())
    done = call("run", "-q", "-p", "x", env={"LLAMA_ARG_RPC": server.endpoint})
    assert done.code == 1 and done.err.count("\n") == 1
    typed = call("run", "-q", "-p", "x", "--rpc", server.endpoint, env={"LLAMA_ARG_RPC": "box:1"})
    assert typed.code == 1 and "--rpc: no RPC server listens" in typed.err and "LLAMA_ARG_RPC" not in typed.err
