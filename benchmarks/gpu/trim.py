"""Which files of llama-cpp-python's source archive a build for the CPU and for CUDA needs.

Rules on paths only; what reads and writes archives is `pack.py`. llama.cpp's test models, documents, tools, web pages
and the backends of other cards make up most of the archive, and CMake enters none of their folders in this build.
"""

from __future__ import annotations

from pathlib import PurePosixPath

LLAMA_CPP = "vendor/llama.cpp"
TOP = ("CMakeLists.txt", "LICENSE.md", "PKG-INFO", "README.md", "pyproject.toml")
LLAMA_CPP_PARTS = ("CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "src", "vendor")
BACKENDS = ("ggml-cpu", "ggml-cuda")
"""All backends are folders of this form; what they share lies beside them."""


def is_needed(path: str) -> bool:
    """Whether the build needs a file of the source tree; path: relative to its root, with slashes."""
    parts = PurePosixPath(path).parts
    if parts[0] == "llama_cpp":
        return path.endswith((".py", "py.typed")) and parts[1] != "server"
    if not path.startswith(LLAMA_CPP + "/"):
        return path in TOP
    inner = parts[2:]
    if inner[0] == "ggml":
        return _is_needed_of_ggml(inner[1:])
    return inner[0] in LLAMA_CPP_PARTS


def _is_needed_of_ggml(parts: tuple[str, ...]) -> bool:
    if parts[0] != "src":
        return parts[0] in ("CMakeLists.txt", "cmake", "include")
    return len(parts) == 2 or parts[1] in BACKENDS
