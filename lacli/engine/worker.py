"""The thread around an engine for serve and the Python API: requests from any thread, decoded together."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from os import getpid
from threading import Condition, Thread
from time import perf_counter
from typing import NamedTuple

from lacli.engine.engine import GREEDY, Engine, Progress, SequenceOptions
from lacli.engine.step import TokenSequence
from lacli.errors import LacliError, Unavailable
from lacli.llamacpp.sampler import LlamaSampler
from lacli.stats import RunStatistics
from lacli.text.files import Closing

CLOSED = "the model is closed"

EXIT_S = 10.0
"""Seconds for which a program's end waits for a step: a piece of a 3B model's prompt takes 4 s on two cores."""

AGAIN_S = 0.05
"""Seconds after which a closing worker's step is interrupted once more."""

HELD_S = 20.0
"""Seconds that a sequence keeps its slot while its reader reads nothing."""

ENDED = Progress(None)
"""Of a sequence that its reader has ended."""


class PromptProgress(NamedTuple):
    """How far a prompt is read: `read` of its `total` tokens, `reused` of them from the cache, in `seconds`."""

    total: int
    reused: int
    read: int
    seconds: float

    @property
    def statistics(self) -> RunStatistics:
        """What that has cost, without an answer."""
        return RunStatistics(prompt_tokens=max(self.read, 0), reused_tokens=self.reused, prompt_s=self.seconds)


class Request:
    """A sequence that a worker decodes, asked for from any thread.

    `sampler`: closed when the sequence ends. `sequence`: None until it has a slot. `progress`: how far the prompt is
    read; `watch` gets it in the worker's thread. `in_worker`: True from `begin` until the worker has ended it.
    """

    def __init__(
        self,
        worker: Worker,
        prompt: Sequence[int],
        options: SequenceOptions = GREEDY,
        sampler: LlamaSampler | None = None,
    ) -> None:
        """Raises PromptError for too long a prompt."""
        worker.engine.check_prompt(prompt)
        self._worker = worker
        self.prompt, self.options, self.sampler = prompt, options, sampler
        self.deliver: Callable[[Progress], None]
        self.sequence: TokenSequence | None = None
        self.progress = PromptProgress(len(prompt), 0, -1, 0.0)
        self.watch: Callable[[PromptProgress], None] | None = None
        self.in_worker = False
        # When its last step ended, 0 before the first and while the sequence is held.
        self._stepped = 0.0
        # Each of the two counts is written by one thread alone.
        self._max_unread = self._delivered = self._read = 0
        self._last_read = 0.0

    def begin(self, deliver: Callable[[Progress], None], *, max_unread: int = 0) -> None:
        """Ask for what follows the prompt, once; `deliver` gets all progress, in the worker's thread.

        `max_unread`: progress without a `read` that holds the sequence, until half of it is read; 0 for no limit.
        """
        self.deliver, self._max_unread = deliver, max_unread
        self._worker.add(self)

    def read(self) -> None:
        """Count progress as read; a sequence that is held for that goes on."""
        self._read += 1
        self._last_read = perf_counter()
        if self.sequence and self.sequence.is_held:
            self._worker.look_again()

    def end(self) -> None:
        """End it if it has not ended: it frees its slot before the next step, and a last progress says so."""
        self._worker.remove(self)

    def note_prompt(self) -> None:
        """Note in the worker's thread how far the prompt is read, and tell `watch`, first of what is reused."""
        sequence, (total, _, known, _) = self.sequence, self.progress
        if sequence is None or sequence.reused is None or known == total:
            return
        read = total if len(sequence.tokens) > total else sequence.cells.past
        for tokens in (sequence.reused, read) if known < 0 else (read,):
            if tokens > self.progress.read:
                seconds = perf_counter() - sequence.added if tokens > sequence.reused else 0.0
                self.progress = PromptProgress(total, sequence.reused, tokens, seconds)
                if self.watch:
                    self.watch(self.progress)

    def tell(self, progress: Progress) -> None:
        """Deliver progress in the worker's thread; a step gets the time that its sequence has waited for it."""
        if step := progress.step:
            now, before = perf_counter(), self._stepped
            self._stepped = now
            waited_s = max(now - before - step.seconds, 0.0) if before else 0.0
            progress = progress._replace(step=step._replace(waited_s=waited_s))
        self._delivered += 1
        self.deliver(progress)

    def hold(self, now: float) -> bool:
        """Hold the sequence or let it go on, by what its reader has read; True if it is held."""
        sequence = self.sequence
        if not self._max_unread or not sequence:
            return False
        was_held = sequence.is_held
        # Before the count: a reader that reads on in the meantime sees it, and has the worker look again.
        sequence.is_held = True
        unread = self._delivered - self._read
        sequence.is_held = unread > self._max_unread // 2 if was_held else unread >= self._max_unread
        if sequence.is_held and not was_held:
            self._last_read, self._stepped = now, 0.0
        return sequence.is_held

    @property
    def held_until(self) -> float:
        """When the held sequence loses its slot, unless its reader reads on."""
        return self._last_read + HELD_S


class Worker(Closing):
    """Decodes sequences together in a thread of its own; requests come from any thread, and begin in their order.

    What ends a step with an error ends all sequences with it, and the worker; each reader is told.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._changed = Condition()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._gone: list[Request] = []
        self._error: Exception | None = None
        self._refusal: Unavailable | None = None
        self._closed = self._at_exit = False
        self._process = getpid()
        self._thread = Thread(target=self._run, name="lacli worker", daemon=True)
        self._thread.start()
        # At a program's end the system would take the memory from under its step.
        atexit.register(self._end_at_exit)

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of sequences that decode and that wait for a slot; one that was left counts no more."""
        with self._changed:
            running, waiting = (
                sum(request not in self._gone for request in requests) for requests in (self._running, self._waiting)
            )
        return running, waiting

    @property
    def failure(self) -> Exception | None:
        """What has ended it for good, None where nothing has."""
        return self._error

    def add(self, request: Request) -> None:
        """Take in a request. Raises LacliError where none is taken, as in a closed worker or a forked process."""
        if getpid() != self._process:
            raise LacliError("the model was loaded before this process was forked", "load it here")
        with self._changed:
            if (self._refusal or self._error or self._closed) and not self._at_exit:
                raise self._refusal or self._error or LacliError(CLOSED, "load it again")
            request.in_worker = True
            self._waiting.append(request)
            self._changed.notify()

    def remove(self, request: Request) -> None:
        """End a request that has not ended."""
        with self._changed:
            self._gone.append(request)
            self._changed.notify()

    def look_again(self) -> None:
        """Let the worker see that a reader has read on."""
        with self._changed:
            self._changed.notify()

    def take_no_more(self, why: str, retry_s: int = 0) -> None:
        """Let running sequences end; readers of those that wait or come later get Unavailable, with `why`."""
        refusal = Unavailable(why, f"ask again in {retry_s} s" if retry_s else "ask again later")
        refusal.retry_s = retry_s
        with self._changed:
            self._refusal = refusal
            self._changed.notify()

    def stop(self, why: str = "") -> None:
        """End all sequences after the current step, without waiting for it; their readers get a LacliError, with `why`.

        A step that only reads prompts is broken off.
        """
        with self._changed:
            if why:
                self._error = self._error or LacliError(why, "ask again later")
            self._closed = True
            self._changed.notify()
        self._interrupt_reading()

    def close(self) -> None:
        """End all sequences at their last step; their readers get a LacliError."""
        self._end_thread()

    def _end_at_exit(self) -> None:
        """Wait for the step that is taken, and tell no reader: a thread that is left behind would print the error."""
        self._at_exit = True
        self._end_thread(EXIT_S)

    def _end_thread(self, most_s: float = inf) -> None:
        """End the thread, or leave it behind after `most_s` seconds: a step on another machine may never end."""
        if not self._thread.is_alive():
            # Its locks may be held for ever in a forked process.
            self._closed = True
            return
        self.stop()
        end = perf_counter() + most_s
        while self._thread.is_alive() and perf_counter() < end:
            # A piece of a prompt may have begun just now.
            self._interrupt_reading()
            self._thread.join(AGAIN_S)

    def _interrupt_reading(self) -> None:
        """End the piece of a prompt that is decoded, which may take seconds."""
        getattr(self.engine.context, "interrupt", bool)()

    def _run(self) -> None:
        try:
            while self._change_requests():
                self._step()
        except KeyboardInterrupt:
            # `close` has interrupted a piece of a prompt.
            assert self._closed, "Ctrl-C is the main thread's"
        except Exception as error:
            with self._changed:
                self._error = error
        if not self._at_exit:
            self._end_all()
        atexit.unregister(self._end_at_exit)

    def _step(self) -> None:
        """Take a step, and give its progress to the readers."""
        for progress in self.engine.step():
            request = next(each for each in self._running if each.sequence is progress.sequence)
            self._tell(request, progress)
        for request in self._running:
            request.note_prompt()

    def _change_requests(self) -> bool:
        """Take out and take in what was asked for since the last step; wait without work. False to end."""
        with self._changed:
            while not self._has_work():
                held = [request.held_until for request in self._running]
                self._changed.wait(max(min(held) - perf_counter(), 0) if held else None)
            gone = [*self._gone]
        for request in gone:
            if request in self._running and request.sequence:
                self.engine.end(request.sequence)
                self._end(request)
            elif request in self._waiting:
                with self._changed:
                    self._waiting.remove(request)
                self._end(request)
        with self._changed:
            # Until now they count no more.
            del self._gone[: len(gone)]
        self._end_overdue()
        while self._waiting and (self._refusal or not self.engine.is_full):
            # It waits until it is taken in: an error on the way there ends all that wait.
            request = self._waiting[0]
            if not self._refusal:
                request.sequence = self.engine.add(request.prompt, request.options)
                self._running.append(request)
            with self._changed:
                self._waiting.popleft()
            if not request.sequence:
                self._end(request, Progress(None, error=self._refusal))
        return not self._closed

    def _has_work(self) -> bool:
        """True where anything can be done: not where every running sequence is held for its reader."""
        now = perf_counter()
        held = [request for request in self._running if request.hold(now)]
        is_decoding = len(held) < len(self._running)
        is_overdue = any(request.held_until <= now for request in held)
        has_slot = bool(self._waiting) and (not self.engine.is_full or bool(self._refusal))
        return self._closed or is_decoding or is_overdue or has_slot or bool(self._gone)

    def _end_overdue(self) -> None:
        now = perf_counter()
        for request in [*self._running]:
            if request.sequence and request.sequence.is_held and request.held_until <= now:
                self.engine.end(request.sequence)
                what = f"nothing of the answer was read for {HELD_S:g} s"
                self._end(request, Progress(None, error=LacliError(what, "read it as it comes")))

    def _tell(self, request: Request, progress: Progress) -> None:
        """Give a reader what a step brought."""
        assert request.sequence, "it has a slot"
        if request.sequence.finish:
            request.note_prompt()
            self._end(request, progress)
        else:
            request.tell(progress)

    def _end(self, request: Request, last: Progress = ENDED) -> None:
        """Forget a request, and give its reader the last progress."""
        if request in self._running:
            self._running.remove(request)
        if request.sampler:
            request.sampler.close()
        request.tell(last)
        # It holds the reader, which holds the request.
        del request.deliver
        request.in_worker = False

    def _end_all(self) -> None:
        with self._changed:
            error = self._error or LacliError(CLOSED, "load it again")
            self._closed = True
            left = [(request, error) for request in self._running]
            left += [(request, self._refusal or error) for request in self._waiting]
            self._waiting.clear()
        for request, reason in left:
            self._end(request, Progress(None, error=reason))
