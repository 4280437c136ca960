"""Results in whole tables: by class, and what became of the guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lacli.bench.results import LEAST_PROMPTS, LEAST_TOKENS, Result, overall
from lacli.bench.rows import Machine
from lacli.bench.statistics import Ratio, spread
from lacli.terminal.screen import wrapped
from lacli.text.files import PAGE
from lacli.text.format import fitted, markdown

Write = Callable[[Sequence[str], Sequence[Sequence[str]], int], str]
"""Makes a table of a header, rows and the number of columns that are aligned to the left."""

LEGEND = (
    "x plain: plain decoding's time a token over the mode's, prompt by prompt, geometric mean; 95%: its interval; "
    f"both from {LEAST_PROMPTS} prompts and {LEAST_TOKENS} tokens on. S: tokens a step. rows: of a step. "
    "1st ms: to the first token."
)

MOST_POSITIONS = 6
"""Positions whose acceptance is shown."""

KEYS = 2
"""Columns that name a row: the class and the mode."""


def lined_up(width: int) -> Write:
    """Tables in `width` columns, 0 for any number: columns without room stand in tables below."""

    def write(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
        return "\n".join(fitted(header, rows, range(left, len(header)), width, min(left, KEYS)))

    return write


def as_lines(found: Sequence[Result], machine: Machine, write: Write = markdown, width: int = PAGE) -> str:
    """What was measured on, a table by class, and a table of the guesses.

    `write`: makes the tables. `width`: columns of the words around them.
    """
    speed, guesses = speeds(found, machine, write), guess_table(found, write)
    return "\n\n".join(filter(None, [wrapped(heading(machine), width), speed, wrapped(LEGEND, width), guesses]))


def heading(machine: Machine) -> str:
    """The model, the machine and the settings that all rows share."""
    weights, most = machine.model_memory_mib, machine.peak_memory_mib
    return (
        f"model     {machine.model_type}, {weights:.0f} MiB of weights; at most {most:.0f} MiB in memory\n"
        f"machine   {machine.where}; {machine.backends}, {machine.threads_and_copies}; "
        f"llama-cpp-python {machine.build_number}\n"
        f"context   {machine.n_ctx} cells, -fa {machine.flash_attn} -ctk {machine.type_k} -ctv {machine.type_v}\n"
        f"sampling  {machine.sampling}"
    )


def speeds(found: Sequence[Result], machine: Machine, write: Write = markdown) -> str:
    """A row for each class and contender: speed, speed-up with its interval, S, cost of a step, and the text."""
    header = ("class", "mode", "tokens/s", "±", "x plain", "95%", "S", "rows", "ms/step", "1st ms", "identical")
    rows = []
    for before, result in zip(["", *(each.kind for each in found)], found, strict=False):
        known = machine.comparable and result.identical is not None
        identical = f"{result.identical} of {result.prompts}" if known else ""
        rows.append((result.kind if result.kind != before else "", result.by.label, *_numbers(result), identical))
    return write(header, rows, 2)


def _numbers(result: Result) -> tuple[str, ...]:
    scatter, rows, plain = spread(result.speeds), result.rows_per_step, result.by.mode == "plain"
    # Three digits, or all of those before the point.
    places = 0 if result.speed >= 100 else 1 if result.speed >= 10 else 2
    return (
        f"{result.speed:.{places}f}",
        "" if scatter is None else f"{scatter:.{places}f}",
        "1" if plain else f"{result.speedup.value:.2f}" if result.is_enough else "",
        interval(result.speedup) if result.is_enough and not plain else "",
        f"{result.compression:.2f}",
        "" if rows is None else f"{rows:.1f}",
        f"{result.seconds_per_step * 1e3:.2f}",
        f"{result.first_token_s * 1e3:.1f}",
    )


def guess_table(found: Sequence[Result], write: Write = markdown) -> str:
    """What became of the guesses, over all classes: how many were accepted, and how deep."""
    rows = []
    for result in overall(found):
        accepted = result.acceptance
        if not (result.drafted and accepted.histogram):
            continue
        rates = [f"{rate:.0%}" for rate in accepted.position_rates[:MOST_POSITIONS]]
        rows.append((
            result.by.label,
            f"{result.drafted / result.steps:.1f}",
            f"{result.accepted / result.drafted:.1%}",
            " ".join(rates) or "none",
            " ".join(map(str, accepted.histogram)),
            f"{result.by.memory:.0f}",
        ))  # fmt: skip
    if not rows:
        return ""
    header = ("mode", "guesses/step", "accepted", "at least 1, 2, .. accepted", "steps of 1, 2, .. tokens", "MiB")
    return write(header, rows, 1)


def interval(ratio: Ratio) -> str:
    """The ends of the 95% interval, "" without one."""
    return "" if ratio.low is None else f"{ratio.low:.2f}-{ratio.high:.2f}"
