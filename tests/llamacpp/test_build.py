"""The build of llama.cpp: the command that makes another, what this machine has, and versions in words."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lacli import __version__
from lacli.llamacpp import build
from lacli.llamacpp.build import GIB, Kind, Library, LibraryMissing, Processor, rebuild_command, version_lines
from lacli.llamacpp.devices import Device
from lacli.llamacpp.library import Backend, Build
from tests.program import call, run

PIP = "-m pip install --force-reinstall --no-cache-dir 'llama-cpp-python<2,>=1'"

Lay = Callable[..., None]


@pytest.fixture(autouse=True)
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    """An own build without any backend that has to be asked for, on Linux."""
    monkeypatch.setattr(build, "PYTHON", "/usr/bin/python3")
    monkeypatch.setattr(build, "library_files", lambda: [Path("libllama.so"), Path("libggml-cpu.so.0")])
    asked = ["rich>=14", "llama-cpp-python<2,>=1 ; python_version > '3'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: asked)
    monkeypatch.setattr("platform.system", lambda: "Linux")


@pytest.fixture
def lay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lay:
    """Lay files of the system into a folder that takes the place of /."""

    def root(path: str) -> Path:
        return tmp_path / path.lstrip("/") if path.startswith("/") else Path(path)

    def files(**texts: str) -> None:
        for name, text in texts.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(build, "Path", root)
    build.processor.cache_clear()
    monkeypatch.setattr(build, "processor", build.processor.__wrapped__)
    return files


@pytest.mark.parametrize(
    ("kinds", "files", "arguments"),
    [
        ([], [], ""),
        (["cuda"], [], "-DGGML_CUDA=on"),
        (["rpc"], ["libggml-cuda.so", "libggml-cuda.so.0"], "-DGGML_CUDA=on -DGGML_RPC=on"),
        (["rpc"], ["ggml-rpc.dll"], "-DGGML_RPC=on"),
        (["no-amx"], ["libggml-rpc.dylib"], "-DGGML_RPC=on -DCMAKE_CXX_FLAGS=-mno-amx-int8"),
        (["native"], ["libggml-vulkan.so", "libggml-hip.so"], "-DGGML_HIP=on -DGGML_VULKAN=on -DGGML_NATIVE=on"),
    ],
)
def test_a_new_build_keeps_the_backends_of_this_one(
    kinds: list[Kind], files: list[str], arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "library_files", lambda: [*map(Path, files)])
    before = f'CMAKE_ARGS="{arguments}" ' if arguments else ""
    assert rebuild_command(*kinds) == f"{before}/usr/bin/python3 {PIP}"
    assert rebuild_command(as_before=False) == f"/usr/bin/python3 {PIP}"


def test_a_command_is_quoted_for_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PYTHON", "/my tools/python")
    assert rebuild_command() == f"'/my tools/python' {PIP}"
    monkeypatch.setattr("platform.system", lambda: "Windows")
    assert rebuild_command("cuda") == f"""$env:CMAKE_ARGS="-DGGML_CUDA=on"; & '/my tools/python' {PIP}"""


def test_a_checkout_that_is_not_installed_takes_any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def unknown(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", unknown)
    assert rebuild_command().endswith("'llama-cpp-python'")


@pytest.mark.parametrize(
    ("cpuinfo", "found", "kind"),
    [
        ("model name : Fast\nflags : fpu amx_int8\n\nflags : avx\n", ("Fast", ("fpu", "amx_int8")), "no-amx"),
        ("model name\t: Old\nflags\t\t: fpu avx\n", ("Old", ("fpu", "avx")), "native"),
        ("processor : 0\nFeatures : fp asimd\nCPU part : 0xd0c\n", ("0xd0c", ("fp", "asimd")), "native"),
    ],
)  # fmt: skip
def test_the_processor_is_read_from_linux_and_decides_on_the_sound_build(
    cpuinfo: str, found: tuple[str, tuple[str, ...]], kind: str, lay: Lay
) -> None:
    lay(proc__cpuinfo=cpuinfo)
    assert build.processor() == Processor(*found)
    assert build.sound_kind() == kind


@pytest.mark.usefixtures("lay")
def test_elsewhere_the_processor_is_a_name_without_flags() -> None:
    assert build.processor().name and build.processor().flags == ()


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, ("", None)),
        ({"dev__nvidia0": ""}, ("an NVIDIA GPU", "cuda")),
        ({"dev__kfd": ""}, ("an AMD GPU", "vulkan")),
        ({"sys__class__drm__card0__device__vendor": "0x10de\n"}, ("an NVIDIA GPU", "cuda")),
        ({"sys__class__drm__card1__device__vendor": "0x8086\n"}, ("an Intel GPU", "vulkan")),
        ({"sys__class__drm__card0__device__vendor": "0x1af4\n"}, ("", None)),
    ],
    ids=["none", "nvidia", "amd", "nvidia without driver", "intel", "a virtual one"],
)
def test_every_kind_of_gpu_has_its_own_build(
    files: dict[str, str], found: tuple[str, Kind | None], lay: Lay, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(**files)
    monkeypatch.setenv("PATH", "/nowhere")
    assert build.gpu_here() == found


def test_nvidias_driver_names_its_gpu_if_it_answers(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    def driver(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "NVIDIA H200\nNVIDIA H200\n")

    def silent(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", driver)
    assert build.gpu_here() == ("NVIDIA H200", "cuda")
    monkeypatch.setattr(subprocess, "run", silent)
    lay(dev__nvidia0="")
    assert build.gpu_here() == ("an NVIDIA GPU", "cuda")


@pytest.mark.parametrize(("machine", "kind"), [("arm64", "metal"), ("x86_64", None)])
def test_apples_own_processors_have_a_gpu(machine: str, kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert build.gpu_here()[1] == kind


def test_versions_are_shown_with_backends_and_devices_and_without_what_is_not_known() -> None:
    devices = [
        Device("CUDA0", "A card ", True, 3 * GIB, 8 * GIB),
        Device("CUDA1", "A card", True),
        Device("CPU", "A processor", False, 4 * GIB, 4 * GIB),
    ]
    library = Library(Build("0.4", "", "0.9", "", (Backend("CPU", ("AVX2",)), Backend("CUDA"))), devices)
    assert version_lines(library) == [
        "llama-cpp-python 0.4 (ggml 0.9)",
        "backend CPU: AVX2",
        "backend CUDA",
        "device CUDA0: A card, 3.0 of 8.0 GiB free",
        "device CUDA1: A card",
        "device CPU: A processor, 4.0 GiB",
    ]
    assert version_lines(Library(Build("0.4", "", "", "", ()), [])) == ["llama-cpp-python 0.4"]


def test_version_begins_with_laclis_own_and_goes_on_with_llama_cpps() -> None:
    done = run("--version")
    first, second, *rest = done.out.splitlines()
    assert (done.code, first, done.err) == (0, f"lacli {__version__}", "")
    assert second.startswith(build.build_words(build.load_library().build))
    assert any(line.startswith("backend CPU") for line in rest)
    assert any(line.startswith("device CPU") for line in rest)


def test_version_is_told_although_llama_cpp_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Library:
        raise LibraryMissing("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(build, "load_library", missing)
    done = call("--version")
    assert (done.code, done.out.splitlines()[0]) == (0, f"lacli {__version__}")
    assert "libcuda.so.1" in done.out and "lacli doctor" in done.out
