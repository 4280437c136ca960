"""The contexts that a benchmark's points decode in, as few as there can be: one for plain decoding, one for chains, one
for trees and one for mode auto, for each choice of flash attention.

Opens and closes them; what is decoded is `rounds.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace

from lacli.bench.again import Noting
from lacli.bench.rounds import Contender
from lacli.bench.sweep import Point
from lacli.capacity import Capacity
from lacli.closing import Closing
from lacli.compare import OpenEngine
from lacli.context import LlamaEngine
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.session import Session
from lacli.settings import DecodeSettings, Mode, ModelSettings, Switch

FAMILY: dict[Mode, str] = {"plain": "plain", "jacobi": "chain", "lookup": "chain", "lookahead": "tree", "auto": "auto"}
"""Plain decoding and mode auto have contexts of their own, so that nothing made for other modes can slow them down."""

Key = tuple[Switch | None, str]


class Contexts(Closing):
    """Open contexts by point; close them before the session, or use them in `with`.

    The session's own context is plain decoding's. Raises ModelLoadError when one does not fit into memory.
    """

    def __init__(self, session: Session, points: Sequence[Point]) -> None:
        self._session = session
        self._on_backend = session.model.offloaded and session.sampler is None
        self._closing = ExitStack()
        self._engines: dict[Key, LlamaEngine] = {(None, "plain"): session.engine}
        families: dict[Key, list[DecodeSettings]] = {}
        for point in points:
            families.setdefault(_key(point), []).append(point.settings)
        with ExitStack() as stack:
            for key, settings in families.items():
                if key not in self._engines:
                    opened = self._open(key[0], Capacity.of(settings), on_backend=self._on_backend)
                    self._engines[key] = stack.enter_context(opened)
            self._closing = stack.pop_all()

    def engine(self, point: Point) -> LlamaEngine:
        """The context that a point decodes in."""
        return self._engines[_key(point)]

    def of(self, contender: Contender) -> LlamaEngine:
        """The context of a contender that is a point."""
        assert contender.point, "another program has no context here"
        return self.engine(contender.point)

    def decoder(self, point: Point) -> Decoder:
        """A new decoder of a point."""
        kind = Noting if point.settings.mode == "auto" else Decoder
        return self._session.decoder_in(self.engine(point), point.settings, kind)

    def open(self, point: Point) -> LlamaEngine:
        """One more context, made for a point; it is the caller's to close."""
        capacity = Capacity.of([point.settings])
        return self._open(point.flash_attention, capacity, on_backend=self._on_backend)

    def readable(self, point: Point) -> OpenEngine:
        """Contexts like a point's whose logits can be read: the point's own where it is one, and plain decoding's."""

        def open_engine(settings: DecodeSettings) -> AbstractContextManager[Engine]:
            if self._on_backend:
                return self._open(point.flash_attention, Capacity.of([settings]), on_backend=False)
            return nullcontext(self._engines[point.flash_attention, FAMILY[settings.mode]])

        return open_engine

    def close(self) -> None:
        self._closing.close()

    def _open(self, flash_attention: Switch | None, capacity: Capacity, *, on_backend: bool) -> LlamaEngine:
        loading = _with(self._session.model_settings, flash_attention)
        return LlamaEngine(self._session.model, loading, capacity, backend_greedy=on_backend)


def _key(point: Point) -> Key:
    return point.flash_attention, FAMILY[point.settings.mode]


def _with(loading: ModelSettings, flash_attention: Switch | None) -> ModelSettings:
    return replace(loading, flash_attention=flash_attention) if flash_attention else loading
