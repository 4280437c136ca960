"""The installed build of llama.cpp: its files, and the commands that build another one."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from lacli.llamacpp.machine import processor

REQUIREMENT = "llama-cpp-python>=0.3.36,<0.4"
"""The versions of pyproject.toml."""

PYTHON = sys.executable or "python3"
"""This Python; `sys.executable` is empty if a program embeds it."""

CMAKE = {
    "cuda": "-DGGML_CUDA=on",
    "vulkan": "-DGGML_VULKAN=on",
    "metal": "-DGGML_METAL=on",
    "rpc": "-DGGML_RPC=on",
    "native": "-DGGML_NATIVE=on",
    "no-amx": "-DCMAKE_CXX_FLAGS=-mno-amx-int8",
}
"""CMake's argument by kind of build: with a backend, with all instructions of this processor, or without AMX."""


def gpu_kind() -> str:
    """Return the key of CMAKE for this machine's GPU ("cuda"), even if this build cannot use it; "" without a GPU."""
    if platform.system() == "Darwin":
        return "metal" if platform.machine() == "arm64" else ""
    if Path("/dev/nvidia0").exists():
        return "cuda"
    return "vulkan" if Path("/dev/kfd").exists() else ""


def sound_kind() -> str:
    """Return the key of CMAKE to repair a build that fails: no-amx if the processor has AMX, native if not."""
    return "no-amx" if "amx_int8" in processor().flags else "native"


def rebuild_command(kind: str = "") -> str:
    """Return the shell command to rebuild llama.cpp for this Python and GPU. `kind`: "" or one more key of CMAKE."""
    arguments = " ".join(CMAKE[each] for each in dict.fromkeys((gpu_kind(), kind)) if each)
    pip = f"{shlex.quote(PYTHON)} -m pip install --force-reinstall --no-cache-dir '{REQUIREMENT}'"
    return f'CMAKE_ARGS="{arguments}" {pip}' if arguments else pip


def build_files() -> list[tuple[str, int, int]]:
    """Return (name, bytes, last change in ns since 1970) of each library file of this build, sorted by name."""
    spec, found = find_spec("llama_cpp"), []
    package = Path(spec.origin).parent if spec and spec.origin else Path()
    # llama_cpp reads this variable too, so these files are the loaded ones.
    for path in sorted(Path(os.environ.get("LLAMA_CPP_LIB_PATH") or package / "lib").glob("*")):
        if re.search(r"\.(so|dylib|dll)\b", path.name) and path.exists():
            found.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
    return found
