"""What several devices make of traces: speeds by number of devices and by latency, and where they stop paying.

Records for tables, pictures and programs (`simulate_lp.py`). All speeds are tokens per plain step of one device, so
plain decoding's own is 1; of several classes the geometric mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.insight.law import PAPER, Law, fit
from benchmarks.parallel.device import Travel
from benchmarks.parallel.machine import Machine, Network
from benchmarks.parallel.steps import TOKEN_IDS, Group, in_layers, replayed
from benchmarks.parallel.trace import Trace, law_trace

MOST_PATIENT = 1000.0
"""Plain steps: no network is looked at that takes longer."""

EXACT = 1e-4

LAYERS = (2, 4)
"""Devices that a model's layers lie on in the tables."""

Sizes = Mapping[str, Sequence[Trace]]
"""Traces of each W/N/G, such as 15/5/15, one a class."""

Times = Mapping[str, Sequence[Sequence[float]]]
"""Plain steps that they take, for each number of devices, by W/N/G."""

Auto = Callable[[int, Travel | None], Sequence[Trace]]
"""Traces of mode auto by the number of devices and the way to them."""


@dataclass(frozen=True)
class Paying:
    """So many devices beside one. size: the W/N/G that stays ahead of one device at the largest latency, and its speed
    without any.

    latency: seconds there and back from which on one device is as fast; 0 where it always is.
    """

    devices: int
    size: str
    speed: float
    latency: float


@dataclass(frozen=True)
class Study:
    """All that is found of a machine. The keys of networks are what travels, then seconds there and back."""

    machine: Machine
    network: Network
    devices: Sequence[int]
    sizes: Mapping[str, Sequence[Trace]]
    speeds: Mapping[str, Sequence[float]]
    auto: Sequence[float]
    paying: Sequence[Paying]
    networks: Mapping[str, Mapping[float, Sequence[float]]]
    layers: Mapping[float, Sequence[tuple[float, float]]]

    @property
    def alone(self) -> float:
        """What one device reaches: plain decoding or the best lookahead."""
        return max(1.0, *(speeds[0] for speeds in self.speeds.values()))

    @property
    def alone_in_auto(self) -> float:
        return self.auto[0]

    @property
    def law(self) -> Law | None:
        """The law that fits the S of the sizes with as many candidates as columns; None where none does."""
        points = []
        for size, traces in self.sizes.items():
            window, ngram, guesses = map(int, size.split("/"))
            if window == guesses:
                points.append((ngram - 1, window, compression(traces)))
        return fit(points) if points else None


def compression(traces: Sequence[Trace]) -> float:
    """S, the geometric mean of the classes."""
    return speed(traces, [trace.steps for trace in traces])


def speed(traces: Sequence[Trace], times: Sequence[float]) -> float:
    """Geometric mean over traces of several classes: tokens per plain step. `times`: of each, in plain steps."""
    return geometric_mean(trace.tokens / time for trace, time in zip(traces, times, strict=True))


def in_group(traces: Sequence[Trace], machine: Machine, devices: int, travel: Travel | None = None) -> list[float]:
    """The times of `traces` on `devices` devices. `travel`: to all but the first; None for one machine."""
    return [replayed(trace, Group(machine.stairs, devices, travel)) for trace in traces]


def by_devices(
    sizes: Sizes, machine: Machine, devices: Sequence[int], travel: Travel | None = None
) -> dict[str, list[list[float]]]:
    """What the traces of each W/N/G take on each number of devices."""
    return {size: [in_group(traces, machine, number, travel) for number in devices] for size, traces in sizes.items()}


def speeds_of(sizes: Sizes, times: Times) -> dict[str, list[float]]:
    """Speeds of each W/N/G, one for each number of devices."""
    return {size: [speed(sizes[size], each) for each in columns] for size, columns in times.items()}


def auto_by_devices(auto: Auto, machine: Machine, devices: Sequence[int], travel: Travel | None = None) -> list[float]:
    """The same of mode auto."""
    found = []
    for number in devices:
        traces = auto(number, travel)
        found.append(speed(traces, in_group(traces, machine, number, travel)))
    return found


def best(speeds: Mapping[str, Sequence[float]]) -> list[tuple[str, float]]:
    """The fastest W/N/G for each number of devices."""
    columns = zip(*speeds.values(), strict=True)
    return [max(zip(speeds, column, strict=True), key=lambda pair: pair[1]) for column in columns]


def paying(sizes: Sizes, times: Times, machine: Machine, devices: Sequence[int]) -> list[Paying]:
    """How far away the other devices may be, if each step waits for one answer of theirs. devices: 1 and others."""
    goal = max(1.0, *(speeds[0] for speeds in speeds_of(sizes, times).values()))
    found = []
    for place, number in enumerate(devices[1:], start=1):
        each = [
            (bearable(sizes[size], columns[place], goal), speed(sizes[size], columns[place]), size)
            for size, columns in times.items()
        ]
        wait, reached, size = max(each)
        found.append(Paying(number, size, reached, wait * machine.single_s))
    return found


def bearable(traces: Sequence[Trace], times: Sequence[float], goal: float) -> float:
    """Plain steps that each step may wait for others until the speed is no more than the goal."""
    least, most = 0.0, MOST_PATIENT
    while most - least > EXACT:
        middle = (least + most) / 2
        waited = [time + middle * trace.steps for trace, time in zip(traces, times, strict=True)]
        least, most = (middle, most) if speed(traces, waited) > goal else (least, middle)
    return least


def over_network(
    sizes: Sizes, auto: Auto, machine: Machine, network: Network, devices: Sequence[int]
) -> dict[str, dict[float, list[float]]]:
    """Speeds for each number of devices, by what travels and by latency: of the best W/N/G, and of mode auto."""
    found: dict[str, dict[float, list[float]]] = {}
    for words, wire in (("token ids", TOKEN_IDS), ("RPC", network.rpc)):
        for latency in network.latencies:
            travel = network.travel(machine, latency, wire)
            times = by_devices(sizes, machine, devices, travel)
            speeds = [reached for _, reached in best(speeds_of(sizes, times))]
            found.setdefault(f"lookahead, {words}", {})[latency] = speeds
            found.setdefault(f"auto, {words}", {})[latency] = auto_by_devices(auto, machine, devices, travel)
    return found


def layers(sizes: Sizes, machine: Machine, network: Network) -> dict[float, list[tuple[float, float]]]:
    """By latency plain decoding's speed and the best lookahead's, where a model's layers lie on each of LAYERS."""
    found: dict[float, list[tuple[float, float]]] = {}
    for latency in network.latencies:
        for number in LAYERS:
            travels = network.between_layers(machine, latency, number)
            plain = 1 / (1 + sum(travel(1, 1) for travel in travels))
            times = (
                (traces, [in_layers(each, machine.stairs, travels) for each in traces]) for traces in sizes.values()
            )
            found.setdefault(latency, []).append((plain, max(speed(*each) for each in times)))
    return found


def of_the_law(sizes: Sequence[str], law: Law = PAPER) -> dict[str, list[Trace]]:
    """Traces of the paper's law for each W/N/G: LLaMA-2-Chat-7B on MT-Bench."""
    return {size: [law_trace(law, *map(int, size.split("/")))] for size in sizes}
