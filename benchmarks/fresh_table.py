"""The answers of `benchmarks.fresh` as records, and their tables."""

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
"""The fewest tokens of an answer that counts. In a shorter answer the clock's error and the first step weigh much."""

SPEEDS = f"""Times as fast as plain decoding, with 95% intervals; under {PLAIN}, its tokens a second. {ALL}: the mean
over all prompts (geometric). Each answer is a new process; lacli finds the cache folder that one earlier answer of the
model left. A contender with fewer texts was asked the first prompt of each class only."""
STEPS = "Tokens a step, with the rows of a step in brackets, and how many texts are plain decoding's."


@dataclass(frozen=True)
class Answer:
    """An answer of `tokens` tokens, decoded in `seconds`. `rows`: the mean rows of a step, None if unknown."""

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
    """An answer of a contender to prompt number `place` of the class `kind`. `limit`: the most tokens allowed."""

    model: str
    limit: int
    kind: str
    place: int
    contender: str
    answer: Answer

    @property
    def is_long(self) -> bool:
        """Whether the answer has SHORTEST tokens, or `limit` tokens if that is less."""
        return self.answer.tokens >= min(SHORTEST, self.limit)


Rows = Sequence[Row]


def tables(rows: Rows) -> str:
    """Return two tables for each model and limit, speeds and tokens a step: a row a class, a column a contender."""
    found = []
    for model, limit in dict.fromkeys((row.model, row.limit) for row in rows):
        own = [row for row in rows if (row.model, row.limit) == (model, limit)]
        long = [row for row in own if row.is_long]
        left_out = f" Answers left out as too short: {len(own) - len(long)}." if len(long) < len(own) else ""
        found += [f"{model}, answers of {limit} tokens", table(long, speed), SPEEDS + left_out]
        found += [table(long, step, last=same_texts), STEPS]
    return "\n\n".join(found)


Cell = Callable[[Rows, Rows], str]
"""A function that writes a cell from a contender's rows and plain decoding's rows of the same class."""


def table(rows: Rows, cell: Cell, last: Cell | None = None) -> str:
    """Return a table: a row a class and one over all, a column a contender. `last`: writes one more row over all."""
    names = [PLAIN, *dict.fromkeys(row.contender for row in rows if row.contender != PLAIN)]
    kinds = [*dict.fromkeys(row.kind for row in rows)]

    def line(title: str, write: Cell, asked: Rows) -> list[str]:
        groups = [[row for row in asked if row.contender == name] for name in names]
        return [title, *(write(group, groups[0]) for group in groups)]

    lines = [line(kind, cell, [row for row in rows if row.kind == kind]) for kind in kinds]
    lines += [line(ALL, cell, rows), *([line("plain's texts", last, rows)] if last else [])]
    return markdown(["", *names], lines)


def speed(rows: Rows, plain: Rows) -> str:
    """Return plain decoding's tokens a second, or how many times as fast another contender is, prompt by prompt."""
    if rows == plain:
        return f"{1 / median([row.answer.token_s for row in plain]):.1f}/s" if plain else ""
    beside = {(row.kind, row.place): row.answer.token_s for row in plain}
    pairs = [([beside[key]], [row.answer.token_s]) for row in rows if (key := (row.kind, row.place)) in beside]
    if not pairs:
        return ""
    ratio = paired_ratio(*zip(*pairs, strict=True))
    return f"{ratio.value:.2f}" + (f" ({ratio.low:.2f}-{ratio.high:.2f})" if ratio.low and ratio.high else "")


def step(rows: Rows, plain: Rows) -> str:
    """Return S, and the mean rows of a step in brackets if all answers have them."""
    if not rows:
        return ""
    sizes = [row.answer.rows for row in rows if row.answer.rows is not None]
    tokens_a_step = sum(row.answer.tokens for row in rows) / max(sum(row.answer.steps for row in rows), 1)
    return f"{tokens_a_step:.2f}" + (f" ({mean(sizes):.1f})" if len(sizes) == len(rows) else "")


def same_texts(rows: Rows, plain: Rows) -> str:
    """Return how many texts equal plain decoding's, up to the end of the shorter text."""
    texts = {(row.kind, row.place): row.answer.text for row in plain}
    pairs = [(row.answer.text, texts[key]) for row in rows if (key := (row.kind, row.place)) in texts]
    same = sum(bool(own) and (own.startswith(other) or other.startswith(own)) for own, other in pairs)
    return f"{same} of {len(pairs)}"


def read_rows(path: Path) -> list[Row]:
    """Return the rows in a file of --json. A last line without a line break is ignored."""
    found = []
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            row = json.loads(line)
            found.append(Row(**{**row, "answer": Answer(**row["answer"])}))
    return found
