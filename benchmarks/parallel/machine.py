"""The machines that are simulated: what a device's steps cost, and the network between devices.

Names, files and sizes only; who is timed on them is `study.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.parallel.device import Travel
from benchmarks.parallel.steps import Link, Wire, remote_calls
from benchmarks.shapes import SHAPES as MODELS
from benchmarks.shapes import Shape
from benchmarks.simulated import SHAPES, Stairs
from lacli.auto.step_cost import Point, StepCost
from lacli.errors import LacliError, reason_of

A100 = "a100"
MACHINES = {A100: "1:1,11:1.08,153:1.1,306:2.1,612:4.1", **SHAPES}
"""a100: S over speed-up in the paper's Table 3, up to 125 rows; from 153 on a roofline of 312 TFLOP/s and 2 TB/s."""

BEYOND = 4
"""Times the largest measured step that its line is drawn to."""

CELLS = 1024
"""Cells of the cache that a row's mask covers on its way to an RPC server."""


@dataclass(frozen=True)
class Machine:
    """A device. single_s: seconds of a plain step. measured: rows up to which t(b) is known; beyond it is a line."""

    name: str
    stairs: Stairs
    single_s: float
    measured: int


@dataclass(frozen=True)
class Network:
    """Where the other devices are. latencies: seconds there and back. shape: of the model that is sent for."""

    latencies: Sequence[float]
    bits: float
    shape: Shape

    def travel(self, machine: Machine, latency: float, wire: Wire) -> Travel:
        """What a part spends on the way, in plain steps of a machine."""
        link = Link(latency, self.bits)
        return lambda rows, outputs: link.seconds(wire, rows, outputs) / machine.single_s

    @property
    def model(self) -> str:
        """What a model of that shape is called."""
        return next(name for name, shape in MODELS.items() if shape == self.shape).upper()

    @property
    def rpc(self) -> Wire:
        return remote_calls(self.shape, CELLS)

    def between_layers(self, machine: Machine, latency: float, devices: int) -> list[Travel]:
        """The same for each device but the first, with the layers divided among `devices`."""
        share, rest = self.shape.layers // devices, range(2, devices + 1)
        wires = [remote_calls(self.shape, CELLS, layers=share, last=place == devices) for place in rest]
        return [self.travel(machine, latency, wire) for wire in wires]


def machine_of(text: str, single_ms: float) -> Machine:
    """One of MACHINES, points such as 1:1,8:2.5, or a file that `lacli cost --json` wrote, whose t(1) is its own."""
    path = Path(text)
    if path.suffix != ".json":
        stairs = Stairs.named(MACHINES.get(text, text))
        return Machine(text, stairs, single_ms / 1e3, int(stairs.rows[-1]))
    try:
        found = json.loads(path.read_text("utf-8"))["staircases"][0]
        points = tuple(Point(rows, ms / 1e3, ms / 1e3) for rows, ms in zip(found["rows"], found["ms"], strict=True))
        measured = StepCost(found["context"], points)
        most = BEYOND * measured.max_rows
        stairs = Stairs([(rows, measured.relative(rows)) for rows in [*found["rows"], most]])
    except OSError as error:
        raise LacliError(f"cannot read {path}: {reason_of(error)}", "check --machine") from error
    except (ValueError, KeyError, IndexError, TypeError, AssertionError) as error:
        raise LacliError(f"{path} holds no staircase", "lacli cost MODEL --json writes one") from error
    return Machine(path.name, stairs, measured.single, measured.max_rows)
