"""Machines for the doctor to look at: a good one, and what can be changed about it. No test lives here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from lacli.doctor.finding import Finding
from lacli.doctor.machine import Library, Machine, Terminal
from lacli.doctor.product import examine_machine
from lacli.doctor.self_test import SelfTest
from lacli.doctor.versions import GIB
from lacli.llamacpp.devices import Device
from lacli.llamacpp.library import Backend, Build

PROCESSOR = Device("CPU", "A processor", False, 16 * GIB, 16 * GIB)
CARD = Device("CUDA0", "A card", True, 20 * GIB, 24 * GIB)
FEATURES = ("AVX", "AVX2", "F16C", "FMA", "LLAMAFILE")
FLAGS = "fpu avx avx2 f16c fma"


def library(*names: str, devices: Sequence[Device] = (PROCESSOR,), features: tuple[str, ...] = FEATURES) -> Library:
    others = tuple(Backend(name) for name in names)
    return Library(Build("0.3.36", "0.5.0", "0.25.3", "abc", (Backend("CPU", features), *others)), list(devices))


def reading(**files: str) -> Callable[[str], str]:
    """A read function of a machine with these files; a name's __ is a slash."""
    texts = {"/" + name.replace("__", "/").replace("cpu/max", "cpu.max"): text for name, text in files.items()}

    def read(path: str) -> str:
        if path not in texts:
            raise FileNotFoundError(path)
        return texts[path]

    return read


def having(*programs: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in programs else None


def machine(**other: object) -> Machine:
    """A Linux machine on which all is well, but for what is given."""
    given: dict[str, object] = {
        "system": "Linux",
        "processor": "x86_64",
        "python": (3, 12, 1),
        "executable": "/usr/bin/python3",
        "environ": {},
        "variables": {"LACLI_DEBUG": "", "LACLI_WINDOW": "-W", "LACLI_THREADS": "-t", "LLAMA_ARG_THREADS": "-t"},
        "folders": {"measured costs": Path("/home/me/.cache/lacli"), "history": Path("/home/me/.local/state/lacli")},
        "terminal": Terminal(True, False, "utf-8", 80),
        "rpc": (),
        "read": reading(proc__cpuinfo=f"processor : 0\nflags : {FLAGS}\n"),
        "exists": lambda path: False,
        "which": having("g++", "cmake", "apt-get"),
        "output": lambda command: "",
        "writable": lambda path: True,
        "free_disk": lambda path: 100 * GIB,
        "load": lambda: 0.1,
        "logical_cores": lambda: 8,
        "physical_cores": lambda: 4,
        "free_memory": lambda: 10 * GIB,
        "total_memory": lambda: 16 * GIB,
        "requirements": lambda: ["numpy>=2.4,<3"],
        "version_of": lambda package: "2.5.0",
        "library": library,
        "hub_cache": lambda: Path("/home/me/.cache/huggingface/hub"),
        "hub_token": lambda: False,
        "folder_size": lambda path: 3 * GIB,
        "faults": lambda threads: ("", ""),
        "broken_names": list,
        "self_test": lambda threads: SelfTest(50.0, 70.0, True),
        "rpc_devices": lambda endpoints: [],
    }
    return Machine(**{**given, **other})  # type: ignore[arg-type]


def finding(subject: str, played: Machine) -> Finding:
    return next(each for each in examine_machine(played) if each.subject == subject)


def fail(*_: object) -> NoReturn:
    raise OSError("the probe broke")
