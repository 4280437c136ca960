"""What the doctor says of one subject. Records only; checks make them and the report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["fine", "better", "broken", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    state: fine, better (it works, and could be better), broken (lacli cannot run) or unknown (it could not be found
    out). todo: what to do, a line each; commands as they are typed. facts: the same for a program.
    """

    subject: str
    state: State
    words: str
    todo: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


def usable(findings: list[Finding]) -> bool:
    """Whether lacli runs here."""
    return all(finding.state != "broken" for finding in findings)
