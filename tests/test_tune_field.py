"""The contenders of a search on the demo model: who finds a prompt read answers as if nothing was learned before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lacli.batch import Batch
from lacli.bench.rounds import Exchange
from lacli.bench.staging import asker_of
from lacli.bench.tasks import Task
from lacli.context import LlamaEngine
from lacli.resolve import find_model
from lacli.sampling import SamplingSettings
from lacli.session import Session
from lacli.settings import DecodeSettings, ModelSettings
from lacli.tune.candidates import words
from lacli.tune.field import Field, quick, usual

PLAIN = DecodeSettings(mode="plain")
SETTINGS = [
    PLAIN,
    DecodeSettings(mode="lookup", lookup_draft=4),
    DecodeSettings(mode="lookup", lookup_draft=7),
    DecodeSettings(mode="lookahead", window=2, ngram=3, guesses=2),
    DecodeSettings(mode="lookahead", window=0, ngram=3, guesses=2),
]
LOADING = ModelSettings(threads=1, gpu_layers=0)


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "sampled"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(find_model(None), LOADING, PLAIN, SamplingSettings(temp=request.param, seed=7)) as opened:
        yield opened


@pytest.fixture
def exchange(session: Session) -> Exchange:
    asked = Task(("def area(width, height):\n    return width * height\n" * 3,), limit=24)
    found = asker_of(session).exchange(asked, [])
    assert found
    return found


def test_everyone_answers_in_the_search_as_alone(session: Session, exchange: Exchange) -> None:
    """The steps would be others if the pool, or a guess of somebody else's, were still known."""
    with usual(session)(SETTINGS) as competing:
        alone = [each.answer(exchange) for each in competing]
    with quick(session)(SETTINGS) as competing:
        assert [each.label for each in competing] == list(map(words, SETTINGS))
        for one, trial in zip(competing, alone, strict=True):
            for _ in range(2):
                found = one.answer(exchange)
                assert (found.ids, found.step_count, found.rows, found.accepted) == (
                    (trial.ids, trial.step_count, trial.rows, trial.accepted)
                ), one.label


def test_a_prompt_is_read_once_in_a_context(
    session: Session, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, read = LlamaEngine.decode, list[int]()

    def counting(engine: LlamaEngine, batch: Batch) -> bool:
        if not batch.wanted:
            read.append(len(batch))
        return decode(engine, batch)

    monkeypatch.setattr(LlamaEngine, "decode", counting)

    def readings(field: Field) -> int:
        with field(SETTINGS) as competing:
            before = len(read)
            for each in competing:
                each.answer(exchange)
            return len(read) - before

    assert readings(usual(session)) == len(SETTINGS)
    assert readings(quick(session)) == len({each.mode for each in SETTINGS})
