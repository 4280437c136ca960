"""The build of llama.cpp: the command that makes another, what this machine has, and versions in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lacli import __version__
from lacli.llamacpp import build
from lacli.llamacpp.build import (
    REQUIREMENT,
    Kind,
    Library,
    LibraryMissing,
    Processor,
    rebuild_command,
)
from tests.program import ROOT, call, run

PIP = f"-m pip install --force-reinstall --no-cache-dir '{REQUIREMENT}'"

Lay = Callable[..., None]


@pytest.fixture
def lay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lay:
    """Lay files of the system into a folder that takes the place of /."""

    def files(**texts: str) -> None:
        for name, text in texts.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(build, "Path", lambda path: tmp_path / path.lstrip("/"))
    monkeypatch.setattr(build, "processor", build.processor.__wrapped__)
    return files


@pytest.mark.parametrize(
    ("kinds", "files", "arguments"),
    [
        ([], [], ""),
        (["cuda"], [], "-DGGML_CUDA=on"),
        (["rpc"], ["libggml-cuda.so", "libggml-cuda.so.0"], "-DGGML_CUDA=on -DGGML_RPC=on"),
        (["no-amx"], ["libggml-rpc.dylib"], "-DGGML_RPC=on -DCMAKE_CXX_FLAGS=-mno-amx-int8"),
    ],
)
def test_a_new_build_keeps_the_backends_of_this_one(
    kinds: list[Kind], files: list[str], arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PYTHON", "/my tools/python3")
    monkeypatch.setattr(build, "library_files", lambda: [*map(Path, files)])
    assert f'"{REQUIREMENT}"' in (ROOT / "pyproject.toml").read_text()
    before = f'CMAKE_ARGS="{arguments}" ' if arguments else ""
    assert rebuild_command(*kinds) == f"{before}'/my tools/python3' {PIP}"


@pytest.mark.parametrize(
    ("cpuinfo", "found", "kind"),
    [
        ("model name : Fast\nflags : fpu amx_int8\n\nflags : avx\n", ("Fast", ("fpu", "amx_int8")), "no-amx"),
        ("processor : 0\nFeatures : fp asimd\nCPU part : 0xd0c\n", ("0xd0c", ("fp", "asimd")), "native"),
    ],
)  # fmt: skip
def test_the_processor_is_read_from_linux_and_decides_on_the_sound_build(
    cpuinfo: str, found: tuple[str, tuple[str, ...]], kind: str, lay: Lay
) -> None:
    assert build.processor().name and build.processor().flags == ()
    lay(proc__cpuinfo=cpuinfo)
    assert build.processor() == Processor(*found)
    assert build.sound_kind() == kind


def test_every_kind_of_gpu_has_its_own_build(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.gpu_kind() is None
    lay(dev__kfd="")
    assert build.gpu_kind() == "vulkan"
    lay(dev__nvidia0="")
    assert build.gpu_kind() == "cuda"
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert build.gpu_kind() == "metal"


def test_version_begins_with_laclis_own_and_goes_on_with_llama_cpps() -> None:
    done = run("--version")
    first, second, *rest = done.out.splitlines()
    assert (done.code, first, done.err) == (0, f"lacli {__version__}", "")
    assert second.startswith(build.build_words(build.load_library().build))
    assert any(line.startswith("device CPU") for line in rest)


def test_version_is_told_although_llama_cpp_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Library:
        raise LibraryMissing("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(build, "load_library", missing)
    done = call("--version")
    assert (done.code, done.out.splitlines()[0]) == (0, f"lacli {__version__}")
    assert "libcuda.so.1" in done.out and "lacli doctor" in done.out
