"""Building llama-cpp-python from the kit's source; a build that was cut off goes on in CMake's folder.

Nothing is installed: the package and its libraries are put into a folder that Python is told of.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.commands import KitError
from benchmarks.gpu.folders import Folders

COMMON = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAVA_BUILD=OFF", "-DSKBUILD_PLATLIB_DIR=unused")
TARGET = "llama"
"""The library and the backends it loads; neither llama.cpp's common code nor its tools."""

PACKAGE = "llama_cpp_python"


def is_built(folders: Folders) -> bool:
    """Whether a build has come to its end here."""
    return (folders.build / "done").exists()


def build(folders: Folders, arguments: Sequence[str], jobs: int) -> None:
    """Configure, compile, put in place, try. `arguments`: CMake's, beside the common ones. Raises KitError."""
    cmake, source = shutil.which("cmake"), folders.source / PACKAGE
    if not cmake:
        raise KitError("there is no cmake")
    if not (source / "CMakeLists.txt").is_file():
        raise KitError(f"there is no {source}: name the kit's archive with --archive")
    tree = folders.build / "tree"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    try:
        call([cmake, *generator, "-S", str(source), "-B", str(tree), *COMMON, *arguments], folders)
        call([cmake, "--build", str(tree), "--target", TARGET, "--parallel", str(jobs)], folders)
        unpack_wheels(folders.source / "wheels", folders.site)
        put_in_place(source / "llama_cpp", tree, folders.site / "llama_cpp")
        call([sys.executable, "-c", "import llama_cpp, lacli.llamacpp.library"], folders)
    except (OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        raise KitError(f"the build failed: {error}") from None
    (folders.build / "done").touch()


def call(command: Sequence[str], folders: Folders) -> None:
    """Run a command; its words go to standard error."""
    print("+", *command, file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=sys.stderr, env=folders.environment())


def put_in_place(package: Path, tree: Path, target: Path) -> None:
    """Put the Python package and the libraries that it loads where Python looks for them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(package, target)
    (target / "lib").mkdir()
    for library in sorted(tree.rglob("lib*.so*")):
        shutil.copy2(library, target / "lib" / library.name, follow_symlinks=False)


def unpack_wheels(wheels: Path, site: Path) -> None:
    """Unpack wheels, which need no more to be imported. KitError where they are for another Python."""
    ours = f"cp{sys.version_info.major}{sys.version_info.minor}"
    site.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(wheels.glob("*.whl")):
        python, abi = wheel.stem.split("-")[-3:-1]
        if not ("py3" in python or ours in python or "abi3" in abi):
            raise KitError(f"{wheel.name} is not for this Python: pack again with --python {ours[2]}.{ours[3:]}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
