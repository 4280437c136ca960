"""A network between two ends on the loopback that is slow, breaks off or falls silent. No test lives here."""

from __future__ import annotations

import socket
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import Literal

from tests.fakes.rpc_servers import HERE

PIECE = 65536

Trouble = Literal["broken", "silent"]


class Relay:
    """Passes on what goes between its clients and a server.

    delay_s: how long everything is on its way, each way. most: bytes from the server after which the network is in
    trouble: all connections break, or nothing arrives any more. passed: bytes from the server so far.
    """

    def __init__(self, server: str, *, delay_s: float = 0.0, most: float = float("inf"), trouble: Trouble = "broken"):
        host, _, port = server.partition(":")
        self._server = host, int(port)
        self._delay_s, self._most, self._trouble = delay_s, most, trouble
        self._listening = socket.create_server((HERE, 0))
        self.endpoint = f"{HERE}:{self._listening.getsockname()[1]}"
        self.passed = 0
        self._over = Event()
        self._lock = Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[Thread] = []

    def __enter__(self) -> Relay:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # It wakes whoever accepts, which closing alone does not.
        socket.create_connection(self._listening.getsockname()).close()
        self._threads[0].join()
        self._break_off()
        for thread in self._threads:
            thread.join()
        for each in (*self._sockets, self._listening):
            each.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = Thread(target=work, args=arguments)  # type: ignore[arg-type]  # a method of ours
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            self._sockets.append(client)
            if self._over.is_set():
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            self._sockets.append(server)
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target in ((client, server), (server, client)):
                on_its_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                self._start(self._read, source, on_its_way, source is server)
                self._start(self._deliver, on_its_way, target)

    def _read(self, source: socket.socket, on_its_way: SimpleQueue[tuple[float, bytes]], from_server: bool) -> None:
        piece = b"-"
        while piece:
            try:
                piece = source.recv(PIECE)
            except OSError:
                piece = b""
            if from_server and piece and not self._passes(len(piece)):
                continue
            on_its_way.put((monotonic() + self._delay_s, piece))

    def _deliver(self, on_its_way: SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        """Hand over each piece when it is due; the empty one ends the connection."""
        while True:
            due, piece = on_its_way.get()
            self._over.wait(max(0.0, due - monotonic()))
            try:
                if not piece:
                    target.shutdown(socket.SHUT_RDWR)
                target.sendall(piece)
            except OSError:
                return

    def _passes(self, length: int) -> bool:
        """True if `length` more bytes of the server still arrive."""
        with self._lock:
            self.passed += length
            if self.passed <= self._most:
                return True
        if self._trouble == "broken":
            self._break_off()
        return False

    def _break_off(self) -> None:
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
