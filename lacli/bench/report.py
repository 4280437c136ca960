"""Results for a person: tables by class, what became of the guesses, and a conclusion in words."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from lacli.bench.contenders import Judged
from lacli.bench.oracle import Ceilings
from lacli.bench.results import Result, overall
from lacli.bench.rows import Machine, distances, verdict
from lacli.bench.statistics import Ratio, spread
from lacli.bench.tasks import ALL
from lacli.text.format import markdown

LEGEND = (
    "x plain: plain decoding's time a token over the mode's, prompt by prompt, geometric mean; 95%: its interval,\n"
    "where prompts are enough for one. S: tokens a step. rows: of a step. 1st ms: to the first token."
)

CEILING_LEGEND = (
    "ceiling: x plain of an oracle that drafts plain decoding's own text in steps of that many rows, the most that\n"
    "any guesses could reach here, or 1 where plain is faster. share: of what lies above plain, (x plain - 1) /\n"
    "(ceiling - 1)."
)

WIDTH = 100
"""Columns of the conclusion."""

MOST_COMPARED = 4
"""Settings up to which the best is said to pay; among more, one may look best by chance."""

SMALL_STEP = 10
"""Rows of a step below which there is little left to save."""

MOST_POSITIONS = 6
"""Positions whose acceptance is shown."""


def as_lines(found: Sequence[Result], machine: Machine, judged: Judged, ceilings: Ceilings | None = None) -> str:
    """What was measured on, a table by class, the ceilings, a table of the guesses, and where texts part."""
    parts = [heading(machine), speeds(found, machine), guess_table(found)]
    if ceilings:
        parts.insert(2, ceiling_table(found, ceilings))
    if judged:
        parts.append(partings(found, judged))
    return "\n\n".join(part for part in parts if part)


def heading(machine: Machine) -> str:
    """The model, the machine and the settings that all rows share."""
    weights, most = machine.model_memory_mib, machine.peak_memory_mib
    copies = f", copies on {', '.join(machine.replicas)}" if machine.replicas else ""
    return (
        f"model     {machine.model_type}, {weights:.0f} MiB of weights; at most {most:.0f} MiB in memory\n"
        f"machine   {machine.where}; {machine.backends}, {machine.thread_words}{copies}; "
        f"llama-cpp-python {machine.build_number}\n"
        f"context   {machine.n_ctx} cells, -fa {machine.flash_attn} -ctk {machine.type_k} -ctv {machine.type_v}\n"
        f"sampling  {machine.sampling}"
    )


def speeds(found: Sequence[Result], machine: Machine) -> str:
    """A row for each class and contender: speed, speed-up with its interval, S, cost of a step, and the text."""
    header = ("class", "mode", "tokens/s", "±", "x plain", "95%", "S", "rows", "ms/step", "1st ms", "identical")
    rows = []
    for before, result in zip(["", *(each.kind for each in found)], found, strict=False):
        known = machine.comparable and result.identical is not None
        identical = f"{result.identical} of {result.prompts}" if known else ""
        rows.append((result.kind if result.kind != before else "", result.by.label, *_numbers(result), identical))
    return f"{markdown(header, rows, left=2)}\n\n{LEGEND}"


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


def ceiling_table(found: Sequence[Result], ceilings: Ceilings) -> str:
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
    return f"{markdown(header, rows, left=2)}\n\n{CEILING_LEGEND}"


def guess_table(found: Sequence[Result]) -> str:
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
    return markdown(header, rows)


def partings(found: Sequence[Result], judged: Judged) -> str:
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
    return markdown(header, rows, left=3)


def conclusion(found: Sequence[Result], ceilings: Ceilings | None = None) -> str:
    """Which setting pays on this machine, or that none does, in plain words.

    Where there are several plain decodings (with and without flash attention) the fastest is the baseline.
    """
    whole = overall(found)
    plainly = [result for result in whole if result.by.mode == "plain"]
    if len(whole) == len(plainly):
        return "Only plain decoding was measured, so there is nothing to compare."
    plain = max(plainly, key=lambda result: result.speed)
    guessing = [result.measured_by(plain) for result in whole if result not in plainly]
    best = max(guessing, key=lambda result: result.speedup.value)
    parts = (
        _verdict(best, len(guessing), "plain decoding" if len(plainly) == 1 else plain.by.label),
        _by_class(found),
        _reached(whole, ceilings or {}),
        _smaller(found),
    )
    return fill(" ".join(part for part in parts if part), WIDTH)


def _verdict(best: Result, settings: int, plain: str) -> str:
    """Whether the best of `settings` settings pays. `plain`: what it is measured by."""
    label, ratio = best.by.label, best.speedup
    between = f" (95%: {ratio.low:.2f} to {ratio.high:.2f})" if ratio.low is not None else ""
    prompts = "over all classes" if best.kind == ALL else f"for {best.kind}"
    speed = f"{ratio.value:.2f} times{between} {plain}'s speed {prompts}"
    if ratio.value <= 1:
        close = "" if ratio.high is None or ratio.surely_slower else ", which is about as fast"
        if settings == 1:
            return f"The setting tried does not pay on this machine: {label} ran at {speed}{close}."
        return f"None of the {settings} settings tried pays on this machine: the best, {label}, ran at {speed}{close}."
    if not ratio.surely_faster or best.prompts == 1:
        return f"{label} may pay on this machine: {speed}."
    if settings > MOST_COMPARED:
        alone = "the best of many is partly luck, so measure it alone to be sure"
        return f"{label} is the best of {settings} settings: {speed}; {alone}."
    return f"{label} pays on this machine: {speed}."


def _reached(whole: Sequence[Result], ceilings: Ceilings) -> str:
    """What there was to win, and how much of it mode auto has."""
    for result in whole:
        ceiling = ceilings.get((result.number, result.kind))
        share = ceiling.share(result.speedup.value) if ceiling else None
        if ceiling and share is not None:
            reached = f"auto's share of it {share:.0%}" if share else "auto reaches nothing of it"
            return f"The ceiling here is {ceiling.ratio.value:.2f}, and {reached}."
    return ""


def _by_class(found: Sequence[Result]) -> str:
    """The best setting of each class, and how sure it is that it pays there."""
    guessing = [result for result in found if result.by.mode != "plain"]
    kinds = list(dict.fromkeys(result.kind for result in guessing if result.kind != ALL))
    if len(kinds) < 2:
        return "" if any(result.speedup.value > 1 for result in guessing) else "Use --mode plain."
    best = [max((r for r in guessing if r.kind == kind), key=lambda result: result.speedup.value) for kind in kinds]
    # The interval of a single prompt says nothing about its class.
    sure = [result for result in best if result.speedup.surely_faster and result.prompts > 1]
    perhaps = [result for result in best if result.speedup.value > 1 and result not in sure]
    never = [result.kind for result in best if result.speedup.value <= 1]
    if not sure and not perhaps:
        return "It pays in no class: use --mode plain."
    parts = [
        f"it pays for {_named(sure)}" if sure else "",
        f"it may pay for {_named(perhaps)}" if perhaps else "",
        f"plain is the better choice for {', '.join(never)}" if never else "",
    ]
    return f"By class: {'; '.join(part for part in parts if part)}."


def _smaller(found: Sequence[Result]) -> str:
    """What to try next where lookahead loses and its steps are large."""
    ahead = [result for result in overall(found) if result.by.mode == "lookahead"]
    sizes = [(result.rows_per_step or 0.0) for result in ahead]
    if not ahead or min(sizes) < SMALL_STEP or any(result.speedup.value > 1 for result in ahead):
        return ""
    return f"Smaller steps may do better than {min(sizes):.0f} rows: --modes lookahead -W 0,1 -N 2-4 -G 1."


def _named(found: Sequence[Result]) -> str:
    return ", ".join(f"{each.kind} ({each.by.label}, {each.speedup.value:.2f})" for each in found)


def interval(ratio: Ratio) -> str:
    """The ends of the 95% interval, "" without one."""
    return "" if ratio.low is None else f"{ratio.low:.2f}-{ratio.high:.2f}"
