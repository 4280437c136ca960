"""Answers on their way to their readers, which are threads or tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock
from typing import Protocol, Self

from lacli.engine.answer import Answer, AnswerText
from lacli.engine.engine import Progress
from lacli.engine.worker import PromptProgress, Request
from lacli.errors import UsageError
from lacli.stats import RunStatistics, Step
from lacli.text.files import Closing
from lacli.text.stream import Piece
from lacli.verify import TokenLogprob


class Keeper(Protocol):
    """What streams need of their model, which they keep: a lock for making text."""

    _reading: Lock


class Answering(Closing):
    """An answer on its way to one reader."""

    def __init__(self, model: Keeper, text: AnswerText, request: Request) -> None:
        """`model`: kept as long as this is."""
        self._model, self._text, self._request = model, text, request
        self._begun = self._iterated = self._ended = False

    @property
    def prompt(self) -> Sequence[int]:
        """The prompt's tokens."""
        return self._request.prompt

    @property
    def limit(self) -> int:
        """Tokens of the answer at most, -1 for no limit."""
        return self._request.options.max_tokens

    @property
    def statistics(self) -> RunStatistics:
        """What the answer has cost by now."""
        return self._text.statistics

    @property
    def cost(self) -> RunStatistics:
        """What the answer has cost by now; before its first step, what is read of the prompt."""
        run = self.statistics
        return run if run.steps else self._request.progress.statistics

    @property
    def is_decoded(self) -> bool:
        """True while it has a place."""
        return self._request.sequence is not None and self._request.in_worker

    def partial_answer(self) -> Answer:
        """What there is of the answer by now."""
        return self._text.answer()

    def logprobs_from(self, first: int) -> Sequence[TokenLogprob]:
        """Log probabilities from the `first` token on whose text has come by now, at least in part."""
        return self._text.logprobs_from(first)

    def close(self) -> None:
        """End it at the last step that was read; another thread or task that iterates it comes to its end."""
        self._ended = True
        self._request.end()

    def _iterate(self) -> None:
        """Note that it is iterated; raise UsageError the second time."""
        if self._iterated:
            raise UsageError("a stream is iterated once", "answer() has its text; ask again for another stream")
        self._iterated = True

    def _begin(self, deliver: Callable[[Progress], None], *, max_unread: int = 0) -> None:
        if not (self._begun or self._ended):
            self._begun = True
            self._text.begin()
            self._request.begin(deliver, max_unread=max_unread)

    def _take(self, progress: Progress) -> list[Piece]:
        """The text that progress makes certain. Raises what ended the answer."""
        self._request.read()
        if self._ended:
            return []
        if progress.error is not None:
            self._ended = True
            try:
                raise progress.error
            finally:
                # The error holds this frame.
                del progress
        step, text = progress.step, self._text
        with self._model._reading:
            pieces = text.take(progress)
            if text.stopped:
                self.close()
            elif step is None or step.finish:
                self._ended = True
                pieces += text.end()
        return pieces


class Stream(Answering):
    """An answer on its way: iterate it, once, for its text as it is accepted; then, or at any time, read `answer()`.

    A loop that is left ends the answer; behind `next` alone `close` does, or the end of a `with` block.
    """

    def __init__(self, model: Keeper, text: AnswerText, request: Request) -> None:
        super().__init__(model, text, request)
        self._arrived: SimpleQueue[Progress] = SimpleQueue()
        self._texts: deque[str] = deque()

    def __iter__(self) -> Iterator[str]:
        self._iterate()
        try:
            while (text := next(self, None)) is not None:
                yield text
        finally:
            self.close()

    def __next__(self) -> str:
        self.begin()
        while not self._texts:
            if self._ended:
                raise StopIteration
            self._texts += [piece.text for piece in self._take(self._arrived.get())]
        return self._texts.popleft()

    def begin(self) -> None:
        """Let it be decoded from now on; otherwise that begins with the first piece that is asked for."""
        self._begin(self._arrived.put)

    def answer(self) -> Answer:
        """The whole answer; where its iteration was left early, what there is of it."""
        if not self._iterated:
            for _ in self:
                pass
        return self.partial_answer()


class AsyncStream(Answering):
    """The same for `async for` and `async with`; other tasks go on in the meantime."""

    def __init__(self, model: Keeper, text: AnswerText, request: Request) -> None:
        super().__init__(model, text, request)
        self._texts: AsyncIterator[str] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """The same as `close`, for `contextlib.aclosing`."""
        self.close()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts or self._read()

    async def __anext__(self) -> str:
        self._texts = self._texts or self._read()
        return await anext(self._texts)

    async def _read(self) -> AsyncIterator[str]:
        async for _, pieces in self.steps():
            for piece in pieces:
                yield piece.text

    def watch_prompt(self, tell: Callable[[PromptProgress], None]) -> None:
        """Have `tell` called in this task's loop whenever more of the prompt is read; first with what is reused."""
        loop = asyncio.get_running_loop()

        def watch(progress: PromptProgress) -> None:
            # A closed event loop has no readers.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, progress)

        self._request.watch = watch

    async def steps(self, *, max_unread: int = 0) -> AsyncGenerator[tuple[Step | None, list[Piece]]]:
        """Yield each step with the text that it makes certain; None for an end without a step.

        `max_unread`: steps that may wait to be read. With more the answer is held until half of them are read, and it
        raises LacliError where nothing is for 20 seconds. 0: no limit.
        """
        self._iterate()
        arrived: asyncio.Queue[Progress] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(progress: Progress) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, progress)
            except RuntimeError:
                # A closed event loop has no readers.
                self._request.end()

        self._begin(deliver, max_unread=max_unread)
        try:
            while not self._ended:
                progress = await arrived.get()
                yield progress.step, self._take(progress)
        finally:
            self.close()

    async def answer(self) -> Answer:
        """The whole answer; where its iteration was left early, what there is of it."""
        if not self._iterated:
            async for _ in self:
                pass
        return self.partial_answer()
