"""What a server has done and does: Prometheus's counters in llama.cpp's names, and the slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from time import time
from typing import Any

from lacli.api.streams import AsyncStream
from lacli.serve.replies import timings
from lacli.stats import RunStatistics

HELP = {
    "prompt_tokens_total": "Tokens of prompts that were decoded.",
    "prompt_tokens_cached_total": "Tokens of prompts that were decoded before.",
    "prompt_seconds_total": "Seconds of reading prompts; of answers that wait at the same time each counts.",
    "tokens_predicted_total": "Tokens of answers.",
    "tokens_predicted_seconds_total": "Seconds of answers from their first step on.",
    "n_decode_total": "Steps of answers; one that several answers share counts for each.",
    "n_tokens_max": "Tokens of the longest text so far.",
    "spec_decode_num_draft_tokens_total": "Guessed tokens that were verified.",
    "spec_decode_num_accepted_tokens_total": "Guessed tokens that came true.",
    "spec_decode_num_drafts_total": "Steps with guesses.",
    "prompt_tokens_seconds": "Tokens of prompts a second, by the two totals.",
    "predicted_tokens_seconds": "Tokens a second of an answer, the mean of all.",
    "requests_processing": "Answers that are decoded.",
    "requests_deferred": "Answers that wait for a place.",
    "n_busy_slots_per_decode": "Places that are taken.",
}
"""Metrics by llama.cpp's names; those that end with total count, and n_tokens_max does for llama.cpp."""


USUAL_TOKENS = 64
"""Tokens of an answer without a limit while none has ended: chosen, not measured, as a few sentences."""

MAX_WAIT_S = 60
"""Seconds that OpenAI's client waits at most where a server names them."""

UNKNOWN_S = 10.0
"""Seconds after which a client comes back to a server whose answers have no second token yet: chosen, not measured.

With 1 s a new server of the 0.5B shape refused 48 of 100 labels three times in 20 s, and openai's client gave them up.
"""


@dataclass(eq=False)
class Slot:
    """An answer on its way. `number`: its place's, given when /slots first shows it; None before."""

    stream: AsyncStream
    prompt: Sequence[int]
    number: int | None = None


class Meter:
    """Counts what answers have cost, and knows those that are decoded."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(HELP, 0.0)
        self._running: list[Slot] = []
        self._left: list[Slot] = []
        self._statuses = Counter[int]()
        # Those that have ended: with a piece of prompt that was decoded, and with a token.
        self._answers = self._answered = 0
        self._started = time()

    @property
    def headers(self) -> dict[str, str]:
        """The time since which is counted, seconds since 1970."""
        return {"Process-Start-Time-Unix": str(int(self._started))}

    def seconds_until(self, ends: int, places: int) -> int:
        """Estimate in how many seconds `ends` answers will have ended in the `places`, from what answers took so far.

        Each is expected to have as many tokens as those that have ended had on average, or those that run have if that
        is more, and its limit at most. At least 1, UNKNOWN_S before any answer has a second token, and MAX_WAIT_S
        at most.
        """
        # Called in a thread, so it only reads: `counting` ends in the event loop.
        asked, sums = [*self._running], self._sums
        begun = [cost for slot in [*asked, *self._left] if _has_begun(cost := slot.stream.cost)]
        tokens = [cost.tokens for cost in begun if cost.tokens]
        ended_tokens, prompts = sums["tokens_predicted_total"], self._answers + len(begun)
        prompt_s = _rate(sums["prompt_seconds_total"] + sum(cost.prompt_s for cost in begun), prompts)
        # The time of an answer's first token is its prompt's.
        later = ended_tokens - self._answered + sum(tokens) - len(tokens)
        token_s = _rate(sums["tokens_predicted_seconds_total"] + sum(cost.predicted_s for cost in begun), later)
        usual = max(_rate(ended_tokens, self._answered) or USUAL_TOKENS, _rate(sum(tokens), len(tokens)))
        limits = [slot.stream.limit for slot in asked] or [-1]
        expected = fmean(min(usual, limit) if limit >= 0 else usual for limit in limits)
        seconds = ends / places * (prompt_s + max(expected - 1, 0) * token_s)
        return ceil(min(max(seconds, 1 if later else UNKNOWN_S), MAX_WAIT_S))

    @contextmanager
    def counting(self, stream: AsyncStream, prompt: Sequence[int]) -> Generator[None]:
        """Show an answer while it is decoded, and count it at its end."""
        slot = Slot(stream, prompt)
        self._running.append(slot)
        try:
            yield
        finally:
            self._running.remove(slot)
            self._left.append(slot)
            self._count_ended()

    def count_status(self, status: int) -> None:
        """Count a request whose answer has ended."""
        self._statuses[status] += 1

    def text(self, processing: int, deferred: int) -> str:
        """All metrics in Prometheus's format. `processing`, `deferred`: answers that are decoded, and that wait."""
        self._count_ended()
        values = {**self._sums, "requests_processing": processing, "requests_deferred": deferred}
        values["n_busy_slots_per_decode"] = processing
        values["prompt_tokens_seconds"] = _rate(values["prompt_tokens_total"], values["prompt_seconds_total"])
        seconds = values["tokens_predicted_seconds_total"]
        values["predicted_tokens_seconds"] = _rate(values["tokens_predicted_total"], seconds)
        lines = []
        for name, help in HELP.items():
            kind = "counter" if name.endswith("_total") or name == "n_tokens_max" else "gauge"
            lines += [
                f"# HELP llamacpp:{name} {help}",
                f"# TYPE llamacpp:{name} {kind}",
                f"llamacpp:{name} {values[name]:.15g}",
            ]
        lines += [
            "# HELP lacli:requests_total Requests by the status of their answers.",
            "# TYPE lacli:requests_total counter",
        ]
        lines += [f'lacli:requests_total{{code="{code}"}} {count}' for code, count in sorted(self._statuses.items())]
        return "\n".join(lines) + "\n"

    def slots(self, places: int, context: int, owner: str = "") -> list[dict[str, Any]]:
        """The places, and what is decoded in those of `owner`."""
        decoded = [slot for slot in self._running if slot.stream.is_decoded]
        free = [number for number in range(places) if number not in {slot.number for slot in decoded}]
        for each in decoded:
            if each.number is None and free:
                each.number = free.pop(0)
        running = {slot.number: slot for slot in decoded}
        found = []
        for number in range(places):
            slot = running.get(number)
            entry: dict[str, Any] = {"id": number, "n_ctx": context, "is_processing": slot is not None}
            if slot and slot.stream.owner == owner:
                run = slot.stream.cost
                entry |= {"n_prompt_tokens": len(slot.prompt), "n_decoded": run.tokens, "timings": timings(run)}
            found.append(entry)
        return found

    def _count_ended(self) -> None:
        """Count the answers that have ended since; of a prompt that was left a piece may still be decoded."""
        for slot in [slot for slot in self._left if slot.stream.cost.steps or not slot.stream.in_loop]:
            self._left.remove(slot)
            self._count(slot.stream.cost)

    def _count(self, run: RunStatistics) -> None:
        sums = self._sums
        # A client that left while it waited has had no place.
        self._answers += _has_begun(run)
        self._answered += run.tokens > 0
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


def _has_begun(run: RunStatistics) -> bool:
    return bool(run.steps or run.prompt_s)


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0
