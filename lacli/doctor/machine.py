"""The machine as the doctor sees it: every probe is a function of one record, so that another machine can be played.

Nothing is judged here, and nothing asks the network but for RPC servers that the user names.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from lacli.errors import in_one_line
from lacli.llamacpp.devices import free_memory, logical_cores, physical_cores
from lacli.text.files import free_disk, nearest_folder

if TYPE_CHECKING:
    from lacli.doctor.self_test import SelfTest
    from lacli.llamacpp.devices import Device
    from lacli.llamacpp.library import Build

PATIENCE_S = 2.0
"""How long another program may take to answer."""

SCAN_S = 0.3
"""How long the sizes of the hub's cache may take."""


class LibraryMissing(Exception):
    """llama.cpp cannot be loaded; the text is the loader's."""


class Library(NamedTuple):
    """llama.cpp as it is loaded here."""

    build: Build
    devices: list[Device]


class Terminal(NamedTuple):
    """What stdout is: a terminal or not, whether it shows colours, its encoding, its columns."""

    is_terminal: bool
    colours: bool
    encoding: str
    columns: int


@dataclass(frozen=True)
class Machine:
    """All probes. Bytes and seconds; a probe that cannot tell raises, and the report says unknown.

    executable: this Python. requirements: what lacli's own metadata asks for ("numpy>=2.4,<3"). output: what a program
    prints. folders: lacli's own, by what is in them. variables: the environment's names that lacli knows, each with the
    flag it sets. broken_names: what is wrong in the user's own list of model names. rpc: addresses of RPC servers to
    be asked, and rpc_devices: which devices they have. faults: what fails in this build when it is tried now with this
    number of threads, with all kernels and without those for repacked weights; '' for nothing.
    """

    system: str
    processor: str
    python: tuple[int, int, int]
    executable: str
    environ: Mapping[str, str]
    variables: Mapping[str, str]
    folders: Mapping[str, Path]
    terminal: Terminal
    rpc: tuple[str, ...]
    read: Callable[[str], str]
    exists: Callable[[str], bool]
    which: Callable[[str], str | None]
    output: Callable[[Sequence[str]], str]
    writable: Callable[[Path], bool]
    free_disk: Callable[[Path], int]
    load: Callable[[], float]
    logical_cores: Callable[[], int]
    physical_cores: Callable[[], int]
    free_memory: Callable[[], int]
    total_memory: Callable[[], int]
    requirements: Callable[[], list[str]]
    version_of: Callable[[str], str | None]
    library: Callable[[], Library]
    hub_cache: Callable[[], Path]
    hub_token: Callable[[], bool]
    folder_size: Callable[[Path], int | None]
    faults: Callable[[int], tuple[str, str]]
    broken_names: Callable[[], list[str]]
    self_test: Callable[[int], SelfTest]
    rpc_devices: Callable[[Sequence[str]], list[Device]]


def this_machine(
    environ: Mapping[str, str],
    variables: Mapping[str, str],
    folders: Mapping[str, Path],
    own_names: Path,
    terminal: Terminal,
    rpc: tuple[str, ...] = (),
) -> Machine:
    """The machine that lacli runs on. own_names: the user's own list of model names. rpc: servers to be asked."""
    return Machine(
        system=platform.system(),
        processor=platform.machine(),
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        executable=sys.executable,
        environ=environ,
        variables=variables,
        folders=folders,
        terminal=terminal,
        rpc=rpc,
        read=lambda path: Path(path).read_text("utf-8", "replace"),
        exists=os.path.exists,
        which=shutil.which,
        output=_output,
        writable=_writable,
        free_disk=free_disk,
        load=lambda: os.getloadavg()[0],
        logical_cores=logical_cores,
        physical_cores=physical_cores,
        free_memory=free_memory,
        total_memory=lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        requirements=requirements,
        version_of=_version_of,
        library=cache(load_library),
        hub_cache=_hub_cache,
        hub_token=_hub_token,
        folder_size=_folder_size,
        faults=_faults,
        broken_names=lambda: _broken_names(own_names),
        self_test=_self_test,
        rpc_devices=_rpc_devices,
    )


def load_library() -> Library:
    """llama.cpp, imported now. Raises LibraryMissing with the loader's reason."""
    try:
        from lacli.llamacpp.library import build, devices

        return Library(build(), devices())
    except Exception as error:  # a missing driver, a wrong architecture, a package half installed
        raise LibraryMissing(in_one_line(error)) from error


def requirements() -> list[str]:
    """From the installed package, or from the checkout that runs without being installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return [line for line in requires("lacli") or [] if "extra ==" not in line]
    except PackageNotFoundError:
        import tomllib

        text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
        found: list[str] = tomllib.loads(text)["project"]["dependencies"]
        return found


def _writable(path: Path) -> bool:
    """Whether a folder is there and can be written, or can be made; a file in its place is neither."""
    found = nearest_folder(path)
    return found.is_dir() and os.access(found, os.W_OK | os.X_OK)


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


def _version_of(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _hub_cache() -> Path:
    from lacli.hub.cache import cache_folder

    return cache_folder()


def _hub_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _folder_size(folder: Path) -> int | None:
    """Bytes of a folder's files, links not followed; None where counting takes too long."""
    begin, total, waiting = perf_counter(), 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
        if perf_counter() - begin > SCAN_S:
            return None
    return total


def _faults(threads: int) -> tuple[str, str]:
    from lacli.llamacpp import probe

    probe.forget()
    fault = probe.trial(threads, threads, repack=True)
    return fault, fault and probe.trial(threads, threads, repack=False)


def _broken_names(own: Path) -> list[str]:
    from lacli.hub.names import read_list

    return [error.what for error in read_list(own)[1]] if own.exists() else []


def _self_test(threads: int) -> SelfTest:
    from lacli.doctor.self_test import run_self_test

    return run_self_test(threads)


def _rpc_devices(endpoints: Sequence[str]) -> list[Device]:
    from lacli.rpc.asking import ANSWER_S, found

    return found(endpoints, ANSWER_S)
