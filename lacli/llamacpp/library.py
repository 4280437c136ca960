"""The library: the only file that imports llama_cpp. Its log, its build, its backends and devices."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from lacli.errors import LacliError
from lacli.llamacpp.devices import (
    CPU,
    FUNCTIONS,
    Device,
    found_devices,
)
from lacli.llamacpp.probe import proven
from lacli.llamacpp.settings import ModelSettings
from lacli.text.format import printable

ERROR, CONTINUE = 4, 5
"""ggml's levels; llama-cpp-python's own table has older numbers and hides errors."""

BUFFER = re.compile(r"(?P<device>\S+) +(?P<kind>\w+) buffer size = +(?P<mebibytes>[\d.]+) MiB")

CELLS = re.compile(r"kv_cache\S*: size = +(?P<mebibytes>[\d.]+) MiB")
"""Said of each part of a cache, also when its buffer is only simulated and has no size."""


class Log:
    """Receives llama.cpp's log; `verbose` passes it on to stderr.

    callbacks: what the library calls; it keeps only their addresses, so they are kept alive here. taken: MiB by
    kind ("KV", "compute", ..) that `take_buffers` summed up last.
    """

    def __init__(self) -> None:
        self.callbacks: list[object] = []
        self.verbose = False
        self.taken: dict[str, float] = {}
        self._errors: deque[str] = deque(maxlen=3)
        self._level = 0
        self._buffers: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._cells = 0.0

    def receive(self, level: int, text: bytes) -> None:
        """One call of the library's callback: a line, or the next piece of one."""
        if level != CONTINUE:
            self._level = level
        line = text.decode("utf-8", "replace")
        if self._level == ERROR and line.strip():
            self._errors.append(line.strip())
        if buffer := BUFFER.search(line):
            self._add_buffer(buffer["device"], buffer["kind"], float(buffer["mebibytes"]))
        elif cells := CELLS.search(line):
            self._cells += float(cells["mebibytes"])
        if self.verbose:
            sys.stderr.write(printable(line, lines=True))

    @contextmanager
    def kept_quiet(self) -> Iterator[None]:
        """Collect only, while what goes to stderr is read as something else."""
        verbose, self.verbose = self.verbose, False
        try:
            yield
        finally:
            self.verbose = verbose

    def forget(self) -> None:
        """Drop what was collected, before a call whose errors are wanted."""
        self._errors.clear()

    def take_buffers(self) -> float:
        """MiB of the buffers that were made since the last call: of a model or of a context, on every device."""
        taken: defaultdict[str, float] = defaultdict(float)
        for (_, kind), mebibytes in self._buffers.items():
            taken[kind] += mebibytes
        if "KV" in taken:
            taken["KV"] = taken["KV"] or self._cells
        self._buffers.clear()
        self.taken, self._cells = dict(taken), 0.0
        return sum(taken.values())

    def _add_buffer(self, device: str, kind: str, mebibytes: float) -> None:
        # The compute buffer may be made anew for a larger graph; a cache may consist of several.
        before = 0.0 if kind == "compute" else self._buffers[device, kind]
        self._buffers[device, kind] = before + mebibytes

    def last_error(self) -> str:
        """The first of the last error lines, in one line and without the C function's name.

        The lines after it are its consequences. They are all forgotten then.
        """
        line = self._errors[0] if self._errors else "llama.cpp gives no reason"
        self.forget()
        return " ".join(line.split(": ", 1)[-1].split())


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Collect what C code writes to the process's stderr; the text is in the list when the block is left."""
    collected: list[str] = []
    with ExitStack() as stack:
        try:
            file = stack.enter_context(TemporaryFile())
            kept = os.dup(2)
        except OSError:  # there is no place to collect it, or nothing is written because it is closed
            yield collected
            return
        os.dup2(file.fileno(), 2)
        try:
            yield collected
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            collected.append(file.read().decode("utf-8", "replace"))


# ggml asks for it while it is loaded, and has a debugger print over its last words otherwise.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
# A library for another processor can end this process by a signal as soon as it is loaded.
proven(ModelSettings())

import llama_cpp  # noqa: E402
from llama_cpp.llama_grammar import json_schema_to_gbnf  # noqa: E402

lib = llama_cpp

TILED_SWITCH = "GGML_CPU_TILED_MM"
"""ggml reads it at its first matrix product and has no other switch for the kernels that take 8 rows and more."""


def on_abort(report: Callable[[str], None]) -> None:
    """Call `report` with ggml's last words when one of its assertions fails; the process aborts when it returns.

    A damaged model file can do that. For the command line, which ends the process there in its own way.
    """
    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda message: report(message.decode("utf-8", "replace")))
    if set_callback := getattr(lib.llama_cpp._lib, "ggml_set_abort_callback", None):
        library().callbacks.append(callback)
        set_callback(callback)


@cache
def library() -> Log:
    """Start llama.cpp once a process, with its log connected."""
    log = Log()
    callback = lib.llama_log_callback(lambda level, text, _: log.receive(level, text))
    log.callbacks.append(callback)
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    lib.llama_backend_init()
    return log


def quantize(source: Path, target: Path, kind: int) -> None:
    """Write a model file with all its matrices in another type. kind: llama.cpp's llama_ftype."""
    library()
    parameters = lib.llama_model_quantize_default_params()
    parameters.ftype, parameters.pure, parameters.nthread = kind, True, 1
    if status := lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(parameters)):
        raise LacliError(f"llama.cpp cannot quantise {source.name} ({status})")


def declared(*functions: tuple[str, list[Any], Any]) -> ctypes.CDLL:
    """The C library, with functions that llama_cpp does not declare: the name of each, what it takes, what it gives."""
    found: ctypes.CDLL = lib.llama_cpp._lib
    for name, takes, gives in functions:
        function = getattr(found, name)
        function.argtypes, function.restype = takes, gives
    return found


def _switch_tiles(on: bool) -> None:
    """Decide about the tiled kernels for this process; those that are off already stay off."""
    if os.environ.setdefault(TILED_SWITCH, "1" if on else "0") != "0" and not on:
        raise LacliError(
            "--strict comes too late: another model of this process has decided about the kernels",
            "open the strict one first",
        )


def version() -> str:
    """llama-cpp-python's version, which stands for llama.cpp's."""
    number: str = lib.__version__
    return number


def devices(*, memory: bool = True) -> list[Device]:
    """The devices of this build on this machine, in llama.cpp's order; without their memory it is quick."""
    library()
    return found_devices(declared(*FUNCTIONS), memory=memory)


def schema_grammar(schema: str) -> str:
    """The GBNF grammar of a JSON schema; it raises many kinds of exceptions, and ignores what it does not know."""
    grammar: str = json_schema_to_gbnf(schema)
    return grammar


class Backend(NamedTuple):
    """A part of llama.cpp that computes: ggml's name of it ("CPU", "CUDA") and what its build can use ("AVX2")."""

    name: str
    features: tuple[str, ...] = ()


class Build(NamedTuple):
    """llama-cpp-python's version, and of llama.cpp and its ggml; '' where the library does not say.

    commit: llama.cpp's, shortened, with "-dirty" where it was changed.
    """

    python: str
    llama: str
    ggml: str
    commit: str
    backends: tuple[Backend, ...]


def build() -> Build:
    """What this llama.cpp is, without loading a model."""
    library()
    ggml = _ggml()
    registered = map(ggml.ggml_backend_reg_get, range(ggml.ggml_backend_reg_count()))
    names = [ggml.ggml_backend_reg_name(backend).decode() for backend in registered]
    return Build(
        version(),
        _words(ggml, "llama_version"),
        _words(ggml, "ggml_version"),
        _words(ggml, "ggml_commit"),
        tuple(backends(names, lib.llama_print_system_info().decode("utf-8", "replace"))),
    )


def backends(names: Sequence[str], system_info: str) -> list[Backend]:
    """Backends with their features, from llama_print_system_info's `CPU : AVX2 = 1 | FMA = 1 | CUDA : ARCHS = 800 |`.

    A feature of value 1 stands for itself, one of value 0 is left out, others keep their value.
    """
    features: dict[str, list[str]] = {name: [] for name in names}
    owner = CPU
    for part in system_info.split("|"):
        before, colon, rest = part.partition(" : ")
        if colon:
            owner = before.strip()
        feature, _, value = (rest if colon else part).partition("=")
        if feature.strip() and value.strip() not in ("", "0"):
            shown = feature.strip() if value.strip() == "1" else f"{feature.strip()} {value.strip()}"
            features.setdefault(owner, []).append(shown)
    return [Backend(name, tuple(found)) for name, found in features.items()]


def _words(ggml: ctypes.CDLL, name: str) -> str:
    """What a function without parameters says, which an older or newer library may not have."""
    if not hasattr(ggml, name):
        return ""
    said: bytes | None = getattr(declared((name, [], ctypes.c_char_p)), name)()
    return (said or b"").decode("utf-8", "replace")


def _ggml() -> ctypes.CDLL:
    """The library's functions about backends, which llama_cpp does not declare."""
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    return declared(
        ("ggml_backend_reg_count", [], number),
        ("ggml_backend_reg_get", [number], pointer),
        ("ggml_backend_reg_name", [pointer], text),
    )
