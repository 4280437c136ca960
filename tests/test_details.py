"""What lies behind tokens a step, on toy engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lacli.bench.details import Details, look_inside
from lacli.bench.details_report import as_columns, as_lines
from lacli.bench.rounds import Contender, Exchange
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.settings import DecodeSettings
from tests.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    PLAIN,
    contender,
    task,
)
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeEngine

JACOBI = DecodeSettings(mode="jacobi", window=4)


class Asked:
    """Remembers the prompts that were decoded."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    def decoder(self, engine: Engine, settings: DecodeSettings) -> Decoder:
        asked = self.prompts

        class Noting(Decoder):
            def _start(self, prompt: Sequence[int], reuse: bool) -> None:
                asked.append(tuple(prompt))
                super()._start(prompt, reuse)

        return Noting(engine, settings)


def exchange(kind: str, *prompt: int) -> Exchange:
    return Exchange(task("1", kind=kind), 0, prompt, 20)


EXCHANGES = [exchange("code", 1, 2, 3), exchange("code", 4, 5, 6), exchange("edit", 7, 8, 7, 8)]


def looked(asked: Asked) -> tuple[list[Contender], dict[int, Details]]:
    ones = [contender(each, FakeClock())[0] for each in (PLAIN, JACOBI, LOOKUP, LOOKAHEAD)]

    def engine(one: Contender) -> Engine:
        assert one.point
        return FakeEngine(sequences=one.point.settings.sequences)

    return ones, dict(look_inside(ones, EXCHANGES, engine, asked.decoder))


def test_the_first_prompt_of_each_class_is_looked_into_in_jacobi_and_lookahead() -> None:
    asked = Asked()
    _, seen = looked(asked)
    assert list(seen) == [1, 3]
    assert asked.prompts == [(1, 2, 3), (7, 8, 7, 8)] * 2


def test_answers_are_longer_here_up_to_the_context() -> None:
    _, seen = looked(Asked())
    matches = seen[3].matches
    assert matches and matches.tokens == (256 - 3) + (256 - 4)


def test_columns_and_tables_say_what_was_seen() -> None:
    ones, seen = looked(Asked())
    columns = as_columns(seen[3])
    assert columns["pool_tokens"] == [row.checkpoint for row in seen[3].growth]
    assert columns["seen_tokens_per_step"] == pytest.approx(seen[3].matches.tokens_per_step, abs=1e-4)  # type: ignore[union-attr]
    assert as_columns(seen[1])["convergence"][-1] == pytest.approx(1.0)
    text = as_lines(seen, [replace(one, memory=1.0) for one in ones])
    for words in ("the pool's growth", "what a match brings", "how blocks converge", "memory"):
        assert words in text
