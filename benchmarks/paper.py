"""Measure S as the lookahead paper does: the nine settings of Table 3, and the law of section 4.

    python -m benchmarks.paper table3 --model FILE --seconds 600
    lacli bench MODEL --modes lookahead -W 1,5,15,30 -N 3,5,7 -o json > sweep.json
    python -m benchmarks.paper law sweep.json

`law` fits Equation 7 to the settings with G = W in a sweep (Figure 4). For each it prints S and the law's S.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lacli.bench.plan import ALL, Point, tasks_of
from lacli.bench.run import BenchRequest, compared, finish
from lacli.engine.load import open_engine
from lacli.errors import LacliError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.terminal.screen import Screen
from lacli.text.format import markdown

SIZES = (
    *((10, 1, 3, True), (5, 1, 10, True), (5, 1, 30, False), (5, 1, 30, True), (5, 30, 1, False)),
    *((5, 15, 15, False), (5, 15, 15, True)),
)
"""N, W, G, and whether the prompt is a reference, of rows 3 to 9 of Table 3."""


def table3_points() -> list[Point]:
    """Return the settings of Table 3 in its order.

    Row 2 is prompt lookup as in transformers 4.37: 10 tokens drafted after a match of at most 2. In the other rows the
    window starts from the pool and from prompt tokens drawn at random. With the prompt as reference, the n-grams of
    the prompt and of the growing text enter the pool. One thing differs: the authors verify nothing in the first N-2
    steps, while their window fills. Our window is full at once, which helps most at W = 1.
    """
    plain, lookup = DecodeSettings(mode="plain"), DecodeSettings(mode="lookup", lookup_draft=10, lookup_match=2)
    found = [Point(plain, name="1: plain"), Point(lookup, name="2: lookup")]
    for row, (ngram, window, guesses, reference) in enumerate(SIZES, start=3):
        settings = replace(
            DecodeSettings(mode="lookahead", ngram=ngram, window=window, guesses=guesses), pool_prompt=reference
        )
        ending = ", prompt as reference" if reference else ""
        found.append(Point(settings, name=f"{row}: {Point(settings).label}{ending}"))
    return found


@dataclass(frozen=True)
class Law:
    """Equation 7: one of `f` steps has good drafts, whose tokens are each accepted with probability `alpha`."""

    alpha: float
    f: float

    def compression(self, gamma: int, sequences: int) -> float:
        """Return S, tokens a step, if a step verifies `sequences` = G = W drafts of `gamma` = N - 1 tokens."""
        return (self.f - 1 + expected_tokens(self.alpha, gamma, sequences)) / self.f


PAPER = Law(0.425, 3.106)
"""The law of LLaMA-2-Chat-7B on MT-Bench in the paper's Figure 4 (b)."""

Measured = tuple[int, int, float]
"""gamma = N - 1, sequences = W = G, and S of a setting."""


def expected_tokens(alpha: float, gamma: int, sequences: int) -> float:
    """Return the expected tokens of a step with good drafts: Equation 5, which is Equation 4 for one draft.

    They are the longest accepted beginning of `sequences` drafts of `gamma` tokens, and one token of the model's own.
    """
    return gamma + 1 - sum((1 - alpha**depth) ** sequences for depth in range(1, gamma + 1))


def fit(points: Sequence[Measured]) -> Law:
    """Return the law with the least squared error of S at the points, from a grid of 999 alphas.

    Raises LacliError if the points show no gain, or for fewer than two settings.
    """
    gains = np.array([measured - 1 for *_, measured in points])
    found = []
    for alpha in np.linspace(0.001, 0.999, 999):
        means = np.array([expected_tokens(float(alpha), gamma, sequences) - 1 for gamma, sequences, _ in points])
        # S - 1 = (E - 1) / f is linear in 1 / f.
        share = float(np.clip(gains @ means / max(means @ means, 1e-300), 0, 1))
        found.append((float(((share * means - gains) ** 2).sum()), float(alpha), share))
    _, alpha, share = min(found)
    if len({point[:2] for point in points}) < 2 or share <= 0:
        raise LacliError("S of these settings fits no law", "sweep several settings with G = W and S above 1")
    return Law(alpha, 1 / share)


def tied(rows: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Return the settings with G = W in the rows of `lacli bench -o json`, measured over all classes."""
    whole = [row for row in rows if row["class"] == ALL] or rows
    return [
        (row["ngram"] - 1, row["window"], row["tokens_per_step"])
        for row in whole
        if row["mode"] == "lookahead" and row["guesses"] == row["window"]
    ]


def law_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with the measured S of each setting, the fitted law's S and the paper's law's S."""
    points = tied(rows)
    law = fit(points)
    heading = f"alpha {law.alpha:.3f}, f {law.f:.2f} (the paper's example: {PAPER.alpha}, {PAPER.f})"
    lines = [
        [f"W=G={sequences} N={gamma + 1}", *(f"{each:.2f}" for each in (measured, *_laws(law, gamma, sequences)))]
        for gamma, sequences, measured in points
    ]
    return f"{heading}\n\n{markdown(['setting', 'S', 'by the law', 'by the paper'], lines)}"


def _laws(law: Law, gamma: int, sequences: int) -> tuple[float, float]:
    return law.compression(gamma, sequences), PAPER.compression(gamma, sequences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    table3 = commands.add_parser("table3")
    table3.add_argument("--model", type=Path, required=True, help="a GGUF file")
    table3.add_argument("--classes", default="code,edit,chat", help="classes of lacli bench's prompts")
    table3.add_argument("--seconds", type=float, default=600, help="stop after this time")
    commands.add_parser("law").add_argument("sweep", type=Path, help="the output of lacli bench -o json")
    arguments = parser.parse_args()
    try:
        if arguments.command == "law":
            print(law_table(json.loads(arguments.sweep.read_text("utf-8"))))
            return
        screen = Screen()
        tasks = tuple(tasks_of(None, arguments.classes))
        request = BenchRequest(tasks, arguments.seconds, form="md")
        with open_engine(arguments.model, ModelSettings(), DecodeSettings(mode="plain")) as session:
            rounds, machine = compared(session, request, screen, chosen=table3_points())
        finish(rounds, machine, request, screen)
    except LacliError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
