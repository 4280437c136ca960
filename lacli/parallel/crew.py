"""The replicas that are left, each with a thread of its own: calls at the same time, and who is dropped when one fails.

What they decode, and of which step, is `replicas.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from lacli.engine import Engine
from lacli.errors import BatchRefused, LacliError
from lacli.parallel.replica import Replica

Call = tuple[Replica, Callable[[], bool]]
"""A replica and what it shall do."""

Result = TypeVar("Result")


class Crew:
    """Replicas by what messages call them; the first one is run by the caller's thread.

    members: those that are left, at least one. lost: why others were dropped, by their names.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.members = [Replica(engine, name) for name, engine in engines.items()]
        self.lost: dict[str, str] = {}
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
            _wait(futures.values())
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
        _wait([thread.submit(bool) for thread in self._threads.values()])


def _wait(futures: Iterable[Future[bool]]) -> None:
    """Wait until all are done, an interrupt too: nobody may touch a cache in which something is being decoded."""
    interrupted: KeyboardInterrupt | None = None
    for future in futures:
        while not future.done():
            try:
                future.exception()
            except KeyboardInterrupt as interrupt:
                interrupted = interrupt
    if interrupted:
        raise interrupted
