"""Answers compared with plain decoding token by token, and the check of a model's modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Literal, NamedTuple

import numpy as np

from lacli.auto.mode import FIXED_COST
from lacli.auto.step_cost import Cost
from lacli.check.judge import (
    PLAIN,
    BatchRecorder,
    Difference,
    Mismatch,
    Verdict,
    largest_difference,
    plain_logits,
    replay,
)
from lacli.context import Closing, Context, Floats, Sampler
from lacli.engine.engine import Engine, SequenceOptions
from lacli.engine.load import ModelEngine
from lacli.errors import BatchRefused, LacliError
from lacli.modes import common_prefix
from lacli.settings import DecodeSettings, ModeName
from lacli.stats import Step
from lacli.text.format import counted
from lacli.verify import SampleAndMatch

OpenContext = Callable[[DecodeSettings], AbstractContextManager[Context]]
"""Opens a context for a mode; its logits can be read."""


@dataclass(frozen=True)
class Run:
    """One answer of a mode, compared with plain decoding's.

    `steps`: all before a refused one. `difference`: None if equal. `failure`: why a step was refused (a bug), or "".
    """

    steps: tuple[Step, ...]
    difference: Difference | None = None
    failure: str = ""

    @property
    def tokens(self) -> list[int]:
        """The generated tokens, with the end token if there is one."""
        return [token for step in self.steps for token in step.tokens]

    @property
    def verdict(self) -> Verdict | Literal["identical"]:
        if self.difference:
            return self.difference.verdict
        return "bug" if self.failure else "identical"


@dataclass
class Comparison(Closing):
    """Answers prompts plainly and in other modes. Close it before the model, or use it in `with`.

    `open_context`: opens a context for a mode. `max_tokens`: limit of an answer. `plainly`: settings of plain decoding.
    `sampler`: draws the tokens, None for greedy. `repeats`: equal batches give equal bits. `cost`: step costs for auto.
    """

    open_context: OpenContext
    max_tokens: int
    plainly: DecodeSettings = PLAIN
    sampler: Sampler | None = None
    repeats: bool = True
    cost: Cost | None = FIXED_COST

    def __post_init__(self) -> None:
        self._plain: dict[tuple[int, ...], list[int]] = {}
        self._closing = ExitStack()
        self.plain_context = self._closing.enter_context(self.open_context(self.plainly))

    def steps(self, context: Context, settings: DecodeSettings, prompt: Sequence[int]) -> Iterator[Step]:
        """Decode an answer in a new engine and yield its steps."""
        options = SequenceOptions(self.max_tokens, SampleAndMatch(self.sampler) if self.sampler else None)
        return Engine(context, settings, cost=self.cost).steps(prompt, options)

    def plain(self, prompt: Sequence[int]) -> list[int]:
        """Return plain decoding's tokens after `prompt`. They are decoded once and kept."""
        key = tuple(prompt)
        if key not in self._plain:
            steps = self.steps(self.plain_context, self.plainly, prompt)
            self._plain[key] = [token for step in steps for token in step.tokens]
        return self._plain[key]

    def run(self, settings: DecodeSettings, prompts: Sequence[Sequence[int]]) -> Iterator[Run]:
        """Answer each prompt with `settings` and yield its run. All use one context, and each uses a new engine."""
        with self.open_context(settings) as opened:
            context = BatchRecorder(opened)
            for prompt in prompts:
                yield self.one(context, settings, prompt)

    def one(self, context: BatchRecorder, settings: DecodeSettings, prompt: Sequence[int]) -> Run:
        """Answer one prompt and compare it with plain decoding. The context may have decoded other prompts before."""
        expected = self.plain(prompt)
        steps: list[Step] = []
        failure = ""
        try:
            steps.extend(self.steps(context, settings, prompt))
        except BatchRefused as error:
            # Only the tokens before the failure have to be plain decoding's.
            failure = error.what
            expected = expected[: sum(len(step.tokens) for step in steps)]
        difference = self.difference(context, prompt, expected, [step.tokens for step in steps])
        return Run(tuple(steps), difference, "" if difference else failure)

    def difference(
        self, context: BatchRecorder, prompt: Sequence[int], expected: Sequence[int], steps: Sequence[Sequence[int]]
    ) -> Difference | None:
        """Return the first difference between the tokens of `steps` and plain decoding's `expected` ones, or None.

        `context`: has recorded the batches of `steps` since its last clear; it decodes the replay too.
        """
        tokens = [token for step in steps for token in step]
        at = common_prefix(expected, tokens)
        if at == len(expected) == len(tokens):
            return None
        plain = expected[at] if at < len(expected) else None
        other = tokens[at] if at < len(tokens) else None
        unexplained = Difference(at, plain, other, inf, 0.0, "bug")
        # An end token counts as a token, so rounding never makes one answer the beginning of the other.
        if plain is None or other is None:
            return unexplained
        chosen: list[int] = []
        replayed: Floats = np.zeros(0)
        if self.sampler:
            self.sampler.begin(prompt)
        try:
            for logits in replay(context, prompt, steps, expected[:at]):
                chosen.append(self.sampler.draw(logits) if self.sampler else int(logits.argmax()))
                replayed = logits.copy()
        except (Mismatch, LacliError):
            # Tokens from a broken cache may fail to decode again.
            return unexplained
        logits = plain_logits(self.plain_context, prompt, expected[:at], self.plainly)
        margin, rounding = float(logits[plain]) - float(logits[other]), largest_difference(logits, replayed)
        verdict: Verdict = "bug"
        if chosen == tokens[: at + 1] and not isnan(rounding):
            verdict = "rounding"
        # Rounding may move both logits towards each other.
        elif not self.repeats and (self.sampler or margin <= 2 * rounding):
            verdict = "unclear"
        return Difference(at, plain, other, margin, rounding, verdict)

    def close(self) -> None:
        self._closing.close()


class Counts(NamedTuple):
    """Numbers of answers: all, identical to plain decoding's, different by rounding (or unclear), bugs."""

    answers: int
    identical: int
    rounding: int
    bugs: int


def count(runs: Iterable[Run]) -> Counts:
    verdicts = [run.verdict for run in runs]
    identical, bugs = verdicts.count("identical"), verdicts.count("bug")
    return Counts(len(verdicts), identical, len(verdicts) - identical - bugs, bugs)


@dataclass(frozen=True)
class ModeResult:
    """One mode's answers, in the order of the prompts."""

    settings: DecodeSettings
    runs: list[Run]

    @property
    def counts(self) -> Counts:
        return count(self.runs)

    @property
    def tokens_per_step(self) -> float:
        steps = [step for run in self.runs for step in run.steps]
        return sum(len(step.tokens) for step in steps) / len(steps) if steps else 0.0


@dataclass
class CheckResult:
    """Results of a check: `prompts` prompts, at most `predict` tokens an answer. `stopped`: Ctrl-C ended it early."""

    modes: list[ModeResult]
    prompts: int
    predict: int
    stopped: bool = False

    @property
    def counts(self) -> Counts:
        return count(run for mode in self.modes for run in mode.runs)

    @property
    def differing(self) -> Iterator[tuple[ModeName, int, Run]]:
        """The answers that differ from plain decoding's, each after its mode and the prompt's number from 1."""
        for mode in self.modes:
            for number, run in enumerate(mode.runs, start=1):
                if run.verdict != "identical":
                    yield mode.settings.mode, number, run

    @property
    def verdict(self) -> str:
        if self.counts.bugs:
            return "bug"
        return "rounding" if self.counts.rounding else "identical"


def check_modes(
    open_context: OpenContext,
    prompts: Sequence[Sequence[int]],
    modes: Sequence[DecodeSettings],
    max_tokens: int,
    *,
    sampler: Sampler | None = None,
    repeats: bool = True,
    progress: Callable[[str], None] = lambda sentence: None,
) -> CheckResult:
    """Answer tokenised prompts plainly and in each of `modes`, and compare the answers of at most `max_tokens` tokens.

    `open_context`: opens a context for a mode. `sampler`: draws the tokens, None for greedy. `repeats`: equal batches
    give equal bits. `progress`: gets a sentence before each slow part. Ctrl-C ends the check early: it returns the
    results so far, or raises KeyboardInterrupt if no mode has answered yet.
    """
    result = CheckResult([], len(prompts), max_tokens)
    if not modes:
        return result
    plain = replace(modes[0], mode="plain").constrained(max_rollback=-1)
    with Comparison(open_context, max_tokens, plain, sampler, repeats=repeats) as comparison:
        progress(f"plain: {counted(len(prompts), 'answer')} of at most {max_tokens} tokens")
        for prompt in prompts:
            comparison.plain(prompt)
        try:
            for settings in modes:
                progress(f"{settings.mode}: the same prompts")
                result.modes.append(ModeResult(settings, []))
                # The answers before a Ctrl-C stay in the result.
                result.modes[-1].runs.extend(comparison.run(settings, prompts))
        except KeyboardInterrupt:
            result.modes = [each for each in result.modes if each.runs]
            if not result.modes:
                raise
            result.stopped = True
    return result


def possible_modes(
    engine: ModelEngine, modes: Iterable[ModeName], say: Callable[[str], None]
) -> tuple[DecodeSettings, list[ModeName]]:
    """Return the engine's settings, limited to drafts that its model can take back, and the `modes` that can use them.

    `say`: gets a sentence if the model sets such a limit.
    """
    if not (why := engine.model.chain_only):
        return engine.settings, [*modes]
    back = 0 if engine.settings.strict else engine.max_rollback
    say(f"{f'no lookahead, and drafts of at most {back} tokens' if back else 'plain decoding only'}: {why}")
    return engine.settings.constrained(max_rollback=back), [mode for mode in modes if back and mode != "lookahead"]
