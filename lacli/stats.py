"""Records of steps and of whole answers: plain numbers. Nothing here measures or prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lacli.tree import Origin

Finish = Literal["stop", "eog", "length", "interrupt"]


class Step(NamedTuple):
    """One step of a sequence: a llama_decode call and the tokens that it gave.

    `tokens`: the accepted tokens in order, at least one; the last is the model's own choice. `origins`: the source of
    each. `rows`: the batch's size. `drafted`: how many drafted tokens could be accepted. `guesses`: the source of each.
    Seconds: `decode_s` of llama_decode, `choose_s` of reading the rows' choices, `cache_s` of sequence calls,
    `python_s` of all else, `waited_s` before the step, such as prefills. `finish`: why the sequence ends, or None.
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
        """The seconds of the step, without the wait before it."""
        return self.decode_s + self.choose_s + self.cache_s + self.python_s


MIN_CORE_SHARE = 0.8
"""The least share of a core that threads have on an idle machine. The 7M has 0.98; with other work 0.25 to 0.70."""


@dataclass
class RunStatistics:
    """Sums over the steps of one answer, as in `Step`.

    `reused_tokens`: prompt tokens that the cache had. `drafts`: steps with drafts. `lengths`: the number of steps by
    accepted tokens, and `batches` by rows. `tried`, `accepted_from`: numbers of drafted and of accepted drafted tokens
    by origin. Seconds: `prompt_s` of the prefill, `first_token_s` from the request to the first token, `waited_s`
    between steps, such as prefills of other sequences. `passed_over`: steps that left a likely draft out as too slow.
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
        """Add one step. `read`: how many of its first tokens belong to the answer, None for all."""
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
        """The sources of all drafts, in the order of `Origin`."""
        return [origin for origin in Origin if self.tried[origin] or self.accepted_from[origin]]

    @property
    def predicted_s(self) -> float:
        """The seconds of all steps with the waits between them, without the prefill."""
        return self.decode_s + self.choose_s + self.cache_s + self.python_s + self.waited_s

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression of the paper's Equation 6; 0.0 without a step."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of `predicted_s`; 0.0 without a step."""
        return self.tokens / self.predicted_s if self.predicted_s else 0.0

    @property
    def rows_mean(self) -> float:
        return self.rows / self.steps if self.steps else 0.0
