"""llama.cpp's build, backends and devices: what the library says of itself."""

from __future__ import annotations

import platform

import pytest

from lacli.llamacpp.devices import CPU
from lacli.llamacpp.library import (
    Backend,
    backends,
    build,
    devices,
)

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
