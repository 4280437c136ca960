"""llama.cpp's log: the sizes of its buffers."""

from __future__ import annotations

import pytest

from lacli.llamacpp.library import Log

INFO = 2


def received(*lines: str) -> Log:
    log = Log()
    for line in lines:
        log.receive(INFO, f"{line}\n".encode())
    return log


def test_buffers_of_all_kinds_and_devices_are_added_up() -> None:
    log = received(
        "load_tensors:        CUDA0 model buffer size =  100.00 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =   8.00 MiB",
        "llama_context:  CUDA_Host  output buffer size =     0.50 MiB",
        "sched_reserve:      CUDA0 compute buffer size =    20.25 MiB",
        "llama_kv_cache: size =    8.00 MiB (  2048 cells)",
    )
    assert log.take_buffers() == 128.75


def test_two_caches_on_a_device_are_two_but_a_graph_that_grows_is_one() -> None:
    log = received(
        "llama_kv_cache:        CPU KV buffer size =     8.00 MiB",
        "llama_kv_cache:        CPU KV buffer size =     2.00 MiB",
        "sched_reserve:        CPU compute buffer size =    20.00 MiB",
        "sched_reserve:        CPU compute buffer size =    23.00 MiB",
    )
    assert log.take_buffers() == 33.0


def test_what_was_taken_is_not_counted_again() -> None:
    log = received("llama_kv_cache:        CPU KV buffer size =     8.00 MiB")
    assert (log.take_buffers(), log.take_buffers()) == (8.0, 0)


def test_a_models_own_words_in_the_log_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.verbose = True
    log.receive(INFO, b"print_info: general.name = \x1b]0;title\x07\x1b[2J\xc2\x9b\n")
    assert capsys.readouterr().err == "print_info: general.name = ␛]0;title␇␛[2J\ufffd\n"
