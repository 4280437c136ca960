"""The doctor: what each check finds on machines that are played, the report, and the program on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lacli.cli import doctor
from lacli.cli.doctor import Finding, report
from lacli.llamacpp import probe
from lacli.llamacpp.build import GIB, Library, LibraryMissing, Processor
from lacli.llamacpp.devices import CPU, Device
from lacli.llamacpp.library import Backend, Build
from tests.program import call, finish, on_terminal, run

PROCESSOR = Device(CPU, "A processor", False, 16 * GIB, 16 * GIB)
CARD = Device("CUDA0", "A card", True, 20 * GIB, 24 * GIB)
FEATURES = ("AVX", "AVX2", "F16C", "FMA", "LLAMAFILE")
FLAGS = ("fpu", "avx", "avx2", "f16c", "fma")
NO_VARIABLE = "no LACLI_ or LLAMA_ARG_ variable is set"

Play = Callable[..., None]


def library(*names: str, devices: tuple[Device, ...] = (PROCESSOR,), features: tuple[str, ...] = FEATURES) -> Library:
    backends = Backend(CPU, features), *map(Backend, names)
    return Library(Build("0.3.36", "0.5.0", "0.25.3", "abc", backends), list(devices))


def fail(*_: object) -> NoReturn:
    raise OSError("the probe broke")


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Let functions of the doctor give these values; at first those of a machine on which all is well."""

    def change(**values: Any) -> None:
        for name, value in values.items():
            if name == "load":
                monkeypatch.setattr("os.getloadavg", lambda value=value: (value, 0.0, 0.0))
            else:
                monkeypatch.setattr(doctor, name, value if callable(value) else lambda *_, value=value: value)

    monkeypatch.setattr("lacli.llamacpp.devices.logical_cores", lambda: 8)
    change(load_library=library(), processor=Processor("A processor", FLAGS), gpu_here=("", None), cpu_limit=None)
    change(physical_cores=4, load=0.1, free_disk=100 * GIB)
    return change


NVIDIA = {"gpu_here": ("NVIDIA H200", "cuda")}
FAST = {"processor": Processor("Fast", (*FLAGS, "avx512f", "avx512_vnni"))}
AMX = {"processor": Processor("Fast", (*FLAGS, "amx_int8"))}
FAST_AMX = {"processor": Processor("Fast", (*FLAGS, "amx_int8", "avx512f"))}
ARM = {"processor": Processor("ARM", ("asimd", "asimddp", "i8mm")), "load_library": library(features=("NEON",))}

FOUND: list[tuple[Mapping[str, Any], Callable[[], Finding], str, str, str]] = [
    ({}, doctor.check_library, "fine", "llama-cpp-python 0.3.36 (llama.cpp 0.5.0, ggml 0.25.3, commit abc)", ""),
    ({}, doctor.check_instructions, "fine", "AVX, AVX2, F16C, FMA in use", ""),
    ({"processor": Processor("M4")}, doctor.check_instructions, "fine", "AVX, AVX2, F16C, FMA in use", ""),
    (FAST, doctor.check_instructions, "better", "built without AVX512, AVX512_VNNI, which", "-DGGML_NATIVE=on"),
    (AMX, doctor.check_instructions, "fine", "FMA in use", ""),
    (FAST_AMX, doctor.check_instructions, "better", "built without AVX512, which", "-DGGML_NATIVE=on"),
    (ARM, doctor.check_instructions, "better", "built without DOTPROD, MATMUL_INT8, which", "-DGGML_NATIVE=on"),
    ({}, doctor.check_devices, "fine", "no GPU found; the processor computes (device CPU)", ""),
    ({"load_library": library("CUDA", devices=(CARD, PROCESSOR))}, doctor.check_devices, "fine",
     "CUDA0: A card, 20.0 of 24.0 GiB free", ""),
    (NVIDIA, doctor.check_devices, "better", "NVIDIA H200 is here, but this llama.cpp does not", "-DGGML_CUDA=on"),
    ({**NVIDIA, "load_library": library("CUDA")}, doctor.check_devices, "better", "it finds none", "update its driver"),
    ({}, lambda: doctor.check_cores(0), "fine", "4 physical cores, -t is 4 by default; load 0.1", ""),
    ({}, lambda: doctor.check_cores(3), "fine", "4 physical cores, -t is 3; load 0.1", ""),
    ({"cpu_limit": 2.5}, lambda: doctor.check_cores(0), "better", "may use 2.5 of them", "export LACLI_THREADS=2"),
    ({"cpu_limit": 2.5}, lambda: doctor.check_cores(3), "better", "-t is 3; but", "export LACLI_THREADS=2"),
    ({"cpu_limit": 2.5}, lambda: doctor.check_cores(2), "fine", "-t is 2", ""),
    ({"cpu_limit": 0.5}, lambda: doctor.check_cores(1), "fine", "-t is 1", ""),
    ({"cpu_limit": 8.0}, lambda: doctor.check_cores(0), "fine", "-t is 4", ""),
    ({}, lambda: doctor.check_cores(99), "better", "-t 99 is more than the 8 cores here", "leave -t out"),
    ({"free_disk": GIB // 2}, doctor.check_cache, "fine", "537 MB free", ""),
    ({"free_disk": GIB // 20}, doctor.check_cache, "better", "53.7 MB free, too little for a model", "make room"),
    ({"nearest_folder": Path("/dev/null")}, doctor.check_cache, "better", "it is not writable", "HF_HUB_CACHE"),
    ({}, lambda: doctor.check_variables({"LACLI_W": "", "PATH": "x"}), "fine", "no LACLI_ or LLAMA_ARG_", ""),
    ({}, lambda: doctor.check_variables({"LACLI_A": "1", "LACLI_API_KEY": "x"}), "fine", "A=1, LACLI_API_KEY=...", ""),
]  # fmt: skip
"""What differs from a good machine, a check, and what it finds; '' for nothing to be done."""


@pytest.mark.parametrize(("changes", "check", "state", "words", "todo"), FOUND, ids=[row[3] for row in FOUND])
def test_a_check_says_what_it_finds_and_what_to_do(
    changes: Mapping[str, Any], check: Callable[[], Finding], state: str, words: str, todo: str, play: Play
) -> None:
    play(**changes)
    found = check()
    assert (found.state, words in found.words, len(found.todo)) == (state, True, bool(todo)), found
    assert todo in "".join(found.todo) and ("pip install" in "".join(found.todo)) == ("GGML" in todo)


def test_a_library_that_does_not_load_is_broken_with_the_command_and_what_needs_it_is_unknown(play: Play) -> None:
    def missing() -> NoReturn:
        raise LibraryMissing("libcuda.so.1: cannot open shared object file")

    play(gpu_here=("an Intel GPU", "vulkan"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "load_library", missing)
        found = doctor.check_library()
        unknown = [
            doctor.check_instructions,
            doctor.check_devices,
            lambda: doctor.check_answers(1),
        ]
        assert {doctor.guarded(check).words for check in unknown} == {"known when llama.cpp loads"}
    assert found.state == "broken" and "libcuda.so.1" in found.words
    assert "install what the reason names" in found.todo[0] and 'CMAKE_ARGS="-DGGML_VULKAN=on"' in found.todo[1]


def test_a_check_that_fails_is_unknown_with_the_reason() -> None:
    assert doctor.guarded(fail) == Finding("unknown", "cannot tell: the probe broke")


@pytest.mark.parametrize(
    ("flags", "arguments"), [(("avx",), "-DGGML_NATIVE=on"), (("amx_int8",), "-DCMAKE_CXX_FLAGS=-mno-amx-int8")]
)
@pytest.mark.parametrize(("without", "state"), [("", "better"), ("SIGILL when it is loaded", "broken")])
def test_a_build_that_fails_is_named_with_the_one_that_does_not(
    flags: tuple[str, ...], arguments: str, without: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def trial(*threads: int, repack: bool) -> str:
        tried.append(threads)
        return "SIGSEGV" if repack else without

    monkeypatch.setattr(probe, "forget", lambda: tried.append("forgotten"))
    monkeypatch.setattr(probe, "trial", trial)
    monkeypatch.setattr("lacli.llamacpp.build.processor", lambda: Processor("", flags))
    found = doctor.check_kernels(3)
    assert tried == ["forgotten", (3, 3), (3, 3)]
    assert found.state == state and (without or "SIGSEGV") in found.words and arguments in found.todo[0]


@pytest.mark.parametrize(
    ("text", "limit"),
    [("250000 100000\n", 2.5), ("50000 100000\n", 0.5), ("max 100000\n", None), ("nonsense", None), (None, None)],
)
def test_a_containers_limit_is_read(text: str | None, limit: float | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert doctor.cpu_limit(tmp_path) == limit


@pytest.mark.parametrize(("tokens", "state"), [([1, 2], "fine"), ([1, 3], "better")])
def test_the_installed_model_answers_alike_in_both_modes(tokens: list[int], state: str, play: Play) -> None:
    answers = {"plain": [1, 2], "lookahead": tokens}
    play(answer_tokens=lambda path, mode, threads: answers[mode])
    assert doctor.check_answers(1).state == state
    play(answer_tokens=fail)
    assert doctor.check_answers(1).state == "broken"


def test_without_a_model_to_try_lacli_works_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "smollm2_file", lambda: None)
    found = doctor.check_answers(1)
    assert found.words.startswith("no model to try: ") and lines_of({"self-test": found})[-1] == "lacli works here."


def lines_of(findings: Mapping[str, Finding], columns: int = 60, **how: bool) -> list[str]:
    return report(findings, columns, **{"colored": False, **how}).splitlines()


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (["fine", "unknown"], "lacli works here."),
        (["better", "fine"], "lacli works here; 1 thing could be better (!)."),
        (["better", "better"], "lacli works here; 2 things could be better (!)."),
        (["broken", "better", "broken"], "lacli does not work here: see 0 and 2."),
    ],
)
def test_the_last_sentence_says_whether_lacli_works(states: list[Any], words: str) -> None:
    assert lines_of({str(place): Finding(state, "x") for place, state in enumerate(states)})[-1] == words


def test_the_program_reports_on_this_machine_and_writes_json(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "LACLI_SEED": "1"}
    done = call("doctor", "--json", env=env)
    found = json.loads(done.out)
    assert (done.code, done.err, found["usable"]) == (0, "", True) and found["version"]
    by_subject = {each["subject"]: each for each in found["findings"]}
    assert [*by_subject][:2] == ["Python", "llama.cpp"] and "self-test" in by_subject
    assert {*by_subject["kernels"]} == {"subject", "state", "words", "todo"}
    assert "LACLI_SEED=1" in by_subject["environment"]["words"]


def test_on_a_terminal_the_marks_are_coloured(tmp_path: Path) -> None:
    env = {"TERM": "xterm", "HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    shown = finish(on_terminal("doctor", "--no-test", env=env)).out
    assert "\x1b[1;32m" in shown and "smollm2" not in shown and f"{tmp_path / 'hub'}: " in shown


def test_a_library_that_cannot_be_imported_is_reported_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')\n")
    done = run("doctor", env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"})
    assert (done.code, done.err) == (1, "")
    assert "libcuda.so.1" in done.out and "pip install --force-reinstall" in done.out and "\x1b" not in done.out
