"""The thread that decodes for serve and the Python API: requests from any thread or task, all in one engine."""

from __future__ import annotations

import asyncio
import atexit
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from copy import copy
from os import getpid
from queue import SimpleQueue
from threading import Condition, Event, Lock, Thread, current_thread
from time import perf_counter
from typing import Any, Self

from lacli.context import Closing
from lacli.engine.answer import Answer, AnswerText
from lacli.engine.engine import GREEDY, Engine, Progress, SequenceOptions
from lacli.engine.replicas import AGAIN_S
from lacli.engine.step import TokenSequence
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampler import LlamaSampler
from lacli.stats import RunStatistics, Step
from lacli.text.stream import Piece


class Request(Closing):
    """A request for an answer, which any thread can make and read.

    `text`: the answer as far as it was read. `sequence`: the engine's sequence, None before it has a slot. `in_worker`:
    True from `begin` until the worker has ended the request.
    """

    new_queue: Callable[[], Any] = SimpleQueue

    def __init__(self, worker: Worker, owner: object = None) -> None:
        """`owner`: an object that must not be freed before this request, such as the model; None for no object."""
        self._worker, self._owner = worker, owner
        self.sequence: TokenSequence | None = None
        self.in_worker = self._iterated = self._ended = False
        # When the request began, when its last step ended, and the seconds until its first step ended; 0 before.
        self._begun = self._stepped = self._first_s = 0.0
        self._arrived = self.new_queue()
        self._read: RunStatistics | None = None  # statistics of the prompt, once known

    def set_up(
        self,
        text: AnswerText,
        prompt: Sequence[int],
        options: SequenceOptions = GREEDY,
        sampler: LlamaSampler | None = None,
    ) -> None:
        """Set the prompt, before `begin`. Raises PromptError if the prompt is empty or too long for the engine.

        `text`: takes the steps, makes the answer. `sampler`: closed when the sequence ends; None for greedy decoding.
        """
        self._worker.engine.check_prompt(prompt)
        self.text, self.prompt, self.options, self.sampler = text, prompt, options, sampler

    def _put(self, progress: Progress | RunStatistics) -> None:
        self._arrived.put(progress)

    @property
    def statistics(self) -> RunStatistics:
        """The statistics of the steps that were read; before the first step, of the prompt as far as it is decoded."""
        return self.text.statistics if self.text.statistics.steps else self._read or RunStatistics()

    def begin(self) -> None:
        """Start decoding now instead of at the first read; further calls do nothing."""
        if not (self._begun or self._ended):
            self._begun = perf_counter()
            self.text.begin()
            self._worker.add(self)

    def close(self) -> None:
        """End the answer at the last step that was read. Other threads or tasks that iterate it stop too."""
        self._ended = True
        self._worker.remove(self)

    def note_prompt(self) -> None:
        """Queue statistics of the prompt if more was decoded since the last call; first, of the reused tokens alone."""
        sequence, total = self.sequence, len(self.prompt)
        known = self._read.prompt_tokens if self._read else -1
        if sequence is None or sequence.reused is None or known == total:
            return
        read = total if len(sequence.tokens) > total else sequence.cells.past
        for tokens in (sequence.reused, read) if known < 0 else (read,):
            if tokens > known:
                known, seconds = tokens, perf_counter() - sequence.added if tokens > sequence.reused else 0.0
                self._read = RunStatistics(tokens, sequence.reused, seconds)
                self._put(self._read)

    def deliver(self, progress: Progress) -> None:
        """Put `progress` into the reader's queue. If it has a step, set the step's `waited_s` before."""
        if step := progress.step:
            now, before = perf_counter(), self._stepped
            self._stepped = now
            waited_s = max(now - before - step.seconds, 0.0) if before else 0.0
            self._first_s = self._first_s or now - self._begun
            progress = progress._replace(step=step._replace(waited_s=waited_s))
        self._put(progress)

    def _iterate(self) -> None:
        if self._iterated:
            raise UsageError("a stream can be iterated only once", "answer() has its text; ask again for a new stream")
        self._iterated = True

    def _take(self, progress: Progress | RunStatistics) -> list[Piece]:
        """Return the text that becomes certain with `progress`. If `progress` has an error, raise this error."""
        if self._ended or isinstance(progress, RunStatistics):
            return []
        if progress.error is not None:
            self._ended = True
            self._worker.rest_at_exit()
            try:
                raise progress.error
            finally:
                # The error holds this frame.
                del progress
        step, text = progress.step, self.text
        with self._worker.reading:
            pieces = text.take(progress)
            text.statistics.first_token_s = self._first_s  # a reader may come late
            if text.stopped:
                self.close()
            elif step is None or step.finish:
                self._ended = True
                pieces += text.end()
        return pieces


class Stream(Request):
    """An answer in progress. Iterate it once for its text, piece by piece; `answer()` returns the whole answer.

    The answer ends early if the caller leaves the loop or a `with` block, or calls `close`.
    """

    def __iter__(self) -> Iterator[str]:
        self._iterate()
        self.begin()
        try:
            while not self._ended:
                for piece in self._take(self._arrived.get()):
                    yield piece.text
        finally:
            self.close()

    def answer(self) -> Answer:
        """Decode the answer and return it; if an iteration has begun, return the answer as far as it was read."""
        if not self._iterated:
            for _ in self:
                pass
        return self.text.answer()


class AsyncStream(Request):
    """A Stream for `async for` and `async with`, which does not block the event loop."""

    new_queue = asyncio.Queue

    def __init__(self, worker: Worker, owner: object, later: Callable[[AsyncStream], object] | None = None) -> None:
        """`owner`: an object that must not be freed before this stream, such as the model; None for no object.

        `later`: takes this stream and calls its `set_up`, in another thread at the first await. None: already done.
        """
        super().__init__(worker, owner)
        self._later, self._one_thread = later, asyncio.Lock()

    async def _is_set_up(self) -> None:
        async with self._one_thread:
            if self._later:
                await asyncio.to_thread(self._later, self)
                self._later = None

    async def __aenter__(self) -> Self:
        await self._is_set_up()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        super().begin()

    def _put(self, progress: Progress | RunStatistics) -> None:
        self._worker.arrived[self._loop].append((self, progress))

    @staticmethod
    def put_all(arrived: Iterable[tuple[AsyncStream, Progress | RunStatistics]]) -> None:
        """Put progress into the queues of its streams; called in their event loop."""
        for stream, progress in arrived:
            stream._arrived.put_nowait(progress)

    async def __aiter__(self) -> AsyncIterator[str]:
        async with aclosing(self.steps()) as steps:
            async for _, pieces in steps:
                for piece in pieces:
                    yield piece.text

    async def steps(self) -> AsyncGenerator[tuple[Step | RunStatistics | None, list[Piece]]]:
        """Yield statistics during the prefill, each with no text; then each step, or None for an end, with its text."""
        self._iterate()
        await self._is_set_up()
        self.begin()
        try:
            while not self._ended:
                progress: Progress | RunStatistics = await self._arrived.get()
                yield progress if isinstance(progress, RunStatistics) else progress.step, self._take(progress)
        finally:
            self.close()

    async def answer(self) -> Answer:
        """Decode the answer and return it; if an iteration has begun, return the answer as far as it was read."""
        await self._is_set_up()
        if not self._iterated:
            async for _ in self.steps():
                pass
        return self.text.answer()


class Worker(Closing):
    """Decodes requests together in its own thread. Any thread may add requests; they get slots in the order of arrival.

    An error in a step ends all requests and the worker; each reader gets the error. `reading`: a lock, held while a
    step becomes text, so that the model stays open. `running`, `waiting`: the requests with a slot, and without one.
    `failure`: the error that ended the worker, or None.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.reading = Lock()
        self.failure: Exception | None = None
        self._changed = Condition()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._gone: list[Request] = []
        self._calls: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.arrived: defaultdict[asyncio.AbstractEventLoop, list[tuple[AsyncStream, Progress | RunStatistics]]]
        self.arrived = defaultdict(list)
        self._closed = self._at_exit = False
        self._process = getpid()
        self._thread = Thread(target=self._run, name="lacli worker", daemon=True)
        self._thread.start()
        # At a program's end the system would free the memory during a step.
        atexit.register(self._close_at_exit)

    def add(self, request: Request) -> None:
        """Queue a request for a slot. Raises LacliError if the worker is closed, or in a forked process."""
        if getpid() != self._process:
            raise LacliError("the model was loaded before this process was forked", "load it again in this process")
        with self._changed:
            if not self._closed:
                request.in_worker = True
                self.waiting.append(request)
                self._changed.notify()
                return
        self.rest_at_exit()
        raise self._reason

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Call `work` in the worker's thread between two steps, and return its future. Raises LacliError if closed."""
        future = Future[Any]()
        with self._changed:
            if self._closed:
                raise self._reason
            self._calls.append((future, work))
            self._changed.notify()
        return future

    def remove(self, request: Request) -> None:
        """End a request before the next step; an ended request is ignored."""
        with self._changed:
            if request.in_worker:
                self._gone.append(request)
                self._changed.notify()

    def stop(self) -> None:
        """Tell the worker to end all requests after the current step, and return at once. Readers get a LacliError."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def close(self) -> None:
        """End all requests as `stop` does, and return when the thread has ended. A prompt chunk is interrupted."""
        # In a forked process there is no thread, and its locks may be held for ever.
        while self._thread.is_alive():
            self.stop()
            getattr(self.engine.context, "interrupt", bool)()
            self._thread.join(AGAIN_S)
        self._closed = True

    def rest_at_exit(self) -> None:
        """While the program ends, block a calling daemon thread for ever: it would print an error. Else do nothing."""
        if self._at_exit and current_thread().daemon:
            Event().wait()

    def _close_at_exit(self) -> None:
        self._at_exit = True
        self.close()

    @property
    def _reason(self) -> Exception:
        """A copy of `failure`, or of "the model is closed", for one reader. A shared error's traceback would grow."""
        reason = self.failure or LacliError("the model is closed", "load it again")
        return copy(reason).with_traceback(reason.__traceback__)

    def _run(self) -> None:
        try:
            while self._change_requests():
                self._step()
        except KeyboardInterrupt:
            # `close` has interrupted a prompt chunk.
            assert self._closed, "Ctrl-C is the main thread's"
        except Exception as error:
            self.failure = error
        with self._changed:
            self._closed = True
            left = [*self.running, *self.waiting]
            self.waiting.clear()
        for request in left:
            self._end(request, Progress(None, error=self._reason))
        for future, _ in self._calls:
            future.set_exception(self._reason)
        self._hand_over()
        atexit.unregister(self._close_at_exit)

    def _step(self) -> None:
        for progress in self.engine.step():
            request = next(each for each in self.running if each.sequence is progress.sequence)
            request.note_prompt()
            if progress.sequence and progress.sequence.finish:
                self._end(request, progress)
            else:
                request.deliver(progress)
        for request in self.running:
            request.note_prompt()
        self._hand_over()

    def _hand_over(self) -> None:
        """Wake each event loop once, with all progress that has arrived for its tasks."""
        arrived, self.arrived = self.arrived, defaultdict(list)
        for loop, progress in arrived.items():
            try:
                loop.call_soon_threadsafe(AsyncStream.put_all, progress)
            except RuntimeError:
                # A closed event loop has no readers.
                for stream, _ in progress:
                    stream.close()

    def _change_requests(self) -> bool:
        """Wait for work; end and begin requests; run the functions given to `call`. False if the worker is closed."""
        with self._changed:
            while not (self._closed or self.running or self.waiting or self._gone or self._calls):
                self._changed.wait()
            gone, self._gone = self._gone, []
            for request in gone:
                if request in self.waiting:
                    self.waiting.remove(request)
                if request.sequence:
                    self.engine.end(request.sequence)
                if request.in_worker:
                    self._end(request, Progress(None))
            calls, self._calls = self._calls, []
        self._hand_over()
        for future, work in calls:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        while self.waiting and not self.engine.is_full:
            # The request stays in `waiting` until `add` returns, so that an error of `add` ends it too.
            request = self.waiting[0]
            request.sequence = self.engine.add(request.prompt, request.options)
            self.running.append(self.waiting.popleft())
        return not self._closed

    def _end(self, request: Request, last: Progress) -> None:
        if request in self.running:
            self.running.remove(request)
        request.in_worker = False
        if request.sampler:
            request.sampler.close()
        request.deliver(last)
