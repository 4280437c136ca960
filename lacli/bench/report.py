"""A benchmark's tables and its conclusion for a person; `rows.py` is for programs.

Formats results; measures nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

from lacli.bench.ceiling import Ceilings
from lacli.bench.judging import Judged
from lacli.bench.results import ALL, Result, overall
from lacli.bench.rounds import Contender
from lacli.bench.rows import Machine, distances, verdict
from lacli.bench.statistics import Ratio, spread
from lacli.text.format import markdown

LEGEND = (
    "x plain: plain decoding's time a token over the mode's, prompt by prompt, geometric mean; 95%: its interval,\n"
    "where prompts are enough for one. S: tokens a step. rows: of a step. 1st ms: to the first token."
)

CEILING_LEGEND = (
    "ceiling: x plain of an oracle that drafts plain decoding's own text in steps of so many rows, the most that any\n"
    "guesses could reach here, or 1 where plain is faster. share: of what lies above plain, (x plain - 1) /\n"
    "(ceiling - 1)."
)

WIDTH = 100
"""Columns of the conclusion."""

MOST_COMPARED = 4
"""Settings of which the best can be said to pay; of more, one may look best by chance."""

SMALL_STEP = 10
"""Rows of a step below which there is little left to save."""

MOST_POSITIONS = 6
"""Positions whose acceptance is shown."""


def as_lines(
    found: Sequence[Result],
    contenders: Sequence[Contender],
    machine: Machine,
    judged: Judged,
    ceilings: Ceilings | None = None,
) -> str:
    """What was measured on, a table by class, the ceilings, a table of the guesses, and where texts part."""
    parts = [heading(machine), speeds(found, contenders, machine)]
    if ceilings:
        parts.append(ceiling_table(found, contenders, ceilings))
    if guesses := guess_table(found, contenders):
        parts.append(guesses)
    if judged:
        parts.append(partings(found, contenders, judged))
    return "\n\n".join(parts)


def heading(machine: Machine) -> str:
    """The model, the machine and the settings that all rows share."""
    loading = machine.loading
    copies = f", copies on {', '.join(machine.replicas)}" if machine.replicas else ""
    flags = f"-fa {machine.flash_attention} -ctk {loading.cache_type_k} -ctv {loading.cache_type_v}"
    return "\n".join(
        [
            f"model     {machine.description}, {machine.model_memory:.0f} MiB of weights; "
            f"at most {machine.peak_memory:.0f} MiB in memory",
            f"machine   {machine.where}; {machine.backends}, {loading.thread_words}{copies}; "
            f"llama-cpp-python {machine.version}",
            f"context   {machine.context} cells, {flags}",
            f"sampling  {machine.sampling}",
        ]
    )


def speeds(found: Sequence[Result], contenders: Sequence[Contender], machine: Machine) -> str:
    """A row for each class and point: speed, speed-up with its interval, S, cost of a step, and the text."""
    header = ("class", "mode", "tokens/s", "±", "x plain", "95%", "S", "rows", "ms/step", "1st ms", "identical")
    rows = []
    before = ""
    for result in found:
        label = contenders[result.contender].label
        kind = result.kind if result.kind != before else ""
        before = result.kind
        known = machine.comparable and result.identical is not None
        identical = f"{result.identical} of {result.prompts}" if known else ""
        plain = contenders[result.contender].mode == "plain"
        rows.append((kind, label, *_numbers(result, plain=plain), identical))
    return f"{markdown(header, rows, left=2)}\n\n{LEGEND}"


def _numbers(result: Result, *, plain: bool) -> tuple[str, ...]:
    speed, scatter = _with_spread(result.speed, spread(result.speeds))
    rows = result.rows_per_step
    return (
        speed,
        scatter,
        "1" if plain else f"{result.speedup.value:.2f}",
        "" if plain else interval(result.speedup),
        f"{result.compression:.2f}",
        "" if rows is None else f"{rows:.1f}",
        f"{result.seconds_per_step * 1e3:.2f}",
        f"{result.first_token_s * 1e3:.1f}",
    )


def ceiling_table(found: Sequence[Result], contenders: Sequence[Contender], ceilings: Ceilings) -> str:
    """What an oracle reached in each class, and the share of that which was reached without one."""
    header = ("class", "mode", "ceiling", "95%", "with rows", "x plain", "share")
    rows = []
    for result in found:
        if ceiling := ceilings.get((result.contender, result.kind)):
            share = ceiling.share(result.speedup.value)
            rows.append((
                result.kind,
                contenders[result.contender].label,
                f"{ceiling.ratio.value:.2f}",
                interval(ceiling.ratio),
                str(ceiling.rows),
                f"{result.speedup.value:.2f}",
                "" if share is None else f"{share:.0%}" if share else "none",
            ))  # fmt: skip
    return f"{markdown(header, rows, left=2)}\n\n{CEILING_LEGEND}"


def guess_table(found: Sequence[Result], contenders: Sequence[Contender]) -> str:
    """What became of the guesses, over all classes: how many were accepted, and how deep."""
    rows = []
    for result in overall(found):
        accepted = result.acceptance
        if not accepted.drafted:
            continue
        rates = [f"{rate:.0%}" for rate in accepted.position_rates[:MOST_POSITIONS]]
        rows.append((
            contenders[result.contender].label,
            f"{accepted.drafted / result.steps:.1f}",
            f"{accepted.accepted_share:.1%}",
            " ".join(rates) or "none",
            " ".join(map(str, accepted.histogram)),
            f"{contenders[result.contender].memory:.0f}",
        ))  # fmt: skip
    if not rows:
        return ""
    header = ("mode", "guesses/step", "accepted", "at least 1, 2, .. accepted", "steps of 1, 2, .. tokens", "MiB")
    return markdown(header, rows)


def score_table(scores: Mapping[int, Mapping[str, float]], contenders: Sequence[Contender]) -> str:
    """How good the answers of a suite were, in percent, by contender, and how many were cut by the limit."""
    names = list(dict.fromkeys(name for score in scores.values() for name in score if not name.endswith("_n")))
    rows = []
    for number, score in scores.items():
        counts = f"{score['scored_n']:.0f}", f"{score['cut_n']:.0f}"
        rows.append((contenders[number].label, *counts, *(f"{score[name]:.2%}" for name in names)))
    return markdown(("quality", "answers", "cut by -n", *names), rows) if names else ""


def partings(found: Sequence[Result], contenders: Sequence[Contender], judged: Judged) -> str:
    """Where texts part from plain's: margin, rounding and verdict of those that were decoded again."""
    rows = []
    for result in found:
        for each in result.answered:
            run = judged.get((result.contender, each.number))
            if result.kind == ALL or run is None or each.parting is None:
                continue
            margin, rounding = ("" if part is None else f"{part:.4f}" for part in distances(run.difference))
            label = contenders[result.contender].label
            rows.append((result.kind, label, each.exchange.name, str(each.parting.at), margin, rounding, verdict(run)))
    # Of logits when greedy; when sampling, of the draw and of the tokens' shares.
    header = ("class", "mode", "prompt", "token", "off by", "rounding moves", "verdict")
    return markdown(header, rows, left=3)


def conclusion(found: Sequence[Result], contenders: Sequence[Contender], ceilings: Ceilings | None = None) -> str:
    """Which setting pays on this machine, or that none does, in plain words.

    What is measured by is the fastest plain decoding, where several were (with and without flash attention).
    """
    whole = overall(found)
    plainly = [result for result in whole if contenders[result.contender].mode == "plain"]
    if len(whole) == len(plainly):
        return "Only plain decoding was measured, so there is nothing to compare."
    plain = max(plainly, key=lambda result: result.speed)
    rivals = [result.measured_by(plain) for result in whole if result not in plainly]
    best = max(rivals, key=lambda result: result.speedup.value)
    label, ratio = contenders[best.contender].label, best.speedup
    named = "plain decoding's" if len(plainly) == 1 else f"{contenders[plain.contender].label}'s"
    speed = f"{_times(ratio)} {named} speed {'over all classes' if best.kind == ALL else f'for {best.kind}'}"
    if ratio.value <= 1:
        tried = "The setting" if len(rivals) == 1 else f"None of the {len(rivals)} settings"
        verdict = (
            f"does not pay on this machine: {label}"
            if len(rivals) == 1
            else f"pays on this machine: the best, {label},"
        )
        close = "" if ratio.high is None or ratio.surely_slower else ", which is about as fast"
        sentence = f"{tried} tried {verdict} ran at {speed}{close}."
    elif not ratio.surely_faster or best.prompts == 1:
        sentence = f"{label} may pay on this machine: {speed}."
    elif len(rivals) > MOST_COMPARED:
        alone = "the best of many is partly luck, so measure it alone to be sure"
        sentence = f"{label} is the best of {len(rivals)} settings: {speed}; {alone}."
    else:
        sentence = f"{label} pays on this machine: {speed}."
    parts = sentence, _by_class(found, contenders), _reached(whole, ceilings or {}), _smaller(found, contenders)
    return fill(" ".join(part for part in parts if part), WIDTH)


def _reached(whole: Sequence[Result], ceilings: Ceilings) -> str:
    """What there was to win, and how much of it mode auto has."""
    for result in whole:
        ceiling = ceilings.get((result.contender, result.kind))
        share = ceiling.share(result.speedup.value) if ceiling else None
        if ceiling and share is not None:
            reached = f"auto's share of it {share:.0%}" if share else "auto reaches nothing of it"
            return f"The ceiling here is {ceiling.ratio.value:.2f}, and {reached}."
    return ""


def _by_class(found: Sequence[Result], contenders: Sequence[Contender]) -> str:
    """The best setting of each class, and how sure it is that it pays there."""
    guessing = [result for result in found if contenders[result.contender].mode != "plain"]
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
        f"it pays for {_named(sure, contenders)}" if sure else "",
        f"it may pay for {_named(perhaps, contenders)}" if perhaps else "",
        f"plain is the better choice for {', '.join(never)}" if never else "",
    ]
    return f"By class: {'; '.join(part for part in parts if part)}."


def _smaller(found: Sequence[Result], contenders: Sequence[Contender]) -> str:
    """What to try next where lookahead loses and its steps are large."""
    ahead = [result for result in overall(found) if contenders[result.contender].mode == "lookahead"]
    sizes = [(result.rows_per_step or 0.0) for result in ahead]
    if not ahead or min(sizes) < SMALL_STEP or any(result.speedup.value > 1 for result in ahead):
        return ""
    return f"Smaller steps may do better than {min(sizes):.0f} rows: --modes lookahead -W 0,1 -N 2-4 -G 1."


def _named(found: Sequence[Result], contenders: Sequence[Contender]) -> str:
    return ", ".join(f"{each.kind} ({contenders[each.contender].label}, {each.speedup.value:.2f})" for each in found)


def interval(ratio: Ratio) -> str:
    return "" if ratio.low is None else f"{ratio.low:.2f}-{ratio.high:.2f}"


def _with_spread(value: float, around: float | None) -> tuple[str, str]:
    """A speed to three digits, or all of those before the point, and its spread to as many places."""
    places = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{places}f}", "" if around is None else f"{around:.{places}f}"


def _times(ratio: Ratio) -> str:
    between = f" (95%: {ratio.low:.2f} to {ratio.high:.2f})" if ratio.low is not None else ""
    return f"{ratio.value:.2f} times{between}"
