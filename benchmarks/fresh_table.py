"""The answers of `benchmarks.fresh` as records, and the tables that are made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from lacli.bench.statistics import Ratio, paired_ratio
from lacli.bench.tasks import ALL
from lacli.text.format import markdown

PLAIN = "plain"
AUTO = "auto, "
"""The beginning of the names of mode auto's runs."""

SHORTEST = 16
"""Tokens of an answer that counts. Of fewer the timer and the first step are a noticeable part."""


@dataclass(frozen=True)
class Answer:
    """`tokens` decoded in `seconds`. `start_s`: of the process beside prompt and answer; None where it is not known."""

    tokens: int
    seconds: float
    first_token_s: float
    text: str
    start_s: float | None = None

    @property
    def token_s(self) -> float:
        """Seconds a token."""
        return self.seconds / self.tokens


@dataclass(frozen=True)
class Row:
    """An answer, who gave it, and to what. `limit`: tokens that were asked for. `turn`: the repetition, from 0."""

    model: str
    limit: int
    kind: str
    prompt: str
    turn: int
    contender: str
    answer: Answer


def tables(rows: Sequence[Row]) -> str:
    """A table for each model and length of answers."""
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.model, row.limit), []).append(row)
    return "\n\n".join(table(f"{model}, answers of {limit} tokens", cell) for (model, limit), cell in cells.items())


def table(title: str, rows: Sequence[Row]) -> str:
    """Contenders by classes of prompts, and what is left out."""
    long = [row for row in rows if row.answer.tokens >= SHORTEST]
    by_name: dict[str, list[Row]] = {}
    for row in sorted(long, key=lambda row: row.contender != PLAIN):
        by_name.setdefault(row.contender, []).append(row)
    plain = by_name.get(PLAIN, [])
    kinds = [*dict.fromkeys(row.kind for row in plain)]
    auto = [name for name in by_name if name.startswith(AUTO)][-1:]
    lines = []
    for name, own in by_name.items():
        speeds = ["1" if name == PLAIN else words(ratio(plain, own, kind)) for kind in [*kinds, ""]]
        against = [words(ratio(own, by_name[other])) if other != name else "" for other in auto]
        lines.append([name, *speeds, *against, same_texts(own, plain), *outside(own)])
    header = ["x plain (95%)", *kinds, ALL, *(f"{name} / it" for name in auto), "plain's texts"]
    step_ms = median([row.answer.token_s for row in plain]) * 1e3 if plain else 0.0
    prompts = ", ".join(f"{len({row.prompt for row in plain if row.kind == kind})} {kind}" for kind in kinds)
    notes = f"Prompts: {prompts}. Plain decoding takes {step_ms:.2f} ms a token."
    if short := len(rows) - len(long):
        notes += f" Left out: {short} of {len(rows)} answers, which end before {SHORTEST} tokens."
    return f"{title}\n\n{markdown([*header, 'first token ms', 'start-up s'], lines)}\n\n{notes}"


def ratio(one: Sequence[Row], other: Sequence[Row], kind: str = "") -> Ratio | None:
    """How many times as fast the `other` is, from the rounds that both have answered; of one class or of all."""
    ours, theirs = ({(row.prompt, row.turn): row.answer.token_s for row in rows if kind in ("", row.kind)}
                    for rows in (one, other))  # fmt: skip
    both: dict[str, list[tuple[float, float]]] = {}
    for (prompt, turn), seconds in ours.items():
        if (prompt, turn) in theirs:
            both.setdefault(prompt, []).append((seconds, theirs[prompt, turn]))
    if not both:
        return None
    return paired_ratio(*([[pair[side] for pair in pairs] for pairs in both.values()] for side in (0, 1)))


def words(found: Ratio | None) -> str:
    """A ratio and its interval, as far as there are any."""
    if found is None:
        return ""
    return f"{found.value:.2f}" + (f" ({found.low:.2f}-{found.high:.2f})" if found.low and found.high else "")


def same_texts(rows: Sequence[Row], plain: Sequence[Row]) -> str:
    """How many of the texts are plain decoding's, as far as both go."""
    texts = {row.prompt: row.answer.text for row in plain}
    pairs = [(row.answer.text, texts[row.prompt]) for row in rows if row.prompt in texts]
    same = sum(bool(own) and (own.startswith(other) or other.startswith(own)) for own, other in pairs)
    return f"{same} of {len(pairs)}"


def outside(rows: Sequence[Row]) -> list[str]:
    """Medians of the time to the first token, and of starting and ending the process."""
    starts = [row.answer.start_s for row in rows if row.answer.start_s is not None]
    first = median([row.answer.first_token_s for row in rows])
    return [f"{first * 1e3:.0f}", f"{median(starts):.2f}" if starts else ""]


def read_rows(path: Path) -> list[Row]:
    """What --json has kept; the last line may be cut off."""
    found = []
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            row = json.loads(line)
            found.append(Row(**{**row, "answer": Answer(**row["answer"])}))
    return found
