"""The thread that takes the common steps of all texts of a model."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from math import inf
from os import getpid
from threading import Condition, Thread
from time import perf_counter

from lacli.api.request import ENDED, HELD_S, Arrival, Request
from lacli.decode import Decoder
from lacli.errors import LacliError, Unavailable
from lacli.llamacpp.decoding import DecodingContext
from lacli.modes import Mode
from lacli.schedule import News, Schedule, SharedText
from lacli.text.files import Closing

CLOSED = "the model is closed"

EXIT_S = 10.0
"""Seconds for which a program's end waits for a step: a piece of a 3B model's prompt takes 4 s on two cores."""

AGAIN_S = 0.05
"""Seconds after which a closing loop is interrupted once more."""


class SharedLoop(Closing):
    """Decodes texts together, in a thread of its own; requests come from any thread, and begin in their order.

    What ends a step with an error ends all texts with it, and the loop; each is told.
    """

    def __init__(self, decoder: AbstractContextManager[Decoder], places: int, longest: int = 0) -> None:
        """`decoder`: kept until the loop is closed. `places`: texts at a time; further ones wait for a place.

        `longest`: as `Schedule` takes it.
        """
        with ExitStack() as stack:
            self.decoder = stack.enter_context(decoder)
            self._kept = stack.pop_all()
        self._schedule = Schedule(self.decoder, places, longest)
        self._changed = Condition()
        self._waiting: deque[Request] = deque()
        self._running: dict[SharedText, Request] = {}
        self._gone: list[Request] = []
        self._wakes: set[Callable[[], None]] = set()
        self._error: Exception | None = None
        self._refusal: Unavailable | None = None
        self._closed = self._at_exit = False
        self._process = getpid()
        self._thread = Thread(target=self._run, name="lacli loop", daemon=True)
        self._thread.start()
        # At a program's end the system would take the memory from under its step.
        atexit.register(self._end_at_exit)

    @property
    def context(self) -> int:
        """Tokens that a text may have."""
        return self._schedule.cells

    @property
    def mode(self) -> Mode | None:
        """The mode of the text that came last, for what it knows of the machine."""
        return self._schedule.latest

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of texts that decode and that wait for a place; a text that was left counts no more."""
        with self._changed:
            running, waiting = (
                sum(request not in self._gone for request in requests)
                for requests in (self._running.values(), self._waiting)
            )
        return running, waiting

    @property
    def failure(self) -> Exception | None:
        """What has ended it for good, None where nothing has."""
        return self._error

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt without tokens, or with more than a text may have."""
        self._schedule.check_prompt(prompt)

    def add(self, request: Request) -> None:
        """Take in a request. Raises LacliError where none is taken, as in a closed loop or a forked process."""
        if getpid() != self._process:
            raise LacliError("the model was loaded before this process was forked", "load it here")
        with self._changed:
            if (self._refusal or self._error or self._closed) and not self._at_exit:
                raise self._refusal or self._error or LacliError(CLOSED, "load it again")
            request.in_loop = True
            self._waiting.append(request)
            self._changed.notify()

    def remove(self, request: Request) -> None:
        """End a request that has not ended."""
        with self._changed:
            self._gone.append(request)
            self._changed.notify()

    def look_again(self) -> None:
        """Let the loop see that a reader has read on."""
        with self._changed:
            self._changed.notify()

    def take_no_more(self, why: str, retry_s: int = 0) -> None:
        """Let the texts that have a place end; readers of those that wait or come later get Unavailable, with `why`."""
        refusal = Unavailable(why, f"ask again in {retry_s} s" if retry_s else "ask again later")
        refusal.retry_s = retry_s
        with self._changed:
            self._refusal = refusal
            self._changed.notify()

    def stop(self, why: str = "") -> None:
        """End all texts after the current step, without waiting for it; their readers get a LacliError, with `why`.

        A step that only reads prompts is broken off.
        """
        with self._changed:
            if why:
                self._error = self._error or LacliError(why, "ask again later")
            self._closed = True
            self._changed.notify()
        self._interrupt_reading()

    def close(self) -> None:
        """End all texts at their last step; their readers get a LacliError."""
        self._end_thread()
        self._kept.close()

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
        if isinstance(engine := self.decoder.group.engine, DecodingContext):
            engine.interrupt()

    def _run(self) -> None:
        try:
            while self._change_texts():
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
        """Take a step, and give its news to the readers."""
        taken = self._schedule.step()
        for request in self._running.values():
            request.note_progress()
        for news in taken:
            self._tell(news)
        self._wake_readers()

    def _change_texts(self) -> bool:
        """Take out and take in what was asked for since the last step; wait where there is no text. False to end."""
        with self._changed:
            while not self._has_work():
                held = [request.held_until for request in self._running.values()]
                self._changed.wait(max(min(held) - perf_counter(), 0) if held else None)
            gone = [*self._gone]
            for request in gone:
                if request.text is None and request in self._waiting:
                    self._waiting.remove(request)
                    self._end(request)
        for request in gone:
            if request.text in self._running:
                self._schedule.end(request.text)
                self._end(request)
        with self._changed:
            # Until now they count no more: saving what a text holds takes milliseconds.
            del self._gone[: len(gone)]
        self._end_overdue()
        while self._waiting and self._refusal:
            with self._changed:
                request = self._waiting.popleft()
            self._end(request, Arrival(error=self._refusal))
        while self._waiting and not self._schedule.is_full:
            # It waits until it is taken in: an error on the way there ends all that wait.
            self._take_in(self._waiting[0])
            with self._changed:
                self._waiting.popleft()
        return not self._closed

    def _has_work(self) -> bool:
        """True where anything can be done: not where every text that has a place is held for its reader."""
        now = perf_counter()
        for request in self._running.values():
            request.hold(now)
        is_decoding = any(not text.is_held for text in self._running)
        is_overdue = any(text.is_held and request.held_until <= now for text, request in self._running.items())
        has_place = bool(self._waiting) and not self._schedule.is_full
        is_refused = bool(self._waiting and self._refusal)
        return self._closed or is_decoding or is_overdue or has_place or is_refused or bool(self._gone)

    def _end_overdue(self) -> None:
        now = perf_counter()
        for text, request in [*self._running.items()]:
            if text.is_held and request.held_until <= now:
                self._schedule.end(text)
                what = f"nothing of the answer was read for {HELD_S:g} s"
                self._end(request, Arrival(error=LacliError(what, "read it as it comes")))

    def _take_in(self, request: Request) -> None:
        request.placed = perf_counter()
        request.text = self._schedule.add(
            request.prompt,
            request.max_tokens,
            verifier=request.verifier,
            sampled=request.sampler is not None,
            plain=request.plain,
            own=request.own,
        )
        self._running[request.text] = request

    def _tell(self, news: News) -> None:
        """Give a text's reader what a step brought."""
        request, step = self._running[news.text], news.step
        if step and not request.prompt_s:
            request.reused = news.text.reused or 0
            request.prompt_s = perf_counter() - request.placed
            if news.reads:
                # The time and the rows of a prompt's last piece are the prompt's.
                step = step._replace(decode_s=0.0, rows=1 + step.drafted)
            else:
                request.prompt_s -= step.decode_s
        if step:
            step = request.timed(step)
        arrival = Arrival(step, news.error)
        if news.text.finish:
            self._end(request, arrival)
        else:
            self._deliver(request, arrival)

    def _end(self, request: Request, last: Arrival = ENDED) -> None:
        """Forget a request, and give its reader the last arrival."""
        if request.text:
            self._running.pop(request.text, None)
        if request.sampler:
            request.sampler.close()
        self._deliver(request, last)
        # It holds the reader, which holds the request.
        del request.deliver
        request.in_loop = False

    def _deliver(self, request: Request, arrival: Arrival) -> None:
        request.tell(arrival)
        if request.wake:
            self._wakes.add(request.wake)

    def _wake_readers(self) -> None:
        for wake in self._wakes:
            wake()
        self._wakes.clear()

    def _end_all(self) -> None:
        with self._changed:
            error = self._error or LacliError(CLOSED, "load it again")
            self._closed = True
            left = [(request, error) for request in self._running.values()]
            left += [(request, self._refusal or error) for request in self._waiting]
            self._waiting.clear()
        for request, reason in left:
            self._end(request, Arrival(error=reason))
        self._wake_readers()
