"""The doctor on hardware: cards, instructions, compilers, threads."""

from __future__ import annotations

import pytest

from lacli.doctor import rebuild
from tests.doctored import (
    CARD,
    FLAGS,
    PROCESSOR,
    fail,
    finding,
    having,
    library,
    machine,
    reading,
)


def test_a_cuda_card_beside_a_build_for_the_processor_gets_the_command_to_build_it_again() -> None:
    programs = having("g++", "nvcc", "nvidia-smi")
    asked = ["rich>=14", "llama-cpp-python<2,>=1 ; python_version > '3'"]
    cards = "NVIDIA H200\nNVIDIA H200\n"
    found = finding("GPU", machine(which=programs, output=lambda command: cards, requirements=lambda: asked))
    assert found.state == "better"
    assert "NVIDIA H200 (and 1 more)" in found.words and "processor only" in found.words
    assert found.todo == (
        'CMAKE_ARGS="-DGGML_CUDA=on" /usr/bin/python3 -m pip install --force-reinstall --no-cache-dir '
        "'llama-cpp-python<2,>=1'",
    )


def test_a_python_whose_path_has_spaces_is_quoted_for_the_shell() -> None:
    assert "\"-DGGML_RPC=on\" '/my tools/python' -m pip" in rebuild.command(
        machine(executable="/my tools/python"), "rpc"
    )


def test_what_the_build_needs_and_is_not_there_comes_first() -> None:
    found = finding("GPU", machine(which=having("apt-get"), exists=lambda path: path == "/dev/nvidia0"))
    compiler, toolkit, command = found.todo
    assert "sudo apt-get install g++" in compiler
    assert "CUDA toolkit" in toolkit
    assert "-DGGML_CUDA=on" in command


def test_a_driver_that_does_not_answer_still_is_a_card() -> None:
    played = machine(which=having("g++", "nvidia-smi"), output=fail, exists=lambda path: "nvidia" in path)
    assert "an NVIDIA GPU is here" in finding("GPU", played).words


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({"exists": lambda path: path == "/dev/kfd"}, "-DGGML_VULKAN=on"),
        ({"exists": lambda path: path == "/dev/kfd", "which": having("hipcc", "g++")}, "-DGGML_HIP=on"),
        ({"read": reading(sys__class__drm__card1__device__vendor="0x8086\n")}, "-DGGML_VULKAN=on"),
        ({"read": reading(sys__class__drm__card0__device__vendor="0x10de\n")}, "-DGGML_CUDA=on"),
        ({"system": "Darwin", "processor": "arm64"}, "-DGGML_METAL=on"),
    ],
    ids=["amd", "amd with rocm", "intel", "nvidia without driver", "apple"],
)
def test_every_kind_of_gpu_has_its_own_build(changes: dict[str, object], arguments: str) -> None:
    found = finding("GPU", machine(**changes))
    assert (found.state, arguments in found.todo[-1]) == ("better", True)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"read": reading(sys__class__drm__card0__device__vendor="0x1af4\n")},
        {"system": "Darwin", "processor": "x86_64"},
    ],
    ids=["none", "a virtual one", "an Intel Mac"],
)
def test_no_card_is_nothing_to_mend(changes: dict[str, object]) -> None:
    found = finding("GPU", machine(**changes))
    assert (found.state, found.todo) == ("fine", ())
    # What --device and --replicas take there.
    assert "device CPU" in found.words


def test_a_card_in_use_is_shown_with_its_memory() -> None:
    found = finding("GPU", machine(library=lambda: library("CUDA", devices=[CARD, PROCESSOR])))
    assert found.state == "fine"
    assert "CUDA0: A card, 20.0 of 24.0 GiB free" in found.words


def test_a_build_for_cuda_that_finds_no_card_is_not_built_again() -> None:
    played = machine(library=lambda: library("CUDA"), exists=lambda path: "nvidia" in path)
    found = finding("GPU", played)
    assert found.state == "better"
    assert "driver" in found.todo[0] and "pip" not in found.todo[0]


def test_a_generic_build_on_a_faster_processor_is_built_again() -> None:
    played = machine(read=reading(proc__cpuinfo=f"flags : {FLAGS} avx512f avx512_vnni\n"))
    found = finding("instructions", played)
    assert found.state == "better"
    assert "without AVX512, AVX512_VNNI" in found.words
    assert found.todo == (rebuild.command(played, "native"),)
    assert "GGML_NATIVE=on" in found.todo[0]


def test_instructions_of_arm_are_compared_too() -> None:
    cpuinfo = reading(proc__cpuinfo="Features : fp asimd asimddp i8mm\n")
    played = machine(processor="aarch64", read=cpuinfo, library=lambda: library(features=("NEON",)))
    assert "without DOTPROD, MATMUL_INT8" in finding("instructions", played).words


def test_without_cpuinfo_the_instructions_in_use_are_shown() -> None:
    found = finding("instructions", machine(system="Darwin", read=fail))
    assert (found.state, "AVX2" in found.words) == ("fine", True)


def test_no_compiler_is_said_with_the_systems_way_to_one() -> None:
    assert finding("compiler", machine(which=having("dnf"))).todo == ("sudo dnf install gcc-c++",)
    assert finding("compiler", machine(which=having(), system="Darwin")).todo == ("xcode-select --install",)
    assert finding("compiler", machine(which=having("clang++", "nvcc"))).words == "clang++, nvcc"


@pytest.mark.parametrize(
    "files",
    [
        {"sys__fs__cgroup__cpu__max": "250000 100000\n"},
        {
            "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "250000\n",
            "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["cgroup 2", "cgroup 1"],
)
def test_a_container_with_fewer_cores_gets_fewer_threads(files: dict[str, str]) -> None:
    found = finding("threads", machine(read=reading(**files)))
    assert found.state == "better"
    assert "2.5" in found.words
    assert found.todo == ("export LACLI_THREADS=2",)


def test_a_container_without_a_limit_or_with_a_larger_one_is_fine() -> None:
    for text in ("max 100000\n", "800000 100000\n", "nonsense"):
        assert finding("threads", machine(read=reading(sys__fs__cgroup__cpu__max=text))).state == "fine"


@pytest.mark.parametrize("name", ["LACLI_THREADS", "LLAMA_ARG_THREADS"])
def test_the_advice_on_threads_can_be_taken(name: str) -> None:
    read = reading(sys__fs__cgroup__cpu__max="250000 100000\n")
    for count, state in (("2", "fine"), ("3", "better"), ("-1", "better")):
        assert finding("threads", machine(read=read, environ={name: count})).state == state
    assert f"-t is 2 by {name}" in finding("threads", machine(read=read, environ={name: "2"})).words
    both = {"LACLI_THREADS": "2", "LLAMA_ARG_THREADS": "4"}
    assert finding("threads", machine(read=read, environ=both)).state == "fine"
    assert finding("threads", machine(load=lambda: 6.4, environ={name: "2"})).state == "fine"


def test_half_a_core_is_enough_for_the_one_thread_that_there_must_be() -> None:
    read = reading(sys__fs__cgroup__cpu__max="50000 100000\n")
    assert finding("threads", machine(read=read, physical_cores=lambda: 1)).state == "fine"


def test_a_busy_machine_gets_fewer_threads_now() -> None:
    found = finding("threads", machine(load=lambda: 6.4))
    assert found.state == "better"
    assert "6.4 of 8" in found.words and "-t 2" in found.todo[0]
    assert finding("threads", machine(load=lambda: 40.0)).todo == ("-t 1 while they run",)
    assert finding("threads", machine(load=fail)).state == "fine"
