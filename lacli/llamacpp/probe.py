"""Try this build of llama.cpp on this processor in a child process, which may crash.

Some builds end by a signal at their first batch of two rows (ggml's AMX kernels as GCC 12.2 compiles them), or as soon
as they are loaded (a library made for another processor). Each build is tried before its first use on a processor, and
the records keep the outcome.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

from lacli.errors import ModelLoadError
from lacli.llamacpp.devices import CPU, PYTHON, build_files, processor, rebuild_command, sound_kind, with_threads
from lacli.llamacpp.settings import ModelSettings
from lacli.text.files import Records, state_file
from lacli.text.format import counted

COMMAND = (PYTHON, "-P", "-m", "lacli.llamacpp.probe")
"""Command of a trial; the folder for its files and `repack` or `plain` follow."""

IN_TRIAL = "_LACLI_TRIAL"
"""Set in the environment of a process that must use the build untried, to the fault that is known, "" in a trial."""

WEIGHTS = {"F16": 1, "Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q6_K": 18}
"""llama_ftype of the tried weights: those of most model files, each with kernels of its own."""

ROWS = (1, 2, 16)
"""Rows of the tried batches: one row, a few rows and a whole AMX tile have kernels of their own."""

PATIENCE_S = 60.0
"""Seconds for a trial: a hundred times its 0.6 s on two cores."""

CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals of failed computing; others come from a user, a supervisor or a system short of memory."""

CELLS, VOCABULARY, WIDTH = 256, 64, 256
"""Shape of the tried model: one layer of the least width that K-quants allow, 0.9 MB in F16."""

KERNELS_OFF = "the faster kernels of this build fail here and are off"

KIND = "trial"
"""The records' kind."""


def proven(settings: ModelSettings) -> tuple[ModelSettings, str]:
    """Return settings under which this build computes here, and a sentence if that took a change.

    Both numbers of threads are decided in the result. Raises ModelLoadError if no settings help.
    """
    settings = with_threads(settings)
    if not (fault := fault_of(repack=settings.repack)):
        return settings, ""
    if settings.repack and not fault_of(repack=False):
        return replace(settings, repack=False), f"{KERNELS_OFF}; lacli doctor has a cure"
    fails = f"this build of llama.cpp fails on this processor: {fault}"
    raise ModelLoadError(fails, f"build it: {rebuild_command(sound_kind())}")


@cache
def fault_of(*, repack: bool) -> str:
    """Return the fault of this build here in a few words, "" without one or where no child could tell.

    `repack`: with the kernels for repacked weights and AMX (llama.cpp's use_extra_bufts).
    """
    if IN_TRIAL in os.environ:
        return os.environ[IN_TRIAL] if repack else ""
    records, key = Records(state_file()), {"build": build_files(), "processor": processor(), "repack": repack}
    match records.read(KIND, key):
        case {"fault": str(kept)}:
            return kept
    fault = trial(repack=repack)
    if fault is not None:
        # If it cannot be kept, the next process tries again.
        records.save(KIND, key, {"fault": fault})
    return fault or ""


def forget() -> None:
    """Remove all outcomes, so that the next use tries this build again."""
    fault_of.cache_clear()
    Records(state_file()).forget(KIND)


def trial(*, repack: bool) -> str | None:
    """Try this build now and return its fault, "" for none; None where the end says nothing about the build."""
    with TemporaryDirectory(prefix="lacli-", ignore_cleanup_errors=True) as folder:
        try:
            # Its own process group keeps a terminal's Ctrl-C away.
            child = subprocess.run(
                [*COMMAND, folder, "repack" if repack else "plain"], cwd=folder,
                env={**python_environment(), IN_TRIAL: ""}, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=PATIENCE_S, process_group=0,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
    reached = child.stdout.decode("utf-8", "replace").splitlines()[-1:]
    where = f"in a batch of {reached[0]}" if reached else "when it is loaded"
    if name := next((name for name in CRASHES if getattr(signal, name, 0) == -child.returncode), ""):
        return f"{name} {where}"
    return None if child.returncode else ""


def python_environment() -> dict[str, str]:
    """Return the environment in which a Python started with -P finds the modules that this one finds.

    Without -P it would look first into the user's folder, where a json.py may lie.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def main(folder: Path, *, repack: bool) -> None:
    """Decode every batch, a line for each before it begins."""
    with suppress(ImportError):  # Windows has no core dumps
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from lacli.batch import Batch
    from lacli.llamacpp.context import LlamaContext
    from lacli.llamacpp.library import lib, library
    from lacli.llamacpp.model import LlamaModel
    from lacli.settings import DecodeSettings

    library()
    settings = ModelSettings(context=CELLS, batch=ROWS[-1], gpu_layers=0, repack=repack, devices=(CPU,))
    chain = DecodeSettings(mode="lookup", lookup_draft=ROWS[-1] - 1)
    original, path = folder / "model.gguf", folder / "quantized.gguf"
    write_model(original)
    for weights, kind in WEIGHTS.items():
        parameters = lib.llama_model_quantize_default_params()
        parameters.ftype, parameters.pure, parameters.nthread = kind, True, 1
        assert not lib.llama_model_quantize(os.fsencode(original), os.fsencode(path), ctypes.byref(parameters))
        with LlamaModel(path, settings) as model, LlamaContext(model, settings, chain) as context:
            for rows in ROWS:
                print(f"{counted(rows, 'row')} with {weights} weights", flush=True)
                context.clear()
                assert context.decode(Batch(rows).set_rows(range(rows), range(rows), [(0,)] * rows, [True] * rows))


def write_model(path: Path) -> None:
    """Write a llama model of one layer whose weights are all 0, the matrices in F16 and the norms in F32."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (WIDTH, VOCABULARY), "output_norm": (WIDTH,)}
    shapes |= {f"blk.0.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": (WIDTH, WIDTH) for name in ("gate", "up", "down")}
    tokens = [chr(ord("!") + number) for number in range(VOCABULARY)]
    keys: dict[str, int | float | str | list[str]] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(tokens[:2])],
        "llama.block_count": 1,
        "llama.context_length": CELLS,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    head += b"".join(_string(key) + _value(value) for key, value in keys.items())
    size = 0
    for name, shape in shapes.items():
        # Type 0 is F32, 1 is F16. All sizes are multiples of GGUF's alignment.
        head += _string(f"{name}.weight") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", len(shape) - 1, size)
        size += prod(shape) * (4 if len(shape) == 1 else 2)
    path.write_bytes(head + bytes(-len(head) % 32 + size))


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: int | float | str | list[str]) -> bytes:
    """Return a header's value behind the number of its gguf_type."""
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    return struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<If", 6, value)


if __name__ == "__main__":
    main(Path(sys.argv[1]), repack=sys.argv[2] == "repack")
