"""llama.cpp's sampler settings under llama.cpp's names, and their ranges; `sampler.py` builds the samplers."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from secrets import randbelow
from typing import Literal

from lacli.errors import UsageError
from lacli.settings import check_options, option, options_of

Verify = Literal["match", "rejection"]

MOST_SEED = 2**32 - 2
"""llama.cpp's seeds have 32 bits, and the largest one (LLAMA_DEFAULT_SEED) means a random seed."""

LONGEST_MEMORY = 2**20
"""A penalty looks back at most this many tokens: llama.cpp allocates all of them at once."""

TINY, HUGE = 1e-6, 1e6
"""The smallest and the largest number of a setting; between them, llama.cpp's 32-bit floats stay finite."""


def token_bias(text: str) -> tuple[int, float]:
    """Parse a token id with a signed bias, as llama.cpp does: 15043+1 or 2-inf. Raises UsageError for other texts."""
    if found := re.fullmatch(r"(\d+)([+-].+)", text):
        with suppress(ValueError):
            return int(found[1]), float(found[2])
    raise UsageError(f"{text!r} is not ID+BIAS or ID-BIAS", "write 15043-1 or 2-inf, say")


def bias_words(token: int, bias: float) -> str:
    """Return the text that `token_bias` parses to this token id and bias."""
    return f"{token}{bias:+}"


TEMPERATURE, TYPICAL = ("--temp", "--temperature"), ("--typical", "--typical-p")


@dataclass(frozen=True)
class SamplingSettings:
    """Settings of llama.cpp's sampler chain, with its defaults except a temperature of 0.

    `logit_bias`: (token id, number added to its logit) pairs. `grammar_after`: ASCII text after which a grammar holds.
    `verify`: match (draw as plain decoding does and compare with the draft) or rejection (Algorithm 4 of the paper).
    """

    seed: int = option(-1, "Seed. -1: a new one each time.", "--seed", "-s", least=-1, most=MOST_SEED)
    temp: float = option(0.0, "Temperature. 0: greedy.", *TEMPERATURE, least=0, most=HUGE, request="temperature")
    top_k: int = option(40, "Draw from this many tokens. 0: all.", least=-1, most=2**31 - 1)
    top_p: float = option(0.95, "Draw from the top tokens of this probability. 1: all.", least=0, most=1)
    min_p: float = option(0.05, "Least probability, as a share of the top token's. 0: off.", least=0, most=1)
    typical: float = option(
        1.0, "Probability of the typical tokens to keep. 1: off.", *TYPICAL, least=0, most=1, request="typical_p"
    )
    xtc_probability: float = option(0.0, "XTC: chance to leave out the top tokens. 0: off.", least=0, most=1)
    xtc_threshold: float = option(0.1, "XTC: least probability of a top token. >0.5: off.", least=0, most=1)
    repeat_penalty: float = option(1.0, "Penalty of repeated tokens. 1: off.", least=TINY, most=HUGE)
    repeat_last_n: int = option(64, "Tokens that penalties look back at. -1: all.", least=-1, most=LONGEST_MEMORY)
    presence_penalty: float = option(0.0, "Penalty of a token that occurred. 0: off.", least=-HUGE, most=HUGE)
    frequency_penalty: float = option(0.0, "Penalty for each time a token occurred. 0: off.", least=-HUGE, most=HUGE)
    dry_multiplier: float = option(0.0, "DRY: penalty of repeated passages. 0: off.", least=0, most=HUGE)
    dry_base: float = option(1.75, "DRY: growth of the penalty a token.", least=1, most=HUGE)
    dry_allowed_length: int = option(2, "DRY: tokens that may repeat.", least=0, most=LONGEST_MEMORY)
    dry_penalty_last_n: int = option(64, "DRY: tokens to look back at. -1: all.", least=-1, most=LONGEST_MEMORY)
    logit_bias: tuple[tuple[int, float], ...] = option(
        (),
        "Add to a token's logit: 15043+1, 15043-1 or 2-inf. Repeatable.",
        *("--logit-bias", "-l"),
        metavar="ID(+/-)BIAS",
        read=token_bias,
        repeated=True,
        variable=False,
    )
    ignore_eos: bool = option(False, "Go on past the model's end token.")
    grammar: str = option("", "GBNF grammar that the answer must follow.", variable=False)
    grammar_after: str = option("", "")
    json_schema: str = option(
        "", "JSON schema of the answer. '{}': any object.", "--json-schema", "-j", metavar="JSON", variable=False
    )
    verify: Verify = option("match", "Verify drafts by plain decoding's text or distribution.")

    def __post_init__(self) -> None:
        check_options(self)
        for token, bias in self.logit_bias:
            if bias != -math.inf and not abs(bias) <= HUGE:
                raise UsageError(f"the bias of token {token} is {bias}", "give a number, or -inf to forbid it")
        if 0 < self.temp < TINY:
            raise UsageError(f"a temperature of {self.temp} is too small", f"give 0, or at least {TINY}")
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in self.grammar + self.json_schema):
            raise UsageError("a grammar or a schema has a NUL or half of a character", "give UTF-8 without NUL")
        if self.grammar and self.json_schema:
            raise UsageError("a grammar and a JSON schema are both given", "give one of them")

    @property
    def greedy(self) -> bool:
        """Whether each next token is simply the most probable one, so that no sampler is needed."""
        return not self.temp and all(getattr(self, name) == DEFAULT[name] for name in ALTERS_GREEDY)

    @property
    def drawn_seed(self) -> int | None:
        """The seed of the random numbers, None if none are used: at temperature 0 without XTC."""
        return self.seed if self.temp or self.xtc_probability else None

    @property
    def draws_otherwise(self) -> bool:
        """Whether modes with drafts use other random numbers than plain decoding, and so give other answers."""
        return self.verify == "rejection" and not self.greedy


def new_seed() -> int:
    return randbelow(MOST_SEED + 1)


DEFAULT = {name: each.default for name, each in options_of(SamplingSettings).items()}

ALTERS_GREEDY = (
    *("typical", "xtc_probability", "repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier"),
    *("logit_bias", "ignore_eos", "grammar", "json_schema"),
)
"""Settings that can change the chosen token even at temperature 0."""
