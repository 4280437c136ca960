"""The doctor, on machines that are played: what it finds, what it advises, and that no probe can stop it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import typer.main

from lacli.cli.environment import known_variables
from lacli.cli.main import app
from lacli.doctor import rebuild
from lacli.doctor.finding import Finding, usable
from lacli.doctor.machine import (
    Library,
    LibraryMissing,
    Machine,
    Terminal,
    this_machine,
)
from lacli.doctor.product import CHECKS, examine_machine
from lacli.doctor.report import as_json, as_lines
from lacli.doctor.self_test import SelfTest
from lacli.doctor.software import split_requirement, within
from lacli.doctor.versions import GIB
from lacli.text.files import nearest_folder
from tests.doctored import fail, finding, machine
from tests.program import (
    call,
    environment,
    finish,
    on_terminal,
    run,
)


def test_a_good_machine_is_fine_in_every_respect() -> None:
    findings = examine_machine(machine())
    assert {each.state for each in findings} == {"fine"}
    assert [each.subject for each in findings] == [*(subject for subject, _ in CHECKS), "self-test"]
    assert usable(findings)
    assert as_lines(findings, Terminal(True, False, "utf-8", 80)).splitlines()[-1] == "lacli works here."


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


def test_a_folder_with_a_file_in_its_place_or_above_it_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "file").chmod(0o755)
    here = this_machine({}, {}, {}, tmp_path, Terminal(False, False, "utf-8", 80))
    assert here.writable(tmp_path) and here.writable(tmp_path / "new" / "below")
    assert not here.writable(tmp_path / "file") and not here.writable(tmp_path / "file" / "below")
    folders = {"measured costs": tmp_path / "file", "chat history": tmp_path / "file" / "lacli", "others": tmp_path}
    words = finding("own folders", machine(folders=folders, writable=here.writable)).words
    assert "measured costs" in words and "chat history" in words and "others" not in words


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
    assert {each.subject for each in findings if each.state == "unknown"} == {"instructions", "GPU", "RPC", "self-test"}
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
    assert (other.state, other.todo) == ("better", ("/usr/bin/python3 -m pip install 'numpy>=2.4,<3'",))
    missing = finding("packages", machine(version_of=lambda package: None))
    assert (missing.state, missing.todo) == ("broken", ("/usr/bin/python3 -m pip install 'numpy>=2.4,<3'",))


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
    command = rebuild.command(machine(system="Windows", executable=r"C:\Py\python.exe"), "cuda")
    assert command.startswith(r"""$env:CMAKE_ARGS="-DGGML_CUDA=on"; & 'C:\Py\python.exe' -m pip install""")


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


def test_control_codes_in_a_variable_do_not_reach_the_terminal() -> None:
    played = machine(environ={"LACLI_WINDOW": "7\x1b[2J"})
    text = as_lines(examine_machine(played), played.terminal)
    assert "\x1b" not in text and "LACLI_WINDOW=7" in text
