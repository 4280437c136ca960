"""The answers of `benchmarks.fresh` as records, and the tables that are made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from lacli.bench.plan import ALL
from lacli.bench.results import paired_ratio
from lacli.text.format import markdown

PLAIN = "plain"

SHORTEST = 16
"""Tokens of an answer that counts. Of fewer the timer and the first step are a noticeable part."""

SPEEDS = f"""Times as fast as plain decoding, with 95% intervals; under {PLAIN}, its tokens a second. {ALL}: the mean
over all prompts (geometric). Each answer is a new process; lacli finds the cache folder that one earlier answer of the
model left. A contender with fewer texts was asked the first prompt of each class only."""
STEPS = "Tokens a step, with the rows of a step in brackets, and how many texts are plain decoding's."


@dataclass(frozen=True)
class Answer:
    """`tokens` decoded in `seconds`, in so many `steps`. `rows`: of a step on average, None if that is not known."""

    tokens: int
    seconds: float
    text: str
    steps: int
    rows: float | None = None

    @property
    def token_s(self) -> float:
        """Seconds a token."""
        return self.seconds / self.tokens


@dataclass(frozen=True)
class Row:
    """An answer, who gave it, and to what: number `place` of a class. `limit`: tokens that were asked for."""

    model: str
    limit: int
    kind: str
    place: int
    contender: str
    answer: Answer

    @property
    def is_long(self) -> bool:
        """Whether the answer is long enough to count; of a shorter limit every answer is."""
        return self.answer.tokens >= min(SHORTEST, self.limit)


Rows = Sequence[Row]


def tables(rows: Rows) -> str:
    """Two tables for each model and length of answers, classes by contenders: speeds, and what a step brought."""
    found = []
    for model, limit in dict.fromkeys((row.model, row.limit) for row in rows):
        own = [row for row in rows if (row.model, row.limit) == (model, limit)]
        long = [row for row in own if row.is_long]
        left_out = f" Answers left out as too short: {len(own) - len(long)}." if len(long) < len(own) else ""
        found += [f"{model}, answers of {limit} tokens", table(long, speed), SPEEDS + left_out]
        found += [table(long, step, last=same_texts), STEPS]
    return "\n\n".join(found)


Cell = Callable[[Rows, Rows], str]
"""What a cell says of some of a contender's rows, beside plain decoding's of the same class."""


def table(rows: Rows, cell: Cell, last: Cell | None = None) -> str:
    """Classes by contenders, plain decoding first, and a row over all classes. `last`: of one more such row."""
    names = [PLAIN, *dict.fromkeys(row.contender for row in rows if row.contender != PLAIN)]
    kinds = [*dict.fromkeys(row.kind for row in rows)]

    def line(title: str, write: Cell, asked: Rows) -> list[str]:
        groups = [[row for row in asked if row.contender == name] for name in names]
        return [title, *(write(group, groups[0]) for group in groups)]

    lines = [line(kind, cell, [row for row in rows if row.kind == kind]) for kind in kinds]
    lines += [line(ALL, cell, rows), *([line("plain's texts", last, rows)] if last else [])]
    return markdown(["", *names], lines)


def speed(rows: Rows, plain: Rows) -> str:
    """Tokens a second of plain decoding; of another contender how many times as fast it is, prompt by prompt."""
    if rows == plain:
        return f"{1 / median([row.answer.token_s for row in plain]):.1f}/s" if plain else ""
    beside = {(row.kind, row.place): row.answer.token_s for row in plain}
    pairs = [([beside[key]], [row.answer.token_s]) for row in rows if (key := (row.kind, row.place)) in beside]
    if not pairs:
        return ""
    ratio = paired_ratio(*zip(*pairs, strict=True))
    return f"{ratio.value:.2f}" + (f" ({ratio.low:.2f}-{ratio.high:.2f})" if ratio.low and ratio.high else "")


def step(rows: Rows, plain: Rows) -> str:
    """S, and the mean of the rows of a step where all answers tell them."""
    if not rows:
        return ""
    sizes = [row.answer.rows for row in rows if row.answer.rows is not None]
    tokens_a_step = sum(row.answer.tokens for row in rows) / max(sum(row.answer.steps for row in rows), 1)
    return f"{tokens_a_step:.2f}" + (f" ({mean(sizes):.1f})" if len(sizes) == len(rows) else "")


def same_texts(rows: Rows, plain: Rows) -> str:
    """How many of the texts are plain decoding's, as far as both go."""
    texts = {(row.kind, row.place): row.answer.text for row in plain}
    pairs = [(row.answer.text, texts[key]) for row in rows if (key := (row.kind, row.place)) in texts]
    same = sum(bool(own) and (own.startswith(other) or other.startswith(own)) for own, other in pairs)
    return f"{same} of {len(pairs)}"


def read_rows(path: Path) -> list[Row]:
    """What --json has kept; the last line may be cut off."""
    found = []
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            row = json.loads(line)
            found.append(Row(**{**row, "answer": Answer(**row["answer"])}))
    return found
