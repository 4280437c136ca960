"""The flags of lookahead and the other modes, and the DecodeSettings they make.

Declarations only; ranges are checked by the settings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from lacli import settings
from lacli.cli.environment import setting
from lacli.cli.groups import Table, declared_options, field_options
from lacli.settings import DecodeSettings, decode_settings, names_or_none, spellings

GUESSING = "Guessing"

DECODE = DecodeSettings()
"""Where the options' defaults come from."""

ALL_SOURCES = ",".join(DECODE.sources)

Mode = Annotated[
    settings.ModeName | None,
    setting(
        "--mode",
        metavar="MODE",
        help="How tokens are guessed: plain (not at all), jacobi, lookup, lookahead, or auto: from several sources, as "
        f"many as pay here. (default: {DECODE.mode}; lookahead where -W, -N, -G or a preset of them is given)",
        show_default=False,
        rich_help_panel=GUESSING,
    ),
]
Preset = Annotated[
    Literal["code", "text", "creative", "7b", "13b", "34b"] | None,
    setting(
        "--preset",
        metavar="NAME",
        help="W, N and G for a kind of text (code, text, creative) or a size of model (7b, 13b, 34b).",
        rich_help_panel=GUESSING,
    ),
]
Window = Annotated[
    int | None,
    setting(*spellings("window"), help=f"Columns of the lookahead window; jacobi's block. (default: {DECODE.window})",
            show_default=False, rich_help_panel=GUESSING),
]  # fmt: skip
Ngram = Annotated[
    int | None,
    setting(*spellings("ngram"), help=f"Tokens of an n-gram. (default: {DECODE.ngram})", show_default=False,
            rich_help_panel=GUESSING),
]  # fmt: skip
Guesses = Annotated[
    int | None,
    setting(*spellings("guesses"), help=f"Most n-grams verified a step. (default: {DECODE.guesses})",
            show_default=False, rich_help_panel=GUESSING),
]  # fmt: skip
JacobiIterations = Annotated[
    int | None,
    setting("--jacobi-iterations", show_default=False, rich_help_panel=GUESSING,
            help=f"Steps after which jacobi starts a new block. (default: {DECODE.jacobi_iterations})"),
]  # fmt: skip
LookupMatch = Annotated[
    int | None,
    setting("--lookup-match", show_default=False, rich_help_panel=GUESSING,
            help=f"Longest match of mode lookup, in tokens. (default: {DECODE.lookup_match})"),
]  # fmt: skip
LookupDraft = Annotated[
    int | None,
    setting("--lookup-draft", show_default=False, rich_help_panel=GUESSING,
            help=f"Tokens that mode lookup drafts. (default: {DECODE.lookup_draft})"),
]  # fmt: skip
Sources = Annotated[
    str | None,
    setting(*spellings("sources"), metavar="LIST", show_default=False, rich_help_panel=GUESSING,
            help=f"Where mode auto takes its guesses from, with commas between, or none. (default: {ALL_SOURCES})"),
]  # fmt: skip

FIELDS = {
    "window_init": (("--window-init",), "What the window starts from."),
    "window_shift": (
        ("--window-shift",),
        "After accepted tokens: slide the window once, or drop their columns and refill it.",
    ),
    "pool_prompt": (("--pool-prompt/--no-pool-prompt",), "N-grams of the prompt enter the pool (lookahead)."),
    "pool_text": (("--pool-text/--no-pool-text",), "N-grams of the generated text enter the pool (lookahead)."),
    "pool_keys": (("--pool-keys",), "Most first tokens the pool keeps n-grams for."),
    "auto_rows": (spellings("auto_rows"), "Most rows of a step of mode auto."),
    "strict": (
        ("--strict",),
        "Bit for bit the same text in every mode and with every -W, -N and -G; slower, CPU only. "
        "lacli check --strict shows whether it holds for a model.",
    ),
}
"""The flags and the help of the fields of DecodeSettings that a flag holds as they are."""


def make_decoding(*, preset: str | None, sources: str | None, **fields: Any) -> DecodeSettings:
    """The settings of all flags about guessing. `fields`: those of DecodeSettings; None where nothing was typed."""
    return decode_settings(preset, sources=None if sources is None else names_or_none(sources), **fields)


lookahead_group = Table(
    (
        *declared_options({"mode": Mode, "preset": Preset, "window": Window, "ngram": Ngram, "guesses": Guesses}),
        *declared_options(
            {"jacobi_iterations": JacobiIterations, "lookup_match": LookupMatch, "lookup_draft": LookupDraft}
        ),
        *declared_options({"sources": Sources}),
        *field_options(DECODE, GUESSING, FIELDS),
    ),
    make_decoding,
)
