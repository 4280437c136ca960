"""Building llama-cpp-python from the kit's source, in the background and resumable.

`build` starts a worker that outlives the command, or finds the one that runs, and waits for a while. The worker holds
a lock as long as it lives, so a killed one is noticed, and the next call goes on in CMake's folder. Nothing is
installed: the package and its libraries are put into a folder that Python is told of.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from benchmarks.gpu.commands import KitError
from benchmarks.gpu.folders import ROOT, Folders, read_json, write_whole

COMMON = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAVA_BUILD=OFF", "-DSKBUILD_PLATLIB_DIR=unused")
TARGET = "llama"
"""The library and the backends it loads; neither llama.cpp's common code nor its tools."""

PACKAGE = "llama_cpp_python"
POLL = 0.5
LAST_LINES = 15


@dataclass(frozen=True)
class Progress:
    """How far the build is. stage: none, working, stopped, failed or done. message: one line for a person."""

    stage: str
    message: str


def look(folders: Folders) -> Progress:
    """How far it is, from its state, its lock and its log."""
    state = read_json(folders.build / "state.json") or {"stage": "none", "message": "not begun"}
    stage, message = str(state["stage"]), str(state["message"])
    if stage != "working":
        return Progress(stage, message)
    if steps := re.findall(r"\[ *(\d+/\d+|\d+%)\]", log_text(folders)):
        message = f"{message}, {steps[-1]}"
    return Progress("working" if is_locked(folders) else "stopped", message)


def is_locked(folders: Folders) -> bool:
    """Whether a worker lives."""
    try:
        with (folders.build / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def log_text(folders: Folders) -> str:
    """All that CMake and the compiler said."""
    try:
        return (folders.build / "log.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def build(folders: Folders, arguments: Sequence[str], jobs: int, wait: float) -> Progress:
    """Start or resume the build, and wait at most `wait` seconds for its end.

    `arguments`: CMake's, beside the common ones. Raises KitError if the build fails, with the end of its log.
    """
    end, started = monotonic() + wait, False
    while (progress := look(folders)).stage != "done":
        if progress.stage == "working":
            if monotonic() > end:
                break
            sleep(POLL)
        elif started:
            last = "\n".join(log_text(folders).splitlines()[-LAST_LINES:])
            raise KitError(f"the build {progress.stage}: {progress.message}; {folders.build / 'log.txt'} ends\n{last}")
        else:
            start(folders, arguments, jobs)
            started = True
    return progress


def start(folders: Folders, arguments: Sequence[str], jobs: int) -> None:
    """Start a worker in a session of its own, so that it outlives this command and its terminal."""
    folders.build.mkdir(parents=True, exist_ok=True)
    module = [sys.executable, "-m", "benchmarks.gpu.build"]
    with (folders.build / "lock").open("a") as lock, (folders.build / "log.txt").open("ab") as log:
        # The lock belongs to the open file, which the worker and its compilers inherit: it is free when all are gone.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KitError("another command is starting the build: ask again") from None
        save_state(folders, "working", "starting")
        paths = [str(folders.work), str(folders.source), str(jobs), str(lock.fileno())]
        subprocess.Popen(
            [*module, *paths, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )


def work(folders: Folders, arguments: Sequence[str], jobs: int, lock: int) -> None:
    """Build, in this process: configure, compile, put in place, try. lock: its file, which compilers inherit."""
    cmake, source = shutil.which("cmake"), folders.source / PACKAGE
    if not cmake:
        raise KitError("there is no cmake")
    if not (source / "CMakeLists.txt").is_file():
        raise KitError(f"there is no {source}: name the kit's archive with --archive")
    tree = folders.build / "tree"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    save_state(folders, "working", "configuring")
    call([cmake, *generator, "-S", str(source), "-B", str(tree), *COMMON, *arguments], lock)
    save_state(folders, "working", "compiling")
    call([cmake, "--build", str(tree), "--target", TARGET, "--parallel", str(jobs)], lock)
    save_state(folders, "working", "putting in place")
    unpack_wheels(folders.source / "wheels", folders.site)
    put_in_place(source / "llama_cpp", tree, folders.site / "llama_cpp")
    environment = folders.environment()
    subprocess.run([sys.executable, "-c", "import llama_cpp, lacli.llamacpp.library"], env=environment, check=True)
    save_state(folders, "done", "built")


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


def call(command: Sequence[str], lock: int) -> None:
    """Run a command into the log."""
    print("+", *command, flush=True)
    subprocess.run(command, check=True, pass_fds=[lock])


def save_state(folders: Folders, stage: str, message: str) -> None:
    """Note how far the build is."""
    write_whole(folders.build / "state.json", json.dumps({"stage": stage, "message": message}))


def main() -> None:
    """The worker. arguments: the folders work and source, jobs, the lock's file number, and CMake's arguments."""
    workplace, source, jobs, lock, *arguments = sys.argv[1:]
    folders = Folders(Path(workplace), Path(source), Path(workplace) / "results")
    try:
        work(folders, arguments, int(jobs), int(lock))
    except (KitError, OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        save_state(folders, "failed", str(error))
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
