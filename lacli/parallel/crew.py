"""The replicas that are left, each with a thread of its own: calls at the same time, and who is dropped when one fails.

What they decode, and of which step, is `replicas.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

from lacli.engine import Engine
from lacli.errors import BatchRefused, LacliError
from lacli.parallel.replica import Replica, Work

Call = tuple[Replica, Callable[[], bool]]
"""A replica and what it shall do."""

Result = TypeVar("Result")


@runtime_checkable
class Apart(Protocol):
    """An engine in another process, which can be ended in the middle of a call."""

    def abandon(self) -> None:
        """End the process; whoever waits for its answer hears that it is gone."""


class Crew:
    """Replicas by what messages call them; the first one is run by the caller's thread.

    members: those that are left, at least one. lost: why others were dropped, by their names. work: what each of those
    that began an answer has decoded of it.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.members = [Replica(engine, name) for name, engine in engines.items()]
        self.lost: dict[str, str] = {}
        self._everybody = [*self.members]
        self.begin()
        # llama.cpp's own threads belong to the one that calls it, so each replica keeps to one.
        self._threads = {replica: ThreadPoolExecutor(1) for replica in self.members[1:]}

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self.members))

    @property
    def leader(self) -> Replica:
        """The one that holds the most of the text."""
        if len(self.members) == 1:
            return self.members[0]
        return max(self.members, key=lambda replica: replica.cache.past)

    @property
    def cache_s(self) -> float:
        """Seconds of sequence calls so far, also of those that were dropped."""
        return sum(replica.cache.seconds for replica in self._everybody)

    def begin(self) -> None:
        """Count work anew, of those that are left: another answer begins."""
        for replica in self.members:
            replica.work = Work()
        self.work = {replica.name: replica.work for replica in self.members}

    def is_run_here(self, replica: Replica) -> bool:
        """Whether it is the caller's own thread that runs it."""
        return replica not in self._threads

    def run(self, calls: Iterable[Call]) -> dict[Replica, bool | None]:
        """Make these calls at the same time; None for a replica that was dropped in its own."""
        futures: dict[Replica, Future[bool]] = {}
        own: list[Call] = []
        try:
            for replica, call in calls:
                if self.is_run_here(replica):
                    own.append((replica, call))
                else:
                    futures[replica] = self._threads[replica].submit(call)
            done = {replica: self.guarded(replica, call) for replica, call in own}
        finally:
            _wait(futures.values(), self._give_up)
        return done | {replica: self.guarded(replica, future.result) for replica, future in futures.items()}

    def each(self, call: Callable[[Replica], object]) -> None:
        """Make a call for one after another."""
        for replica in self:
            self.guarded(replica, partial(call, replica))

    def guarded(self, replica: Replica, call: Callable[[], Result]) -> Result | None:
        """The result of a call; a replica that fails is dropped, unless it is the last one, whose error goes on."""
        try:
            return call()
        except BatchRefused:
            raise
        except LacliError as error:
            if len(self.members) == 1:
                raise
            self.members.remove(replica)
            self.lost[replica.name] = str(error)
            return None

    def wait(self) -> None:
        """Until nobody decodes any more."""
        _wait([thread.submit(bool) for thread in self._threads.values()], self._give_up)

    def _give_up(self) -> None:
        """End what can be ended: whoever decodes in another process hears that it is gone."""
        for replica in self.members:
            if isinstance(replica.engine, Apart):
                replica.engine.abandon()


def _wait(futures: Iterable[Future[bool]], give_up: Callable[[], None]) -> None:
    """Wait until all are done, an interrupt too: nobody may touch a cache in which something is being decoded.

    give_up: what a second interrupt means, where somebody hangs.
    """
    interrupted: list[KeyboardInterrupt] = []
    for future in futures:
        while not future.done():
            try:
                future.exception()
            except KeyboardInterrupt as interrupt:
                interrupted.append(interrupt)
                if len(interrupted) > 1:
                    give_up()
    if interrupted:
        raise interrupted[-1]
