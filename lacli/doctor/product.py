"""`lacli doctor` as a whole: every check, guarded, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable

from lacli.doctor import (
    hardware,
    places,
    software,
    surroundings,
)
from lacli.doctor.finding import Finding
from lacli.doctor.machine import LibraryMissing, Machine
from lacli.errors import in_one_line

Check = Callable[[Machine], Finding]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("Python", software.check_python),
    ("packages", software.check_packages),
    ("llama.cpp", software.check_library),
    ("instructions", hardware.check_instructions),
    ("kernels", hardware.check_kernels),
    ("GPU", hardware.check_gpu),
    ("RPC", software.check_rpc),
    ("compiler", software.check_compiler),
    ("threads", hardware.check_threads),
    ("memory", hardware.check_memory),
    ("model cache", places.check_cache),
    ("hub", places.check_hub),
    ("own folders", places.check_folders),
    ("environment", surroundings.check_variables),
    ("terminal", surroundings.check_terminal),
)


def examine_machine(machine: Machine, threads: int | None = 0) -> list[Finding]:
    """All findings. threads: of the self-test, 0 for one a physical core; None leaves the test out."""
    checks = [*CHECKS] if threads is None else [*CHECKS, ("self-test", lambda each: check_answers(each, threads))]
    return [_guarded(subject, check, machine) for subject, check in checks]


def check_answers(machine: Machine, threads: int) -> Finding:
    """The demo model answers, and lookahead gives the text of plain decoding."""
    machine.library()
    try:
        plain, lookahead, same = machine.self_test(threads)
    except Exception as error:  # whatever keeps it from answering, lacli does not work
        return Finding("self-test", "broken", f"the demo model does not answer: {error}", ("lacli run -v shows more",))
    facts = {"plain_tokens_per_second": round(plain, 1), "lookahead_tokens_per_second": round(lookahead, 1)}
    words = f"the demo model answers: plain {plain:.0f} tokens/s, lookahead {lookahead:.0f}"
    if not same:
        todo = ("lacli check says whether rounding is the reason",)
        return Finding("self-test", "better", f"{words}; their texts differ", todo, {**facts, "same": same})
    words += ", the same text"
    if lookahead < plain:
        words += " (so small a model gains nothing; lacli cost MODEL tells for yours)"
    return Finding("self-test", "fine", words, facts={**facts, "same": same})


def _guarded(subject: str, check: Check, machine: Machine) -> Finding:
    """A check that fails says so in its line; the others go on."""
    try:
        return check(machine)
    except LibraryMissing:
        return Finding(subject, "unknown", "known when llama.cpp loads")
    except Exception as error:  # a probe met a system that nobody thought of
        return Finding(subject, "unknown", f"cannot tell: {in_one_line(error)}")
