"""What a search has found, as tables and sentences for a person; `tune_json.py` is for programs.

Formats results; measures nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from textwrap import fill

from lacli.amounts import counted
from lacli.bench.report import interval
from lacli.bench.results import Result
from lacli.bench.statistics import Ratio
from lacli.settings import DecodeSettings
from lacli.tables import markdown
from lacli.tune.candidates import ALL, flags, words
from lacli.tune.confirm import Confirmed, says_something
from lacli.tune.search import Entrant
from lacli.tune.tuning import Setup, Tuning

WIDTH = 80
"""Columns of all but commands, which have to stay one line to be copied."""

SHOWN = 12
"""Candidates that the search's table shows; the others did worse."""

LEGEND = (
    "x plain: plain decoding's time a token over the setting's, prompt by prompt, geometric mean; 95%: its interval, "
    "where prompts are enough for one. S: tokens a step. rows: of a step."
)

SURER = "a larger --seconds, or more prompts, would make it surer"


def as_lines(tuning: Tuning) -> str:
    """What was tuned, the search, the last round, and what follows."""
    parts = [_heading(tuning.setup)]
    if tuning.ranked:
        parts.append(f"The search: {_search_words(tuning)}\n\n{_search_table(tuning.ranked)}")
    if tuning.confirmed:
        parts.append(f"The last round: {_last_words(tuning.confirmed)}\n\n{_last_table(tuning.confirmed)}")
    if tuning.ranked or tuning.confirmed:
        parts.append(_filled(LEGEND))
    parts.append(_filled(conclusion(tuning)))
    return "\n\n".join([*parts, *(["\n".join(f"  {line}" for line in lines)] if (lines := _commands(tuning)) else [])])


def conclusion(tuning: Tuning) -> str:
    """What is best here, how it compares with plain decoding and with auto, and whether it is remembered."""
    if tuning.best is None:
        return _so_far(tuning)
    if tuning.only_plain or not tuning.confirmed:
        found = f"There is nothing to tune: {tuning.only_plain}."
    elif tuning.best.mode == "plain":
        found = _nothing_pays(tuning.confirmed)
    elif tuning.confirmed.used is tuning.confirmed.auto:
        found = _auto_pays(tuning.confirmed)
    else:
        found = _winner_pays(tuning.confirmed)
    if tuning.trouble:
        return f"{found} It is not remembered: {tuning.trouble}."
    return f"{found} {_name(tuning.best)} is remembered for this model and machine, for run, chat and bench."


def last_rows(confirmed: Confirmed) -> list[tuple[str, Result]]:
    """Everyone in the last round, by name."""
    named = [("plain", confirmed.plain), ("auto", confirmed.auto)]
    if confirmed.winner and confirmed.tried:
        named.append((words(confirmed.tried), confirmed.winner))
    return named


def _heading(setup: Setup) -> str:
    lines = {
        "model": setup.description,
        "machine": f"{setup.devices}, {setup.loading.all_thread_words}",
        "context": setup.loading.flags,
        "sampling": setup.sampling,
        "prompts": setup.asked,
    }
    return "\n".join(_filled(f"{name:9} {text}", indent=10) for name, text in lines.items())


def _search_words(tuning: Tuning) -> str:
    rounds = max(each.rounds for each in tuning.ranked)
    shown = f", the best {SHOWN} of them here" if len(tuning.ranked) > SHOWN else ""
    lost = f"; {tuning.lost} more cannot pay" if tuning.lost else ""
    return f"{counted(len(tuning.ranked), 'setting')} in {counted(rounds, 'round')}{shown}{lost}"


def _search_table(ranked: Sequence[Entrant]) -> str:
    header = ("setting", "answers", "x plain", "95%", "S", "rows")
    rows = [
        (each.contender.label, str(each.result.prompts), *_numbers(each.result))
        for each in ranked[:SHOWN]
        if each.result
    ]
    return markdown(header, rows)


def _last_words(confirmed: Confirmed) -> str:
    measured = "the best of the search, measured anew" if confirmed.winner else "plain decoding and mode auto"
    return f"{measured}, {counted(confirmed.plain.prompts, 'prompt')}"


def _last_table(confirmed: Confirmed) -> str:
    header = ("setting", "tokens/s", "x plain", "95%", "S", "rows")
    rows = []
    for name, result in last_rows(confirmed):
        speed = f"{result.speed:.0f}" if result.speed >= 100 else f"{result.speed:.1f}"
        rows.append((name, speed, *_numbers(result, plain=name == "plain")))
    return markdown(header, rows)


def _numbers(result: Result, *, plain: bool = False) -> tuple[str, str, str, str]:
    ratio = ("1", "") if plain else (f"{result.speedup.value:.2f}", interval(result.speedup))
    rows = result.rows_per_step
    return (*ratio, f"{result.compression:.2f}", "" if rows is None else f"{rows:.1f}")


def _winner_pays(confirmed: Confirmed) -> str:
    assert confirmed.tried
    return (
        f"{_capital(words(confirmed.tried))} is best here: {_times(confirmed.used.speedup)} plain decoding's speed, "
        f"and {_times(confirmed.used_over_auto)} that of mode auto, which needs no tuning."
    )


def _auto_pays(confirmed: Confirmed) -> str:
    """Auto is what is used where no other setting is surely faster than it."""
    ratio = confirmed.auto.speedup
    judged = "is best here" if ratio.surely_faster and not confirmed.unsure else "is the choice here"
    sentence = f"Mode auto, which needs no tuning, {judged}: {_times(ratio)} plain decoding's speed."
    if not (confirmed.tried and (over := confirmed.winner_over_auto)):
        return sentence
    other = f"The best other setting, {words(confirmed.tried)}, ran at {_times(over)} auto's speed"
    return f"{sentence} {other}{_why_not(confirmed)}."


def _nothing_pays(confirmed: Confirmed) -> str:
    auto = f"mode auto ran at {_times(confirmed.auto.speedup)} plain's speed"
    if not (confirmed.winner and confirmed.tried):
        return f"Nothing is surely faster than plain decoding here: {auto}, and no other setting can pay."
    best = f"the best other setting, {words(confirmed.tried)}, at {_times(confirmed.winner.speedup)}"
    return f"No setting is surely faster than plain decoding and auto here: {auto}, and {best}{_why_not(confirmed)}."


def _why_not(confirmed: Confirmed) -> str:
    """Why the winner of the search is not used though its number is the best."""
    return f", which is not sure enough to be remembered ({SURER})" if confirmed.unsure else ""


def _name(settings: DecodeSettings) -> str:
    """What is remembered, as a sentence begins; auto is mode auto as it is without any flag."""
    if settings.mode == "plain":
        return "Plain"
    return "Auto" if settings.mode == "auto" and settings.sources == ALL else "This setting"


def _so_far(tuning: Tuning) -> str:
    """After Ctrl-C, or where the time was too short for anything: what is known, and that nothing is remembered."""
    why = "Stopped" if tuning.interrupted else "The time was too short to be sure (a larger --seconds helps)"
    if not tuning.ranked:
        return f"{why}, before any setting was compared: nothing is remembered."
    first = tuning.ranked[0]
    assert first.result and first.contender.point
    again = tuning.confirmed.winner if tuning.confirmed else None
    result = again or first.result
    answers = counted(len(result.trials), "answer")
    if not says_something(result):
        few = f"{answers} {'is' if len(result.trials) == 1 else 'are'} too few to say how fast it is"
        return f"{why}, so nothing is remembered. The best so far is {first.contender.label}; {few}."
    if result.speedup.value <= 1:
        return f"{why}, so nothing is remembered. Nothing tried so far beat plain decoding, in {answers}."
    luck = "" if again else "; that is partly luck, because it was chosen for it"
    return (
        f"{why}, so nothing is remembered. The best so far is {first.contender.label}, {_times(result.speedup)} plain "
        f"decoding's speed in {answers}{luck}."
    )


def _commands(tuning: Tuning) -> list[str]:
    """How to use what was found, as it is typed."""
    if tuning.best:
        by_hand = _typed(tuning.setup, flags(tuning.best))
        return [by_hand] if tuning.trouble else [_typed(tuning.setup, "--preset tuned"), f"{by_hand}   (the same)"]
    first = next(iter(tuning.ranked), None)
    if first and first.result and says_something(first.result) and first.value > 1 and first.contender.point:
        return [_typed(tuning.setup, flags(first.contender.point.settings))]
    return []


def _typed(setup: Setup, rest: str) -> str:
    model = quote(setup.model) if setup.model else ""
    return " ".join(part for part in ("lacli run", model, rest, setup.flags) if part)


def _filled(text: str, indent: int = 0) -> str:
    return fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _times(ratio: Ratio) -> str:
    between = f" (95%: {ratio.low:.2f} to {ratio.high:.2f})" if ratio.low is not None else ""
    return f"{ratio.value:.2f} times{between}"
