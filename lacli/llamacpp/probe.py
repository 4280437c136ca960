"""Try this build of llama.cpp on this processor in a child process, which may crash.

Some builds end by a signal at their first batch of two rows: ggml's AMX kernels as GCC 12.2 compiles them, a library
made for another processor. Each build is tried before its first use, once per processor and number of threads, and the
records keep the outcome.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time

import numpy as np
import numpy.typing as npt

from lacli.errors import ModelLoadError
from lacli.llamacpp.build import PYTHON, build_files, processor, rebuild_command, sound_kind
from lacli.llamacpp.devices import with_threads
from lacli.llamacpp.settings import ModelSettings, Placement
from lacli.text.format import counted
from lacli.text.records import Records, state_file

COMMAND = (PYTHON, "-P", "-m", "lacli.llamacpp.probe")
"""Command of a trial; the folder for its files, both numbers of threads and `repack` or `plain` follow."""

IN_TRIAL = "_LACLI_TRIAL"
"""Set in the environment of a process that must use the build untried, to the fault that is known, "" in a trial."""

REFERENCE = "F16"
WEIGHTS = {REFERENCE: 1, "Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q6_K": 18}
"""llama_ftype of the tried weights: those of most model files, each with kernels of its own."""

ROWS = (1, 2, 16)
"""Rows of the tried batches: one row, a few rows and a whole AMX tile have kernels of their own."""

Case = tuple[str, int]
"""A type of weights and the rows of a batch."""

CASES: tuple[Case, ...] = tuple((weights, rows) for weights in WEIGHTS for rows in ROWS)
"""All batches in the order of their trial."""

LEAST_COSINE = 0.8
"""Least cosine of a row's logits with those of F16 weights: sound kernels gave 0.93 (Q4_0) to 1.0; unrelated logits of
64 tokens give 0.0 with a spread of 0.13."""

PATIENCE_S = 60.0
"""Seconds for a trial: a hundred times its 0.6 s on two cores."""

CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals of failed computing; others come from a user, a supervisor or a system short of memory."""

CELLS, VOCABULARY, WIDTH, KEY_WIDTH, HEADS = 256, 64, 256, 128, 4
"""Shape of the tried model: one layer of the least width that K-quants allow, 0.8 MB in F16."""

NO_ANSWER = "no answer"
"""Begins the fault of a trial that took too long; a busy machine may be the cause, so it is believed for a day."""

A_DAY_S = 86_400

KERNELS_OFF = "the faster kernels of this build fail here and are off"

KIND, TOLD = "trial", "trial told"
"""The records' kinds: outcomes, and when one was told."""


def proven(settings: ModelSettings) -> tuple[ModelSettings, str]:
    """Return settings under which this build computes rightly here, and a sentence if that took a change.

    Both numbers of threads are decided in the result. Raises ModelLoadError if no settings help.
    """
    settings = with_threads(settings)
    fault = fault_of(settings.threads, settings.threads_batch, settings.repack)
    if not fault:
        return settings, ""
    if settings.repack and not fault_of(settings.threads, settings.threads_batch, repack=False):
        return replace(settings, repack=False), f"{KERNELS_OFF}; lacli doctor has a cure"
    fails = f"this build of llama.cpp fails on this processor: {fault}"
    raise ModelLoadError(fails, f"build it: {rebuild_command(sound_kind())}")


def told_once_a_day(notes: Sequence[str]) -> list[str]:
    """The notes of a command that is used all day, without what it has said of the kernels since yesterday."""
    found = [note for note in notes if note.startswith(KERNELS_OFF)]
    records, key = Records(state_file()), {"build": build_files()}
    match records.read(TOLD, key) if found else None:
        case {"at": float(at)} if time() - at < A_DAY_S:
            return [note for note in notes if note not in found]
    if found:
        records.save(TOLD, key, {"at": time()})
    return [*notes]


@cache
def fault_of(threads: int, threads_batch: int, repack: bool) -> str:
    """The fault of this build here in a few words, "" without one or where no child could tell.

    `repack`: with the kernels for repacked weights and AMX (llama.cpp's use_extra_bufts).
    """
    if IN_TRIAL in os.environ:
        return os.environ[IN_TRIAL] if repack else ""
    match Records(state_file()).read(KIND, _key(threads, threads_batch, repack)):
        case {"fault": str(fault), "at": float(at)} if not fault.startswith(NO_ANSWER) or time() - at < A_DAY_S:
            return fault
    try:
        return trial(threads, threads_batch, repack)
    except OSError:
        return ""


def forget() -> None:
    """Remove all outcomes, so that the next use tries this build again."""
    fault_of.cache_clear()
    Records(state_file()).forget(KIND)


def _key(threads: int, threads_batch: int, repack: bool) -> dict[str, object]:
    """What an outcome is kept under: the files of the build, the processor and the settings of the trial."""
    tried = {"threads": threads, "threads_batch": threads_batch, "repack": repack}
    return {"build": build_files(), "processor": processor(), **tried}


def trial(threads: int, threads_batch: int, repack: bool) -> str:
    """Try this build now, keep the outcome and return the fault, "" for none.

    Raises OSError if no child could be run to its end, which says nothing about the build.
    """
    with TemporaryDirectory(prefix="lacli-", ignore_cleanup_errors=True) as place:
        arguments = [place, str(threads), str(threads_batch), "repack" if repack else "plain"]
        ended, printed = _run(arguments, place)
    found = _read(printed)
    if ended:
        missing = next((case for case in CASES if case not in found), None)
        fault = f"{ended} {_in_words(missing) if missing and found else 'when it is loaded'}"
    else:
        fault = next((f"wrong numbers {_in_words(case)}" for case in CASES if not _is_right(found, case)), "")
    # If it cannot be kept, the next process tries again.
    Records(state_file()).save(KIND, _key(threads, threads_batch, repack), {"fault": fault, "at": time()})
    return fault


def python_environment() -> dict[str, str]:
    """The environment in which a Python started with -P finds the modules that this one finds.

    Without -P it would look first into the user's folder, where a json.py may lie.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def signal_name(number: int) -> str:
    """A signal's name, SIGSEGV for example; "signal 35" for one without."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _run(arguments: list[str], place: str) -> tuple[str, str]:
    """Run a trial and return the signal or limit that ended it, "" for an end by itself, and its output.

    Its own process group keeps a terminal's Ctrl-C away. Raises OSError if it cannot run.
    """
    environment = {**python_environment(), IN_TRIAL: ""}
    try:
        child = subprocess.run(
            [*COMMAND, *arguments], cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=PATIENCE_S, process_group=0,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return f"{NO_ANSWER} within {PATIENCE_S:g} s", (late.stdout or b"").decode("utf-8", "replace")
    printed, said = (stream.decode("utf-8", "replace") for stream in (child.stdout, child.stderr))
    if child.returncode < 0:
        name = signal_name(-child.returncode)
        if name not in CRASHES:
            raise OSError(f"the trial was ended from outside ({name})")
        return name, printed
    if child.returncode >= 1 << 31:  # Windows ends a process by an exception's number
        return f"exception {child.returncode:#x}", printed
    if child.returncode:
        raise OSError(f"no trial could be made: {(said.strip().splitlines() or ['no reason given'])[-1]}")
    return "", printed


Value = int | float | str | list[str]
"""A value of a GGUF file's header."""


def _in_words(case: Case) -> str:
    weights, rows = case
    return f"in a batch of {counted(rows, 'row')} with {weights} weights"


def _read(printed: str) -> Mapping[Case, npt.NDArray[np.float64]]:
    """The logits of each case in a trial's output, (rows, VOCABULARY); the last line may be cut."""
    found = {}
    for line in printed.splitlines():
        with suppress(ValueError, TypeError):  # output of a library
            weights, rows, logits = json.loads(line)
            found[weights, rows] = np.array(logits, np.float64).reshape(rows, VOCABULARY)
    return found


def _is_right(found: Mapping[Case, npt.NDArray[np.float64]], case: Case) -> bool:
    """True if each row of a case's logits is finite and points in the direction of F16 weights' row."""
    weights, rows = case
    if case not in found or (REFERENCE, rows) not in found:
        return False
    logits, reference = found[case], found[REFERENCE, rows]
    if not np.all(np.isfinite(logits) & np.isfinite(reference)):
        return False
    lengths = np.linalg.norm(logits, axis=1) * np.linalg.norm(reference, axis=1)
    is_close = (logits * reference).sum(axis=1) >= LEAST_COSINE * lengths
    return bool(np.all(lengths > 0) and np.all(is_close))


def main(place: Path, threads: int, threads_batch: int, *, repack: bool) -> None:
    """Decode every case and print its logits, a line of JSON each: weights, rows, logits."""
    with suppress(ImportError):  # Windows has no core dumps
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from lacli.batch import Batch
    from lacli.llamacpp.context import LlamaContext
    from lacli.llamacpp.library import quantize
    from lacli.llamacpp.model import LlamaModel
    from lacli.settings import DecodeSettings

    settings = ModelSettings(
        context=CELLS, batch=ROWS[-1], gpu_layers=0, threads=threads, threads_batch=threads_batch, repack=repack,
        placement=Placement(("CPU",)),
    )  # fmt: skip
    original = place / f"{REFERENCE}.gguf"
    write_model(original)
    for weights, kind in WEIGHTS.items():
        path = place / f"{weights}.gguf"
        if weights != REFERENCE:
            quantize(original, path, kind)
        linear_draft = DecodeSettings(mode="lookup", lookup_draft=ROWS[-1] - 1)
        with LlamaModel(path, settings) as model, LlamaContext(model, settings, linear_draft) as engine:
            for rows in ROWS:
                engine.clear()
                batch = Batch(rows).set_rows(range(rows), range(rows), [(0,)] * rows, [True] * rows)
                assert engine.decode(batch)
                print(json.dumps([weights, rows, engine.logits().tolist()]), flush=True)


def write_model(path: Path) -> None:
    """Write a llama model of one layer with random F16 weights, the same ones each time."""
    random = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (VOCABULARY, WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (KEY_WIDTH, WIDTH),
        "blk.0.attn_v.weight": (KEY_WIDTH, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (WIDTH, WIDTH),
        "blk.0.ffn_up.weight": (WIDTH, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, WIDTH),
    }
    tokens = [chr(ord("!") + number) for number in range(VOCABULARY)]
    keys: dict[str, Value] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(tokens[:2])],
        "llama.vocab_size": VOCABULARY,
        "llama.block_count": 1,
        "llama.context_length": CELLS,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KEY_WIDTH * HEADS // WIDTH,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    head += b"".join(_string(key) + _value(value) for key, value in keys.items())
    body = b""
    for name, shape in shapes.items():
        is_norm = len(shape) == 1
        weights = np.ones(shape, np.float32) if is_norm else random.standard_normal(shape) / np.sqrt(WIDTH)
        head += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", 0 if is_norm else 1, len(body))
        body += _padded(weights.astype(np.float32 if is_norm else np.float16).tobytes())
    path.write_bytes(_padded(head) + body)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: Value) -> bytes:
    """A header's value behind the number of its gguf_type."""
    match value:
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case list():
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))


def _padded(part: bytes) -> bytes:
    """`part` with zeros up to GGUF's alignment of 32 bytes."""
    return part + bytes(-len(part) % 32)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), repack=sys.argv[4] == "repack")
