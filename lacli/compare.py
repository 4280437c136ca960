"""Plain decoding beside the other modes: the same prompts, and where the texts part.

Knows engines and samplers, no model file and no screen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from lacli.closing import Closing
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.errors import BatchRefused
from lacli.judge import PLAIN, Difference, Seer, first_difference
from lacli.mode import Mode
from lacli.pretended import PretendingDecoder
from lacli.replay import Recorder
from lacli.settings import DecodeSettings
from lacli.stats import Step
from lacli.verify import SampleAndMatch

OpenEngine = Callable[[DecodeSettings], AbstractContextManager[Engine]]
"""A context of the model, made for a mode; its logits can be read."""


@dataclass(frozen=True)
class Run:
    """One answer of a mode beside plain's.

    steps: up to where it failed. failure: why llama.cpp refused a step, though plain decoding of the same prompt went
    through: always a mistake.
    """

    prompt: tuple[int, ...]
    steps: tuple[Step, ...]
    difference: Difference | None = None
    failure: str = ""

    @property
    def tokens(self) -> list[int]:
        """The generated ids, an end token included."""
        return [token for step in self.steps for token in step.tokens]

    @property
    def bug(self) -> bool:
        return bool(self.failure) or (self.difference is not None and self.difference.bug)

    @property
    def unclear(self) -> bool:
        return self.difference is not None and self.difference.unclear

    @property
    def verdict(self) -> str:
        """bug, unclear or rounding, of an answer that is not plain's."""
        return "bug" if self.bug else "unclear" if self.unclear else "rounding"

    @property
    def identical(self) -> bool:
        return not self.failure and self.difference is None


class Comparison(Closing):
    """Answers prompts plainly and in other modes; close it before the model, or use it in `with`.

    limit: tokens an answer may have. plain: how plain decoding is done. sampler: what tokens are drawn with, or None
    to take the most probable ones.
    """

    def __init__(
        self, open_engine: OpenEngine, limit: int, plain: DecodeSettings = PLAIN, sampler: Seer | None = None
    ) -> None:
        self._open_engine = open_engine
        self._limit = limit
        self._sampler = sampler
        self._settings = plain
        self._plain: dict[tuple[int, ...], list[int]] = {}
        self._closing = ExitStack()
        self.plain_engine = self._closing.enter_context(open_engine(plain))

    def decoder(self, engine: Engine, settings: DecodeSettings, mode: Callable[[], Mode] | None = None) -> Decoder:
        """A decoder that draws as this comparison does. mode: makes a mode that is none of the settings'."""
        verifier = SampleAndMatch(self._sampler) if self._sampler else None
        if settings.mode == "auto" and mode is None:
            return PretendingDecoder(engine, settings, verifier)
        return Decoder(engine, settings, verifier, mode=mode)

    def plain(self, prompt: Sequence[int]) -> list[int]:
        """Plain decoding's tokens; a prompt is decoded once."""
        key = tuple(prompt)
        if key not in self._plain:
            steps = self.decoder(self.plain_engine, self._settings).generate(prompt, self._limit)
            self._plain[key] = [token for step in steps for token in step.tokens]
        return self._plain[key]

    def run(
        self,
        settings: DecodeSettings,
        prompts: Sequence[Sequence[int]],
        mode: Callable[[], Mode] | None = None,
    ) -> list[Run]:
        """Each prompt answered by a decoder of its own, on one engine. mode: as `decoder` takes it."""
        with self._open_engine(settings) as opened:
            engine = Recorder(opened)
            return [self.one(self.decoder(engine, settings, mode), engine, prompt) for prompt in prompts]

    def one(self, decoder: Decoder, engine: Recorder, prompt: Sequence[int]) -> Run:
        """One prompt answered by a decoder on this engine, which may have answered others before."""
        expected = self.plain(prompt)
        steps: list[Step] = []
        failure = ""
        try:
            steps.extend(decoder.generate(prompt, self._limit))
        except BatchRefused as error:
            # Up to there it has to be plain's text; a text that parted before may end in its own way.
            failure = error.what
            expected = expected[: sum(len(step.tokens) for step in steps)]
        tokens = [step.tokens for step in steps]
        difference = first_difference(
            engine, self.plain_engine, prompt, expected, tokens, self._settings, self._sampler
        )
        return Run(tuple(prompt), tuple(steps), difference, "" if difference else failure)

    def close(self) -> None:
        self._closing.close()
