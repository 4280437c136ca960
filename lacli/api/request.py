"""A text that is asked for: how it is decoded, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from lacli.llamacpp.sampler import LlamaSampler
from lacli.pool import NgramPool
from lacli.schedule import SharedText
from lacli.settings import DecodeSettings
from lacli.stats import RunStatistics, Step
from lacli.verify import Verifier

if TYPE_CHECKING:
    from lacli.api.loop import SharedLoop

HELD_S = 20.0
"""Seconds that a text keeps its place while its reader reads nothing."""


class Arrival(NamedTuple):
    """What came of a text. `step`: its next step; None, without an `error`, where it ended without one."""

    step: Step | None = None
    error: Exception | None = None


class PromptProgress(NamedTuple):
    """How far a prompt is read: `read` of its `total` tokens, `reused` of them from the cache, in `seconds`."""

    total: int
    reused: int
    read: int
    seconds: float

    @property
    def statistics(self) -> RunStatistics:
        """What that has cost, without an answer."""
        return RunStatistics(prompt_tokens=self.read, reused_tokens=self.reused, prompt_s=self.seconds)


ENDED = Arrival()
"""Of a text that its reader has ended."""


class Request:
    """A text that a loop decodes among others, asked for from any thread.

    `verifier`, `sampler`: draw its tokens, None for the most probable ones; the sampler is closed when the text ends.
    `reused`, `prompt_s`: tokens of the prompt that were decoded already, and seconds from its place among the texts to
    its first step. `placed`: when it got its place. `progress`: how far the prompt is read. `in_loop`: True from
    `begin` until the loop has ended it.
    """

    def __init__(
        self,
        loop: SharedLoop,
        prompt: Sequence[int],
        max_tokens: int = -1,
        *,
        verifier: Verifier | None = None,
        sampler: LlamaSampler | None = None,
        plain: bool = False,
        own: DecodeSettings | None = None,
    ) -> None:
        """`max_tokens`: as `Decoder.generate` takes it. `plain`, `own`: as `Schedule.add` takes them.

        Raises PromptError for too long a prompt.
        """
        loop.check_prompt(prompt)
        self._loop = loop
        self.prompt, self.max_tokens = prompt, max_tokens
        self.verifier, self.sampler, self.plain, self.own = verifier, sampler, plain, own
        self.deliver: Callable[[Arrival], None]
        self.wake: Callable[[], None] | None = None
        self.text: SharedText | None = None
        self.reused, self.prompt_s = 0, 0.0
        self.placed = 0.0
        self.progress = PromptProgress(len(prompt), 0, 0, 0.0)
        self.in_loop = False
        # When its last step ended, 0 before the first and while the text is held.
        self._stepped = 0.0
        self.watch: Callable[[PromptProgress], None] | None = None
        self._read_tokens = -1
        # Each of the two counts is written by one thread alone.
        self._max_unread = self._delivered = self._read = 0
        self._last_read = 0.0

    @property
    def settings(self) -> DecodeSettings:
        """How its steps are decoded."""
        return self._loop.decoder.settings

    @property
    def pool(self) -> NgramPool:
        """The n-grams of all texts."""
        return self._loop.decoder.pool

    def begin(
        self, deliver: Callable[[Arrival], None], *, wake: Callable[[], None] | None = None, max_unread: int = 0
    ) -> None:
        """Ask for what follows the prompt, once; `deliver` gets each arrival, in the loop's thread.

        `wake`: called behind the arrivals of a step, once for all texts that have the same. `max_unread`: arrivals
        without a `read` that hold the text, until half of them are read; 0 for no limit.
        """
        self.deliver, self.wake, self._max_unread = deliver, wake, max_unread
        self._loop.add(self)

    def note_progress(self) -> None:
        """Note in the loop's thread how far the prompt is read, and tell `watch` of it, first of what is reused."""
        text, total = self.text, len(self.prompt)
        if text is None or text.reused is None or self._read_tokens == total:
            return
        if self._read_tokens < 0:
            self._read_tokens = text.reused
            self._note(PromptProgress(total, text.reused, text.reused, 0.0))
        read = total if len(text.tokens) > total else text.group.past
        if read > self._read_tokens:
            self._read_tokens = read
            self._note(PromptProgress(total, text.reused, read, perf_counter() - self.placed))

    def _note(self, progress: PromptProgress) -> None:
        self.progress = progress
        if self.watch:
            self.watch(progress)

    def timed(self, step: Step) -> Step:
        """Note in a step that has just ended how long the text had waited for it, in the loop's thread."""
        now, before = perf_counter(), self._stepped
        self._stepped = now
        return step._replace(waited_s=max(now - before - step.seconds, 0.0) if before else 0.0)

    def tell(self, arrival: Arrival) -> None:
        """Deliver an arrival, in the loop's thread."""
        self._delivered += 1
        self.deliver(arrival)

    def read(self) -> None:
        """Count an arrival as read; a text that is held for that goes on."""
        self._read += 1
        self._last_read = perf_counter()
        if self.text and self.text.is_held:
            self._loop.look_again()

    def hold(self, now: float) -> None:
        """Hold the text or let it go on, by what its reader has read."""
        text = self.text
        if not self._max_unread or not text:
            return
        was_held = text.is_held
        # Before the count: a reader that reads on in the meantime sees it, and has the loop look again.
        text.is_held = True
        unread = self._delivered - self._read
        text.is_held = unread > self._max_unread // 2 if was_held else unread >= self._max_unread
        if text.is_held and not was_held:
            self._last_read, self._stepped = now, 0.0

    @property
    def held_until(self) -> float:
        """When the held text loses its place, unless its reader reads on."""
        return self._last_read + HELD_S

    def end(self) -> None:
        """End the text where it has not ended: it frees its place before the next step, and a last arrival says so."""
        self._loop.remove(self)
