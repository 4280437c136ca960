"""The kit for GPUs: what it packs and builds, what it measures again, and the whole of it on a CPU.

The build runs against a made-up cmake, which puts the installed libraries in place.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from benchmarks.gpu import build, measure, pack
from benchmarks.gpu.commands import Done, KitError
from benchmarks.gpu.folders import Folders
from benchmarks.gpu.machine import describe_machine, folder_name
from benchmarks.gpu.measure import FULL, Model
from benchmarks.gpu.report import report
from benchmarks.gpu.toolkit import cublas_arguments, driver_arguments, runtime_arguments, toolkit_root
from benchmarks.gpu.trim import is_needed
from tests.program import ROOT, environment

PACKAGE = Path(llama_cpp.__file__).parent
SCRIPT = "benchmarks/gpu/run.py"
NEEDED = (
    "CMakeLists.txt",
    "llama_cpp/llama_cpp.py",
    "vendor/llama.cpp/cmake/common.cmake",
    "vendor/llama.cpp/ggml/CMakeLists.txt",
    "vendor/llama.cpp/ggml/include/ggml-vulkan.h",
    "vendor/llama.cpp/ggml/src/ggml.c",
    "vendor/llama.cpp/ggml/src/ggml-cuda/template-instances/mmq-instance-q4_0.cu",
    # Too long a name, with its archive's folder, for tar's own field.
    "vendor/llama.cpp/ggml/src/ggml-cuda/template-instances/fattn-vec-instance-bf16-bf16.cu",
    "vendor/llama.cpp/src/models/llama.cpp",
    "vendor/llama.cpp/vendor/nlohmann/json.hpp",
)
NEEDLESS = (
    "docs/index.md",
    "llama_cpp/server/app.py",
    "llama_cpp/lib/libllama.so",
    "vendor/llama.cpp/tools/server/server.cpp",
    "vendor/llama.cpp/README.md",
    "vendor/llama.cpp/ggml/src/ggml-vulkan/ggml-vulkan.cpp",
)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "work", tmp_path / "kit", tmp_path / "results")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source archive with the installed package's Python files and made-up sources."""
    path = tmp_path_factory.mktemp("sdist") / "llama_cpp_python-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in (*NEEDED, *NEEDLESS):
            add_text(archive, f"llama_cpp_python-1.0/{name}", f"content of {name}")
        for file in PACKAGE.glob("*.py"):
            archive.add(file, f"llama_cpp_python-1.0/llama_cpp/{file.name}")
    return path


@pytest.fixture(scope="module")
def archive(sdist: Path) -> Path:
    """A kit without wheels."""
    path = sdist.with_name("kit.tar.xz")
    pack.pack(path, sdist, "3.12", "none")
    return path


def add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    archive.addfile(member, io.BytesIO(text.encode()))


def test_what_the_build_needs_is_kept_and_nothing_else() -> None:
    assert [path for path in (*NEEDED, *NEEDLESS) if is_needed(path)] == [*NEEDED]


def test_a_kit_holds_the_trimmed_source_and_lacli_with_a_small_model(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        names = {name.removeprefix(f"{pack.FOLDER}/") for name in packed.getnames()}
    assert {f"{build.PACKAGE}/{path}" for path in NEEDED} <= names
    assert not {f"{build.PACKAGE}/{path}" for path in NEEDLESS} & names
    assert {"tests/data/stdlib-7m.q8_0.gguf", "lacli/cli/main.py", SCRIPT, "benchmarks/expand.py"} <= names
    assert not any("__pycache__" in name or name.startswith("benchmarks/results") for name in names)


def test_a_kit_that_is_too_large_is_refused_and_not_left_behind(
    sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "LIMIT", 1000)
    monkeypatch.setattr(pack, "OURS", ("README.md",))
    with pytest.raises(KitError, match="more than 0: pack fewer"):
        pack.pack(tmp_path / "kit.tar.xz", sdist, "3.12", "none")
    assert not list(tmp_path.iterdir())


def test_a_broken_source_archive_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"nothing")
    with pytest.raises(KitError, match="cannot read .*broken"):
        pack.pack(tmp_path / "kit.tar.xz", broken, "3.12", "none")


def test_wheels_are_chosen_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = [tmp_path / "gguf-0.19.0-py3-none-any.whl", tmp_path / "huggingface_hub-2.4.0-py3-none-any.whl"]
    monkeypatch.setattr(pack, "download_wheels", lambda folder, python: wheels)
    assert pack.chosen_wheels(tmp_path, "3.12", "all") == wheels
    assert pack.chosen_wheels(tmp_path, "3.12", "none") == []
    assert pack.chosen_wheels(tmp_path, "3.12", "huggingface-hub") == wheels[1:]
    with pytest.raises(KitError, match="does not import torch"):
        pack.chosen_wheels(tmp_path, "3.12", "gguf,torch")


def test_unpacking_again_changes_nothing_until_the_archive_changes(archive: Path, tmp_path: Path) -> None:
    kit = pack.unpack(archive, tmp_path)
    source = kit / build.PACKAGE / "CMakeLists.txt"
    assert source.read_text() == "content of CMakeLists.txt"
    source.write_text("changed")
    pack.unpack(archive, tmp_path)
    assert source.read_text() == "changed"
    os.utime(archive, ns=(1, 1))
    pack.unpack(archive, tmp_path)
    assert source.read_text() == "content of CMakeLists.txt"


def write_wheel(path: Path, module: str) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}.py", "")


def test_wheels_for_this_python_are_unpacked_and_others_refused(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    ours = f"cp{sys.version_info.major}{sys.version_info.minor}"
    write_wheel(wheels / "pure-1-py3-none-any.whl", "pure")
    write_wheel(wheels / f"ours-1-{ours}-{ours}-manylinux_2_28_x86_64.whl", "ours")
    write_wheel(wheels / "stable-1-cp38-abi3-manylinux_2_28_x86_64.whl", "stable")
    build.unpack_wheels(wheels, site)
    assert {path.stem for path in site.iterdir()} == {"pure", "ours", "stable"}
    write_wheel(wheels / "other-1-cp27-cp27m-manylinux_2_28_x86_64.whl", "other")
    with pytest.raises(KitError, match="other.* is not for this Python: pack again with --python 3"):
        build.unpack_wheels(wheels, site)


CMAKE = """#!/bin/sh
echo "$@" >> {calls}
case "$1" in
--build)
    if [ -e {broken} ]; then echo "error: no such header"; exit 1; fi
    mkdir -p "$2/bin" && cp -P {libraries}/lib*.so* "$2/bin"
esac
"""


class Workplace:
    """A folder with a made-up cmake on PATH, and the kit's command line."""

    def __init__(self, folder: Path, archive: Path) -> None:
        self.folder, self.archive = folder, archive
        self.broken, self.calls = folder / "broken", folder / "calls"
        cmake = folder / "bin" / "cmake"
        cmake.parent.mkdir()
        cmake.write_text(CMAKE.format(calls=self.calls, broken=self.broken, libraries=PACKAGE / "lib"))
        cmake.chmod(0o755)

    def build(self) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = [sys.executable, SCRIPT, "build", "--arch", "cpu", "--jobs", "1"]
        places = ["--work", str(self.folder / "work"), "--archive", str(self.archive)]
        return subprocess.run(
            [*command, *places], cwd=ROOT, env=environment({"PATH": path}), capture_output=True, text=True
        )


def test_a_build_that_failed_shows_why_goes_on_at_the_next_call_and_is_done_once(tmp_path: Path, archive: Path) -> None:
    workplace = Workplace(tmp_path, archive)
    workplace.broken.touch()
    failed = workplace.build()
    assert failed.returncode == 1
    assert "error: no such header" in failed.stderr and "build: the build failed: " in failed.stderr
    workplace.broken.unlink()
    done = workplace.build()
    assert done.returncode == 0 and done.stderr.endswith("build: built\n"), done.stderr
    calls = workplace.calls.read_text().splitlines()
    assert "-DLLAVA_BUILD=OFF" in calls[0] and "GGML_CUDA" not in calls[0]
    assert calls[1].endswith("--target llama --parallel 1") and calls[:2] == calls[2:]
    assert workplace.build().returncode == 0
    assert workplace.calls.read_text().splitlines() == calls
    site = tmp_path / "work" / "site"
    command = [sys.executable, "-c", "import llama_cpp; print(llama_cpp.__file__)"]
    found = subprocess.run(command, env=environment({"PYTHONPATH": str(site)}), capture_output=True, text=True)
    assert Path(found.stdout.strip()).is_relative_to(site)


def test_a_library_of_the_toolkit_needs_no_word(tmp_path: Path) -> None:
    for name in ("lib64/libcublas.so", "lib64/stubs/libcuda.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert cublas_arguments([tmp_path], [], "13") == []
    assert driver_arguments([tmp_path], []) == []


def test_cublas_is_found_among_pythons_packages_in_the_compilers_version(tmp_path: Path) -> None:
    for folder, release in (("cu12", "12"), ("cu13", "13")):
        for name in ("cublas", "cublasLt"):
            library = tmp_path / "nvidia" / folder / "lib" / f"lib{name}.so.{release}"
            library.parent.mkdir(parents=True, exist_ok=True)
            library.touch()
    arguments = cublas_arguments([tmp_path / "toolkit"], [tmp_path / "none", tmp_path], "13")
    assert arguments[0] == f"-DCUDA_cublas_LIBRARY={tmp_path}/nvidia/cu13/lib/libcublas.so.13"
    assert arguments[1] == f"-DCUDA_cublasLt_LIBRARY={tmp_path}/nvidia/cu13/lib/libcublasLt.so.13"
    assert f"-DCMAKE_CUDA_FLAGS=-I{tmp_path}/nvidia/cu13/include" in arguments
    with pytest.raises(KitError, match="no cuBLAS 14"):
        cublas_arguments([tmp_path / "toolkit"], [tmp_path], "14")


def test_the_toolkit_is_found_behind_a_script_and_its_runtime_is_named(tmp_path: Path) -> None:
    (tmp_path / "cuda" / "lib").mkdir(parents=True)
    assert runtime_arguments(tmp_path / "cuda") == []
    (tmp_path / "cuda" / "lib" / "libcudart.so.13").touch()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f"#!/bin/sh\necho '#$ _HERE_=x' >&2\necho '#$ TOP={tmp_path}/cuda/bin/..' >&2\n")
    nvcc.chmod(0o755)
    (tmp_path / "cuda" / "bin").mkdir()
    assert toolkit_root(str(nvcc)) == tmp_path / "cuda"
    assert runtime_arguments(tmp_path / "cuda") == [f"-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath,{tmp_path}/cuda/lib"]


def test_without_a_stub_the_driver_is_linked_or_done_without(tmp_path: Path) -> None:
    assert driver_arguments([tmp_path], [tmp_path]) == ["-DGGML_CUDA_NO_VMM=ON"]
    (tmp_path / "libcuda.so.1").touch()
    assert driver_arguments([tmp_path], [tmp_path]) == [f"-DCUDA_cuda_driver_LIBRARY={tmp_path}/libcuda.so.1"]


class Commands:
    """Notes the commands it is given and answers with what each should print; code: of the commands named."""

    def __init__(self, code: Mapping[str, int] | None = None, out: str = "[]") -> None:
        self.seen: list[list[str]] = []
        self.code, self.out = dict(code or {}), out

    def __call__(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> Done:
        self.seen.append(list(arguments))
        return Done(self.code.get(arguments[3], 0), self.out)

    @property
    def names(self) -> list[str]:
        return [f"{arguments[3]} {arguments[4]}" for arguments in self.seen]


MODELS = [Model("1b", "F16"), Model("7b", "Q4_0")]


def silent(sentence: str) -> None:
    pass


def test_models_that_exist_are_not_made_again(folders: Folders) -> None:
    folders.models.mkdir(parents=True)
    measure.model_path(folders, MODELS[0]).touch()
    commands = Commands()
    measure.expand(folders, MODELS, commands, silent)
    (command,) = commands.seen
    assert command[1:] == ["-m", "benchmarks.expand", "7b-Q4_0.gguf", "--shape", "7b", "--type", "Q4_0"]
    with pytest.raises(KitError, match=r"7b-Q4_0\.gguf could not be made"):
        measure.expand(folders, MODELS, Commands({"7b-Q4_0.gguf": 1}), silent)


@pytest.fixture
def expanded(folders: Folders) -> Folders:
    folders.models.mkdir(parents=True)
    for model in MODELS:
        measure.model_path(folders, model).touch()
    return folders


def test_every_command_runs_on_every_model_and_what_has_a_result_does_not_run_again(expanded: Folders) -> None:
    commands = Commands()
    assert measure.measure(expanded, MODELS, FULL, 150, commands, silent) == []
    wanted = [f"{name} {model.name}.gguf" for model in MODELS for name in ("cost", "bench", "check")]
    assert commands.names == wanted
    assert {"-o", "json", "--seconds", "150"} <= set(commands.seen[1])
    (expanded.results / "7b-Q4_0.cost.json").unlink()
    again = Commands()
    measure.measure(expanded, MODELS, FULL, 150, again, silent)
    assert again.names == ["cost 7b-Q4_0.gguf"]


@pytest.mark.parametrize(
    ("commands", "told", "kept"),
    [
        (Commands({"cost": 1}), "lacli cost 1b-F16.gguf: exit code 1", ["bench", "check"]),
        (Commands({"check": 3}), "lacli check 1b-F16.gguf: it found a bug", ["bench", "check", "cost"]),
        (Commands(out="[1, 2"), "lacli cost 1b-F16.gguf: it printed no JSON", []),
    ],
)
def test_what_fails_is_told_and_the_others_run(
    commands: Commands, told: str, kept: list[str], expanded: Folders
) -> None:
    failed = measure.measure(expanded, MODELS[:1], FULL, 3, commands, silent)
    assert failed[0] == told and len(commands.seen) == 3
    assert sorted(path.name for path in expanded.results.glob("*.json")) == [f"1b-F16.{name}.json" for name in kept]


def test_a_model_that_is_missing_is_told(folders: Folders) -> None:
    assert measure.measure(folders, MODELS[:1], FULL, 3, Commands(), silent) == [
        "1b-F16.gguf is missing: run the stage expand"
    ]


def bench_row(kind: str, setting: str, speedup: float) -> dict[str, Any]:
    return {
        "class": kind,
        "mode": setting.partition(" ")[0],
        "setting": setting,
        "median_ts": 100 * speedup,
        "speedup": speedup,
        "speedup_low": speedup - 0.1,
        "speedup_high": speedup + 0.1,
        "tokens_per_step": 2 * speedup,
        "rows_per_step": None,
        "ms_per_step": 4.0,
        "identical_n": 7,
        "prompts": 8,
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [bench_row(kind, "plain", 1) for kind in ("code", "edit", "all")]
    rows += [bench_row("code", "lookahead W=5", 1.25), bench_row("edit", "lookahead W=5", 1.75)]
    rows += [bench_row("all", "lookahead W=5", 1.5)]
    stairs = {"context": 64, "rows": [1, 8, 100], "ms": [5.25, 5.5, 9.0], "relative": [1.0, 1.05, 1.8]}
    check = {"answers": 24, "identical": 23, "rounding": 1, "bugs": 0, "verdict": "rounding"}
    card = {"name": "A Card", "memory": "100 MiB", "driver": "580"}
    machine = {"gpus": [card], "cuda": "13.0", "cpu": "A CPU", "cores": 2, "memory_gib": 24}
    machine |= {"python": "3.12.3", "date": "2026-01-02"}
    made_up = {"13b-F16.bench": rows, "7b-F16.bench": rows, "7b-F16.cost": {"staircases": [stairs]}}
    made_up |= {"7b-F16.check": check, "machine": machine}
    for name, value in made_up.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_report_has_a_row_for_every_result_there_is(results: Path) -> None:
    text = report(results)
    found = [cells(line) for line in text.splitlines() if line.startswith(("| 7b", "| 13b"))]
    assert found == [
        ["7b-F16", "plain", "100.0", "1.00", "", "2.00", "", "4.00", "7 of 8"],
        ["7b-F16", "lookahead W=5", "150.0", "1.50", "1.40 to 1.60", "3.00", "", "4.00", "7 of 8"],
        ["13b-F16", "plain", "100.0", "1.00", "", "2.00", "", "4.00", "7 of 8"],
        ["13b-F16", "lookahead W=5", "150.0", "1.50", "1.40 to 1.60", "3.00", "", "4.00", "7 of 8"],
        ["7b-F16", "lookahead W=5", "1.25", "1.75"],
        ["13b-F16", "lookahead W=5", "1.25", "1.75"],
        ["7b-F16", "64", "5.25", "1.00", "1.05"],
        ["7b-F16", "24", "23", "1", "0", "rounding"],
    ]
    assert "A Card (100 MiB, driver 580), A CPU (2 cores, 24 GiB of memory), CUDA 13.0, Python 3.12.3" in text


def test_a_report_of_nothing_has_no_tables(tmp_path: Path) -> None:
    assert "|" not in report(tmp_path)


def test_a_machine_is_named_after_its_card_and_not_after_its_owner() -> None:
    machine = describe_machine(cpu_only=True)
    assert os.uname().nodename not in json.dumps(machine)
    assert folder_name({"gpus": [{"name": "NVIDIA H200"}], "cpu": "any"}) == "nvidia-h200"
    assert folder_name({"gpus": [], "cpu": "AMD EPYC (TM) 9"}) == "amd-epyc-tm-9"


def dry_run(stage: str, work: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, stage, "--dry-run", "--types", "Q8_0", "--work", str(work), "--machine", "here"]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)


def test_a_dry_run_goes_from_the_small_model_to_the_report(tmp_path: Path) -> None:
    first = dry_run("all", tmp_path)
    assert first.returncode == 0, first.stderr
    results = tmp_path / "results" / "here"
    rows = json.loads((results / "tiny-Q8_0.bench.json").read_text())
    assert {row["class"] for row in rows} == {"code", "edit", "all"}
    assert {row["model_filename"] for row in rows} == {"tiny-Q8_0.gguf"}
    stairs = json.loads((results / "tiny-Q8_0.cost.json").read_text())["staircases"]
    # Half a second is too short for the largest step where one was held up.
    assert stairs[0]["rows"] in ([1, 2], [1, 2, 4])
    assert json.loads((results / "tiny-Q8_0.check.json").read_text())["bugs"] == 0
    readme = (results / "README.md").read_text()
    assert readme.count("| tiny-Q8_0 ") == len([row for row in rows if row["class"] == "all"]) + 1 + 1 + 1


def test_a_stage_that_lacks_the_one_before_says_so_in_a_line(tmp_path: Path) -> None:
    done = dry_run("bench", tmp_path)
    assert (done.returncode, done.stderr) == (1, "bench: tiny-Q8_0.gguf is missing: run the stage expand\n")
    done = dry_run("report", tmp_path / "other")
    assert done.returncode == 1
    assert done.stderr.startswith("report: there are no results in ") and done.stderr.count("\n") == 1
