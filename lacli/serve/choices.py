"""One answer of a request on its way: its deltas of text, reasoning and log probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from lacli.answer_options import AnswerOptions
from lacli.engine.answer import Answer
from lacli.engine.worker import AsyncStream, PromptProgress
from lacli.model import Model
from lacli.serve.meter import Meter
from lacli.serve.tools import Call, CallRules, CallSplitter
from lacli.stats import RunStatistics, Step
from lacli.text.reasoning import ReasoningSplitter, begun_reasoning
from lacli.text.stream import Piece
from lacli.verify import TokenLogprob

LAST_TOKENS = 16
"""Tokens at the end of a prompt, enough to hold a mark that begins reasoning there."""


class Delta(NamedTuple):
    """What a step added to an answer. `tokens`: those of the step, also where their text is held back.

    `logprobs`: of tokens of whose text a part has come. `calls`: calls of functions that have ended, each with its
    number. `pieces`: of the text and the reasoning in their order, before calls are taken out. `step`: None behind the
    last one. `progress`: how far the prompt is read, in front of the first step; then there is nothing else.
    """

    text: str
    reasoning: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    calls: Sequence[tuple[int, Call]] = ()
    pieces: Sequence[Piece] = ()
    step: Step | None = None
    progress: PromptProgress | None = None


class Choice:
    """One of the answers of a request. Raises what `Model.astream` raises, before anything is decoded.

    `has_logprobs`: whether log probabilities of its tokens were asked for.
    """

    def __init__(
        self,
        model: Model,
        tokens: Sequence[int],
        index: int,
        options: AnswerOptions,
        meter: Meter,
        rules: CallRules | None = None,
    ) -> None:
        """`tokens`: the prompt's. `index`: the answer's among those of the request. `meter`: counts it.

        `rules`: what it may call.
        """
        self.index, self.prompt, self._meter = index, tokens, meter
        self._text_of = model.engine.text
        self.stream: AsyncStream = model.astream(tokens, **options)
        end = model.engine.text(tokens[-LAST_TOKENS:], special=True)
        self._splitter = None if options.get("raw") else ReasoningSplitter(begun_reasoning(end))
        self._calls = CallSplitter(rules) if rules else None
        self.has_logprobs = "logprobs" in options
        self._seen = 0

    @property
    def answer(self) -> Answer:
        """What there is of it by now."""
        return self.stream.partial_answer()

    @property
    def statistics(self) -> RunStatistics:
        """What it has cost by now."""
        return self.stream.statistics

    @property
    def prompt_text(self) -> str:
        """The prompt as a text, with its control tokens."""
        return self._text_of(self.prompt, special=True)

    @property
    def calls(self) -> Sequence[Call]:
        """The functions that it has called so far, the last one perhaps with a part of its arguments only."""
        return self._calls.calls if self._calls else ()

    @property
    def has_called(self) -> bool:
        """Whether it has called a function so far, and no call was cut."""
        return bool(self._calls and self.calls and not self._calls.is_cut)

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Yield what each step adds."""
        with self._meter.counting(self.stream, self.prompt):
            async with aclosing(self.stream.steps()) as steps:
                async for step, pieces in steps:
                    yield self._delta(pieces, step)
        rest = self._joined(self._splitter.finish() if self._splitter else (), None, (), final=True)
        if rest.text or rest.reasoning or rest.calls:
            yield rest

    def _delta(self, pieces: Sequence[Piece], step: Step | None) -> Delta:
        logprobs = self.stream.logprobs_from(self._seen)
        self._seen += len(logprobs)
        return self._joined(self._splitter.feed(pieces) if self._splitter else pieces, step, logprobs)

    def _joined(
        self, pieces: Sequence[Piece], step: Step | None, logprobs: Sequence[TokenLogprob], *, final: bool = False
    ) -> Delta:
        text, reasoning = (
            "".join(piece.text for piece in pieces if piece.reasoning is wanted) for wanted in (False, True)
        )
        calls: Sequence[tuple[int, Call]] = ()
        if self._calls:
            text = self._calls.feed(text) + (self._calls.finish() if final else "")
            calls = self._calls.news()
        return Delta(text, reasoning, step.tokens if step else (), logprobs, calls, pieces, step)


async def merged(choices: Sequence[Choice], *, progress: bool = False) -> AsyncGenerator[tuple[Choice, Delta | None]]:
    """Yield the deltas of answers as they come, and None behind each one's last. Ends all where it is left early.

    `progress`: some tell how far a prompt is read.
    """
    news: asyncio.Queue[tuple[Choice, Delta | None | BaseException]] = asyncio.Queue()

    async def read(choice: Choice) -> None:
        try:
            async with aclosing(choice.deltas()) as deltas:
                async for delta in deltas:
                    news.put_nowait((choice, delta))
            news.put_nowait((choice, None))
        except Exception as error:
            news.put_nowait((choice, error))

    def told(choice: Choice, found: PromptProgress) -> None:
        news.put_nowait((choice, Delta("", "", (), (), progress=found)))

    for choice in choices if progress else ():
        choice.stream.watch_prompt(partial(told, choice))
    readers = [asyncio.create_task(read(choice)) for choice in choices]
    try:
        left = len(choices)
        while left:
            choice, found = await news.get()
            if isinstance(found, BaseException):
                raise found
            left -= found is None
            yield choice, found
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
