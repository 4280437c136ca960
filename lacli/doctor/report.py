"""The doctor's findings as lines for a person and as one object for a program. Prints nothing."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from rich.color import ColorSystem
from rich.style import Style

from lacli import __version__
from lacli.doctor.finding import Finding, State, usable
from lacli.doctor.machine import Terminal
from lacli.text.format import printable

MARKS: dict[State, tuple[str, str, str]] = {
    "fine": ("\N{CHECK MARK}", "ok", "green"),
    "better": ("!", "! ", "yellow"),
    "broken": ("\N{BALLOT X}", "X ", "red"),
    "unknown": ("?", "? ", "bright_black"),
}
"""A state's mark, the same in ASCII, and its colour."""

LEAST_COLUMNS, MOST_COLUMNS = 40, 100


def as_lines(findings: list[Finding], terminal: Terminal) -> str:
    """The report: a line a subject, what to do below it, and a sentence at the end."""
    columns = min(max(terminal.columns, LEAST_COLUMNS), MOST_COLUMNS)
    lines = [f"lacli {__version__}", ""]
    for finding in findings:
        lines += _lines(finding, terminal, columns)
    return "\n".join([*lines, "", _summary(findings)])


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """One object: whether lacli is usable, and every finding with its facts."""
    return {
        "version": __version__,
        "usable": usable(findings),
        "findings": [
            {
                "subject": finding.subject,
                "state": finding.state,
                "words": finding.words,
                "todo": list(finding.todo),
                "facts": finding.facts,
            }
            for finding in findings
        ],
    }


def _lines(finding: Finding, terminal: Terminal, columns: int) -> list[str]:
    plain = "utf" not in terminal.encoding.lower()
    sign, ascii_sign, colour = MARKS[finding.state]
    mark = ascii_sign if plain else sign
    shown = _coloured(mark, colour, terminal)
    indent = " " * (len(mark) + 1 + 14)
    wrapped = wrap(finding.words, columns - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
    # The value of a variable may have control codes in it.
    words, todo = ([printable(line) for line in lines] for lines in (wrapped, finding.todo))
    first = f"{shown} {finding.subject:<13} {words[0]}"
    arrow = "->" if plain else "\N{RIGHTWARDS ARROW}"
    # What is typed stays in one piece, so that it can be copied.
    return [first, *(indent + rest for rest in words[1:]), *(f"{indent}{arrow} {step}" for step in todo)]


def _summary(findings: list[Finding]) -> str:
    broken = [finding.subject for finding in findings if finding.state == "broken"]
    better = sum(finding.state == "better" for finding in findings)
    if broken:
        return f"lacli does not work here: see {' and '.join(broken)}."
    if better:
        return f"lacli works here; {better} {'thing' if better == 1 else 'things'} could be better (!)."
    return "lacli works here."


def _coloured(text: str, colour: str, terminal: Terminal) -> str:
    if not terminal.colours:
        return text
    return Style(color=colour, bold=True).render(text, color_system=ColorSystem.STANDARD)
