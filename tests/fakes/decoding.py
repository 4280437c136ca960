"""Decoders of tests, of any mode."""

from __future__ import annotations

from lacli.auto.fixed_clock import fixed_clock_modes
from lacli.auto.mode import AutoModes
from lacli.context import Context, EngineGroup
from lacli.decode import Decoder
from lacli.settings import DecodeSettings
from lacli.verify import Verifier


def fixed_clock_decoder(
    engine: Context | EngineGroup, settings: DecodeSettings, verifier: Verifier | None = None
) -> Decoder:
    """A decoder that takes the same steps each time; rows cost next to nothing, so mode auto guesses all it can."""
    return Decoder(engine, settings, verifier, make_mode=fixed_clock_modes)


def auto_decoder(engine: Context | EngineGroup, settings: DecodeSettings, verifier: Verifier | None = None) -> Decoder:
    """A decoder that goes by the clock in mode auto, and has measured nothing before."""
    return Decoder(engine, settings, verifier, make_mode=AutoModes())
