"""The doctor on surroundings: the environment's variables that lacli reads, and the terminal."""

from __future__ import annotations

from lacli.doctor.finding import Finding
from lacli.doctor.machine import Machine
from lacli.settings import OURS, THEIRS
from lacli.text.format import offered, suggest

REALLY_NEAR = 0.75
"""How alike a variable is that is offered instead; 1 is the same."""

NARROW = 40
"""Columns below which tables break."""


def check_variables(machine: Machine) -> Finding:
    """What is set and what it changes; a name that lacli does not know is probably a slip."""
    named = {name: machine.environ[name] for name in sorted(machine.environ) if name.startswith((OURS, THEIRS))}
    given = {name: value for name, value in named.items() if value}
    ours = [name for name in given if name.startswith(OURS)]
    unknown = [name for name in ours if name not in machine.variables]
    theirs = [name for name in given if name.startswith(THEIRS) and name not in machine.variables]
    parts = [_change(name, given, machine) for name in given if name in machine.variables]
    if theirs:
        parts.append(f"{', '.join(theirs)}: llama.cpp's, not read by lacli")
    facts = {"set": [name for name in given if name in machine.variables], "unknown": unknown}
    if unknown:
        parts = [f"unknown: {', '.join(unknown)}", *parts]
        todo = tuple(_meant(name, machine) for name in unknown)
        return Finding("environment", "better", "; ".join(parts), todo, facts)
    words = "; ".join(parts) or f"no {OURS} or {THEIRS} variable is set"
    return Finding("environment", "fine", words, facts=facts)


def _change(name: str, given: dict[str, str], machine: Machine) -> str:
    flag = machine.variables[name]
    winner = next(known for known, of in machine.variables.items() if of == flag and known in given)
    if name != winner:
        return f"{name} is not used, {winner} wins"
    return f"{name}={given[name]} sets {flag}" if flag else f"{name}={given[name]}"


def _meant(name: str, machine: Machine) -> str:
    # The beginning that all have would make any two alike.
    ours = [known.removeprefix(OURS) for known in machine.variables if known.startswith(OURS)]
    found = [OURS + each for each in suggest(name.removeprefix(OURS), ours, most=1, least=REALLY_NEAR)]
    return f"{name}: {offered(found) or 'no option has it'}"


def check_terminal(machine: Machine) -> Finding:
    """Whether colours, all characters and tables come out well."""
    terminal = machine.terminal
    encoding = terminal.encoding or "unknown"
    facts = {
        "is_terminal": terminal.is_terminal,
        "colours": terminal.colours,
        "encoding": encoding,
        "columns": terminal.columns,
    }
    kind = f"{terminal.columns} columns" if terminal.is_terminal else "not a terminal"
    words = f"{kind}, {'colours' if terminal.colours else 'no colours'}, {encoding}"
    if encoding.lower().replace("-", "").replace("_", "") != "utf8":
        todo = ("export PYTHONUTF8=1, or choose a UTF-8 locale: export LC_ALL=C.UTF-8",)
        return Finding("terminal", "better", f"{words}: some characters cannot be shown", todo, facts)
    if terminal.is_terminal and terminal.columns < NARROW:
        return Finding("terminal", "better", f"{words}: narrow", ("widen it to 80 columns",), facts)
    return Finding("terminal", "fine", words, facts=facts)
