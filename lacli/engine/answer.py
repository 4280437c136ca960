"""An answer in progress: the engine's steps as text, with statistics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from lacli.engine.engine import Engine, OnPrompt, Progress, SequenceOptions
from lacli.pool import PoolStatistics
from lacli.stats import Finish, RunStatistics
from lacli.text.stream import Piece, TextStream
from lacli.verify import TokenLogprob


@dataclass(frozen=True)
class Answer:
    """An answer, finished or so far.

    `tokens`: the generated tokens of the text, with an end token, but without the tokens of a stop string; statistics
    count these too. `finish_reason`: stop (the stop string `stop` came), eog (an end token), length (`max_tokens`, or a
    full context) or interrupt (the caller left early). `logprobs`: one for each of `tokens`, if requested.
    `prompt_logprobs`: one for each token of the prompt but the first, if requested. `seed`: of the draws, None for
    greedy decoding. `warnings`: sentences on parts of the request's JSON schema that were ignored.
    """

    text: str
    tokens: tuple[int, ...] = field(repr=False)
    finish_reason: Finish
    statistics: RunStatistics = field(repr=False)
    pool: PoolStatistics = field(repr=False)
    logprobs: tuple[TokenLogprob, ...] = field(default=(), repr=False)
    prompt_logprobs: tuple[TokenLogprob, ...] = field(default=(), repr=False)
    stop: str = ""
    seed: int | None = None
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression: tokens a step, 0.0 without a step."""
        return self.statistics.tokens_per_step

    def filled_context(self, max_tokens: int) -> bool:
        """Return whether a full context ended the answer. False for another end, or at the limit `max_tokens`."""
        return self.finish_reason == "length" and self.statistics.tokens != max_tokens


def as_stops(stops: str | Sequence[str]) -> tuple[str, ...]:
    """Return a tuple of stop strings; a str is one stop string."""
    return (stops,) if isinstance(stops, str) else tuple(stops)


class AnswerText:
    """Makes an answer from the progress of a sequence. `stopped`: whether a stop string has come."""

    def __init__(
        self,
        engine: Engine,
        bytes_of: Callable[[int], bytes],
        prompt: Sequence[int],
        stops: Sequence[str] = (),
        *,
        controls: Mapping[int, str] | None = None,
        logprobs: Sequence[TokenLogprob] = (),
        prompt_logprobs: Sequence[TokenLogprob] = (),
        seed: int | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """`bytes_of`: a token's bytes. `prompt`: its length is counted. `stops`: texts that end the answer.

        `controls`: names of tokens without text, by token; a token whose name is in `stops` ends the answer.
        `logprobs`: a list that the verifier extends. `prompt_logprobs`, `seed`, `warnings`: fields of the `Answer`.
        """
        self._engine = engine
        self._logprobs, self.prompt_logprobs = logprobs, prompt_logprobs
        self._stream = TextStream(bytes_of, stops, controls)
        self._seed, self._warnings = seed, tuple(warnings)
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._finish: Finish = "interrupt"
        self.statistics = RunStatistics(prompt_tokens=len(prompt))

    @property
    def stopped(self) -> bool:
        return bool(self._stream.stop)

    def begin(self) -> None:
        """Start the clock of `first_token_s`."""
        self._begin = perf_counter()

    def take(self, progress: Progress) -> list[Piece]:
        """Add a step, and return the text that no later token can change or make part of a stop string."""
        sequence, step, _ = progress
        if step is None:
            return []
        if sequence and not self.statistics.steps:
            self.statistics.reused_tokens = sequence.reused or 0
            self.statistics.prompt_s = sequence.prompt_s
            self.statistics.first_token_s = perf_counter() - self._begin
        if sequence:
            self.statistics.passed_over = sequence.mode.passed_over
        stream, before = self._stream, self._stream.read
        ended = step.finish == "eog"
        tokens = step.tokens[:-1] if ended else step.tokens
        pieces = stream.feed(tokens, step.origins[: len(tokens)])
        self._tokens += step.tokens
        if stream.stop:
            self._finish = "stop"
            del self._tokens[stream.kept :]
            self.statistics.add(step, stream.read - before)
        else:
            self._finish = step.finish or self._finish
            self.statistics.add(step)
        return self._note(pieces)

    def end(self) -> list[Piece]:
        """Return the rest of the text after the last step."""
        if self._finish == "interrupt":
            # No step said why: the limit is 0, or not one more row finds a cell.
            self._finish = "length"
        return self._note(self._stream.finish())

    def pieces(
        self, prompt: Sequence[int], options: SequenceOptions, on_prompt: OnPrompt = lambda done, total: None
    ) -> Generator[Piece]:
        """Decode the answer, and yield its text after each step. A caller who leaves early ends the answer there.

        `on_prompt`: called with the numbers of decoded and of all tokens of the prefill. Raises PromptError for an
        empty or too long prompt, SamplingError if no token is left to choose, NumbersError for NaN.
        """
        self.begin()
        with closing(self._engine.decode(prompt, options, on_prompt)) as steps:
            for progress in steps:
                yield from self.take(progress)
                if self.stopped:
                    return
            yield from self.end()

    def answer(self) -> Answer:
        """Return the answer so far."""
        return Answer(
            text="".join(self._text),
            tokens=tuple(self._tokens),
            finish_reason=self._finish,
            statistics=self.statistics,
            pool=self._engine.pool.statistics(),
            logprobs=tuple(self._logprobs[: len(self._tokens)]),
            prompt_logprobs=tuple(self.prompt_logprobs),
            stop=self._stream.stop,
            seed=self._seed,
            warnings=self._warnings,
        )

    def logprobs_from(self, first: int) -> Sequence[TokenLogprob]:
        """Return the log probabilities of the tokens from index `first` on whose text was returned, at least in part.

        If the answer has ended with an end token or at its limit, these are all tokens from `first` on.
        """
        has_all = self._finish in ("eog", "length")
        return self._logprobs[first : len(self._tokens) if has_all else self._stream.begun]

    def _note(self, pieces: list[Piece]) -> list[Piece]:
        self._text += [piece.text for piece in pieces]
        return pieces


class Generation(NamedTuple):
    """An answer in the caller's thread. Iterating `pieces` decodes it; `text.answer()` returns the answer so far."""

    text: AnswerText
    pieces: Generator[Piece]
