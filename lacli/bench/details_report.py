"""What lies behind tokens a step, as tables for a person and as columns for a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lacli.bench.details import Details
from lacli.bench.rounds import Contender
from lacli.text.format import markdown

Seen = Mapping[int, Details]
"""By contender."""

MOST_ITERATIONS = 12


def as_columns(details: Details) -> dict[str, Any]:
    """More columns of a contender's row over all classes."""
    columns: dict[str, Any] = {}
    if details.matches:
        columns |= {
            "match_rate": round(details.matches.hit_rate, 4),
            "match_length": round(details.matches.match_length, 4),
            "predicted_tokens_per_step": round(details.matches.predicted, 4),
            "seen_tokens_per_step": round(details.matches.tokens_per_step, 4),
            "pool_tokens": [row.checkpoint for row in details.growth],
            "pool_ngrams": [round(row.mean_ngrams, 1) for row in details.growth],
            "pool_hit_rates": [round(row.recent.hit_rate, 4) for row in details.growth],
        }
    if details.blocks:
        columns["convergence"] = [round(share, 4) for share in details.blocks.shares]
        columns["convergence_median"] = details.blocks.median_iterations
    return columns


def as_lines(seen: Seen, contenders: Sequence[Contender]) -> str:
    """A table a question, those without an answer left out."""
    parts = [_growth(seen, contenders), _matches(seen, contenders), _blocks(seen, contenders), memory(contenders)]
    return "\n\n".join(part for part in parts if part)


def _growth(seen: Seen, contenders: Sequence[Contender]) -> str:
    rows = [
        (
            contenders[number].label,
            str(row.checkpoint),
            f"{row.mean_keys:.0f}",
            f"{row.mean_ngrams:.0f}",
            f"{row.recent.hit_rate:.0%}",
            f"{row.recent.match_length:.2f}",
        )
        for number, details in seen.items()
        for row in details.growth
    ]
    header = ("the pool's growth", "tokens", "keys", "n-grams", "hit rate since the row above", "match length")
    return markdown(header, rows) if rows else ""


def _matches(seen: Seen, contenders: Sequence[Contender]) -> str:
    rows = [
        (
            contenders[number].label,
            f"{details.matches.hit_rate:.0%}",
            f"{details.matches.match_length:.2f}",
            f"{details.matches.predicted:.2f}",
            f"{details.matches.tokens_per_step:.2f}",
        )
        for number, details in seen.items()
        if details.matches
    ]
    header = ("what a match brings", "hit rate h", "match length L", "1 + h (L - 1)", "S measured")
    return markdown(header, rows) if rows else ""


def _blocks(seen: Seen, contenders: Sequence[Contender]) -> str:
    rows = []
    for number, details in seen.items():
        if details.blocks and details.blocks.blocks:
            shares = [f"{share:.0%}" for share in details.blocks.shares[:MOST_ITERATIONS]]
            half = details.blocks.median_iterations
            given_up = f"{details.blocks.given_up} of {len(details.blocks.blocks)}"
            rows.append((contenders[number].label, " ".join(shares), f"{half:g}" if half else "", given_up))
    header = ("how blocks converge", "right after 1, 2, .. iterations", "median to all", "given up")
    return markdown(header, rows) if rows else ""


def memory(contenders: Sequence[Contender]) -> str:
    """What the contexts take, beside plain decoding's."""
    rows = []
    for contender in contenders:
        if contender.point:
            plain = contenders[contender.baseline].memory
            rows.append((contender.label, f"{contender.memory:.1f}", f"{contender.memory - plain:+.1f}"))
    return markdown(("memory", "MiB of the context", "more than plain's"), rows)
