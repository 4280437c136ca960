"""The flags of lookahead and the other modes, and the DecodeSettings they make.

Declarations only; ranges are checked by the settings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from lacli import settings
from lacli.cli.environment import setting
from lacli.cli.groups import Table, declared_options, field_options, flag
from lacli.settings import DecodeSettings, decode_settings, names_or_none, spellings

GUESSING = "Guessing"

DECODE = DecodeSettings()
"""Where the options' defaults come from."""

Mode = Annotated[
    settings.ModeName | None,
    setting(
        "--mode",
        metavar="MODE",
        help="How tokens are guessed. plain: not at all; lookup: from earlier text; jacobi, lookahead: as in the "
        "paper; auto: from several sources, as many as pay here. -W, -N, -G or --preset alone mean lookahead, whose "
        "many rows a step are slower than plain decoding on most machines.",
        show_default=DECODE.mode,
    ),
]
Preset = Annotated[
    Literal["code", "text", "creative", "7b", "13b", "34b"] | None,
    setting(
        "--preset",
        metavar="NAME",
        help="-W, -N and -G of mode lookahead for a kind of text (code, text, creative) or a size of model (7b, 13b, "
        "34b). Where its rows cost too much, as on most processors, mode auto is faster without it.",
    ),
]
Window = Annotated[
    int | None,
    setting(*spellings("window"), help="Columns of the lookahead window. In mode jacobi: guesses of a block.",
            show_default=str(DECODE.window)),
]  # fmt: skip
Ngram = Annotated[
    int | None,
    setting(*spellings("ngram"), help="Tokens of an n-gram.", show_default=str(DECODE.ngram)),
]  # fmt: skip
Guesses = Annotated[
    int | None,
    setting(*spellings("guesses"), help="N-grams verified in a step at most.", show_default=str(DECODE.guesses)),
]  # fmt: skip
OF_ONE_MODE = {
    "jacobi_iterations": "Steps after which mode jacobi begins a new block.",
    "lookup_match": "Tokens that mode lookup matches at most.",
    "lookup_draft": "Tokens that mode lookup guesses in a step.",
}
"""The help of fields that a preset may set where nothing is typed."""

FIELDS = {
    "auto_rows": "Rows of a step of mode auto at most.",
    "strict": "Give exactly the same text in every mode. Slower, and on the CPU only; 'lacli check --strict' shows "
    "whether it holds for a model.",
}
"""The help of the fields of DecodeSettings that a flag holds as they are."""


def make_decoding(*, preset: str | None, sources: str | None, **fields: Any) -> DecodeSettings:
    """The settings of all flags about guessing. `fields`: those of DecodeSettings; None where nothing was typed."""
    return decode_settings(preset, sources=None if sources is None else names_or_none(sources), **fields)


lookahead_group = Table(
    (
        *declared_options({"mode": Mode, "preset": Preset, "window": Window, "ngram": Ngram, "guesses": Guesses}),
        *(
            flag(name, int | None, None, help=help, show_default=str(getattr(DECODE, name)))
            for name, help in OF_ONE_MODE.items()
        ),
        flag(
            "sources",
            str | None,
            None,
            metavar="NAME,..",
            show_default="all of them",
            help=f"Where mode auto takes its guesses from. Some of {', '.join(DECODE.sources)}; or none.",
        ),
        *field_options(DECODE, FIELDS),
    ),
    make_decoding,
)
