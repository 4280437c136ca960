"""Results in whole tables: by class, what became of the guesses, where texts part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lacli.bench.contenders import Judged
from lacli.bench.oracle import Ceilings
from lacli.bench.results import Result, overall
from lacli.bench.rows import Machine, distances, verdict
from lacli.bench.statistics import Ratio, spread
from lacli.bench.tasks import ALL
from lacli.terminal.screen import wrapped
from lacli.text.files import PAGE
from lacli.text.format import fitted, markdown

Write = Callable[[Sequence[str], Sequence[Sequence[str]], int], str]
"""Makes a table of a header, rows and the number of columns that are aligned to the left."""

LEGEND = (
    "x plain: plain decoding's time a token over the mode's, prompt by prompt, geometric mean; 95%: its interval, "
    "where prompts are enough for one. S: tokens a step. rows: of a step. 1st ms: to the first token."
)

CEILING_LEGEND = (
    "ceiling: x plain of an oracle that drafts plain decoding's own text in steps of that many rows, the most that "
    "any guesses could reach here, or 1 where plain is faster. share: of what lies above plain, (x plain - 1) / "
    "(ceiling - 1)."
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


def as_lines(
    found: Sequence[Result],
    machine: Machine,
    judged: Judged,
    ceilings: Ceilings | None = None,
    write: Write = markdown,
    width: int = PAGE,
) -> str:
    """What was measured on, a table by class, the ceilings, a table of the guesses, and where texts part.

    `write`: makes the tables. `width`: columns of the words around them.
    """
    parts = [wrapped(heading(machine), width), speeds(found, machine, write), wrapped(LEGEND, width)]
    if ceilings:
        parts += [ceiling_table(found, ceilings, write), wrapped(CEILING_LEGEND, width)]
    parts.append(guess_table(found, write))
    if judged:
        parts.append(partings(found, judged, write))
    return "\n\n".join(part for part in parts if part)


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
        "1" if plain else f"{result.speedup.value:.2f}",
        "" if plain else interval(result.speedup),
        f"{result.compression:.2f}",
        "" if rows is None else f"{rows:.1f}",
        f"{result.seconds_per_step * 1e3:.2f}",
        f"{result.first_token_s * 1e3:.1f}",
    )


def ceiling_table(found: Sequence[Result], ceilings: Ceilings, write: Write = markdown) -> str:
    """What an oracle reached in each class, and the share of that which was reached without one."""
    header = ("class", "mode", "ceiling", "95%", "with rows", "x plain", "share")
    rows = []
    for result in found:
        if ceiling := ceilings.get((result.number, result.kind)):
            share = ceiling.share(result.speedup.value)
            rows.append((
                result.kind,
                result.by.label,
                f"{ceiling.ratio.value:.2f}",
                interval(ceiling.ratio),
                str(ceiling.rows),
                f"{result.speedup.value:.2f}",
                "" if share is None else f"{share:.0%}" if share else "none",
            ))  # fmt: skip
    return write(header, rows, 2)


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


def partings(found: Sequence[Result], judged: Judged, write: Write = markdown) -> str:
    """Where texts part from plain's: margin, rounding and verdict of those that were decoded again."""
    rows = []
    for result in found:
        for each in result.answered:
            run = judged.get((result.number, each.number))
            if result.kind == ALL or run is None:
                continue
            margin, rounding = ("" if part is None else f"{part:.4f}" for part in distances(run.difference))
            label = result.by.label
            rows.append((result.kind, label, each.exchange.name, str(each.parts_at), margin, rounding, verdict(run)))
    # Of logits when greedy; when sampling, of the draw and of the tokens' shares.
    header = ("class", "mode", "prompt", "token", "off by", "rounding moves", "verdict")
    return write(header, rows, 3)


def interval(ratio: Ratio) -> str:
    """The ends of the 95% interval, "" without one."""
    return "" if ratio.low is None else f"{ratio.low:.2f}-{ratio.high:.2f}"
