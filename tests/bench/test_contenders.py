"""Points as contenders: their contexts on the demo model, and verdicts on texts that part, in the very same steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.auto.mode import AutoModes
from lacli.batch import Batch
from lacli.bench.contenders import Contexts, RepeatedTrees, contenders, judge, with_plain
from lacli.bench.results import results
from lacli.bench.rounds import Contender, Exchange, NotingDecoder, Rounds, timed
from lacli.bench.rows import as_rows, verdict
from lacli.bench.sweep import Axes, Point, points
from lacli.bench.tasks import Task
from lacli.check.compare import Comparison
from lacli.check.replay import Recorder
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.errors import BatchRefused
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.modes import Mode
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from tests.fakes.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    MACHINE,
    PLAIN,
    TASKS,
    Otherwise,
    asker,
    contender,
    played,
    words,
    wrong,
)
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeEngine, RuleBroken
from tests.loading import load

LOADING = ModelSettings(context=512, threads=1, threads_batch=1, gpu_layers=0, flash_attention="off")
QUESTION = "Write a Python function is_empty: Return true if the queue is empty."


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with load(model_settings=LOADING, decode_settings=DecodeSettings(mode="plain")) as session:
        yield session


def exchange(session: Session) -> Exchange:
    return Exchange(Task((QUESTION,), max_tokens=24), 0, tuple(session.prompt(QUESTION)), 24)


def test_a_sweep_shares_one_context_for_trees_one_for_chains_and_plain_and_auto_have_their_own(
    session: Session,
) -> None:
    chosen, _ = points(Axes(windows=(2, 4), ngrams=(3,)), session.settings)
    with Contexts(session, chosen) as contexts:
        engines = [contexts.engine(point) for point in chosen]
        modes = [point.settings.mode for point in chosen]
        by_mode = {mode: {id(e) for e, m in zip(engines, modes, strict=True) if m == mode} for mode in set(modes)}
        assert by_mode["jacobi"] == by_mode["lookup"] and len(by_mode["lookahead"]) == 1
        assert len({next(iter(ids)) for ids in by_mode.values()}) == 4
        assert by_mode["plain"] == {id(session.engine)} and session.engine.sequences == 1
        *_, ahead, auto = chosen
        widest = max(point.settings.sequences for point in chosen if point.settings.mode == "lookahead")
        assert contexts.engine(ahead).sequences == widest
        assert contexts.engine(auto).sequences == auto.settings.sequences


def test_counts_of_a_benchmark_are_llama_decode_calls(session: Session) -> None:
    chosen = with_plain([Point(DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=4))])
    with Contexts(session, chosen) as contexts:
        for contender in contenders(session, contexts, chosen):
            engine = contexts.of(contender)
            before = engine.calls
            trial = contender.answer(exchange(session))
            prefills = 1
            assert trial.step_count == engine.calls - before - prefills
            assert trial.tokens == len(trial.ids or ())


def test_where_the_backend_chooses_texts_are_judged_in_contexts_whose_logits_can_be_read(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point(DecodeSettings(mode="lookahead", window=4, ngram=3, guesses=4))
    chosen = with_plain([point])
    plain = contenders_plain(session)
    monkeypatch.setattr(session.model, "offloaded", True)
    with Contexts(session, chosen) as contexts:
        _, ahead = contenders(session, contexts, chosen)
        assert contexts.of(ahead).suits(point.settings, raw_logits=False)
        assert not contexts.of(ahead).suits(point.settings, raw_logits=True)
        assert ahead.answer(exchange(session)).ids == plain
        with Comparison(contexts.readable, 24) as comparison:
            (run,) = comparison.run(point.settings, [exchange(session).prompt])
        assert run.identical and tuple(run.tokens) == plain


def contenders_plain(session: Session) -> tuple[int, ...]:
    """Plain decoding's answer."""
    chosen = [Point(DecodeSettings(mode="plain"))]
    with Contexts(session, chosen) as contexts:
        return contenders(session, contexts, chosen)[0].answer(exchange(session)).ids or ()


def test_a_sampled_benchmark_draws_plain_decodings_text_in_every_mode() -> None:
    strict = DecodeSettings(mode="plain", strict=True)
    model_settings = replace(LOADING, flash_attention="auto")
    with load(
        model_settings=model_settings, decode_settings=strict, sampling=SamplingSettings(temp=0.8, seed=5)
    ) as session:
        chosen = with_plain([Point(replace(session.settings, mode="lookup"))])
        with Contexts(session, chosen) as contexts:
            plain, lookup = (each.answer(exchange(session)) for each in contenders(session, contexts, chosen))
    assert plain.ids == lookup.ids


def test_what_is_compared_always_has_plain_decoding_in_front() -> None:
    plain, lookup = Point(DecodeSettings(mode="plain")), Point(DecodeSettings(mode="lookup"))
    for chosen in ([lookup], [lookup, plain]):
        assert [point.label for point in with_plain(chosen)] == ["plain", "lookup"]


AUTO = DecodeSettings(mode="auto")
prompts = st.lists(st.integers(0, 11), min_size=1, max_size=40)


class LateRemove(FakeEngine):
    """A broken cache: removes begin one position too late, and the batch that follows is refused as llama.cpp does."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return super().remove(sequence, start + 1, end)

    def decode(self, batch: Batch) -> bool:
        try:
            return super().decode(batch)
        except RuleBroken as error:
            raise BatchRefused(str(error)) from error


def engine_of(settings: DecodeSettings) -> FakeEngine:
    """An engine made for settings."""
    return FakeEngine(
        sequences=settings.sequences,
        max_outputs=max(settings.sequences, settings.max_outputs),
        ordered=settings.ordered,
        min_outputs=settings.min_outputs,
    )


def beside_plain(clock: FakeClock, *wrongly: int) -> Rounds:
    """Plain and lookup have answered once; lookup's answers to these exchanges are not plain's."""
    ones = [contender(each, clock)[0] for each in (PLAIN, LOOKUP)]
    rounds = played(Rounds(ones, TASKS, 1, asker()))
    for exchange in wrongly:
        rounds.trials[1, exchange] = [wrong(rounds.trials[1, exchange][0])]
    return rounds


def test_a_broken_context_is_judged_a_bug(clock: FakeClock) -> None:
    rounds = beside_plain(clock, 0)

    def readable(settings: DecodeSettings) -> AbstractContextManager[Engine]:
        return nullcontext(LateRemove() if settings.mode == "lookup" else FakeEngine())

    judged = judge(readable, results(rounds), None, every=True)
    assert [(key, run.bug) for key, run in judged.items()] == [((1, 0), True)]


@pytest.mark.parametrize(("every", "judged"), [(True, [(1, 1), (1, 2)]), (False, [(1, 1)])])
def test_the_first_difference_of_a_class_is_judged_and_all_where_that_is_asked_for(
    clock: FakeClock, every: bool, judged: list[tuple[int, int]]
) -> None:
    rounds = beside_plain(clock, 1, 2)
    found = results(rounds)
    opened = judge(lambda _: nullcontext(FakeEngine()), found, None, every=every)
    assert list(opened) == judged


def test_an_answer_that_parts_no_more_when_it_is_decoded_again_says_so(clock: FakeClock) -> None:
    rounds = beside_plain(clock, 0)
    found = results(rounds)
    judged = judge(lambda _: nullcontext(FakeEngine()), found, None, every=True)
    row = as_rows(found, MACHINE, judged)[1]
    assert (row["identical"], row["first_diff"], row["verdict"]) == (False, 7, "not repeated")


@given(st.sampled_from([PLAIN, LOOKUP, LOOKAHEAD, AUTO, replace(LOOKAHEAD, ordered=True, min_outputs=2)]), prompts)
def test_noted_trees_give_the_same_batches_again(chosen: DecodeSettings, prompt: list[int]) -> None:
    first, second = Recorder(engine_of(chosen)), Recorder(engine_of(chosen))
    noting = NotingDecoder(first, chosen, make_mode=AutoModes())
    steps = list(noting.generate(prompt, 30))
    assert len(noting.trees) == len(steps)
    again = Decoder(second, chosen, make_mode=lambda *_, **__: RepeatedTrees(noting.trees))
    assert [step.tokens for step in again.generate(prompt, 30)] == [step.tokens for step in steps]
    assert second.decoded == first.decoded


def test_where_the_text_is_another_one_nothing_is_guessed() -> None:
    guess = Tree(5)
    guess.add_path([6, 7], 0, Origin.CHAIN)
    assert len(RepeatedTrees([guess]).grow([1, 5], 9)) == 3
    for trees, text, room in (([guess], [1, 4], 9), ([], [1, 5], 9), ([guess], [1, 5], 2)):
        assert RepeatedTrees(trees).grow(text, room).tokens == [text[-1]]


class Moody(Mode):
    """Guesses the token 2 and then what comes next by the toy model's rule, in the first answer only."""

    answers = 0

    def begin(self, text: Sequence[int]) -> None:
        Moody.answers += 1

    def grow(self, text: Sequence[int], room: int) -> Tree:
        tree = Tree(text[-1])
        if Moody.answers == 1:
            before, last = text[-2:]
            following = (3 * last + before + 1) % 12
            tree.add_path([following, (3 * following + last + 1) % 12], 0, Origin.CHAIN)
        return tree


@pytest.fixture
def moody(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    monkeypatch.setattr(Moody, "answers", 0)
    return clock


def moody_rounds(clock: FakeClock, engine: FakeEngine, repetitions: int = 1) -> Rounds:
    """Plain decoding beside a mode that goes other ways each time."""

    def decoder() -> Decoder:
        return NotingDecoder(engine, AUTO, make_mode=lambda *_, **__: Moody())

    other = Contender("auto", Point(AUTO), 0, lambda exchange: timed(decoder(), exchange, words))
    return played(Rounds([contender(PLAIN, clock)[0], other], TASKS[:1], repetitions, asker()))


def readable(settings: DecodeSettings) -> AbstractContextManager[Engine]:
    return nullcontext(Otherwise(sequences=AUTO.sequences) if settings.mode == "auto" else FakeEngine())


def test_a_text_that_parted_once_is_judged_in_the_steps_that_it_parted_in(moody: FakeClock) -> None:
    rounds = moody_rounds(moody, Otherwise(sequences=AUTO.sequences))
    (exchange,) = rounds.exchanges
    assert rounds.of(1, 0)[0].same(rounds.of(0, 0)[0]) is False
    judged = judge(readable, results(rounds), None, every=True)
    assert [verdict(run) for run in judged.values()] == ["rounding"]
    assert Moody.answers == 1, "the mode itself would have gone another way"


def test_trees_of_answers_that_are_plains_are_not_kept(moody: FakeClock) -> None:
    right = moody_rounds(moody, FakeEngine(sequences=AUTO.sequences), repetitions=2)
    assert [trial.trees for trial in right.of(1, 0)] == [(), ()]
    Moody.answers = 0
    wrong = moody_rounds(moody, Otherwise(sequences=AUTO.sequences), repetitions=2)
    assert [bool(trial.trees) for trial in wrong.of(1, 0)] == [True, False]
