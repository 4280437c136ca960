"""llama.cpp's build, backends and devices: what the library says of itself, and how --version shows it."""

from __future__ import annotations

import platform

import pytest

from lacli import __version__
from lacli.doctor.machine import Library, LibraryMissing
from lacli.doctor.versions import GIB, device_words, version_lines
from lacli.llamacpp.devices import CPU, Device
from lacli.llamacpp.library import (
    Backend,
    Build,
    backends,
    build,
    devices,
)
from tests.program import call, run

SYSTEM_INFO = "CPU : AVX2 = 1 | AVX512 = 0 | FMA = 1 | CUDA : ARCHS = 800,900 | USE_GRAPHS = 1 | "


def test_this_library_has_a_processor_and_says_which_versions_it_is_of() -> None:
    found = build()
    assert CPU in [backend.name for backend in found.backends]
    assert CPU in [device.name for device in devices()]
    assert found.python and found.ggml and found.commit


def test_the_processors_memory_is_known() -> None:
    processor = next(device for device in devices() if device.name == CPU)
    assert 0 < processor.free <= processor.total


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 instructions")
def test_a_build_on_x86_names_instructions() -> None:
    processor = next(backend for backend in build().backends if backend.name == CPU)
    assert "SSE3" in processor.features


def test_features_belong_to_the_backend_before_them_and_those_of_value_0_are_left_out() -> None:
    assert backends(["CPU", "CUDA"], SYSTEM_INFO) == [
        Backend("CPU", ("AVX2", "FMA")),
        Backend("CUDA", ("ARCHS 800,900", "USE_GRAPHS")),
    ]


def test_a_backend_without_features_is_listed_and_one_that_is_only_in_the_features_too() -> None:
    assert backends(["Vulkan"], "CPU : NEON = 1 | ") == [Backend("Vulkan"), Backend("CPU", ("NEON",))]
    assert backends(["CPU"], "") == [Backend("CPU")]


def test_versions_are_shown_with_backends_and_devices_and_without_what_is_not_known() -> None:
    card = Device("CUDA0", "A card ", True, 3 * GIB, 8 * GIB)
    library = Library(Build("0.4", "", "0.9", "", (Backend("CPU", ("AVX2",)), Backend("CUDA"))), [card])
    assert version_lines(library) == [
        "llama-cpp-python 0.4 (ggml 0.9)",
        "backend CPU: AVX2",
        "backend CUDA",
        "device CUDA0: A card, 3.0 of 8.0 GiB free",
    ]
    assert version_lines(Library(Build("0.4", "", "", "", ()), [])) == ["llama-cpp-python 0.4"]
    assert device_words(Device("CPU", "A processor", False, 4 * GIB, 4 * GIB)) == "CPU: A processor, 4.0 GiB"
    assert device_words(Device("CUDA0", "A card", True)) == "CUDA0: A card"


def test_version_begins_with_laclis_own_and_goes_on_with_llama_cpps() -> None:
    done = run("--version")
    first, second, *rest = done.out.splitlines()
    assert (done.code, first, done.err) == (0, f"lacli {__version__}", "")
    assert second.startswith(f"llama-cpp-python {build().python}")
    assert any(line.startswith("backend CPU") for line in rest)
    assert any(line.startswith("device CPU") for line in rest)


def test_version_is_told_although_llama_cpp_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Library:
        raise LibraryMissing("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr("lacli.doctor.machine.load_library", missing)
    done = call("--version")
    assert done.code == 0
    assert done.out.startswith(f"lacli {__version__}\n")
    assert "libcuda.so.1" in done.out and "lacli doctor" in done.out
