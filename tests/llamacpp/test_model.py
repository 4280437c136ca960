"""A model on real llama.cpp: tokens and bytes, refusals and what they say, its library's log, and Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lacli.errors import ModelLoadError
from lacli.llamacpp.devices import CPU
from lacli.llamacpp.library import Log, devices, late_ctrl_c
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from tests.fakes import tiny_models

SETTINGS = ModelSettings(context=256, gpu_layers=0, threads=1)


@pytest.fixture(scope="module")
def path(tiny_path: Path) -> Path:
    return tiny_path


@pytest.fixture(scope="module")
def model(tiny: LlamaModel) -> LlamaModel:
    return tiny


@pytest.mark.parametrize("text", ["the thing", "def f(x):\n    return x\n", "naïve € 漢字 🦙", "\x00\t tab", " ", ""])
def test_a_text_survives_tokens_and_back(text: str, model: LlamaModel) -> None:
    tokens = model.tokenize(text)
    assert b"".join(map(model.piece, tokens)).decode() == text
    assert all(0 <= token < model.vocabulary for token in tokens)
    assert len(model.tokenize(" the and the")) < len(" the and the"), "merges make a text shorter than its bytes"


def test_a_truncated_file_is_refused_and_to_be_fetched_again(path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelLoadError, match="cannot load damaged.gguf: .*fetch it again"):
        LlamaModel(damaged, SETTINGS)


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny_models.write_llama(tmp_path / "bare.gguf", "none")
    with pytest.raises(ModelLoadError, match="bare.gguf has no vocabulary"):
        LlamaModel(tmp_path / "bare.gguf", SETTINGS)


def test_the_log_stays_silent_unless_verbose(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    LlamaModel(path, SETTINGS).close()
    assert capfd.readouterr() == ("", "")
    LlamaModel(path, SETTINGS, verbose=True).close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny llama" in err
    LlamaModel(path, SETTINGS).close()
    assert capfd.readouterr() == ("", "")


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
