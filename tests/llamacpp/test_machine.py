"""This machine: threads of each copy of a model, fewer threads on a busy machine, and the processor."""

from __future__ import annotations

import os
import resource
from math import inf
from pathlib import Path
from threading import Event, Thread

import pytest

from lacli.llamacpp import build, machine
from lacli.llamacpp.context import can_give_way
from lacli.llamacpp.devices import Device
from lacli.llamacpp.machine import Processor, physical_cores, with_threads
from lacli.llamacpp.settings import CPU, ModelSettings
from tests.program import ROOT


@pytest.mark.parametrize(
    ("threads", "copies", "each"), [(8, 2, 4), (8, 3, 2), (2, 3, 1), (1, 2, 1), (8, 1, 8), (8, 0, 8)]
)
def test_the_threads_are_the_machines_and_every_copy_has_one(threads: int, copies: int, each: int) -> None:
    shared = with_threads(ModelSettings(threads=threads), copies)
    assert (shared.threads, shared.threads_batch) == (each, each)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ModelSettings(), True),
        (ModelSettings(threads=2), False),
        (ModelSettings(flash_attention="on"), False),
        (ModelSettings(cache_type_v="q8_0"), False),
        (ModelSettings(cache_type_k="q8_0", cache_type_v="q8_0", flash_attention="on"), True),
    ],
)
def test_threads_give_way_unless_they_were_set_and_the_bits_of_a_text_stay_the_same(
    settings: ModelSettings, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Device(CPU, "", is_gpu=False)]
    monkeypatch.setattr("lacli.llamacpp.context.devices", lambda *, memory: found)
    monkeypatch.setattr("lacli.llamacpp.machine.physical_cores", lambda: 8)
    assert can_give_way(with_threads(with_threads(settings))) == expected
    assert not can_give_way(with_threads(settings, 2)), "replicas cannot tell each copy's seconds"
    found.append(Device("BLAS", "OpenBLAS", is_gpu=False))
    assert not can_give_way(with_threads(settings)), "BLAS computes large batches while the threads wait"


@pytest.mark.parametrize(("cores", "left"), [(4.0, 4), (3.3, 4), (3.1, 3), (1.9, 1), (0.1, 1)])
def test_as_many_threads_decode_as_had_a_core(cores: float, left: int) -> None:
    threads = machine.ThreadsInUse(4)
    for step in range(4):
        assert threads.count == 4, "one step must not change the threads"
        threads.note(machine.OBSERVED_S / 3.9, cores * machine.OBSERVED_S / 3.9, step * machine.OBSERVED_S)
    assert threads.count == left


def test_all_threads_are_tried_again_after_a_while() -> None:
    threads = machine.ThreadsInUse(2)
    for begin_s in (0.0, 100.0):
        threads.note(machine.OBSERVED_S, machine.OBSERVED_S, begin_s)
        threads.note(9.0, 9.0, begin_s + 0.9 * machine.RETRY_S)
        assert threads.count == 1
        threads.note(0.1, 0.1, begin_s + machine.RETRY_S)
        assert threads.count == 2


@pytest.mark.parametrize(
    ("found", "cores"),
    [({"hw.perflevel0.physicalcpu": 4, "hw.physicalcpu": 10}, 4), ({"hw.physicalcpu": 6}, 6), ({}, os.cpu_count())],
    ids=["with efficiency cores", "with hyperthreads", "unknown"],
)
def test_a_mac_computes_on_its_fast_physical_cores(
    found: dict[str, int], cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "sysctl"
    cases = "".join(f"{name}) echo {number};; " for name, number in found.items())
    program.write_text(f'#!/bin/sh\ncase "$2" in {cases} *) echo "unknown oid" >&2; exit 1;; esac\n')
    program.chmod(0o700)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(machine, "SYSCTL", str(program))
    monkeypatch.setattr(machine, "cgroup_cores", lambda: inf)
    assert physical_cores() == cores


@pytest.mark.parametrize(
    ("cgroup", "limits", "cores"),
    [
        ("0::/", {"": "250000 100000"}, 2),
        ("1:cpu:/x\n0::/a/b\n", {"": "max 100000", "a": "300000 100000", "a/b": "max 100000"}, 3),
        ("0::/a", {"a": "50000 100000"}, 1),
        ("0::/", {"": "max 100000"}, 8),
        ("0::/elsewhere", {}, 8),
    ],
)
def test_a_containers_share_of_the_processor_limits_the_threads(
    cgroup: str, limits: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in {
        "proc/self/cgroup": cgroup,
        **{f"cgroup/{at}/cpu.max": text for at, text in limits.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for core in range(16):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{core % 8},{core % 8 + 8}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(16)})
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / path.lstrip("/"))
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    assert physical_cores() == cores


def test_two_models_that_load_at_a_time_leave_the_memory_limit_as_it_was() -> None:
    inside, left = Event(), Event()

    def second() -> None:
        with machine.bounded_by_free_memory():
            inside.set()
            left.wait(10)

    before, thread = resource.getrlimit(resource.RLIMIT_AS), Thread(target=second)
    try:
        with machine.bounded_by_free_memory():
            thread.start()
            # The second model has to wait; otherwise it would save the first one's limit as the process's own.
            inside.wait(0.05)
        left.set()
        thread.join()
        assert inside.is_set() and resource.getrlimit(resource.RLIMIT_AS) == before
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("cpuinfo", "found", "kind"),
    [
        ("model name : Fast\nflags : fpu amx_int8\n\nflags : avx\n", ("Fast", ("fpu", "amx_int8")), "no-amx"),
        ("processor : 0\nFeatures : fp asimd\nCPU part : 0xd0c\n", ("0xd0c", ("fp", "asimd")), "native"),
    ],
)  # fmt: skip
def test_this_machine_is_read_from_linux_and_decides_on_the_build(
    cpuinfo: str, found: tuple[str, tuple[str, ...]], kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processor = machine.processor.__wrapped__
    monkeypatch.setattr("platform.system", lambda: "Linux")
    for module in (machine, build):
        monkeypatch.setattr(module, "Path", lambda path: tmp_path / path.lstrip("/"))
        monkeypatch.setattr(module, "processor", processor)
    monkeypatch.setattr(build, "PYTHON", "/my tools/python3")
    assert processor().name and processor().flags == ()
    for folder in ("proc", "dev"):
        (tmp_path / folder).mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(cpuinfo)
    assert processor() == Processor(*found) and build.sound_kind() == kind
    pip = f"'/my tools/python3' -m pip install --force-reinstall --no-cache-dir '{build.REQUIREMENT}'"
    assert f'"{build.REQUIREMENT}"' in (ROOT / "pyproject.toml").read_text()
    assert (build.gpu_kind(), build.rebuild_command()) == ("", pip)
    for name, gpu in (("kfd", "vulkan"), ("nvidia0", "cuda")):
        (tmp_path / "dev" / name).touch()
        assert build.gpu_kind() == gpu
    assert build.rebuild_command("rpc") == f'CMAKE_ARGS="-DGGML_CUDA=on -DGGML_RPC=on" {pip}'
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert build.gpu_kind() == "metal"
