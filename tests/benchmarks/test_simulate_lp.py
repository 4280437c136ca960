"""The simulator of several devices: what it times, what it reads, where devices stop paying, and that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import simulate_lp
from benchmarks.insight.law import PAPER
from benchmarks.parallel.machine import MACHINES, Machine, Network, machine_of
from benchmarks.parallel.steps import TOKEN_IDS, Group, GroupStairs, Link, Wire, in_layers, remote_calls, replayed
from benchmarks.parallel.study import MOST_PATIENT, bearable, best, by_devices, layers, paying, speed, speeds_of
from benchmarks.parallel.trace import LAW_STEPS, Trace, TracedStep, TracingDecoder, full_tree, law_trace
from benchmarks.shapes import SHAPES as MODELS
from benchmarks.simulated import PLAIN_S, SimulatedEngine, Stairs
from lacli.auto.mode import AutoModes
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.bench.cost_report import as_json as cost_as_json
from lacli.decode import Decoder
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.replicas.group import ReplicaGroup
from lacli.replicas.replica import Speed
from lacli.settings import DecodeSettings
from lacli.tree import Origin, Tree
from tests.fakes.engine import FakeEngine
from tests.loading import STDLIB_7M
from tests.program import ROOT, SECONDS, Done, environment

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
FREE = Stairs.named("1:1")
DEAR = Stairs.named("1:1,101:11")
CHEAP = Stairs.named("gpu")
SETTINGS = DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5)


def fake(settings: DecodeSettings = SETTINGS) -> FakeEngine:
    return FakeEngine(sequences=settings.sequences, cells=1024, batch_rows=1024)


def traced(settings: DecodeSettings = SETTINGS, tokens: int = 60) -> Trace:
    return Trace("fake", (TracingDecoder(fake(settings), settings).traced(PROMPT, tokens),))


def forked(*lengths: int) -> Tree:
    """A tree whose branches share only the input."""
    tree, token = Tree(0), iter(range(1, 1000))
    for sequence, length in enumerate(lengths, start=1):
        tree.add_path([next(token) for _ in range(length)], sequence, Origin.POOL)
    return tree


class Asked:
    """A staircase that remembers which sizes it was asked for."""

    def __init__(self, stairs: Stairs) -> None:
        self.stairs = stairs
        self.rows: list[int] = []

    def __call__(self, rows: int) -> float:
        self.rows.append(rows)
        return self.stairs(rows)

    def taken(self) -> list[int]:
        rows, self.rows = self.rows, []
        return rows


def test_a_trace_holds_every_step_of_an_answer() -> None:
    steps = list(Decoder(fake(), SETTINGS).generate(PROMPT, 60))
    trace = traced()
    assert [step.tokens for step in trace.answers[0]] == [len(step.tokens) for step in steps]
    assert [len(step.tree) for step in trace.answers[0]] == [step.rows for step in steps]
    assert trace.compression == pytest.approx(60 / len(steps)) and trace.compression > 1.1


def test_one_device_takes_what_the_staircase_says() -> None:
    trace = traced()
    told = sum(DEAR(len(step.tree)) for step in trace.answers[0])
    assert replayed(trace, Group(DEAR, 1)) == pytest.approx(told)


@pytest.mark.parametrize("devices", (2, 3, 5))
def test_devices_take_the_parts_that_lacli_deals_out(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Speed, "line", lambda self, like=None: (1.0, 0.1))
    decoder = Decoder(ReplicaGroup({f"{place}": fake() for place in range(devices)}), SETTINGS)
    rows = [step.rows for step in decoder.generate(PROMPT, 60)]
    group = Group(DEAR, devices)
    simulated = []
    for step in traced().answers[0]:
        group.decode(step.tree)
        group.commit(step.nodes)
        simulated.append(group.rows)
    assert simulated == rows and max(rows) > 20


def test_rows_that_are_free_leave_nothing_to_share() -> None:
    trace = traced()
    assert {replayed(trace, Group(FREE, devices)) for devices in (1, 2, 8)} == {float(trace.steps)}


def test_where_rows_are_dear_more_devices_are_faster_but_never_by_their_number() -> None:
    trace = traced(DecodeSettings(mode="lookahead", window=10, ngram=4, guesses=10))
    one, two, four = (replayed(trace, Group(DEAR, devices)) for devices in (1, 2, 4))
    assert one / 2 < two < 0.9 * one and one / 4 < four < two


def test_devices_that_have_decoded_a_prompt_share_steps_sooner() -> None:
    short = traced(DecodeSettings(mode="lookahead", window=10, ngram=4, guesses=10))
    two, eight = (replayed(replace(short, prompt=100), Group(CHEAP, devices)) for devices in (2, 8))
    assert eight < replayed(short, Group(CHEAP, 8)) < two


def test_a_device_decodes_first_what_it_lacks_of_the_text() -> None:
    asked = Asked(DEAR)
    group = Group(asked, 2)
    tree = forked(4, 4)
    group.decode(tree)
    assert asked.taken() == [5, 5]
    group.commit([5, 6, 7, 8])
    group.decode(tree)
    assert sorted(asked.taken()) == [5, 9]
    group.begin()
    group.decode(tree)
    assert asked.taken() == [5, 5]


def test_the_way_to_another_machine_counts_for_what_goes_there() -> None:
    tree = forked(8, 8)
    away = Group(DEAR, 2, lambda rows, outputs: 0.1 * rows + outputs)
    assert away.decode(tree) == pytest.approx(DEAR(9) + 0.9 + 9)
    assert away.decode(Tree(0)) == 1.0


def test_devices_too_far_away_get_no_part_once_that_is_known() -> None:
    read_in: list[int] = []
    step = 0

    def travel(rows: int, read: int) -> float:
        # What it catches up with is not read.
        if read:
            read_in.append(step)
        return 50.0

    group = Group(DEAR, 2, travel)
    for step in range(30):
        group.decode(forked(4 + step % 5, 4))
        group.commit(())
    assert read_in[0] == 0 and read_in[-1] < 20


def test_what_a_step_spends_on_the_way() -> None:
    link = Link(latency=0.002, bits=8000)
    wire = Wire(trips=3, fixed=10, row=5, output=2, again=(1, 4))
    assert link.seconds(wire, 6, 4) == pytest.approx(3 * 0.002 + (10 + 30 + 8) / 1000)
    assert link.seconds(wire, 1, 1) == pytest.approx(0.002 + (4 + 5 + 2) / 1000)


def test_rpc_sends_embeddings_there_and_logits_back_and_token_ids_hardly_anything() -> None:
    shape = MODELS["7b"]
    whole, half = remote_calls(shape, 1024), remote_calls(shape, 1024, layers=16, last=False)
    assert whole.row == 4 * 4096 + 2 * 1024 and whole.output == 4 * 32000
    assert half.row == 2 * 4 * 4096 + 2 * 1024 and half.output == 0 and half.fixed < whole.fixed
    assert TOKEN_IDS.row < 32 and TOKEN_IDS.output < 32


def test_layers_on_several_devices_follow_one_another() -> None:
    trace = traced()
    alone_s = replayed(trace, Group(DEAR, 1))
    times = [in_layers(trace, DEAR, [lambda rows, outputs: 0.5] * away) for away in (0, 1, 3)]
    assert times == pytest.approx([alone_s + 0.5 * away * trace.steps for away in (0, 1, 3)])


def test_the_clock_of_mode_auto_is_the_groups() -> None:
    settings = DecodeSettings(mode="auto", sources=("suffix",))
    together = GroupStairs(DEAR, Group(DEAR, 2))
    engine = SimulatedEngine(fake(settings), together)
    decoder = TracingDecoder(engine, settings, make_mode=AutoModes(DEAR.cost()))
    decoder.watcher = together
    with engine.clock():
        steps = decoder.traced(PROMPT, 60)
    trace = Trace("auto", (steps,))
    prefill = DEAR(len(PROMPT) - 1) / 2  # what it is worth where two share rows
    assert engine.now / PLAIN_S == pytest.approx(prefill + replayed(trace, Group(DEAR, 2)))
    assert trace.compression > 1


@pytest.mark.parametrize(("window", "ngram"), ((1, 3), (15, 5), (60, 11)))
def test_steps_drawn_from_the_law_bring_what_it_says(window: int, ngram: int) -> None:
    trace = law_trace(PAPER, window, ngram, window)
    assert trace.compression == pytest.approx(PAPER.compression(ngram - 1, window), abs=0.02)
    assert trace.steps == LAW_STEPS


def test_the_largest_step_is_as_large_as_the_settings_say() -> None:
    tree, ends = full_tree(15, 5, 15)
    assert len(tree) == DecodeSettings(mode="lookahead").max_rows and len(ends) == 15
    assert {tree.depths[end] for end in ends} == {4}


def constant(seconds: float, tokens: int = 2) -> tuple[list[Trace], list[float]]:
    """One class of ten steps of so many tokens that take so long each."""
    tree = forked(tokens)
    step = TracedStep(tree, tuple(range(1, tokens)))
    return [Trace("constant", ((step,) * 10,))], [10 * seconds]


def test_waiting_is_bearable_until_one_device_is_as_fast() -> None:
    traces, times = constant(1.0)
    assert speed(traces, times) == pytest.approx(2)
    # 2 tokens in 1 + x plain steps are as fast as 1.6 in one: x = 2 / 1.6 - 1.
    assert bearable(traces, times, 1.6) == pytest.approx(0.25, abs=1e-3)
    assert bearable(traces, times, 2.5) == pytest.approx(0, abs=1e-3)
    assert bearable(traces, times, 1e-9) == pytest.approx(MOST_PATIENT, abs=1e-3)


def test_the_best_size_is_looked_for_by_number_of_devices() -> None:
    assert best({"small": [2.0, 2.1], "large": [1.0, 2.2]}) == [("small", 2.0), ("large", 2.2)]


def test_devices_that_gain_nothing_pay_at_no_latency() -> None:
    sizes = {"5/4/5": [traced()]}
    free, dear = Machine("free", FREE, 0.01, 1), Machine("dear", DEAR, 0.01, 101)
    (two,) = paying(sizes, by_devices(sizes, free, [1, 2]), free, [1, 2])
    assert two.devices == 2 and two.latency == pytest.approx(0, abs=1e-5)
    times = by_devices(sizes, dear, [1, 2])
    assert speeds_of(sizes, times)["5/4/5"][1] < 1
    (two,) = paying(sizes, times, dear, [1, 2])
    assert two.latency == pytest.approx(0, abs=1e-5)


def test_devices_that_gain_may_be_as_far_away_as_what_they_gain() -> None:
    traces, (time,) = constant(1.0)
    machine = Machine("some", FREE, 0.02, 1)
    # Alone 2 tokens in 1.5 plain steps, together in 1: half a plain step of 20 ms is left for the way.
    (two,) = paying({"a": traces}, {"a": [[1.5 * time], [time]]}, machine, [1, 2])
    assert two.latency == pytest.approx(0.01, rel=1e-2) and two.speed == pytest.approx(2)


def test_a_network_makes_plain_decoding_in_layers_slower_than_lookahead_in_layers() -> None:
    machine, network = Machine("free", FREE, 0.01, 1), Network([1e-4, 1e-1], 1e15, MODELS["7b"])
    sizes = {"5/4/5": [traced()]}
    found = layers(sizes, machine, network)
    plain, ahead = found[1e-4][0]
    assert plain == pytest.approx(1 / (1 + 1e-4 / 0.01), rel=1e-3) and ahead / plain > 1
    assert found[1e-1][1][0] == pytest.approx(1 / (1 + 3 * 1e-1 / 0.01), rel=1e-3)


def test_only_the_last_layers_send_logits_back() -> None:
    machine, network = Machine("free", FREE, 0.01, 1), Network([0.001], 1e9, MODELS["7b"])
    middle, last = network.between_layers(machine, 0.001, 3)
    assert middle(8, 8) == middle(8, 1) and last(8, 8) - last(8, 1) == pytest.approx(7 * 4 * 32000 * 8 / 1e9 / 0.01)


def test_a_file_of_lacli_cost_is_a_machine(tmp_path: Path) -> None:
    # The last size may be measured too dear; beyond it the upper half's slope counts.
    points = tuple(Point(rows, 0.004 * (1 + rows / 8), 0.004) for rows in (1, 2, 4, 8, 15))
    points = (*points, Point(16, 0.02, 0.004))
    staircase = StepCost(200, points)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(cost_as_json(Path("some.gguf"), ModelSettings(), Cost((staircase,)), is_kept=False)))
    machine = machine_of(str(path), 99)
    assert machine.single_s == pytest.approx(0.0045) and machine.measured == 16 and machine.name == "mine.json"
    sizes = (1, 3, 16, 40, 64)
    assert [machine.stairs(rows) for rows in sizes] == pytest.approx([staircase.relative(rows) for rows in sizes])


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_of_its_own_has_a_plain_step_of_one(name: str) -> None:
    machine = machine_of(name, 8)
    assert machine.stairs(1) == 1 and machine.single_s == 0.008 and machine.stairs(64) > 1


@pytest.mark.parametrize("text", ("", "[]", "{}", '{"staircases": []}', '{"staircases": [{"rows": [2], "ms": [1]}]}'))
def test_a_file_without_a_staircase_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(LacliError, match="no staircase"):
        machine_of(str(path), 10)
    with pytest.raises(LacliError, match="cannot read"):
        machine_of(str(tmp_path / "none.json"), 10)
    with pytest.raises(UsageError, match="is no staircase"):
        machine_of("steep", 10)


ARGUMENTS = (
    "--model",
    str(STDLIB_7M),
    "--sizes",
    "5/3/5",
    "--first",
    "1",
    "--limit",
    "8",
    "--threads",
    "1",
    "--devices",
    "2",
    "--latency",
    "1",
)


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the program inside this process."""

    def finished(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["simulate_lp", *ARGUMENTS, *arguments])
        code = 0
        try:
            simulate_lp.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capfd.readouterr())

    return finished


def test_it_runs_to_its_tables_and_its_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "benchmarks.simulate_lp", *ARGUMENTS, "--plot", str(tmp_path / "picture.png")]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| 5/3/5") == 3 and "Appendix E" in done.stdout and "| auto, RPC" in done.stdout
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_json_says_what_the_tables_say(run: Run) -> None:
    found = json.loads(run("--json").out)
    assert found["devices"] == [1, 2] and set(found["speeds"]) == {"5/3/5", "auto"}
    assert {each["devices"] for each in found["layers"]} == {2, 4} and len(found["networks"]) == 4
    assert found["paying"][0]["devices"] == 2


REFUSED = {
    ("--machine", "steep"): "'steep' is no staircase",
    ("--sizes", "200/5/200"): "401 sequences",
    ("--devices", "x"): "--devices",
    ("--single-ms", "0"): "--single-ms",
    ("--limit", "0"): "--limit",
    ("--plot", "x.txt"): "cannot write 'x.txt'",
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.items())
def test_what_it_cannot_take_it_says_in_a_line(arguments: tuple[str, ...], words: str, run: Run) -> None:
    done = run(*arguments)
    assert done.code == 2 and words in done.err and not done.out


def test_speeds_are_tokens_over_time() -> None:
    trace = traced()
    sizes = {"5/4/5": [trace]}
    times = by_devices(sizes, Machine("dear", DEAR, 0.01, 101), [1, 2])
    expected = [trace.tokens / replayed(trace, Group(DEAR, devices)) for devices in (1, 2)]
    assert speeds_of(sizes, times)["5/4/5"] == pytest.approx(expected)
