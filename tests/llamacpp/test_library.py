"""llama.cpp's library: the sizes of buffers in its log, its build, backends and devices."""

from __future__ import annotations

import signal

import pytest

from lacli.llamacpp.devices import CPU
from lacli.llamacpp.library import Log, devices, late_ctrl_c

INFO = 2


def received(*lines: str) -> Log:
    log = Log()
    for line in lines:
        log.receive(INFO, f"{line}\n".encode())
    return log


def test_buffers_of_all_kinds_and_devices_are_added_up_and_counted_once() -> None:
    log = received(
        "load_tensors:        CUDA0 model buffer size =  100.00 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =   8.00 MiB",
        "llama_context:  CUDA_Host  output buffer size =     0.50 MiB",
        "sched_reserve:      CUDA0 compute buffer size =    20.25 MiB",
        "llama_kv_cache: size =    8.00 MiB (  2048 cells)",
    )
    assert sum(log.buffers.values()) == 128.75
    log.forget()
    assert log.buffers == {}


def test_two_caches_on_a_device_are_two_but_a_graph_that_grows_is_one() -> None:
    log = received(
        "llama_kv_cache:        CPU KV buffer size =     0.00 MiB",
        "llama_kv_cache: size =    8.00 MiB (  2048 cells)",
        "llama_kv_cache: size =    2.00 MiB (   512 cells)",
        "sched_reserve:        CPU compute buffer size =    20.00 MiB",
        "sched_reserve:        CPU compute buffer size =    23.00 MiB",
    )
    assert sum(log.buffers.values()) == 33.0


def test_a_models_own_words_in_the_log_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.verbose = True
    log.receive(INFO, b"print_info: general.name = \x1b]0;title\x07\x1b[2J\xc2\x9b\n")
    assert capsys.readouterr().err == "print_info: general.name = ␛]0;title␇␛[2J\ufffd\n"


def test_this_library_has_a_processor_with_memory() -> None:
    processor = next(device for device in devices() if device.name == CPU)
    assert 0 < processor.free <= processor.total


def test_ctrl_c_while_c_code_runs_is_heard_behind_it() -> None:
    before, reached = signal.signal(signal.SIGINT, signal.default_int_handler), False
    try:
        with pytest.raises(KeyboardInterrupt), late_ctrl_c() as is_stopped:
            assert not is_stopped()
            signal.raise_signal(signal.SIGINT)
            reached = is_stopped()
        assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
