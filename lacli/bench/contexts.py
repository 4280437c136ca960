"""The contexts that a benchmark's points decode in, as few as there can be: one for plain decoding, one for chains, one
for trees and one for mode auto, for each choice of flash attention.

Opens and closes them; what is decoded is `rounds.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext

from lacli.bench.again import Noting
from lacli.bench.rounds import Contender
from lacli.bench.sweep import Point
from lacli.check.compare import OpenEngine
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.llamacpp.context import Context
from lacli.llamacpp.settings import Capacity
from lacli.session.session import Session
from lacli.settings import DecodeSettings, ModeName, Switch
from lacli.text.files import Closing

FAMILY: dict[ModeName, str] = {
    "plain": "plain",
    "jacobi": "chain",
    "lookup": "chain",
    "lookahead": "tree",
    "auto": "auto",
}
"""Plain decoding and mode auto have contexts of their own, so that nothing made for other modes can slow them down."""

Key = tuple[Switch | None, str]


class Contexts(Closing):
    """Open contexts by point; close them before the session, or use them in `with`.

    The session's own context is plain decoding's. Raises ModelLoadError when one does not fit into memory.
    """

    def __init__(self, session: Session, points: Sequence[Point]) -> None:
        self._session = session
        # Only a child process knows where its copy computes.
        chooses = session.model.chooses if session.copies.here else None
        self._on_backend = False if session.sampler else chooses
        self._closing = ExitStack()
        self._engines: dict[Key, Mapping[str, Context]] = {(None, "plain"): session.copies.contexts}
        families: dict[Key, list[DecodeSettings]] = {}
        for point in points:
            families.setdefault(_key(point), []).append(point.settings)
        with ExitStack() as stack:
            for key, settings in families.items():
                if key not in self._engines:
                    opened = self._open(key[0], Capacity.of(settings), on_backend=self._on_backend)
                    self._engines[key] = opened
                    for context in opened.values():
                        stack.callback(context.close)
            self._closing = stack.pop_all()

    def engine(self, point: Point) -> Context:
        """The context that a point decodes in, of several copies of the model the first one's."""
        return _first(self._engines[_key(point)])

    def of(self, contender: Contender) -> Context:
        """The context of a contender that is a point."""
        assert contender.point, "another program has no context here"
        return self.engine(contender.point)

    def decoder(self, point: Point) -> Decoder:
        """A new decoder of a point."""
        kind = Noting if point.settings.mode == "auto" else Decoder
        return self._session.decoder_in(self._engines[_key(point)], point.settings, kind)

    def open(self, point: Point) -> AbstractContextManager[Engine]:
        """One more context, made for a point; it is the caller's to close."""
        return self._alone(point, point.settings, on_backend=self._on_backend)

    def readable(self, point: Point) -> OpenEngine:
        """Contexts like a point's whose logits can be read: the point's own where it is one, and plain decoding's."""

        def open_engine(settings: DecodeSettings) -> AbstractContextManager[Engine]:
            if self._on_backend is not False:
                return self._alone(point, settings, on_backend=False)
            return nullcontext(_first(self._engines[point.flash_attention, FAMILY[settings.mode]]))

        return open_engine

    def close(self) -> None:
        self._closing.close()

    def _open(
        self, flash_attention: Switch | None, capacity: Capacity, *, on_backend: bool | None
    ) -> dict[str, Context]:
        return self._session.copies.more(capacity, backend_greedy=on_backend, flash_attention=flash_attention)

    def _alone(
        self, point: Point, settings: DecodeSettings, *, on_backend: bool | None
    ) -> AbstractContextManager[Engine]:
        copies, capacity = self._session.copies, Capacity.of([settings])
        return closing(copies.another(capacity, backend_greedy=on_backend, flash_attention=point.flash_attention))


def _key(point: Point) -> Key:
    return point.flash_attention, FAMILY[point.settings.mode]


def _first(contexts: Mapping[str, Context]) -> Context:
    return next(iter(contexts.values()))
