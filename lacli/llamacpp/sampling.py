"""llama.cpp's sampler settings under llama.cpp's names, and their ranges; `sampler.py` builds the samplers."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, fields
from secrets import randbelow
from typing import Literal

from lacli.errors import UsageError
from lacli.settings import check_types

Verify = Literal["match", "rejection"]

MOST_SEED = 2**32 - 2
"""llama.cpp's seeds have 32 bits, and the largest one (LLAMA_DEFAULT_SEED) means a random seed."""

LONGEST_MEMORY = 2**20
"""Tokens that a penalty may look back, at most: llama.cpp allocates all of them at once."""


@dataclass(frozen=True)
class SamplingSettings:
    """Settings of llama.cpp's sampler chain, with its defaults except a temperature of 0.

    `seed`: -1 for a random one each time. `logit_bias`: (token id, number added to its logit) pairs. grammar,
    json_schema: the answer's form, as GBNF or JSON text; "" for none. `verify`: match (draw as plain decoding does and
    compare with the guess) or rejection (Algorithm 4 of the paper).
    """

    seed: int = -1
    temp: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical: float = 1.0
    top_nsigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exp: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breaker: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_lr: float = 0.1
    mirostat_ent: float = 5.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    grammar: str = ""
    json_schema: str = ""
    verify: Verify = "match"

    def __post_init__(self) -> None:
        check_types(self)
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                form = "" if isinstance(DEFAULT[name], int) else "g"
                limit = f"from {least:{form}}" + (f" to {most:{form}}" if most < HUGE or value > most else " on")
                raise UsageError(f"{flag(name)} is {value:{form}}", f"{flag(name)} must be {limit}")
        for token, bias in self.logit_bias:
            if bias != -math.inf and not abs(bias) <= HUGE:
                raise UsageError(f"--logit-bias of token {token} is {bias}", "give a number, or -inf to forbid it")
        if 0 < self.temp < TINY:
            raise UsageError(f"--temp is {self.temp}", f"--temp must be 0 or at least {TINY}")
        texts = "".join((self.grammar, self.json_schema, *self.dry_sequence_breaker))
        if any("\ud800" <= character <= "\udfff" for character in texts):
            raise UsageError("half of a character cannot be part of a grammar or a text", "give text that is UTF-8")
        if "\0" in self.grammar + "".join(self.dry_sequence_breaker):
            raise UsageError("a NUL character cannot be part of a grammar or a text", "remove it")
        if self.grammar and self.json_schema:
            raise UsageError("--grammar and --json-schema are both given", "give one of them")
        if self.mirostat and not self.temp:
            raise UsageError("--mirostat draws nothing at --temp 0", "give a temperature, --temp 0.8 for example")
        if self.mirostat and self.verify == "rejection":
            raise UsageError(
                "--verify rejection needs the distribution, and mirostat draws without giving it",
                "--verify match works with mirostat",
            )

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always the next one, so that no sampler is needed."""
        return not self.temp and all(getattr(self, name) == DEFAULT[name] for name in ALTERS_GREEDY)

    @property
    def drawn_seed(self) -> int | None:
        """The seed that tokens are drawn with, None where none are: at temperature 0 XTC alone draws."""
        return self.seed if self.temp or self.xtc_probability else None

    @property
    def draws_otherwise(self) -> bool:
        """True if a mode with guesses draws other random numbers than plain decoding, and so another text."""
        return self.verify == "rejection" and not self.greedy

    @property
    def idle(self) -> list[str]:
        """Flags that were set and have no effect at this temperature."""
        if self.temp:
            return []
        return [flag(name) for name in (*NEEDS_TEMPERATURE, "verify") if getattr(self, name) != DEFAULT[name]]


def new_seed() -> int:
    """A random seed."""
    return randbelow(MOST_SEED + 1)


def flag(name: str) -> str:
    """A setting's name on the command line."""
    return "--" + name.replace("_", "-")


def token_bias(text: str) -> tuple[int, float]:
    """Parse a bias as llama.cpp takes it, a token id, a sign and a number: 15043+1 or 2-inf. Raises UsageError."""
    if found := re.fullmatch(r"(\d+)([+-].+)", text):
        with suppress(ValueError):
            return int(found[1]), float(found[2])
    raise UsageError(f"--logit-bias {text!r} is not ID+BIAS or ID-BIAS", "write 15043-1 or 2-inf, say")


def bias_words(token: int, bias: float) -> str:
    """Write a bias as `token_bias` reads it."""
    return f"{token}{bias:+}"


DEFAULT = {field.name: field.default for field in fields(SamplingSettings)}

TINY, HUGE = 1e-6, 1e6
"""The smallest and the largest useful number: llama.cpp's 32-bit floats stay finite within them."""

RANGES: dict[str, tuple[float, float]] = {
    "seed": (-1, MOST_SEED),
    "temp": (0, HUGE),
    "top_k": (-1, 2**31 - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical": (0, 1),
    "top_nsigma": (-1, HUGE),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "dynatemp_range": (0, HUGE),
    "dynatemp_exp": (0, HUGE),
    "repeat_penalty": (TINY, HUGE),
    "repeat_last_n": (-1, LONGEST_MEMORY),
    "presence_penalty": (-HUGE, HUGE),
    "frequency_penalty": (-HUGE, HUGE),
    "dry_multiplier": (0, HUGE),
    "dry_base": (1, HUGE),
    "dry_allowed_length": (0, LONGEST_MEMORY),
    "dry_penalty_last_n": (-1, LONGEST_MEMORY),
    "mirostat": (0, 2),
    "mirostat_lr": (0, HUGE),
    "mirostat_ent": (0, HUGE),
}
"""The least and the largest value of a setting."""

ALTERS_GREEDY = (
    "typical",
    "xtc_probability",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "logit_bias",
    "ignore_eos",
    "grammar",
    "json_schema",
)
"""Settings that can choose another token than the most probable one also at temperature 0."""

NEEDS_TEMPERATURE = ("top_k", "top_p", "min_p", "top_nsigma", "dynatemp_range", "dynatemp_exp")
"""Settings that have no effect at temperature 0."""
