"""Records of steps and runs, for all readers of the loop: plain numbers, nothing measures or prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lacli.tree import Origin

Finish = Literal["stop", "eog", "length", "interrupt"]


class Step(NamedTuple):
    """One llama_decode call and its tokens.

    `tokens`: the accepted tokens in order, at least one. `origins`: their sources; the last token is the model's own
    choice. `rows`: the batch's size. `drafted`: tokens that the step could have accepted; `guesses`: their sources.
    Times in seconds: decode (llama_decode), choose (reading the rows' choices), cache (sequence calls), python (all
    else), waited (before it, for prefills of other sequences for example). `finish`: why this was the last step, or
    None.
    """

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    rows: int
    drafted: int
    decode_s: float
    choose_s: float
    cache_s: float
    python_s: float
    finish: Finish | None = None
    guesses: tuple[Origin, ...] = ()
    waited_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The step's time without its wait."""
        return self.decode_s + self.choose_s + self.cache_s + self.python_s


MIN_CORE_SHARE = 0.8
"""The threads' share of a core on a calm machine, at least: the 7M model has 0.98, and 0.25 to 0.70 with other work."""


@dataclass
class RunStatistics:
    """Sums over the steps of one generation.

    `lengths`, `batches`: steps by accepted tokens, and by rows. `tried`, `accepted_from`: drafted and accepted tokens
    by origin. `reused_tokens`: prompt tokens from the cache. Times in seconds: `prompt_s`, the prefill of the others;
    `first_token_s`, from the call to the first accepted token; `waited_s`, between steps, for prefills of other
    sequences for example. `passed_over`: as the mode counts it.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prompt_s: float = 0.0
    first_token_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    rows: int = 0
    drafted: int = 0
    drafts: int = 0
    accepted: int = 0
    decode_s: float = 0.0
    choose_s: float = 0.0
    cache_s: float = 0.0
    python_s: float = 0.0
    waited_s: float = 0.0
    passed_over: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    tried: Counter[Origin] = field(default_factory=Counter)
    accepted_from: Counter[Origin] = field(default_factory=Counter)
    batches: Counter[int] = field(default_factory=Counter)

    def add(self, step: Step, read: int | None = None) -> None:
        """Count one more step; its first `read` tokens (None: all) belong to the answer."""
        origins = step.origins[:read]
        self.steps += 1
        self.tokens += len(origins)
        self.rows += step.rows
        self.drafted += step.drafted
        self.drafts += step.drafted > 0
        guessed = [origin for origin in origins if origin is not Origin.MODEL]
        self.accepted += len(guessed)
        self.accepted_from.update(guessed)
        self.tried.update(step.guesses)
        self.batches[step.rows] += 1
        self.decode_s += step.decode_s
        self.choose_s += step.choose_s
        self.cache_s += step.cache_s
        self.python_s += step.python_s
        self.waited_s += step.waited_s
        self.lengths[len(origins)] += 1

    @property
    def origins(self) -> list[Origin]:
        """Sources of the drafts, in a fixed order."""
        return [origin for origin in Origin if self.tried[origin] or self.accepted_from[origin]]

    @property
    def predicted_s(self) -> float:
        """Seconds of the decode phase with its waits, without the prefill."""
        return self.decode_s + self.choose_s + self.cache_s + self.python_s + self.waited_s

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression of the paper's Equation 6."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of the decode phase."""
        return self.tokens / self.predicted_s if self.predicted_s else 0.0

    @property
    def rows_mean(self) -> float:
        return self.rows / self.steps if self.steps else 0.0
