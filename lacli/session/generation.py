"""One answer on its way: the decoder's steps as text, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter, process_time
from weakref import WeakSet

from lacli.decode import Decoder
from lacli.errors import LacliError
from lacli.pool import PoolStatistics
from lacli.stats import Finish, RunStatistics, Step
from lacli.text.files import Closing
from lacli.text.stream import Piece, TextStream


@dataclass(frozen=True)
class Answer:
    """One finished generation.

    `tokens`: the generated ids that the text was made of, with an end token but without those of a stop string, which
    count as predicted all the same. `finish_reason`: stop (a stop string), eog (an end token), length (`max_tokens`, or
    a full context) or interrupt (it was left early).
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: Finish
    statistics: RunStatistics
    pool: PoolStatistics

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression."""
        return self.statistics.tokens_per_step


def as_stops(stops: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings of an argument that may be a single one."""
    return (stops,) if isinstance(stops, str) else tuple(stops)


class Generation(Closing):
    """One answer on its way: iterate it for text pieces, then read `answer()`.

    It can be iterated once: another iteration yields nothing and changes nothing. Leaving the iteration early is safe:
    answer, text and cache stop at the last step that was taken. `bytes_of` gives the bytes of a token's text.
    """

    def __init__(
        self,
        decoder: Decoder,
        bytes_of: Callable[[int], bytes],
        prompt: Sequence[int],
        max_tokens: int = -1,
        stops: Sequence[str] = (),
        *,
        controls: Mapping[int, str] | None = None,
        reuse: bool = False,
        n_keep: int | None = None,
        watch: Callable[[Step, str], None] | None = None,
        threads: int = 0,
        alone: Callable[[], AbstractContextManager[Decoder | None]] = nullcontext,
    ) -> None:
        """`max_tokens`: of the answer, -1 for no limit. `controls`: as `TextStream` takes them.

        `reuse`, `n_keep`: `reuse` and `keep` of `Decoder.generate`. `watch`: gets every step with the text of its
        tokens. `threads`: as `RunStatistics` has them. `alone`: entered while the decoder is in use; gives the decoder
        that has taken its place, or None, and raises LacliError where something else uses it.
        """
        self._decoder, self._alone = decoder, alone
        self._begun = False
        # Strong references would keep an iteration that was left open.
        self._iterations: WeakSet[Generator[Piece]] = WeakSet()
        self._reuse, self._n_keep = reuse, n_keep
        self._prompt = prompt
        self._bytes_of, self._watch = bytes_of, watch
        self._max_tokens = max_tokens
        self._stream = TextStream(bytes_of, stops, controls)
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._finish: Finish = "interrupt"
        self._behind_stop = 0
        self.statistics = RunStatistics(
            prompt_tokens=len(prompt), plain_rows=decoder.settings.min_outputs, threads=threads
        )

    def __iter__(self) -> Iterator[Piece]:
        if self._begun:
            return iter(())
        pieces = self._decode()
        self._iterations.add(pieces)
        return pieces

    def close(self) -> None:
        """End it at the last step that was taken. Raises LacliError while another thread takes a step."""
        try:
            for pieces in list(self._iterations):
                pieces.close()
        except ValueError as error:
            raise LacliError("an answer is being generated", "let its thread end it first") from error

    def answer(self) -> Answer:
        """The text and tokens so far, and what they cost."""
        return Answer(
            text="".join(self._text),
            tokens=tuple(self._tokens),
            finish_reason=self._finish,
            statistics=self.statistics,
            pool=self._decoder.pool.statistics(),
        )

    def _decode(self) -> Generator[Piece]:
        with self._alone() as decoder:
            if self._begun:
                return
            self._begun = True
            self._decoder = decoder or self._decoder
            begin = perf_counter()
            steps = self._decoder.generate(self._prompt, self._max_tokens, reuse=self._reuse, n_keep=self._n_keep)
            core_s = process_time()
            try:
                for step in steps:
                    if not self.statistics.steps:
                        self.statistics.reused_tokens = self._decoder.reused
                        self.statistics.prompt_s = self._decoder.prompt_s
                        self.statistics.first_token_s = perf_counter() - begin
                    if self.statistics.threads:
                        prompt_s = 0.0 if self.statistics.steps else self.statistics.prompt_s
                        self.statistics.add_core_time(step, process_time() - core_s, prompt_s)
                    yield from self._take(step)
                    if self._stream.stopped:
                        return
                    core_s = process_time()
                if self._finish == "interrupt":
                    # No step said why: the limit is 0, or not one more row finds a cell.
                    self._finish = "length"
                yield from self._note(self._stream.finish())
            finally:
                steps.close()
                if self._stream.stopped:
                    self._decoder.truncate(len(self._decoder.tokens) - self._behind_stop)

    def _take(self, step: Step) -> list[Piece]:
        """Count a step, and give the text that it makes certain."""
        if self._watch:
            self._watch(step, b"".join(map(self._bytes_of, step.tokens)).decode("utf-8", "replace"))
        stream, before = self._stream, self._stream.read
        ended = step.finish == "eog"
        tokens = step.tokens[:-1] if ended else step.tokens
        pieces = stream.feed(tokens, step.origins[: len(tokens)])
        self._tokens += step.tokens
        if stream.stopped:
            self._finish = "stop"
            self._behind_stop = len(self._tokens) - stream.kept
            del self._tokens[stream.kept :]
            self.statistics.add(step, stream.read - before)
        else:
            self._finish = step.finish or self._finish
            self.statistics.add(step)
        return self._note(pieces)

    def _note(self, pieces: list[Piece]) -> list[Piece]:
        self._text += [piece.text for piece in pieces]
        return pieces
