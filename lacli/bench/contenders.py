"""The points of a sweep as contenders, and the contexts they decode in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from lacli.bench.rounds import Contender, Exchange, Trial, timed
from lacli.bench.sweep import Axes, Point, points
from lacli.engine.engine import SequenceOptions
from lacli.engine.load import ModelEngine
from lacli.engine.weights import OpenContext
from lacli.errors import UsageError
from lacli.llamacpp.settings import Capacity
from lacli.settings import DecodeSettings, ModeName
from lacli.terminal.screen import Screen
from lacli.text.files import Closing

FAMILY: dict[ModeName, str] = {
    "plain": "plain",
    "jacobi": "chain",
    "lookup": "chain",
    "lookahead": "tree",
    "auto": "auto",
}
"""The modes that share a context; plain and auto have their own, so that what other modes need cannot slow them."""


def points_of(engine: ModelEngine, axes: Axes, screen: Screen) -> list[Point]:
    """The points that `engine` can run, plain decoding first; the screen tells what is left out and why."""
    modes: Sequence[ModeName] = axes.modes
    base = engine.settings
    if why := engine.model.chain_only:
        back = 0 if base.strict else engine.max_rollback
        only = f"chains of at most {back} guesses are" if back else "plain decoding is"
        screen.note(f"only {only} measured: {why}")
        modes = [mode for mode in modes if mode != "lookahead"] if back else ["plain"]
        base = replace(base, max_rollback=back)
    found, skipped = points(replace(axes, modes=tuple(modes)), base=base, model_settings=engine.model_settings)
    if skipped and len({point.settings.mode for point in found}) < len(modes):
        raise UsageError(f"{skipped[0].label} cannot run: {skipped[0].reason}", "lacli mask shows what a setting takes")
    for each in skipped:
        screen.note(f"left out: {each.label}: {each.reason}")
    return with_plain(found or [Point(replace(base, mode="plain"))])


def with_plain(points: Sequence[Point]) -> list[Point]:
    """The points with plain decoding in front, as the baseline of the others."""
    plain = next((point for point in points if point.settings.mode == "plain"), Point(points[0].settings))
    # Plain decoding rolls nothing back, and being able to would cost it something.
    first = replace(plain, settings=replace(plain.settings, mode="plain", max_rollback=-1))
    return [first, *(point for point in points if point.settings.mode != "plain")]


class Contexts(Closing):
    """Open contexts by point, as few as there can be; close them before the engine, or use them in `with`.

    The session's own context is plain decoding's. Raises ModelLoadError when one does not fit into memory.
    """

    def __init__(self, engine: ModelEngine, points: Sequence[Point]) -> None:
        self._engine = engine
        on_backend = False if engine.sampler else engine.model.chooses
        self._contexts: dict[str, OpenContext] = {"plain": engine.context}
        families: dict[str, list[DecodeSettings]] = {}
        for point in points:
            families.setdefault(FAMILY[point.settings.mode], []).append(point.settings)
        with ExitStack() as stack:
            for family, settings in families.items():
                if family not in self._contexts:
                    opened = engine.weights.open(Capacity.of(settings), backend_greedy=on_backend)
                    self._contexts[family] = opened
                    stack.callback(opened.close)
            self._closing = stack.pop_all()

    def context(self, point: Point) -> OpenContext:
        """The context that a point decodes in."""
        return self._contexts[FAMILY[point.settings.mode]]

    def contender(self, point: Point) -> Contender:
        """A point as a contender, with a new engine for each answer."""

        def answer(exchange: Exchange) -> Trial:
            options = SequenceOptions(exchange.max_tokens, self._engine.verifier())
            return timed(
                self._engine.engine_in(self.context(point), point.settings), exchange, options, self._engine.text
            )

        return Contender(point, answer)

    def close(self) -> None:
        self._closing.close()
