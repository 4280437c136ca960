"""llama.cpp's functions, start, log and version. No other file imports llama_cpp."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from functools import cache
from typing import Any

from lacli.errors import LacliError, in_one_line
from lacli.llamacpp.probe import working_settings
from lacli.llamacpp.settings import ModelSettings
from lacli.text.format import printable

DEBUG, ERROR, CONTINUE = 1, 4, 5
"""ggml_log_level; llama-cpp-python's own table has older numbers and hides errors."""

BUFFER = re.compile(r"(?P<device>\S+) +(?P<kind>\w+) buffer size = +(?P<mebibytes>[\d.]+) MiB")

CELLS = re.compile(r"kv_cache\S*: size = +(?P<mebibytes>[\d.]+) MiB")
"""The log has this line for each part of a cache, even if its buffer is only simulated and its size not logged."""


class Log:
    """The log of a library. `verbose`: also write it to stderr, without the debug lines of each step.

    `callbacks`: C callbacks to keep alive, because the library only has their addresses. `buffers`: MiB of the buffers
    made since the last `forget`, by kind ("KV", "RS", "output"); compute buffers by device.
    """

    def __init__(self) -> None:
        self.callbacks: list[object] = []
        self.verbose = False
        self._errors: deque[str] = deque(maxlen=3)
        self._level = 0
        self.buffers: defaultdict[str, float] = defaultdict(float)

    def receive(self, level: int, text: bytes) -> None:
        """Record a call of the log callback. `text`: a line, or the next part of the line if `level` is CONTINUE."""
        if level != CONTINUE:
            self._level = level
        line = text.decode("utf-8", "replace")
        if self._level == ERROR and line.strip():
            self._errors.append(line.strip())
        if cells := CELLS.search(line):
            self.buffers["KV"] += float(cells["mebibytes"])
        elif (buffer := BUFFER.search(line)) and buffer["kind"] == "compute":
            # A larger graph replaces the buffer.
            self.buffers[buffer["device"]] = float(buffer["mebibytes"])
        elif buffer and buffer["kind"] != "KV":
            self.buffers[buffer["kind"]] += float(buffer["mebibytes"])
        if self.verbose and self._level != DEBUG:
            sys.stderr.write(printable(line, lines=True))

    def forget(self) -> None:
        """Drop all errors and buffers, so that later ones belong to the next call of the library."""
        self._errors.clear()
        self.buffers.clear()

    def last_error(self) -> str:
        """Return the oldest of the last 3 errors, the cause, or "llama.cpp gives no reason". Drop all errors."""
        line = self._errors[0] if self._errors else "llama.cpp gives no reason"
        self._errors.clear()
        return " ".join(line.split(": ", 1)[-1].split())


# ggml reads this while it is loaded. Without it, a backtrace hides the message of a failed assertion.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
# A build for another processor can crash this process as soon as it is loaded, so it is tried before.
working_settings(ModelSettings())

try:
    import llama_cpp
except Exception as error:  # a missing driver, a wrong architecture, a package half installed
    raise LacliError(f"llama.cpp does not load: {in_one_line(error)}", "lacli doctor says what to do") from error

lib = llama_cpp

POINTER, TEXT, SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t

ggml: ctypes.CDLL = lib.llama_cpp._lib
"""The C library, for functions that llama_cpp does not declare."""

for _name, _arguments, _result in (
    ("ggml_backend_dev_name", [POINTER], TEXT),
    ("ggml_backend_dev_description", [POINTER], TEXT),
    ("ggml_backend_dev_type", [POINTER], ctypes.c_int),
    ("ggml_backend_dev_memory", [POINTER] * 3, None),
    ("ggml_backend_dev_count", [], SIZE),
    ("ggml_backend_dev_get", [SIZE], POINTER),
    ("ggml_backend_dev_by_name", [TEXT], POINTER),
    ("ggml_backend_reg_by_name", [TEXT], POINTER),
    ("ggml_backend_reg_get_proc_address", [POINTER, TEXT], POINTER),
    ("ggml_backend_register", [POINTER], None),
    ("ggml_type_name", [ctypes.c_int], TEXT),
    ("llama_max_devices", [], SIZE),
):
    _function = getattr(ggml, _name)
    _function.argtypes, _function.restype = _arguments, _result

TILED_SWITCH = "GGML_CPU_TILED_MM"
"""The variable that switches ggml's kernels for 8 rows and more (ggml-cpu/tiled), read at its first matrix product."""


def on_abort(report: Callable[[str], None]) -> None:
    """Call `report` with the message if one of ggml's assertions fails; after `report` returns, the process aborts."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda message: report(message.decode("utf-8", "replace")))
    start().callbacks.append(callback)
    ggml.ggml_set_abort_callback(callback)


def abort_error(message: str, hint: str) -> LacliError:
    """Return the error for a user about ggml's abort `message`. `hint`: what to do, replaced if an RPC server ended."""
    if "Remote RPC server crashed" in message:
        return LacliError("an RPC server has ended", "start it again there, and then run this command again")
    return LacliError(f"llama.cpp cannot go on: {message.rsplit('/', 1)[-1]}", hint)


@cache
def start() -> Log:
    """Start llama.cpp at the first call and return its log; later calls return the same log."""
    log = Log()
    callback = lib.llama_log_callback(lambda level, text, _: log.receive(level, text))
    log.callbacks.append(callback)
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    lib.llama_backend_init()
    return log


def free_with(owner: object, free: Callable[..., object], *arguments: object) -> weakref.finalize[..., Any]:
    """Return a finalizer, which calls `free(*arguments)` once: when called or when `owner` is garbage-collected.

    It does not run at the end of the program, because a thread may still decode; the system frees the memory then.
    """
    finalizer = weakref.finalize(owner, free, *arguments)
    finalizer.atexit = False
    return finalizer


def switch_tiles(on: bool) -> None:
    """Switch ggml's kernels for 8 and more rows on or off, only at the first call. Off after on raises LacliError."""
    if os.environ.setdefault(TILED_SWITCH, "1" if on else "0") != "0" and not on:
        raise LacliError("--strict comes too late: this process uses other kernels", "load the model in a new process")


def progress_callback(api: Any, loading: Callable[[float], None] | None, is_stopped: Callable[[], bool]) -> Any:
    """Return a callback for `api`: give `loading` the loaded share, 0 to 1; cancel the load if `is_stopped()`."""

    def tell(share: float, _: object) -> bool:
        if loading:
            loading(share)
        return not is_stopped()

    return api.llama_progress_callback(tell)


def version() -> str:
    """Return the version of llama-cpp-python, which also tells the version of the llama.cpp in it."""
    return str(lib.__version__)
