"""What CMake has to be told about a machine's CUDA: some toolkits come without cuBLAS, or without the driver's stub.

PyTorch's packages bring cuBLAS with them, so it may lie among Python's packages. Looks at files only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.gpu.commands import KitError

TOOLKITS = ("/usr/local/cuda", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr")
DRIVERS = (
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/compat",
)
LIBRARIES = ("", "lib64", "lib", "targets/x86_64-linux/lib")


def find_nvcc() -> str:
    """The CUDA compiler's path; KitError where there is none."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not found:
        raise KitError("there is no CUDA compiler: put nvcc on PATH, or use --dry-run, which needs none")
    return found


def nvcc_release(nvcc: str) -> str:
    """The compiler's version, as 13.0; empty where it says none."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+\.\d+)", text)
    return found[1] if found else ""


def cuda_arguments(nvcc: str, architecture: str) -> list[str]:
    """CMake's arguments for a CUDA build with this compiler; architecture: as CMake names it, `native` or 90."""
    root = toolkit_root(nvcc)
    toolkits = [root, *map(Path, filter(None, (os.environ.get("CUDA_HOME"), *TOOLKITS)))]
    major = nvcc_release(nvcc).partition(".")[0]
    return [
        "-DGGML_CUDA=ON",
        "-DGGML_CUDA_NCCL=OFF",
        f"-DCMAKE_CUDA_COMPILER={nvcc}",
        f"-DCMAKE_CUDA_ARCHITECTURES={architecture}",
        *runtime_arguments(root),
        *cublas_arguments(toolkits, [Path(entry) for entry in sys.path], major),
        *driver_arguments(toolkits, [Path(folder) for folder in DRIVERS]),
    ]


def toolkit_root(nvcc: str) -> Path:
    """Where the compiler's toolkit is; nvcc itself may be a script that only calls it."""
    text = subprocess.run([nvcc, "--dryrun", "-c", "none.cu"], capture_output=True, text=True).stderr
    found = re.search(r"^#\$ TOP=(.+)$", text, re.MULTILINE)
    return Path(os.path.realpath(found[1] if found else Path(os.path.realpath(nvcc)).parent.parent))


def runtime_arguments(root: Path) -> list[str]:
    """Let what is built find the CUDA runtime where it is now: CMake leaves the compiler's own folders out."""
    folders = [root / name for name in LIBRARIES if next((root / name).glob("libcudart.so*"), None)]
    return [f"-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath,{folders[0]}"] if folders else []


def cublas_arguments(toolkits: Iterable[Path], packages: Sequence[Path], major: str) -> list[str]:
    """Nothing where a toolkit has cuBLAS; else where it is among Python's packages. KitError where it is nowhere."""
    if any((toolkit / folder / "libcublas.so").exists() for toolkit in toolkits for folder in LIBRARIES):
        return []
    for package in packages:
        for library in sorted(package.glob(f"nvidia/*/lib/libcublas.so.{major}*")):
            folder, include = library.parent, library.parent.parent / "include"
            second = next(iter(sorted(folder.glob(f"libcublasLt.so.{major}*"))), library)
            return [
                f"-DCUDA_cublas_LIBRARY={library}",
                f"-DCUDA_cublasLt_LIBRARY={second}",
                f"-DCMAKE_CUDA_FLAGS=-I{include}",
                f"-DCMAKE_CXX_FLAGS=-I{include}",
            ]
    raise KitError(f"there is no cuBLAS {major} beside the CUDA compiler or among Python's packages (nvidia-cublas)")


def driver_arguments(toolkits: Iterable[Path], drivers: Sequence[Path]) -> list[str]:
    """Nothing where the toolkit has the driver's stub; else the driver itself, or do without its memory functions."""
    names = ("stubs/libcuda.so", "libcuda.so")
    if any((toolkit / folder / name).exists() for toolkit in toolkits for folder in LIBRARIES for name in names):
        return []
    for folder in drivers:
        if (folder / "libcuda.so.1").exists():
            return [f"-DCUDA_cuda_driver_LIBRARY={folder / 'libcuda.so.1'}"]
    return ["-DGGML_CUDA_NO_VMM=ON"]
