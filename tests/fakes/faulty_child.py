"""A child process that fails as its replica's name says, on the toy engine and over the real wire.

Started by the tests as `python -m tests.fakes.faulty_child SOCKET`. No test lives here.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any, cast

from lacli.batch import Batch
from lacli.errors import LacliError, ModelLoadError
from lacli.llamacpp.context import Context
from lacli.replicas.child import open_context, run
from lacli.replicas.isolated import ChildSettings
from tests.fakes.engine import FakeEngine

COMMAND = (sys.executable, "-m", "tests.fakes.faulty_child")

NOISE = b"llama.cpp says a lot\n" * 50_000
"""More than a pipe holds."""

INTERRUPTED = 5
"""The step that a child sends Ctrl-C in."""


def for_ever() -> None:
    Event().wait()


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def abort() -> None:
    """As ggml's RPC client does when its server is gone."""
    from lacli.llamacpp.library import declared

    declared().ggml_abort(b"ggml/src/ggml-rpc/ggml-rpc.cpp", 456, b"Remote RPC server crashed")


def stop_without_a_word() -> None:
    os._exit(7)


def make_a_mistake() -> None:
    raise RuntimeError("a mistake of ours")


def be_refused() -> None:
    raise LacliError("llama_decode failed (-3): out of memory", "see more with -v")


def make_noise() -> None:
    os.write(1, NOISE)
    os.write(2, NOISE)


def warn_and_be_killed() -> None:
    make_noise()
    kill_myself()


NOISES = {
    "sends words": b"llama.cpp says a lot\n",
    "sends a name that does not exist": b"cno_such_module\nname\n.",
    "sends a pickle that is no reply": b"N.",
    "sends a length that no memory has": b"\x80\x05\x8e" + b"\xff" * 7 + b"\x7f",
    "sends half a character": b"\x80\x05\x8c\x01\xff.",
}
"""What no context answers, by the name of the replica that sends it."""


def send_noise(noise: bytes) -> None:
    os.write(int(sys.argv[1]), noise)


def die_in_a_message() -> None:
    send_noise(pickle.dumps(["an answer"] * 9, protocol=5)[:-9])
    stop_without_a_word()


def press_ctrl_c() -> None:
    os.kill(os.getppid(), signal.SIGINT)


def press_ctrl_c_and_hang() -> None:
    press_ctrl_c()
    for_ever()


def lack_memory() -> None:
    raise ModelLoadError("cannot make a context: not enough memory, failed to allocate", "a smaller one may fit")


LOADING: dict[str, Callable[[], None]] = {
    "lacks memory": lack_memory,
    "hangs while loading": for_ever,
    "is killed while loading": kill_myself,
    "interrupts while loading": press_ctrl_c_and_hang,
}
STEPPING: dict[str, Callable[[], None]] = {
    "hangs": for_ever,
    "is killed": kill_myself,
    "aborts": abort,
    "stops": stop_without_a_word,
    "is mistaken": make_a_mistake,
    "refuses": be_refused,
    "is noisy": make_noise,
    "warns": warn_and_be_killed,
    "dies in a message": die_in_a_message,
    **{name: partial(send_noise, noise) for name, noise in NOISES.items()},
}


class Toy:
    """A context of the toy engine. steps: batches whose choices were read."""

    def __init__(self, settings: ChildSettings, engine: Any) -> None:
        self._name = settings.name
        self._engine = engine
        self.memory = 0.0
        self.max_rollback = -1
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def hang(self) -> None:
        for_ever()

    def wait_for(self, pipe: str) -> None:
        """Wait until somebody opens a named pipe to write into it."""
        open(pipe).close()

    def decode(self, batch: Batch) -> bool:
        fits: bool = self._engine.decode(batch)
        if batch.wanted:
            self.steps += 1
            STEPPING.get(self._name, lambda: None)()
            if self._name == "interrupts" and self.steps == INTERRUPTED:
                press_ctrl_c()
        return fits


def open_toy(settings: ChildSettings) -> Context:
    LOADING.get(settings.name, lambda: None)()
    decode_settings = settings.decode_settings
    engine = open_context(settings) if settings.name == "aborts" else FakeEngine(sequences=decode_settings.sequences)
    return cast(Context, Toy(settings, engine))


if __name__ == "__main__":
    run(open_toy)
