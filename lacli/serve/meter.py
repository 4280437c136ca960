"""What a server has done and does: Prometheus's counters in llama.cpp's names, and the slots."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import time
from typing import Any

from lacli.engine.worker import AsyncStream
from lacli.stats import RunStatistics

HELP = {
    "prompt_tokens_total": "Tokens of prompts that were decoded.",
    "prompt_tokens_cached_total": "Tokens of prompts that were decoded before.",
    "prompt_seconds_total": "Seconds of prefill; of requests that wait at the same time each counts.",
    "tokens_predicted_total": "Tokens of answers.",
    "tokens_predicted_seconds_total": "Seconds of answers from their first step on.",
    "n_decode_total": "Steps of answers; one that several answers share counts for each.",
    "n_tokens_max": "Tokens of the longest sequence so far.",
    "spec_decode_num_draft_tokens_total": "Drafted tokens that were verified.",
    "spec_decode_num_accepted_tokens_total": "Drafted tokens that were accepted.",
    "spec_decode_num_drafts_total": "Steps with drafts.",
    "prompt_tokens_seconds": "Tokens of prompts a second, by the two totals.",
    "predicted_tokens_seconds": "Tokens a second of an answer, the mean of all.",
    "requests_processing": "Answers that are decoded.",
    "requests_deferred": "Answers that wait for a slot.",
    "n_busy_slots_per_decode": "Slots in use.",
}
"""Metrics by llama.cpp's names; those that end with total count, and n_tokens_max does for llama.cpp."""


@dataclass(eq=False)
class Running:
    """An answer that is decoded or waits. `slot`: its number, given when /slots first shows it; None before."""

    stream: AsyncStream
    prompt: Sequence[int]
    slot: int | None = None


class Meter:
    """Counts what answers have cost, and knows those that are decoded."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(HELP, 0.0)
        self._running: list[Running] = []
        self.started = int(time())

    @contextmanager
    def counting(self, stream: AsyncStream, prompt: Sequence[int]) -> Generator[None]:
        """Show an answer while it is decoded, and count it at its end."""
        running = Running(stream, prompt)
        self._running.append(running)
        try:
            yield
        finally:
            self._running.remove(running)
            self._count(stream.cost)

    def text(self, processing: int, deferred: int) -> str:
        """All metrics in Prometheus's format. `processing`, `deferred`: answers that are decoded, and that wait."""
        values = {**self._sums, "requests_processing": processing, "requests_deferred": deferred}
        values["n_busy_slots_per_decode"] = processing
        values["prompt_tokens_seconds"] = _rate(values["prompt_tokens_total"], values["prompt_seconds_total"])
        seconds = values["tokens_predicted_seconds_total"]
        values["predicted_tokens_seconds"] = _rate(values["tokens_predicted_total"], seconds)
        lines = []
        for name, help in HELP.items():
            kind = "counter" if name.endswith("_total") or name == "n_tokens_max" else "gauge"
            lines += [f"# HELP llamacpp:{name} {help}", f"# TYPE llamacpp:{name} {kind}"]
            lines.append(f"llamacpp:{name} {values[name]:.15g}")
        return "\n".join(lines) + "\n"

    def slots(self, count: int, context: int) -> list[dict[str, Any]]:
        """Return each slot's state and the counts of what is decoded there."""
        decoded = [each for each in self._running if each.stream.is_decoded]
        free = [number for number in range(count) if number not in {each.slot for each in decoded}]
        for each in decoded:
            if each.slot is None and free:
                each.slot = free.pop(0)
        by_slot = {each.slot: each for each in decoded}
        found = []
        for number in range(count):
            entry: dict[str, Any] = {"id": number, "n_ctx": context, "is_processing": number in by_slot}
            if running := by_slot.get(number):
                run = running.stream.cost
                entry |= {"n_prompt_tokens": len(running.prompt), "n_decoded": run.tokens, "timings": timings(run)}
            found.append(entry)
        return found

    def _count(self, run: RunStatistics) -> None:
        sums = self._sums
        sums["prompt_tokens_total"] += run.prompt_tokens - run.reused_tokens
        sums["prompt_tokens_cached_total"] += run.reused_tokens
        sums["prompt_seconds_total"] += run.prompt_s
        sums["tokens_predicted_total"] += run.tokens
        sums["tokens_predicted_seconds_total"] += run.predicted_s
        sums["n_decode_total"] += run.steps
        sums["n_tokens_max"] = max(sums["n_tokens_max"], run.prompt_tokens + run.tokens)
        sums["spec_decode_num_draft_tokens_total"] += run.drafted
        sums["spec_decode_num_accepted_tokens_total"] += run.accepted
        sums["spec_decode_num_drafts_total"] += run.drafts


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def timings(run: RunStatistics) -> dict[str, Any]:
    """What an answer took, in llama.cpp's words: milliseconds, and tokens a second."""
    read = run.prompt_tokens - run.reused_tokens
    # llama.cpp counts the first token as the prompt's; a rate over the others here is rather too low.
    later = max(run.tokens - 1, 0)
    prompt_ms, predicted_ms = 1e3 * run.prompt_s, 1e3 * run.predicted_s
    return {
        "cache_n": run.reused_tokens,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(read, 1),
        "prompt_per_second": 1e3 * read / prompt_ms if prompt_ms else 0.0,
        "predicted_n": run.tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / later if later else 0.0,
        "predicted_per_second": 1e3 * later / predicted_ms if predicted_ms else 0.0,
        "draft_n": run.drafted,
        "draft_n_accepted": run.accepted,
    }
