"""The search of `lacli tune` on toy engines with a clock of the test's: what it finds, and what it leaves on Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from math import prod

import pytest

from lacli.bench.plan import Speed
from lacli.bench.rounds import Contender, Exchange, Trial
from lacli.bench.tasks import Task
from lacli.errors import LacliError
from lacli.placement import Placement
from lacli.settings import DecodeSettings, ModelSettings
from lacli.tune.candidates import FEWER, Candidate, flags, loading_flags, words
from lacli.tune.confirm import ENOUGH
from lacli.tune.field import Field
from lacli.tune.report import as_lines, conclusion
from lacli.tune.search import LEAST, Entrant, Round, Search
from lacli.tune.tune_json import as_json
from lacli.tune.tuner import AUTO, PLAIN, Tuner, fitting
from lacli.tune.tuning import Setup, Tuning
from lacli.ui import Screen
from tests.bench_field import asker, contender, task
from tests.fake_clock import FakeClock

LOOKUPS = [
    DecodeSettings(mode="lookup", lookup_match=match, lookup_draft=draft) for match in (1, 2) for draft in (2, 3, 7, 16)
]
TREES = [
    DecodeSettings(mode="lookahead", window=0, ngram=ngram, guesses=guesses) for ngram in (3, 5) for guesses in (1, 2)
]
FIELD = [*LOOKUPS, *TREES]
CYCLES = ((1, 2, 3), (4, 5), (7, 8, 9, 2), (3, 1, 2), (5, 4), (8, 9, 2, 7))
TASKS = [task(" ".join(map(str, [*cycle, *cycle, *cycle])), limit=24) for cycle in CYCLES]
SETUP = Setup("toy.gguf", "toy 1M", "A processor", ModelSettings(threads=1, threads_batch=1), "6 prompts", "none")

Cost = Callable[[int, int], float]


def flat(rows: int, outputs: int) -> float:
    """Nearly free rows."""
    return 1.0 + 0.02 * rows


def steep(rows: int, outputs: int) -> float:
    """A row costs a step."""
    return float(rows)


def edged(rows: int, outputs: int) -> float:
    """Four rows for the price of one, and then a wall."""
    return 1.0 if rows <= 4 else 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    clock.install(monkeypatch)
    return clock


def field_on(clock: FakeClock, cost: Cost, autos: DecodeSettings = PLAIN) -> Field:
    """A field whose steps cost so much. autos: what decodes in mode auto's name, so that its speed is known."""

    @contextmanager
    def field(settings: Sequence[DecodeSettings]) -> Iterator[Sequence[Contender]]:
        yield [named(each, clock, cost, autos if each.mode == "auto" else each) for each in settings]

    return field


def named(settings: DecodeSettings, clock: FakeClock, cost: Cost, decodes: DecodeSettings) -> Contender:
    one, _ = contender(decodes, clock, cost)
    assert one.point
    return replace(one, label=words(settings), point=replace(one.point, settings=settings))


def tuner(clock: FakeClock, cost: Cost, seconds: float = 1e6, autos: DecodeSettings = PLAIN) -> Tuner:
    found = [Candidate(each) for each in FIELD]
    field = field_on(clock, cost, autos)
    return Tuner(field, field, asker(), TASKS, found, clock.now + seconds, Screen(quiet=True), clock=clock)


def outcome(done: Tuner) -> Tuning:
    return Tuning(
        SETUP,
        ranked=done.search.ranked if done.search else (),
        confirmed=done.last.confirmed() if done.last else None,
        interrupted=done.interrupted,
    )


def measured(cost: Cost) -> dict[DecodeSettings, float]:
    """Every setting's speed against plain's over all tasks, by trying each of them."""
    with pytest.MonkeyPatch.context() as patch:
        clock = FakeClock()
        clock.install(patch)
        paces = {settings: [pace(settings, each, clock, cost) for each in TASKS] for settings in (PLAIN, *FIELD)}
    ratios = {each: [one / two for one, two in zip(paces[PLAIN], own, strict=True)] for each, own in paces.items()}
    return {settings: prod(ratio) ** (1 / len(TASKS)) for settings, ratio in ratios.items()}


def pace(settings: DecodeSettings, asked: Task, clock: FakeClock, cost: Cost) -> float:
    exchange = asker().exchange(asked, [])
    assert exchange
    trial = contender(settings, clock, cost)[0].answer(exchange)
    return trial.seconds / trial.tokens


@pytest.mark.parametrize("cost", [flat, edged])
def test_the_search_finds_the_best_of_a_known_landscape(clock: FakeClock, cost: Cost) -> None:
    known = measured(cost)
    done = tuner(clock, cost)
    done.run()
    found = outcome(done)
    assert found.best and found.confirmed
    assert known[found.best] == pytest.approx(max(known.values())) and known[found.best] > 1.02
    assert found.confirmed.used.speedup.value == pytest.approx(known[found.best])
    assert words(found.best) in as_lines(found)
    assert f"  lacli run toy.gguf {flags(found.best)}   (the same)" in as_lines(found).splitlines()


def test_where_auto_is_slower_too_plain_is_the_result(clock: FakeClock) -> None:
    known = measured(steep)
    slow = min(FIELD, key=known.__getitem__)
    done = tuner(clock, steep, autos=slow)
    done.run()
    found = outcome(done)
    assert found.best == PLAIN and known[slow] < 1
    said = conclusion(found)
    assert said.startswith("No setting is surely faster than plain decoding and auto here: mode auto ran at 0.")
    assert "Plain is remembered" in said
    remembered = found.remembered(7.0)
    assert remembered and (remembered.settings, remembered.speedup, remembered.tuned_at) == (PLAIN, 1.0, 7.0)


def test_where_auto_is_as_fast_as_plain_it_is_the_result(clock: FakeClock) -> None:
    """It guesses where a later text has something to guess."""
    done = tuner(clock, steep)
    done.run()
    found = outcome(done)
    assert found.best == AUTO
    assert conclusion(found).startswith("Mode auto, which needs no tuning, is the choice here: 1.00 times")
    assert "Auto is remembered" in conclusion(found)


def test_the_commands_have_the_flags_that_the_result_belongs_to(clock: FakeClock) -> None:
    done = tuner(clock, flat)
    done.run()
    loading = ModelSettings(threads=2, cache_type_k="q8_0", flash_attention="on", context=512, batch=64)
    found = replace(outcome(done), setup=replace(SETUP, flags=loading_flags(loading)))
    assert found.best
    preset, same = as_lines(found).splitlines()[-2:]
    assert preset == "  lacli run toy.gguf --preset tuned -t 2 -fa on -ctk q8_0"
    assert same == f"  lacli run toy.gguf {flags(found.best)} -t 2 -fa on -ctk q8_0   (the same)"
    assert as_lines(replace(found, trouble="no room")).endswith(f"{flags(found.best)} -t 2 -fa on -ctk q8_0")
    placed = ModelSettings(placement=Placement(("CUDA0", "CUDA1"), "row"))
    assert loading_flags(placed) == "--device CUDA0,CUDA1 -sm row"


def test_all_but_commands_fits_into_80_columns(clock: FakeClock) -> None:
    done = tuner(clock, flat)
    done.field = done.quick = field_on(clock, flat, max(FIELD, key=measured(flat).__getitem__))
    done.found = [Candidate(DecodeSettings(mode="auto", sources=sources)) for sources in FEWER]
    done.run()
    setup = replace(SETUP, devices=", ".join(["A processor with a rather long name"] * 3))
    shown = as_lines(replace(outcome(done), setup=setup)).splitlines()
    assert any("auto suffix,recycling,pool" in line for line in shown)
    assert max(len(line) for line in shown if "lacli run" not in line) <= 80


@pytest.mark.parametrize("cost", [flat, edged])
def test_where_auto_is_as_fast_as_the_best_setting_auto_is_the_result(clock: FakeClock, cost: Cost) -> None:
    known = measured(cost)
    done = tuner(clock, cost, autos=max(FIELD, key=known.__getitem__))
    done.run()
    found = outcome(done)
    assert found.best == AUTO
    assert "Auto is remembered" in conclusion(found)
    assert conclusion(found).startswith("Mode auto, which needs no tuning,")
    assert "ran at 1.00 times" in conclusion(found).replace("\n", " ")


def test_a_winner_is_compared_with_auto_pair_by_pair(clock: FakeClock) -> None:
    known = measured(flat)
    slower = min(FIELD, key=known.__getitem__)
    done = tuner(clock, flat, autos=slower)
    done.run()
    found = outcome(done)
    assert found.confirmed and found.confirmed.tried and found.confirmed.winner_over_auto
    ratio = known[found.confirmed.tried] / known[slower]
    assert found.confirmed.winner_over_auto.value == pytest.approx(ratio) and ratio > 1


def test_half_of_the_field_is_left_after_each_round_and_the_others_did_worse(clock: FakeClock) -> None:
    search, rounds = searched(clock, flat, 1e6)
    sizes = [len(each.entrants) for each in rounds]
    assert sizes[0] == len(FIELD) and sizes[-1] == 2
    assert all(after == (before + 1) // 2 for before, after in zip(sizes, sizes[1:], strict=False))
    assert [each.number for each in rounds] == list(range(1, rounds[0].of + 1))
    for entrant in search.entrants:
        assert len(entrant.answered) >= entrant.rounds >= 1
    assert search.best is search.ranked[0] and search.best.rounds == len(rounds)


def test_each_answer_stands_beside_a_plain_one_of_the_same_prompt(clock: FakeClock) -> None:
    search, _ = searched(clock, flat, 1e6)
    for entrant in search.entrants:
        for each in entrant.answered:
            assert [trial.ids for trial in each.trials] == [trial.ids for trial in each.plain]
            assert all(trial.step_count == trial.tokens for trial in each.plain)


@pytest.mark.parametrize("seconds", [1.0, 200.0, 2_000.0])
def test_little_time_means_fewer_candidates_and_the_most_promising_ones_are_tried(
    clock: FakeClock, seconds: float
) -> None:
    begin = clock.now
    search, rounds = searched(clock, flat, seconds)
    tried = [entrant for entrant in search.entrants if entrant.answered]
    assert tried == list(search.entrants[: len(tried)]) and LEAST <= len(tried) <= len(FIELD)
    once = sum(24 * 1.02 for _ in (*rounds[-1].entrants, PLAIN))
    assert clock.now - begin <= max(seconds, 3 * 16 * 1.5) + once


def test_the_time_bounds_the_search_and_the_last_round(clock: FakeClock) -> None:
    begin = clock.now
    done = tuner(clock, flat, seconds=5_000.0)
    done.run()
    assert clock.now - begin <= 1.1 * 5_000.0
    assert outcome(done).best


def test_too_little_time_remembers_nothing(clock: FakeClock) -> None:
    done = tuner(clock, flat, seconds=1.0)
    done.run()
    found = outcome(done)
    assert found.best is None and found.remembered(0.0) is None
    assert "too short" in conclusion(found) and "nothing is remembered" in conclusion(found)


@pytest.mark.parametrize("answers", [0, 2, 5, 12, 40, 85])
def test_ctrl_c_shows_what_was_measured_so_far_and_remembers_nothing(clock: FakeClock, answers: int) -> None:
    done = tuner(clock, flat)
    done.field = done.quick = interrupted_after(done.field, answers)
    done.run()
    found = outcome(done)
    assert found.interrupted and found.best is None and found.remembered(0.0) is None
    shown = as_lines(found).replace("\n", " ")
    assert "nothing is remembered" in shown
    if found.ranked:
        first = found.ranked[0]
        assert first.result and f"The best so far is {first.contender.label}" in shown
        # What a few answers say is luck, so that it is neither said nor typed again.
        sure = first.result.speedup.low is not None or len(first.result.trials) >= ENOUGH
        assert (f"lacli run toy.gguf --mode {first.contender.mode}" in shown) == sure
        assert (" plain decoding's speed in " in shown) == sure == ("too few to say how fast" not in shown)
    else:
        assert "before any setting was compared" in shown
    data = as_json(found)
    assert (data["interrupted"], data["settings"], data["remembered"]) == (True, None, False)
    assert len(data["search"]) == len(found.ranked)


def test_ctrl_c_before_the_very_last_answer_remembers_nothing_either(clock: FakeClock) -> None:
    whole = tuner(clock, flat)
    given = count()
    whole.field = whole.quick = interrupted_after(whole.field, -1, given)
    whole.run()
    assert outcome(whole).best
    done = tuner(clock, flat)
    done.field = done.quick = interrupted_after(done.field, next(given) - 1)
    done.run()
    found = outcome(done)
    assert found.confirmed and found.confirmed.enough and found.interrupted
    assert found.best is None and found.remembered(0.0) is None
    assert "partly luck" not in conclusion(found)


def test_without_candidates_auto_is_compared_with_plain(clock: FakeClock) -> None:
    done = tuner(clock, flat, autos=LOOKUPS[3])
    done.found = []
    done.run()
    assert outcome(done).best == AUTO
    done = tuner(clock, steep, autos=LOOKUPS[3])
    done.found = []
    done.run()
    assert outcome(done).best == PLAIN and "no other setting can pay" in conclusion(outcome(done))


def test_prompts_that_do_not_fit_are_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    long = task(" ".join("1" * 250), kind="long")
    assert fitting([long, *TASKS], asker(), Screen()) == TASKS
    assert "left out: 1 prompt of more tokens than the context of 256 holds" in capsys.readouterr().err
    with pytest.raises(LacliError, match="no prompt fits into the context"):
        fitting([long], asker(), Screen())


def test_classes_take_turns_so_that_the_first_prompts_are_about_all_of_them() -> None:
    tasks = [task(f"{number} 1", kind=kind) for kind in ("code", "chat") for number in range(2)]
    kinds = [each.kind for each in fitting(tasks, asker(), Screen(quiet=True))]
    assert kinds == ["code", "chat", "code", "chat"]


def searched(clock: FakeClock, cost: Cost, seconds: float) -> tuple[Search, list[Round]]:
    """A search that is over, and its rounds."""
    plain, *others = (named(each, clock, cost, each) for each in (PLAIN, *FIELD))
    search = Search(
        plain, [Entrant(each) for each in others], TASKS, asker(), Speed(1.02, 1.02, 0.1), clock.now + seconds,
        clock=clock,
    )  # fmt: skip
    rounds = []
    while current := search.next_round():
        rounds.append(current)
        for _ in search.play(current):
            pass
    return search, rounds


def interrupted_after(field: Field, answers: int, given: Iterator[int] | None = None) -> Field:
    """The field, whose contenders give so many answers together before somebody presses Ctrl-C; given: counts them."""
    given = given or count()

    def interrupting(one: Contender) -> Contender:
        def answer(exchange: Exchange) -> Trial:
            if next(given) == answers:
                raise KeyboardInterrupt
            return one.answer(exchange)

        return replace(one, answer=answer)

    @contextmanager
    def opened(settings: Sequence[DecodeSettings]) -> Iterator[Sequence[Contender]]:
        with field(settings) as competing:
            yield [interrupting(each) for each in competing]

    return opened
