"""The doctor, on machines that are played: what it finds, what it advises, and that no probe can stop it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import pytest
import typer.main

from lacli.backends import Backend, Build, Device
from lacli.cli.environment import known_variables
from lacli.cli.main import app
from lacli.doctor import rebuild
from lacli.doctor.finding import Finding, usable
from lacli.doctor.machine import Library, LibraryMissing, Machine, Terminal, nearest_folder
from lacli.doctor.product import CHECKS, examine_machine
from lacli.doctor.report import as_json, as_lines
from lacli.doctor.self_test import SelfTest
from lacli.doctor.software import split_requirement, within
from lacli.doctor.versions import GIB
from tests.program import call, environment, finish, on_terminal, run

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
        "environ": {},
        "variables": {"LACLI_DEBUG": "", "LACLI_WINDOW": "-W", "LACLI_THREADS": "-t", "LLAMA_ARG_THREADS": "-t"},
        "folders": {"measured costs": Path("/home/me/.cache/lacli"), "history": Path("/home/me/.local/state/lacli")},
        "terminal": Terminal(True, False, "utf-8", 80),
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
        "broken_names": list,
        "self_test": lambda threads: SelfTest(50.0, 70.0, True),
    }
    return Machine(**{**given, **other})  # type: ignore[arg-type]


def finding(subject: str, played: Machine) -> Finding:
    return next(each for each in examine_machine(played) if each.subject == subject)


def fail(*_: object) -> NoReturn:
    raise OSError("the probe broke")


def test_a_good_machine_is_fine_in_every_respect() -> None:
    findings = examine_machine(machine())
    assert {each.state for each in findings} == {"fine"}
    assert [each.subject for each in findings] == [*(subject for subject, _ in CHECKS), "self-test"]
    assert usable(findings)
    assert as_lines(findings, Terminal(True, False, "utf-8", 80)).splitlines()[-1] == "lacli works here."


def test_a_cuda_card_beside_a_build_for_the_processor_gets_the_command_to_build_it_again() -> None:
    programs = having("g++", "nvcc", "nvidia-smi")
    found = finding("GPU", machine(which=programs, output=lambda command: "NVIDIA H200\nNVIDIA H200\n"))
    assert found.state == "better"
    assert "NVIDIA H200 (and 1 more)" in found.words and "processor only" in found.words
    assert found.todo == ('CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir llama-cpp-python',)


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


def test_memory_is_shown_as_the_model_that_fits() -> None:
    assert "10.0 of 16.0 GiB free: a model file of 8.0 GiB, about 14B" in finding("memory", machine()).words
    assert finding("memory", machine(free_memory=lambda: GIB // 5)).state == "better"
    unknown = finding("memory", machine(free_memory=fail))
    assert (unknown.state, unknown.words) == ("fine", "16.0 GiB")


def test_a_full_disk_is_said_with_two_ways_out() -> None:
    found = finding("model cache", machine(free_disk=lambda path: GIB // 10))
    assert found.state == "better"
    assert "3.2 GB kept, 107 MB free" in found.words
    assert "16.8 MB kept" in finding("model cache", machine(folder_size=lambda path: 2**24)).words
    assert "lacli rm" in found.todo[0] and "HF_HUB_CACHE" in found.todo[0]


def test_a_large_cache_is_not_counted_for_long_and_a_closed_one_is_said() -> None:
    assert "more than can be counted" in finding("model cache", machine(folder_size=lambda path: None)).words
    assert "not writable" in finding("model cache", machine(writable=lambda path: False)).words


def test_closed_folders_are_named() -> None:
    found = finding("own folders", machine(writable=lambda path: "state" not in str(path)))
    assert found.state == "better"
    assert "history (/home/me/.local/state/lacli)" in found.words and "measured costs" not in found.words


def test_the_token_is_never_shown() -> None:
    played = machine(environ={"HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "1"}, hub_token=lambda: True)
    found = finding("hub", played)
    assert "a token is set" in found.words and "HF_HUB_OFFLINE is set" in found.words
    findings = examine_machine(played)
    assert "hf_secret" not in as_lines(findings, played.terminal) + json.dumps(as_json(findings))


def test_variables_are_shown_with_the_flag_they_set_and_slips_with_the_nearest_name() -> None:
    environ = {"LACLI_WINDOW": "8", "LACLI_WINDWO": "8", "LACLI_THREADS": "", "LLAMA_ARG_PORT": "80", "PATH": "x"}
    found = finding("environment", machine(environ=environ))
    assert found.state == "better"
    assert "unknown: LACLI_WINDWO" in found.words and "LACLI_WINDOW=8 sets -W" in found.words
    assert "LLAMA_ARG_PORT: llama.cpp's" in found.words and "THREADS" not in found.words
    assert found.todo == ("LACLI_WINDWO: did you mean LACLI_WINDOW?",)


@pytest.mark.parametrize("name", ["LACLI_FOO", "LACLI_PROMPT", "LACLI_KEY"])
def test_a_variable_that_resembles_none_is_given_no_other_name(name: str) -> None:
    known = known_variables(getattr(typer.main.get_command(app), "commands"))  # noqa: B009  # Typer's own class has it
    found = finding("environment", machine(environ={name: "1"}, variables=known))
    assert found.todo == (f"{name}: no option has it",)


def test_of_two_variables_of_one_option_the_first_wins() -> None:
    known = {"LACLI_TEMP": "--temp", "LACLI_TEMPERATURE": "--temp", "LLAMA_ARG_TEMPERATURE": "--temp"}
    found = finding("environment", machine(environ=dict.fromkeys(known, "1"), variables=known))
    assert "LACLI_TEMP=1 sets --temp" in found.words
    assert all(f"{name} is not used, LACLI_TEMP wins" in found.words for name in [*known][1:])


def test_of_two_variables_the_one_that_loses_is_said() -> None:
    found = finding("environment", machine(environ={"LACLI_THREADS": "2", "LLAMA_ARG_THREADS": "9"}))
    assert found.state == "fine"
    assert "LLAMA_ARG_THREADS is not used, LACLI_THREADS wins" in found.words


def test_a_terminal_without_utf_8_gets_a_report_in_ascii() -> None:
    terminal = Terminal(True, False, "ascii", 80)
    findings = examine_machine(machine(terminal=terminal, free_disk=lambda path: 0))
    assert next(each for each in findings if each.subject == "terminal").state == "better"
    assert as_lines(findings, terminal).isascii()
    assert finding("terminal", machine(terminal=Terminal(True, True, "utf-8", 20))).state == "better"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("libcuda.so.1: cannot open shared object file", "NVIDIA's driver"),
        ("libcudart.so.12: cannot open shared object file", "LD_LIBRARY_PATH"),
        ("libgomp.so.1: cannot open shared object file", "libgomp1"),
        ("/lib/libc.so.6: version `GLIBC_2.38' not found", "build it here"),
        ("No module named 'llama_cpp'", "not installed"),
        ("invalid ELF header", "install it again"),
    ],
)
def test_a_library_that_does_not_load_is_the_only_thing_broken(reason: str, advice: str) -> None:
    def missing() -> Library:
        raise LibraryMissing(reason)

    findings = examine_machine(machine(library=missing))
    broken = [each for each in findings if each.state == "broken"]
    assert [each.subject for each in broken] == ["llama.cpp"]
    assert reason in broken[0].words and advice in broken[0].todo[0]
    assert {each.subject for each in findings if each.state == "unknown"} == {"instructions", "GPU", "self-test"}
    assert as_lines(findings, machine().terminal).endswith("lacli does not work here: see llama.cpp.")
    assert not usable(findings)


def test_a_demo_model_that_does_not_answer_is_broken_and_another_text_is_not() -> None:
    assert finding("self-test", machine(self_test=fail)).state == "broken"
    assert finding("self-test", machine(self_test=lambda threads: SelfTest(5, 6, False))).state == "better"
    assert "self-test" not in [each.subject for each in examine_machine(machine(self_test=fail), None)]


def test_old_pythons_and_packages_outside_the_tested_range_are_told_apart() -> None:
    assert finding("Python", machine(python=(3, 10, 4))).state == "broken"
    assert finding("Python", machine(python=(3, 14, 0))).state == "better"
    other = finding("packages", machine(version_of=lambda package: "3.1"))
    assert (other.state, other.todo) == ("better", ("pip install 'numpy>=2.4,<3'",))
    missing = finding("packages", machine(version_of=lambda package: None))
    assert (missing.state, missing.todo) == ("broken", ("pip install 'numpy>=2.4,<3'",))


@pytest.mark.parametrize(
    ("version", "inside"), [("2.4", True), ("2.4.1rc1", True), ("2.3.9", False), ("3.0", False), ("2.10", True)]
)
def test_ranges_compare_numbers_and_not_letters(version: str, inside: bool) -> None:
    assert within(version, ">=2.4,<3") == inside


def test_requirements_are_read_as_pip_writes_them() -> None:
    assert split_requirement("numpy>=2.4,<3") == ("numpy", ">=2.4,<3")
    assert split_requirement("lacli-x[plot] (>=1) ; python_version > '3'") == ("lacli-x", ">=1")
    assert split_requirement("rich") == ("rich", "")


PROBES = [field.name for field in fields(Machine) if str(field.type).startswith("Callable")]


@pytest.mark.parametrize("probe", PROBES)
def test_no_probe_that_fails_stops_the_report(probe: str) -> None:
    findings = examine_machine(machine(**{probe: fail}))
    assert len(findings) == len(CHECKS) + 1
    assert as_lines(findings, machine().terminal)


def test_a_check_that_fails_is_unknown_with_the_reason() -> None:
    found = finding("model cache", machine(hub_cache=fail))
    assert (found.state, "the probe broke" in found.words) == ("unknown", True)


def test_lines_keep_to_the_width_but_commands_stay_whole() -> None:
    findings = [Finding("GPU", "better", "many words " * 20, ("a command " * 20,))]
    lines = as_lines(findings, Terminal(True, False, "utf-8", 60)).splitlines()
    assert any(("a command " * 20).strip() in line for line in lines)
    assert all(len(line) <= 60 for line in lines if "a command" not in line)


def test_colours_only_where_the_terminal_has_them() -> None:
    findings = examine_machine(machine())
    assert "\x1b" not in as_lines(findings, Terminal(True, False, "utf-8", 80))
    assert "\x1b[1;32m" in as_lines(findings, Terminal(True, True, "utf-8", 80))


def test_a_command_of_windows_is_one_of_powershell() -> None:
    assert rebuild.command(machine(system="Windows"), "cuda").startswith('$env:CMAKE_ARGS="-DGGML_CUDA=on"; pip')


def test_broken_lines_of_the_own_aliases_are_named() -> None:
    found = finding("own folders", machine(broken_names=lambda: [f"models.txt, line {n}: no name" for n in range(5)]))
    assert found.state == "better" and found.todo
    assert "models.txt, line 2: no name and 2 more" in found.words and "line 3" not in found.words


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path


def test_the_program_reports_on_this_machine_and_writes_json(tmp_path: Path) -> None:
    env = {"LACLI_THREADS": "1", "HF_HOME": str(tmp_path)}
    done = run("doctor", env=env)
    assert (done.code, done.err) == (0, "")
    assert "self-test" in done.out and "\x1b" not in done.out
    found = json.loads(run("doctor", "--no-test", "--json", env=env).out)
    assert found["usable"] is True
    assert [each["subject"] for each in found["findings"]] == [subject for subject, _ in CHECKS]
    cache = next(each for each in found["findings"] if each["subject"] == "model cache")
    assert cache["facts"]["path"] == str(tmp_path / "hub")


def test_on_a_terminal_the_marks_are_coloured() -> None:
    assert "\x1b[1;32m" in finish(on_terminal("doctor", "--no-test", env={"TERM": "xterm"})).out


def test_a_library_that_cannot_be_imported_is_reported_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')\n")
    done = run("doctor", env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"})
    assert (done.code, done.err) == (1, "")
    assert "libcuda.so.1" in done.out and "NVIDIA's driver" in done.out


def test_an_endpoint_that_is_no_address_is_named() -> None:
    found = finding("hub", machine(environ={"HF_ENDPOINT": "foo"}))
    assert found.state == "better" and "models come from foo, which is no address" in found.words
    assert finding("hub", machine(environ={"HF_ENDPOINT": "https://a.b"})).state == "fine"


def test_a_broken_list_of_own_aliases_is_seen_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "lacli").mkdir()
    (tmp_path / "lacli" / "models.txt").write_text("fine a/b\nbroken\n")
    found = json.loads(call("doctor", "--no-test", "--json", env={"XDG_CONFIG_HOME": str(tmp_path)}).out)["findings"]
    assert "models.txt, line 2: no repository" in next(each["words"] for each in found if each["todo"])


def test_the_environments_slip_is_seen_by_the_program() -> None:
    assert "did you mean LACLI_STRICT?" in call("doctor", "--no-test", env={"LACLI_STRIKT": "1"}).out
    assert "LACLI_STRIKT" not in environment()


def test_threads_that_cannot_be_are_a_usage_error_that_names_the_variable() -> None:
    done = call("doctor", env={"LACLI_THREADS": "-2"})
    assert done.code == 2
    assert "LACLI_THREADS sets -t" in done.err
