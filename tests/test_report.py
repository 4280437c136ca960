"""What a run cost, for a person and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from lacli.engine.answer import Answer
from lacli.engine.load import ModelEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.pool import NgramPool
from lacli.report import as_json, as_lines, describe
from lacli.settings import DecodeSettings, Detail, SourceName
from lacli.stats import RunStatistics, Step
from lacli.terminal.screen import wrapped
from lacli.tree import Origin

SUFFIX, POOL, MODEL = Origin.SUFFIX, Origin.POOL, Origin.MODEL
AUTO = DecodeSettings(mode="auto")
DETAILS: tuple[Detail, ...] = ("short", "full")


def engine(
    settings: DecodeSettings = AUTO,
    copies: Sequence[str] = ("",),
    times: float | None = None,
) -> ModelEngine:
    """An engine whose answers are so many `times` as fast as plain ones, None where costs were not measured."""
    model = SimpleNamespace(path="m.gguf", description="toy 1M F32", devices="CPU")
    made = SimpleNamespace(model=model, context=SimpleNamespace(cells=100), settings=settings)
    return cast(
        ModelEngine,
        SimpleNamespace(
            **vars(made),
            notes=[],
            sources=settings.sources,
            sampling=SamplingSettings(),
            model_settings=ModelSettings(),
            times_plain=lambda run: times,
            weights=SimpleNamespace(names=[*copies]),
        ),
    )


def answer(*steps: Step) -> Answer:
    run = RunStatistics()
    for step in steps:
        run.add(step)
    return Answer("text", tuple(range(run.tokens)), "eog", run, NgramPool(3, 2).statistics())


def plain_step(count: int = 1) -> list[Step]:
    return [Step((1,), (MODEL,), 1, 0, 0.010, 0, 0, 0)] * count


def guessed(accepted: tuple[Origin, ...], guesses: tuple[Origin, ...], seconds: float = 0.015) -> Step:
    origins = (*accepted, MODEL)
    return Step(
        tuple(range(len(origins))),
        origins,
        1 + len(guesses),
        len(guesses),
        seconds,
        0,
        0,
        0,
        guesses=guesses,
    )


def words(lines: str, subject: str) -> str:
    """A line's words, with one space between them."""
    [found] = re.findall(rf"^{subject:9} (.*)$", lines, re.MULTILINE)
    return " ".join(found.split())


def test_every_source_has_a_line_with_what_it_tried_and_brought() -> None:
    lines = as_lines(
        engine(),
        answer(*plain_step(2), guessed((SUFFIX, SUFFIX, POOL), (SUFFIX,) * 9 + (POOL,) * 2), *plain_step(4)),
        detail="full",
    )
    assert words(lines, "drafts") == "3 of 11 tokens were accepted"
    table = [" ".join(line.split()) for line in lines.splitlines() if "of the answer" in line]
    assert table == [
        "pool 1 of 2, 50%: 10% of the answer, n-grams",
        "suffix 2 of 9, 22%: 20% of the answer, the text so far",
    ]
    assert len({line.index(" of ") for line in lines.splitlines() if "of the answer" in line}) == 1


def test_a_run_without_guesses_has_no_lines_about_them() -> None:
    for settings in (AUTO, DecodeSettings(mode="plain")):
        lines = as_lines(engine(settings), answer(*plain_step(2)), detail="full")
        assert not re.search(r"^(guesses|accepted)", lines, re.MULTILINE)
    assert as_lines(engine(), answer())


def test_what_ended_an_answer_is_its_limit_or_the_full_context() -> None:
    cut = replace(answer(*plain_step(2)), finish_reason="length")
    for limit, ended in ((2, "ended at the limit of -n"), (-1, "ended with the context full")):
        assert words(as_lines(engine(), cut, max_tokens=limit), "answer").endswith(ended)


def test_steps_are_told_by_powers_of_two_of_their_rows() -> None:
    steps = [guessed((), (POOL,) * guesses) for guesses in (1, 2, 3, 4, 7, 8, 15)]
    lines = as_lines(engine(), answer(*plain_step(3), *steps), detail="full")
    assert words(lines, "rows") == "1 in 3 steps, 2 in 1 step, 3-4 in 2 steps, 5-8 in 2 steps, 9-16 in 2 steps"
    lookahead = engine(DecodeSettings(mode="lookahead"))
    assert "rows  " not in as_lines(lookahead, answer(*plain_step(), *steps), detail="full")


def test_one_line_compares_with_plain_decoding_where_the_costs_of_steps_were_measured() -> None:
    made = answer(*plain_step(3), guessed((SUFFIX, SUFFIX, SUFFIX), (SUFFIX,) * 5), guessed((), (POOL,)))
    lines = as_lines(engine(times=1.333), made)
    assert words(lines, "steps") == "5 for 8 tokens: S = 1.60 tokens and 2.2 rows a step"
    assert words(lines, "plain") == "1.3 times as fast as plain decoding, by the measured costs of steps"
    assert as_json(engine(times=1.333), made)["times_plain"] == 1.33
    assert as_json(engine(), made)["times_plain"] is None
    for other in (as_lines(engine(), made), as_lines(engine(times=1.0), answer(*plain_step(9)))):
        assert "plain decoding" not in other


def test_the_short_report_has_at_most_12_lines_and_no_chart_whatever_was_guessed() -> None:
    every = (Origin.POOL, Origin.WINDOW, Origin.CHAIN, Origin.SUFFIX, Origin.RECYCLING)
    copies = ("CPU (1)", "CPU (2)")
    run = answer(*plain_step(3), *[guessed(every[:count], every) for count in range(6)])
    for mode in ("auto", "lookahead"):
        short, full = (as_lines(engine(replace(AUTO, mode=mode), copies), run, detail=each) for each in DETAILS)
        assert len(short.splitlines()) <= 12 < len(full.splitlines())
        subjects = [line.split()[0] for line in short.splitlines()]
        assert len({*subjects}) == len(subjects) and not {"accepted", "pool", "rows", "replicas"} & {*subjects}
        assert {line[:10] for line in short.splitlines()} <= {line[:10] for line in full.splitlines()}
    assert words(short, "drafts").startswith(
        "15 of 30 tokens were accepted: 5 from n-grams, 4 from the lookahead window, 3 from the draft"
    )


def test_rows_of_nothing_are_not_printed() -> None:
    for detail in DETAILS:
        nothing = as_lines(engine(), answer(), detail=detail)
        assert words(nothing, "answer") == "no token, ended by the model" and "steps  " not in nothing
        assert words(nothing, "prompt") == "0 tokens"


def test_the_prompt_says_what_was_in_the_cache_and_how_fast_the_others_were_read() -> None:
    made = answer(*plain_step())
    for reused, words_of in ((0, "21 tokens, read in 2.0 s (10.0 tokens/s)"),
                             (10, "21 tokens, 10 of them in the cache, the others read in 2.0 s (5.0 tokens/s)"),
                             (20, "21 tokens, 20 of them in the cache")):  # fmt: skip
        run = replace(made.statistics, prompt_tokens=21, reused_tokens=reused, prompt_s=2.0)
        assert words(as_lines(engine(), replace(made, statistics=run)), "prompt") == words_of


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("detail", DETAILS)
def test_every_line_keeps_to_the_terminal_and_breaks_between_words(width: int, detail: Detail) -> None:
    run = answer(*plain_step(300), *[guessed((SUFFIX, POOL) * 10, (SUFFIX, POOL) * 400, seconds=9.98765)] * 9)
    text = as_lines(engine(times=1.2), run, detail=detail)
    shown = wrapped(text, width)
    assert max(map(len, shown.splitlines())) <= width and shown.split() == text.split()


def test_json_has_the_sources_in_flat_fields() -> None:
    run = answer(*plain_step(3), guessed((SUFFIX, POOL), (SUFFIX, SUFFIX, POOL)))
    found = as_json(engine(replace(AUTO, sources=("suffix",), auto_rows=9)), run)
    assert found["sources"] == {"pool": {"tried": 1, "accepted": 1}, "suffix": {"tried": 2, "accepted": 1}}
    assert (found["auto_sources"], found["auto_rows"]) == (["suffix"], 9)


def test_auto_says_how_many_rows_a_step_can_have() -> None:
    assert describe(replace(AUTO, auto_rows=9)) == "auto, at most 9 rows"
    assert describe(replace(AUTO, max_rollback=4)) == "auto, at most 5 rows"
    assert describe(replace(AUTO, max_rollback=4, auto_rows=1)) == "auto, at most 1 row"


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (AUTO.sources, "auto, at most 64 rows"),
        (("suffix", "recycling"), "auto, at most 64 rows"),
        (("suffix",), "auto, sources suffix, at most 64 rows"),
        ((), "auto, sources none, at most 64 rows"),
    ],
)
def test_auto_names_its_sources_where_not_all_are_asked(sources: tuple[SourceName, ...], words: str) -> None:
    assert describe(replace(AUTO, sources=sources)) == words


def test_copies_are_named() -> None:
    shared = engine(copies=("CPU (1)", "CPU (2)", "RPC0"))
    assert words(as_lines(shared, answer(*plain_step())), "model").endswith(", CPU (1), CPU (2), RPC0")
    assert as_json(shared, answer(*plain_step()))["replicas"] == ["CPU (1)", "CPU (2)", "RPC0"]
