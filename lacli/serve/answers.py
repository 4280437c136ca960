"""The answers of a request on their way: their deltas of text, reasoning, calls and log probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple, Self

from lacli.answer_options import AnswerOptions
from lacli.engine.worker import AsyncStream, PromptProgress
from lacli.model import Model
from lacli.serve.status import Status
from lacli.serve.tools import Call, CallRules, CallSplitter
from lacli.text.reasoning import ReasoningSplitter, begun_reasoning
from lacli.text.stream import Piece
from lacli.verify import TokenLogprob


class Delta(NamedTuple):
    """What a step added to an answer, or, in front of the first step, `progress`: how much of the prompt is read.

    `logprobs`: of tokens of whose text a part has come. `calls`: with their numbers. `pieces`: of text and reasoning in
    their order, before calls are taken out.
    """

    text: str = ""
    reasoning: str = ""
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    calls: Sequence[tuple[int, Call]] = ()
    pieces: Sequence[Piece] = ()
    progress: PromptProgress | None = None

    @classmethod
    def sum(cls, deltas: Sequence[Self]) -> Self:
        """All of an answer, without its pieces."""
        return cls(
            "".join(each.text for each in deltas),
            "".join(each.reasoning for each in deltas),
            [token for each in deltas for token in each.tokens],
            [logprob for each in deltas for logprob in each.logprobs],
            [call for each in deltas for call in each.calls],
        )


class Choice:
    """One of the answers of a request. Raises what `Model.astream` raises, before anything is decoded."""

    def __init__(
        self,
        model: Model,
        status: Status,
        tokens: Sequence[int],
        index: int,
        options: AnswerOptions,
        rules: CallRules | None,
    ) -> None:
        """`tokens`: the prompt's. `index`: the answer's place in the request. `rules`: what it may call."""
        self.index, self._model, self._status, self._prompt = index, model, status, tokens
        self.stream: AsyncStream = model.astream(tokens, **options)
        # A mark that begins reasoning has 16 tokens at most.
        end = model.engine.text(tokens[-16:], special=True)
        self._reasoning = None if options.get("raw") else ReasoningSplitter(begun_reasoning(end))
        self._calls = CallSplitter(rules) if rules else None
        self.has_logprobs = options.get("logprobs") is not None

    @property
    def prompt_text(self) -> str:
        """The prompt as a text, with its control tokens."""
        return self._model.engine.text(self._prompt, special=True)

    @property
    def calls(self) -> Sequence[Call]:
        """The functions that it has called so far."""
        return self._calls.calls if self._calls else ()

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Yield what each step adds."""
        splitter, seen = self._reasoning, 0
        with self._status.counting(self.stream):
            async with aclosing(self.stream.steps()) as steps:
                async for step, pieces in steps:
                    logprobs = self.stream.text.logprobs_from(seen)
                    seen += len(logprobs)
                    delta = self._delta(splitter.feed(pieces) if splitter else pieces)
                    yield delta._replace(tokens=step.tokens if step else (), logprobs=logprobs)
        yield self._delta(splitter.finish() if splitter else (), final=True)

    def _delta(self, pieces: Sequence[Piece], *, final: bool = False) -> Delta:
        reasoning = "".join(piece.text for piece in pieces if piece.reasoning)
        text = "".join(piece.text for piece in pieces if not piece.reasoning)
        before = len(self.calls)
        if self._calls:
            text = self._calls.feed(text, final=final)
        return Delta(text, reasoning, calls=[*enumerate(self.calls)][before:], pieces=pieces)


async def merged(choices: Sequence[Choice], *, progress: bool = False) -> AsyncGenerator[tuple[Choice, Delta | None]]:
    """Yield the deltas of answers as they come, and None behind each one's last. Ends all if it is left early.

    `progress`: some tell how much of a prompt is read.
    """
    news: asyncio.Queue[tuple[Choice, Delta | Exception | None]] = asyncio.Queue()

    async def read(choice: Choice) -> None:
        try:
            async with aclosing(choice.deltas()) as deltas:
                async for delta in deltas:
                    news.put_nowait((choice, delta))
            news.put_nowait((choice, None))
        except Exception as error:
            news.put_nowait((choice, error))

    def tell(choice: Choice, found: PromptProgress) -> None:
        news.put_nowait((choice, Delta(progress=found)))

    for choice in choices if progress else ():
        choice.stream.watch_prompt(partial(tell, choice))
    readers = [asyncio.create_task(read(choice)) for choice in choices]
    try:
        left = len(choices)
        while left:
            choice, found = await news.get()
            if isinstance(found, Exception):
                raise found
            left -= found is None
            yield choice, found
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
