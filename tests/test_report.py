"""The report of a run, as text and as JSON."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from lacli.engine.answer import Answer
from lacli.engine.load import ModelEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.pool import NgramPool
from lacli.report import as_json, as_lines
from lacli.settings import DecodeSettings
from lacli.stats import RunStatistics, Step
from lacli.tree import Origin

SUFFIX, POOL, MODEL = Origin.SUFFIX, Origin.POOL, Origin.MODEL
AUTO = DecodeSettings(mode="auto")


def engine(settings: DecodeSettings = AUTO, times: float | None = None) -> ModelEngine:
    """Return an engine whose answers are `times` as fast as plain ones; None: its step costs were not measured."""
    model = SimpleNamespace(path="m.gguf", description="toy 1M F32", devices="CPU")
    made = SimpleNamespace(model=model, context=SimpleNamespace(cells=100), settings=settings)
    return cast(
        ModelEngine,
        SimpleNamespace(
            **vars(made),
            notes=[],
            sampling=SamplingSettings(),
            model_settings=ModelSettings(),
            times_plain=lambda run: times,
            weights=SimpleNamespace(names=[""]),
        ),
    )


def answer(*steps: Step, reused: int = 0) -> Answer:
    run = RunStatistics(prompt_tokens=41, reused_tokens=reused, prompt_s=0.5)
    for step in steps:
        run.add(step)
    return Answer("text", tuple(range(run.tokens)), "eog", run, NgramPool(3, 2).statistics())


def plain_step(count: int = 1) -> list[Step]:
    return [Step((1,), (MODEL,), 1, 0, 0.010, 0, 0, 0)] * count


def guessed(accepted: tuple[Origin, ...], guesses: tuple[Origin, ...]) -> Step:
    origins = (*accepted, MODEL)
    tokens = tuple(range(len(origins)))
    return Step(tokens, origins, 1 + len(guesses), len(guesses), 0.015, 0, 0, 0, guesses=guesses)


def words(lines: str, subject: str) -> list[str]:
    """Return a subject's lines in a report without the subject, with one space between words."""
    return [" ".join(found.split()) for found in re.findall(rf"^{subject:9} (.*)$", lines, re.MULTILINE)]


def test_the_short_report_is_one_line_with_plain_decoding_if_the_costs_of_steps_were_measured() -> None:
    made = answer(*plain_step(3), guessed((SUFFIX, SUFFIX, SUFFIX), (SUFFIX,) * 5), guessed((), (POOL,)))
    read = "41 prompt tokens in 0.50 s (80.0 tokens/s); "
    size = f"{read}8 tokens in 0.06 s (133.3 tokens/s), 1.60 tokens and 2.2 rows a step, 3 of 6 drafted tokens accepted"
    assert as_lines(engine(times=1.333), made) == f"{size}, 1.3 times as fast as plain decoding"
    assert as_lines(engine(), made) == size
    nothing = "nothing drafted: no repeats found"
    assert (
        as_lines(engine(times=1.0), answer(*plain_step(9))) == f"{read}9 tokens in 0.09 s (100.0 tokens/s), {nothing}"
    )
    cached = as_lines(engine(), answer(*plain_step(9), reused=30))
    assert cached.startswith(
        "41 prompt tokens, 30 of them in the cache, the others in 0.50 s (20.0 tokens/s); 9 tokens "
    )
    assert as_lines(engine(), answer()) == "no token"
    assert as_json(engine(times=1.333), made)["times_plain"] == 1.33
    assert as_json(engine(), made)["times_plain"] is None


def test_the_full_report_has_a_line_for_each_source_and_the_sizes_of_the_steps() -> None:
    made = answer(*plain_step(2), guessed((SUFFIX, SUFFIX, POOL), (SUFFIX,) * 9 + (POOL,) * 2), *plain_step(4))
    lines = as_lines(engine(), made, detail="full")
    assert words(lines, "drafts") == ["1 of 2 accepted from pool", "2 of 9 accepted from suffix"]
    assert words(lines, "tokens") == ["1 in 6 steps, 4 in 1 step"]
    assert words(lines, "rows") == ["1 in 6 steps, 12 in 1 step"]
    assert not words(lines, "pool") and words(
        as_lines(engine(replace(AUTO, mode="lookahead")), made, detail="full"), "pool"
    )
    nothing = as_lines(engine(), answer(), detail="full")
    assert not words(nothing, "steps") and not words(nothing, "drafts")


def test_json_has_the_sources_in_flat_fields() -> None:
    run = answer(*plain_step(3), guessed((SUFFIX, POOL), (SUFFIX, SUFFIX, POOL)))
    found = as_json(engine(replace(AUTO, auto_rows=9)), run)
    assert found["sources"] == {"pool": {"tried": 1, "accepted": 1}, "suffix": {"tried": 2, "accepted": 1}}
    assert found["auto_rows"] == 9
