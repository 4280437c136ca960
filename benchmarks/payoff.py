"""What W, N and G must bring on a measured machine, and what the paper's law expects of them.

    lacli cost MODEL --json > mine.json
    python -m benchmarks.payoff mine.json

Prints for each context, by window and n-gram with G = W, the tokens a step at which full lookahead steps are as fast as
plain decoding, and the speed-up if S is what the law says. ~: larger than any measured step. -: not known.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.insight.law import PAPER
from lacli.auto.step_cost import Point, StepCost
from lacli.settings import DecodeSettings
from lacli.text.format import markdown

WINDOWS = (0, 1, 2, 3, 5, 7, 10, 15, 20, 30)
NGRAMS = (3, 4, 5, 6, 7)


def read_costs(text: str) -> list[StepCost]:
    """Return the step costs in what `lacli cost --json` prints."""
    found: list[dict[str, Any]] = json.loads(text)["staircases"]
    return [
        StepCost(each["context"], tuple(Point(rows, every / 1e3, first / 1e3) for rows, every, first in points))
        for each in found
        for points in [zip(each["rows"], each["ms"], each["one_read_ms"], strict=True)]
    ]


def cells(step_cost: StepCost, window: int, ngram: int) -> tuple[str, str]:
    """Return the break-even S and the speed-up by the law, which says nothing without a window."""
    settings = DecodeSettings(mode="lookahead", window=window, ngram=ngram, guesses=max(window, 1))
    needed = step_cost.break_even(settings)
    if needed is None:
        return "-", "-"
    about = "~" if settings.max_rows > step_cost.max_rows else ""
    speedup = f"{about}{PAPER.compression(ngram - 1, window) / needed:.2f}" if window else "-"
    return f"{about}{needed:.1f}", speedup


def table(step_cost: StepCost) -> str:
    """Return a line a window, with the break-even S and the speed-up for each N."""
    rows = []
    for window in WINDOWS:
        needed, speedups = zip(*(cells(step_cost, window, ngram) for ngram in NGRAMS), strict=True)
        rows.append([str(window), str(max(window, 1)), *needed, *speedups])
    names = [f"N={ngram}" for ngram in NGRAMS]
    title = (
        f"Behind {step_cost.context} tokens: S that must be reached; times as fast by alpha {PAPER.alpha}, f {PAPER.f}"
    )
    return f"{title}\n\n{markdown(['W', 'G', *names, *names], rows, left=0)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cost", type=Path, help="what `lacli cost --json` has printed")
    print("\n\n".join(map(table, read_costs(parser.parse_args().cost.read_text("utf-8")))))


if __name__ == "__main__":
    main()
