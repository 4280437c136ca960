"""The flags of lookahead and the other modes, and the DecodeSettings they make.

Declarations only; ranges are checked by the settings.
"""

from __future__ import annotations

from typing import Annotated, Literal

from lacli import settings
from lacli.cli.environment import setting
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
WindowInit = Annotated[
    settings.WindowInit,
    setting("--window-init", help="What the window starts from.", rich_help_panel=GUESSING),
]
WindowShift = Annotated[
    settings.WindowShift,
    setting(
        "--window-shift",
        help="After accepted tokens: slide the window once, or drop their columns and refill it.",
        rich_help_panel=GUESSING,
    ),
]
PoolPrompt = Annotated[
    bool,
    setting("--pool-prompt/--no-pool-prompt", help="N-grams of the prompt enter the pool (lookahead).",
            rich_help_panel=GUESSING),
]  # fmt: skip
PoolText = Annotated[
    bool,
    setting("--pool-text/--no-pool-text", help="N-grams of the generated text enter the pool (lookahead).",
            rich_help_panel=GUESSING),
]  # fmt: skip
PoolKeys = Annotated[
    int, setting("--pool-keys", help="Most first tokens the pool keeps n-grams for.", rich_help_panel=GUESSING)
]
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
AutoRows = Annotated[
    int,
    setting(*spellings("auto_rows"), metavar="ROWS", rich_help_panel=GUESSING,
            help="Most rows of a step of mode auto."),
]  # fmt: skip

Strict = Annotated[
    bool,
    setting(
        "--strict",
        help="Bit for bit the same text in every mode and with every -W, -N and -G; slower, CPU only. "
        "lacli check --strict shows whether it holds for a model.",
        rich_help_panel=GUESSING,
    ),
]


def lookahead_group(
    mode: Mode = None,
    preset: Preset = None,
    window: Window = None,
    ngram: Ngram = None,
    guesses: Guesses = None,
    window_init: WindowInit = DECODE.window_init,
    window_shift: WindowShift = DECODE.window_shift,
    pool_prompt: PoolPrompt = DECODE.pool_prompt,
    pool_text: PoolText = DECODE.pool_text,
    pool_keys: PoolKeys = DECODE.pool_keys,
    jacobi_iterations: JacobiIterations = None,
    lookup_match: LookupMatch = None,
    lookup_draft: LookupDraft = None,
    sources: Sources = None,
    auto_rows: AutoRows = DECODE.auto_rows,
    strict: Strict = DECODE.strict,
) -> DecodeSettings:
    return decode_settings(
        preset,
        mode=mode,
        window=window,
        ngram=ngram,
        guesses=guesses,
        window_init=window_init,
        window_shift=window_shift,
        pool_prompt=pool_prompt,
        pool_text=pool_text,
        pool_keys=pool_keys,
        jacobi_iterations=jacobi_iterations,
        lookup_match=lookup_match,
        lookup_draft=lookup_draft,
        sources=None if sources is None else names_or_none(sources),
        auto_rows=auto_rows,
        strict=strict,
    )
