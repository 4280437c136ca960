"""A model on real llama.cpp: tokens and bytes, its errors, llama.cpp's log, and Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lacli.errors import ModelLoadError
from lacli.interrupts import late_ctrl_c
from lacli.llamacpp.library import Log
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from tests.fakes import tiny_models

SETTINGS = ModelSettings(context=256, gpu_layers=0, threads=1)


@pytest.mark.parametrize("text", ["the thing", "def f(x):\n    return x\n", "naïve € 漢字 🦙", "\x00\t tab", " ", ""])
def test_a_text_survives_tokens_and_back(text: str, toy: LlamaModel) -> None:
    tokens = toy.tokenize(text)
    assert b"".join(map(toy.piece, tokens)).decode() == text
    assert all(0 <= token < toy.vocabulary for token in tokens)
    assert len(toy.tokenize(" the and the")) < len(" the and the"), "merges make a text shorter than its bytes"


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny_models.write_llama(tmp_path / "bare.gguf", "none")
    with pytest.raises(ModelLoadError, match="bare.gguf .*has no vocabulary"):
        LlamaModel(tmp_path / "bare.gguf", SETTINGS)


def test_the_log_stays_silent_unless_verbose(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    LlamaModel(tiny, SETTINGS).close()
    assert capfd.readouterr() == ("", "")
    LlamaModel(tiny, SETTINGS, verbose=True).close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny llama" in err
    LlamaModel(tiny, SETTINGS).close()
    assert capfd.readouterr() == ("", "")


INFO = 2


def test_buffers_of_all_kinds_devices_and_caches_are_added_up_and_counted_once() -> None:
    log = Log()
    for line in (
        "load_tensors:        CUDA0 model buffer size =  100.00 MiB",
        "llama_context:  CUDA_Host  output buffer size =     0.50 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =   8.00 MiB",
        "llama_kv_cache: size =    8.00 MiB (  2048 cells)",
        "llama_kv_cache: size =    2.00 MiB (   512 cells)",
        "sched_reserve:      CUDA0 compute buffer size =    20.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =    23.00 MiB",
    ):
        log.receive(INFO, f"{line}\n".encode())
    assert sum(log.buffers.values()) == 100 + 0.5 + (8 + 2) + 23, "caches add up, and a graph counts once"
    log.forget()
    assert log.buffers == {}


def test_a_models_own_words_in_the_log_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.verbose = True
    log.receive(INFO, b"print_info: general.name = \x1b]0;title\x07\x1b[2J\xc2\x9b\n")
    assert capsys.readouterr().err == "print_info: general.name = ␛]0;title␇␛[2J\ufffd\n"


def test_ctrl_c_while_c_code_runs_is_heard_after_it() -> None:
    before, reached = signal.signal(signal.SIGINT, signal.default_int_handler), False
    try:
        with pytest.raises(KeyboardInterrupt), late_ctrl_c() as is_stopped:
            assert not is_stopped()
            signal.raise_signal(signal.SIGINT)
            reached = is_stopped()
        assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
