"""The thread that decodes for all: each sequence gets what it gets alone, and none waits for what has gone."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Semaphore
from typing import cast
from unittest.mock import Mock

import pytest

from lacli.auto.mode import FIXED_COST
from lacli.batch import Batch
from lacli.engine.answer import AnswerText
from lacli.engine.engine import Engine, SequenceOptions
from lacli.engine.worker import AsyncStream, Stream, Worker
from lacli.errors import LacliError, PromptError
from lacli.llamacpp.sampler import LlamaSampler
from lacli.settings import DecodeSettings
from lacli.stats import RunStatistics
from lacli.verify import Verifier
from tests.engine.test_admission import Greedy, SharedContext
from tests.engine.test_engine import VOCABULARY, plain_tokens
from tests.fakes.decoding import PLAIN

LOOKAHEAD = DecodeSettings(mode="lookahead", window=3, ngram=3, guesses=3)
CELLS = 300


class SteppedContext(SharedContext):
    """Takes a step only where `step` lets it, until `run` lets it take them all. `fails`: raises in the next one."""

    fails = False

    def __init__(self, places: int) -> None:
        super().__init__(CELLS, 256, places, VOCABULARY, prefill_rows=8)
        self._entered, self._allowed, self._free = Semaphore(0), Semaphore(0), False

    def decode(self, batch: Batch) -> bool:
        if not self._free:
            self._entered.release()
            self._allowed.acquire()
        if self.fails:
            raise RuntimeError("the device is gone")
        return super().decode(batch)

    def wait(self) -> None:
        """Wait until a step is about to be taken."""
        self._entered.acquire()

    def step(self) -> None:
        """Let the step be taken that `wait` has waited for, and wait for the next one."""
        self._allowed.release()
        self.wait()

    def run(self) -> None:
        """Let all steps be taken from now on."""
        self._free = True
        self._allowed.release(2)


class Reader(Stream):
    """Somebody who asks for a sequence, and gets its tokens step by step."""

    def __init__(
        self,
        worker: Worker,
        prompt: Sequence[int],
        limit: int = 10,
        verifier: Verifier | None = None,
        sampler: object = None,
    ) -> None:
        text = AnswerText(worker.engine, lambda token: b"-", prompt)
        super().__init__(worker)
        self.set_up(text, prompt, SequenceOptions(limit, verifier), cast(LlamaSampler | None, sampler))
        self.begin()

    def next(self) -> list[int]:
        """The tokens of the next step; none where the sequence has ended. Raises what ended it."""
        while isinstance(progress := self._arrived.get(), RunStatistics):
            pass
        _, step, error = progress
        if error:
            raise error
        return [*step.tokens] if step else []

    def all(self, limit: int = 10) -> list[int]:
        """The tokens of the whole sequence."""
        tokens: list[int] = []
        while len(tokens) < limit and (more := self.next()):
            tokens += more
        return tokens


@contextmanager
def stepped(places: int) -> Iterator[tuple[Worker, SteppedContext]]:
    """A loop that decodes plainly, step by step."""
    engine = SteppedContext(places)
    with Worker(Engine(engine, PLAIN, places)) as loop:
        try:
            yield loop, engine
        finally:
            engine.run()


@pytest.mark.parametrize("settings", [PLAIN, LOOKAHEAD, DecodeSettings(leaves=3, window=0)])
def test_many_threads_at_once_each_get_what_they_get_plain_tokens(settings: DecodeSettings) -> None:
    engine = SharedContext(CELLS, 256, 3 * settings.ids, VOCABULARY, prefill_rows=8)
    prompts = [[one, two, one] for one in range(6) for two in range(4)]
    with Worker(Engine(engine, settings, 3, cost=FIXED_COST)) as loop, ThreadPoolExecutor(8) as threads:
        sequences = [*threads.map(lambda prompt: Reader(loop, prompt, 12).all(12), prompts)]
        assert sequences == [plain_tokens(prompt, 12) for prompt in prompts]
        assert load_of(loop) == (0, 0)


def test_requests_get_a_place_in_their_order() -> None:
    began: list[list[int]] = []

    class Begun(Greedy):
        def begin(self, text: Sequence[int]) -> None:
            began.append([*text])

    with stepped(2) as (loop, engine):
        readers = [Reader(loop, [number], 4, Begun()) for number in range(6)]
        engine.wait()
        engine.step()
        assert load_of(loop) == (2, 4) and began == [[0], [1]]
        engine.run()
        assert [reader.all(4) for reader in readers] == [plain_tokens([number], 4) for number in range(6)]
    assert began == [[number] for number in range(6)]


def test_a_step_of_several_streams_wakes_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(worker: Worker, context: SteppedContext) -> tuple[int, list[int]]:
        streams = [AsyncStream(worker, None) for _ in range(3)]
        for number, stream in enumerate(streams):
            stream.set_up(AnswerText(worker.engine, lambda token: b"-", [number]), [number], SequenceOptions(5))
            stream.begin()
        wake = Mock(wraps=asyncio.get_running_loop().call_soon_threadsafe)
        monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", wake)
        context.run()
        tokens = [len((await stream.answer()).tokens) for stream in streams]
        return wake.call_count, tokens

    with stepped(3) as served:
        woken, tokens = asyncio.run(ask(*served))
    assert tokens == [5, 5, 5]
    assert woken <= 6, "the first sequence may begin alone, one step before the others"


def load_of(loop: Worker) -> tuple[int, int]:
    """The numbers of sequences that are decoded and that wait for a slot."""
    return len(loop.running), len(loop.waiting)


def leave_while_waiting(loop: Worker, engine: SteppedContext) -> Reader:
    first = Reader(loop, [1], 30)
    engine.wait()
    leaving = Reader(loop, [2], 30)
    engine.step()
    assert load_of(loop) == (1, 1)
    leaving.close()
    engine.step()
    assert leaving.next() == []
    first.close()
    return leaving


def leave_in_the_prompt(loop: Worker, engine: SteppedContext) -> Reader:
    leaving = Reader(loop, [2] * 60, 30)
    engine.wait()
    engine.step()
    assert load_of(loop) == (1, 0)
    leaving.close()
    return leaving


def leave_while_decoding(loop: Worker, engine: SteppedContext) -> Reader:
    leaving = Reader(loop, [2], 30)
    engine.wait()
    engine.step()
    assert leaving.next() == plain_tokens([2], 1)
    leaving.close()
    return leaving


@pytest.mark.parametrize("leave", [leave_while_waiting, leave_in_the_prompt, leave_while_decoding])
def test_a_sequence_that_is_left_frees_its_place_before_the_next_step(
    leave: Callable[[Worker, SteppedContext], Reader],
) -> None:
    with stepped(1) as (loop, engine):
        leaving = leave(loop, engine)
        other = Reader(loop, [3], 5)
        engine.step()
        assert load_of(loop) == (1, 0) and other in loop.running
        engine.run()
        assert other.all(5) == plain_tokens([3], 5)
        leaving.close()
        assert Reader(loop, [4], 5).all(5) == plain_tokens([4], 5), "a sequence that has ended can be left once more"


def test_a_step_that_raises_ends_all_sequences_and_later_ones_with_its_error() -> None:
    with stepped(1) as (loop, engine):
        readers = [Reader(loop, [number]) for number in range(3)]
        engine.wait()
        engine.fails = True
        engine.run()
        for reader in readers:
            with pytest.raises(RuntimeError, match="the device is gone"):
                reader.next()
        found = []
        for _ in range(3):
            with pytest.raises(RuntimeError, match="the device is gone") as raised:
                Reader(loop, [1])
            found.append(raised.value)
        assert len({*map(id, found)}) == 3, "one error that is raised again and again grows by its frames"
        assert len({len(traceback.extract_tb(each.__traceback__)) for each in found}) == 1
        assert load_of(loop) == (0, 0)


class Refusing(Greedy):
    """A verifier that cannot even begin."""

    def begin(self, text: Sequence[int]) -> None:
        raise RuntimeError("not this prompt")


def test_an_error_on_the_way_in_reaches_all_that_wait() -> None:
    with stepped(2) as (loop, engine):
        running = Reader(loop, [1])
        engine.wait()
        readers = [running, Reader(loop, [2], verifier=Refusing()), Reader(loop, [3])]
        engine.run()
        running.next()
        for reader in readers:
            with pytest.raises(RuntimeError, match="not this prompt"):
                reader.all()


def test_a_forked_process_is_told_to_load_the_model_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with stepped(1) as (loop, _):
        monkeypatch.setattr("lacli.engine.worker.getpid", lambda: 0)
        with pytest.raises(LacliError, match="forked"):
            Reader(loop, [1, 2])


def test_closing_tells_all_readers_from_any_thread_and_twice_is_harmless() -> None:
    with stepped(1) as (loop, engine), ThreadPoolExecutor(3) as threads:
        readers = [Reader(loop, [number], 100) for number in range(3)]
        engine.wait()
        waiting = [threads.submit(reader.all, 100) for reader in readers]
        loop.stop()
        engine.run()
        threads.submit(loop.close).result()
        loop.close()
        for each in waiting:
            with pytest.raises(LacliError, match="the model is closed"):
                each.result()
        with pytest.raises(LacliError, match="the model is closed"):
            Reader(loop, [1])


@pytest.mark.parametrize(("prompt", "words"), [([], "the prompt is empty"), ([1] * (CELLS + 1), "301 tokens")])
def test_an_impossible_prompt_is_refused_by_the_call_that_makes_it(prompt: list[int], words: str) -> None:
    with stepped(1) as (loop, _), pytest.raises(PromptError, match=words):
        Reader(loop, prompt)


def test_a_sampler_is_closed_once_its_sequence_ends_in_whatever_way() -> None:
    with stepped(1) as (loop, engine):
        samplers = [Mock() for _ in range(4)]
        readers = [Reader(loop, [number], 3, sampler=sampler) for number, sampler in enumerate(samplers)]
        engine.wait()
        readers[2].close()
        engine.step()
        assert [sampler.close.call_count for sampler in samplers] == [0, 0, 1, 0]
        engine.step()
        engine.step()
        assert [sampler.close.call_count for sampler in samplers] == [1, 0, 1, 0]
        loop.stop()
    assert [sampler.close.call_count for sampler in samplers] == [1, 1, 1, 1]


def test_work_is_done_between_two_steps_and_its_error_is_the_callers_alone() -> None:
    with stepped(2) as (loop, engine):
        reader = Reader(loop, [1], 5)
        engine.wait()
        done, failed = loop.call(lambda: engine.calls), loop.call(lambda: 1 // 0)
        engine.step()
        assert done.result() == 1
        with pytest.raises(ZeroDivisionError):
            failed.result()
        engine.run()
        assert reader.all(5) == plain_tokens([1], 5)


def test_work_that_a_failed_worker_has_left_is_refused_and_so_is_more() -> None:
    with stepped(2) as (loop, engine):
        Reader(loop, [1], 5)
        engine.wait()
        left = loop.call(lambda: None)
        engine.fails = True
        engine.run()
        with pytest.raises(RuntimeError, match="the device is gone"):
            left.result()
        with pytest.raises(RuntimeError, match="the device is gone"):
            loop.call(lambda: None)
