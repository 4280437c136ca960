"""What lies behind a mode's tokens a step, from answers without a clock.

How the pool grows and what a match brings, how Jacobi blocks converge, and what contexts take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.insight.convergence import Convergence, convergence
from benchmarks.insight.pool_growth import Growth, Matches, PoolGrowth, merged
from lacli.bench.rounds import Contender, Exchange
from lacli.check.replay import Recorder
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.settings import DecodeSettings
from lacli.text.format import markdown

TOKENS = 512
"""Tokens of an answer: pools go on growing for a while, and the last checkpoint of their growth is here."""

MOST_ITERATIONS = 12
"""Iterations whose shares are shown."""


@dataclass(frozen=True)
class Details:
    """Of one contender. growth, matches: of lookahead; blocks: of jacobi."""

    growth: Sequence[Growth] = ()
    matches: Matches | None = None
    blocks: Convergence | None = None


MakeDecoder = Callable[[Engine, DecodeSettings], Decoder]
OpenEngine = Callable[[Contender], Engine]


def look_inside(
    contenders: Sequence[Contender], exchanges: Sequence[Exchange], engine: OpenEngine, decoder: MakeDecoder
) -> Iterator[tuple[int, Details]]:
    """Answer one exchange of each class in lookahead and jacobi, and yield what was seen, by contender.

    engine: a contender's context, decoder: a new decoder on a context.
    """
    chosen = list({exchange.task.kind: exchange for exchange in reversed(exchanges)}.values())
    for number, contender in enumerate(contenders):
        if contender.point is None:
            continue
        settings, opened = contender.point.settings, engine(contender)
        longer = [_longer(exchange, opened) for exchange in reversed(chosen)]
        if settings.mode == "lookahead":
            runs = [_growth(decoder(opened, settings), exchange) for exchange in longer]
            matches = sum((run.matches for run in runs), start=Matches())
            yield number, Details(growth=merged(runs), matches=matches)
        elif settings.mode == "jacobi":
            blocks = [_blocks(opened, settings, decoder, exchange) for exchange in longer]
            yield number, Details(blocks=Convergence.sum_of(blocks))


def _longer(exchange: Exchange, engine: Engine) -> Exchange:
    return replace(exchange, max_tokens=min(max(exchange.max_tokens, TOKENS), engine.cells - len(exchange.prompt)))


def _growth(decoder: Decoder, exchange: Exchange) -> PoolGrowth:
    growth = PoolGrowth()
    for step in decoder.generate(exchange.prompt, exchange.max_tokens):
        growth.observe(step, decoder.pool)
    return growth


def _blocks(engine: Engine, settings: DecodeSettings, decoder: MakeDecoder, exchange: Exchange) -> Convergence:
    recorder = Recorder(engine)
    recording = decoder(recorder, settings)
    for _ in recording.generate(exchange.prompt, exchange.max_tokens):
        pass
    return convergence(recorder.decoded, recording.tokens, settings)


def as_columns(details: Details) -> dict[str, Any]:
    """One contender's details for programs."""
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


def as_lines(seen: Mapping[int, Details], contenders: Sequence[Contender]) -> str:
    """A table a question, those without an answer left out."""
    parts = [
        _growth_table(seen, contenders),
        _match_table(seen, contenders),
        _block_table(seen, contenders),
        _memory_table(contenders),
    ]
    return "\n\n".join(part for part in parts if part)


def _growth_table(seen: Mapping[int, Details], contenders: Sequence[Contender]) -> str:
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


def _match_table(seen: Mapping[int, Details], contenders: Sequence[Contender]) -> str:
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


def _block_table(seen: Mapping[int, Details], contenders: Sequence[Contender]) -> str:
    rows = []
    for number, details in seen.items():
        if details.blocks and details.blocks.blocks:
            shares = [f"{share:.0%}" for share in details.blocks.shares[:MOST_ITERATIONS]]
            half = details.blocks.median_iterations
            given_up = f"{details.blocks.given_up} of {len(details.blocks.blocks)}"
            rows.append((contenders[number].label, " ".join(shares), f"{half:g}" if half else "", given_up))
    header = ("how blocks converge", "right after 1, 2, .. iterations", "median to all", "given up")
    return markdown(header, rows) if rows else ""


def _memory_table(contenders: Sequence[Contender]) -> str:
    """MiB of the contexts, beside plain decoding's."""
    rows = []
    for contender in contenders:
        if contender.point:
            plain = contenders[contender.baseline].memory
            rows.append((contender.label, f"{contender.memory:.1f}", f"{contender.memory - plain:+.1f}"))
    return markdown(("memory", "MiB of the context", "more than plain's"), rows)
