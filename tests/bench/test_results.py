"""What a benchmark's trials add up to: results by class, their pairs, and how far guesses were accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lacli.bench.results import Acceptance, results
from lacli.bench.rounds import Contender, Exchange, Rounds, Trial
from lacli.bench.statistics import paired_ratio
from lacli.bench.tasks import ALL
from lacli.errors import LacliError
from lacli.settings import MODES, DecodeSettings, ModeName
from lacli.stats import RunStatistics, Step
from lacli.tree import Origin
from tests.fakes.bench_field import (
    LOOKAHEAD,
    LOOKUP,
    PLAIN,
    TASKS,
    asker,
    contender,
    dear,
    free,
    played,
    run,
    task,
    wrong,
)
from tests.fakes.clock import FakeClock
from tests.fakes.decoding import auto_decoder
from tests.fakes.engine import FakeEngine

PROMPT = [1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 4, 5]


def step(tokens: int, drafted: int) -> Step:
    origins = (*[Origin.POOL] * (tokens - 1), Origin.MODEL)
    return Step(tuple(range(tokens)), origins, 1 + drafted, drafted, 0.0, 0.0, 0.0, 0.0)


def steps_of(mode: ModeName) -> list[Step]:
    settings = DecodeSettings(mode=mode, window=4, ngram=4, guesses=4)
    return list(auto_decoder(FakeEngine(sequences=settings.sequences), settings).generate(PROMPT, 60))


STEPS = [step(1, 0), step(1, 4), step(3, 4), step(1, 0), step(2, 6), step(3, 6)]


def test_the_histogram_counts_all_steps_and_the_rates_those_with_guesses() -> None:
    acceptance = Acceptance.of(STEPS)
    assert acceptance.histogram == (3, 1, 2)
    assert acceptance.guessed == (1, 1, 2)
    assert acceptance.position_rates == [3 / 4, 2 / 4]
    assert acceptance.hit_rate == 3 / 4


@pytest.mark.parametrize("steps", [[], [step(1, 0)], [step(1, 4), step(1, 2)]])
def test_without_guesses_that_came_true_there_are_no_rates(steps: list[Step]) -> None:
    acceptance = Acceptance.of(steps)
    assert acceptance.position_rates == []
    assert acceptance.hit_rate == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_a_real_runs_counts_agree_with_its_tokens_and_origins(mode: ModeName) -> None:
    steps = steps_of(mode)
    acceptance, statistics = Acceptance.of(steps), RunStatistics()
    for one in steps:
        statistics.add(one)
    assert list(acceptance.histogram) == statistics.accept_hist
    assert statistics.accepted == sum(more * count for more, count in enumerate(acceptance.histogram))
    assert statistics.accepted == sum(origin is not Origin.MODEL for one in steps for origin in one.origins)
    with_guesses = [len(one.tokens) for one in steps if one.drafted]
    for depth, rate in enumerate(acceptance.position_rates, start=1):
        assert rate == sum(length > depth for length in with_guesses) / len(with_guesses)


def test_a_step_without_guesses_never_brings_more_than_one_token() -> None:
    for mode in MODES:
        acceptance = Acceptance.of(steps_of(mode))
        assert acceptance.histogram[1:] == acceptance.guessed[1:]


def test_there_is_a_result_for_each_class_and_contender_and_for_all(clock: FakeClock) -> None:
    _, found = run(clock, free, PLAIN, LOOKUP)
    assert [(result.kind, result.number) for result in found] == [
        (kind, number) for kind in ("code", "edit", ALL) for number in (0, 1)
    ]
    assert [result.prompts for result in found] == [1, 1, 2, 2, 3, 3]


def test_where_rows_are_free_the_speedup_is_the_step_compression(clock: FakeClock) -> None:
    rounds, found = run(clock, free, PLAIN, LOOKAHEAD)
    for result in found:
        if result.prompts == 1:
            assert result.speedup.value == pytest.approx(result.compression)
        assert result.speed == pytest.approx(result.compression)
        assert result.compression == result.tokens / result.steps
    lookahead = found[-1]
    assert lookahead.steps == sum(
        len(trial.steps) for (number, _), each in rounds.trials.items() if number for trial in each
    )


def test_plain_decoding_is_as_fast_as_itself(clock: FakeClock) -> None:
    _, found = run(clock, dear, PLAIN, LOOKUP)
    plain = next(result for result in found if result.kind == ALL)
    assert (plain.speedup.value, plain.compression, plain.rows_per_step) == (1.0, 1.0, 1.0)
    assert plain.speeds == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("finished", [7, 9])
def test_results_of_an_interrupted_benchmark_pair_what_both_sides_finished(clock: FakeClock, finished: int) -> None:
    rounds = played(Rounds([contender(each, clock, free)[0] for each in (PLAIN, LOOKUP)], TASKS, 3, asker()), finished)
    found = results(rounds)
    for result in found:
        assert all(len(each.trials) == len(each.plain) > 0 for each in result.answered)
    pairs = sum(len(result.trials) for result in found if result.number == 1 and result.kind != ALL)
    assert pairs == {7: 3, 9: 4}[finished]


def test_a_text_that_is_not_plains_is_found_with_its_first_difference(clock: FakeClock) -> None:
    rounds, _ = run(clock, free, PLAIN, LOOKUP)
    rounds.trials[1, 2][1] = wrong(rounds.trials[1, 2][1])
    lookup = next(result for result in results(rounds) if (result.kind, result.number) == ("edit", 1))
    assert [(each.number, each.parts_at) for each in lookup.parted] == [(2, 7)]
    assert lookup.identical == 1


def test_a_repetition_that_was_not_finished_is_no_sample(clock: FakeClock) -> None:
    rounds = Rounds([contender(PLAIN, clock, dear)[0]], [*TASKS[:1], task("3 4 5", kind="slow")], 3, asker())
    costs = {"code": 0.01, "slow": 10.0}
    answer = rounds.contenders[0].answer

    def uneven(exchange: Exchange) -> Trial:
        return replace(answer(exchange), seconds=20 * costs[exchange.task.kind])

    rounds.contenders = [replace(rounds.contenders[0], answer=uneven)]
    played(rounds, 3)
    whole = results(rounds)[-1]
    assert whole.kind == ALL
    assert whole.speeds == pytest.approx([40 / (20 * 0.01 + 20 * 10.0)])


def test_a_program_that_was_given_up_has_no_result_over_all_classes(clock: FakeClock) -> None:
    answered: list[Exchange] = []

    def once(exchange: Exchange) -> Trial:
        if answered:
            raise LacliError("it crashed")
        answered.append(exchange)
        return Trial(None, None, 20, 10, None, None, 10, 1.0, 1.0, 1.0, own_limit=True)

    rounds = played(Rounds([contender(PLAIN, clock)[0], Contender("rival", None, 0, once)], TASKS, 1, asker()))
    assert [result.kind for result in results(rounds) if result.number == 1] == ["code"]


def test_turns_of_a_conversation_are_one_prompt_of_the_interval(clock: FakeClock) -> None:
    settings = (PLAIN, LOOKUP)
    talks = [task("1 2 3", "4 5", kind="talk"), task("6 7 6 7", "8 9", kind="talk"), task("2 2", "3", kind="talk")]
    rounds = played(Rounds([contender(each, clock, free)[0] for each in settings], talks, 1, asker()))
    talk = results(rounds)[1]
    assert talk.prompts == 6
    paces = [[[sum(t.seconds for t in pair) / sum(t.tokens for t in pair)] for pair in
              [(rounds.of(number, 2 * each)[0], rounds.of(number, 2 * each + 1)[0]) for each in range(3)]]
             for number in (0, 1)]  # fmt: skip
    assert talk.speedup == paired_ratio(*paces)
