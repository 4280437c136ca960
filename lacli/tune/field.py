"""Who competes in a search: settings as contenders on an open session, in as few contexts as there can be.

Opens and closes the contexts; who answers when is `search.py` and `confirm.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from lacli.bench.contenders import contenders
from lacli.bench.contexts import Contexts
from lacli.bench.rounds import Contender, Exchange, Trial, timed
from lacli.bench.sweep import Point
from lacli.decode import Decoder
from lacli.ending import ctrl_c_ends_at_once
from lacli.session import Session
from lacli.settings import DecodeSettings, fitted
from lacli.tune.candidates import words
from lacli.verify import verifier

Field = Callable[[Sequence[DecodeSettings]], AbstractContextManager[Sequence[Contender]]]
"""Opens what these settings need and gives them as contenders, in their order; the first is plain decoding."""

NOTHING = DecodeSettings(mode="plain")
"""Plain decoding learns nothing, so whoever decodes after it begins anew."""


def usual(session: Session) -> Field:
    """Everyone reads every prompt and knows nothing else, as `lacli run` does."""

    @contextmanager
    def field(settings: Sequence[DecodeSettings]) -> Iterator[Sequence[Contender]]:
        with _opened(session, settings) as (points, contexts):
            yield [_labelled(each) for each in contenders(session, contexts, points)]

    return field


def quick(session: Session) -> Field:
    """A prompt is read once in a context, by who answers it first there: reading takes most of a short answer's time.

    What is compared are the answers, whose times do not hold the prompt's.
    """

    @contextmanager
    def field(settings: Sequence[DecodeSettings]) -> Iterator[Sequence[Contender]]:
        with _opened(session, settings) as (points, contexts):
            decoders = {engine: session.decoder_in(engine, NOTHING) for engine in map(contexts.engine, points)}
            yield [
                replace(_labelled(each), answer=_answering(session, decoders[contexts.engine(point)], point.settings))
                for point, each in zip(points, contenders(session, contexts, points), strict=True)
            ]

    return field


@contextmanager
def _opened(session: Session, settings: Sequence[DecodeSettings]) -> Iterator[tuple[list[Point], Contexts]]:
    points = [Point(fitted(each, session.model_settings)) for each in settings]
    with ctrl_c_ends_at_once():
        contexts = Contexts(session, points)
    with contexts:
        yield points, contexts


def _labelled(contender: Contender) -> Contender:
    assert contender.point
    return replace(contender, label=words(contender.point.settings))


def _answering(session: Session, decoder: Decoder, settings: DecodeSettings) -> Callable[[Exchange], Trial]:
    def answer(exchange: Exchange) -> Trial:
        decoder.change(NOTHING, None)
        decoder.change(settings, verifier(session.sampler, session.sampling) if session.sampler else None)
        return timed(decoder, exchange, session.text, reuse=True)

    return answer
