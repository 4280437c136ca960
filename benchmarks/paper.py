"""What the lookahead paper says of S, measured: the nine settings of its Table 3, and the law of its section 4.

    python -m benchmarks.paper table3 --model FILE --seconds 600
    lacli bench MODEL --modes lookahead -W 1,5,15,30 -N 3,5,7 -o json > sweep.json
    python -m benchmarks.paper law sweep.json

`law` fits Equation 7 to the settings of a sweep whose G is W (Figure 4), and prints S and the law's S of each.
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
"""N, W, G and the prompt as reference, of rows 3 to 9 of Table 3."""


def table3_points() -> list[Point]:
    """The rows of Table 3.

    Row 2 is prompt lookup as in transformers 4.37: 10 tokens drafted after a match of at most 2. In the others the
    window starts from what the pool knows and from prompt tokens drawn at random, and with the prompt as reference its
    n-grams enter the pool, and those of the text as it grows. What differs: the authors verify nothing in the first N-2
    steps, while their window fills; ours starts with a full window, which is worth most at W = 1.
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
    """Equation 7: one of `f` steps has good guesses, and each of their tokens is accepted with probability `alpha`."""

    alpha: float
    f: float

    def compression(self, gamma: int, sequences: int) -> float:
        """S, tokens a step, where a step verifies `sequences` = G = W sequences of `gamma` = N - 1 tokens."""
        return (self.f - 1 + expected_tokens(self.alpha, gamma, sequences)) / self.f


PAPER = Law(0.425, 3.106)
"""LLaMA-2-Chat-7B on MT-Bench, with which the paper draws Figure 4 (b)."""

Measured = tuple[int, int, float]
"""gamma = N - 1, sequences = W = G, and S of a setting."""


def expected_tokens(alpha: float, gamma: int, sequences: int) -> float:
    """Tokens that a step with good guesses brings: Equation 5, and with one sequence Equation 4.

    The longest accepted run of `sequences` guesses of `gamma` tokens counts, and the model's own token comes on top.
    """
    return gamma + 1 - sum((1 - alpha**depth) ** sequences for depth in range(1, gamma + 1))


def fit(points: Sequence[Measured]) -> Law:
    """The law of a grid of 999 alphas that is closest to the points by least squares of S.

    Raises LacliError where nothing was gained.
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
        raise LacliError("these settings do not tell which law they follow", "-W 1,5,15 -N 3,5, G = W")
    return Law(alpha, 1 / share)


def tied(rows: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """The settings with G = W among the rows of `lacli bench -o json`, over all classes."""
    whole = [row for row in rows if row["class"] == ALL] or rows
    return [
        (row["ngram"] - 1, row["window"], row["tokens_per_step"])
        for row in whole
        if row["mode"] == "lookahead" and row["guesses"] == row["window"]
    ]


def law_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """S of each setting beside that of the fitted law and of the paper's own."""
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
    table3.add_argument("--classes", default="code,edit,chat", help="of lacli bench's prompts")
    table3.add_argument("--seconds", type=float, default=600, help="of all of it")
    commands.add_parser("law").add_argument("sweep", type=Path, help="what lacli bench -o json has printed")
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
