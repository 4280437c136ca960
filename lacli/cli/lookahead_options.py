"""The flags of lookahead and the other modes, and the DecodeSettings they make.

Declarations only; ranges are checked by the settings.
"""

from __future__ import annotations

from typing import Annotated, Literal

from lacli import settings
from lacli.cli.environment import setting
from lacli.flags import spellings
from lacli.settings import DecodeSettings, decode_settings

LOOKAHEAD = "Lookahead"

DECODE = DecodeSettings()
"""Where the options' defaults come from."""

Mode = Annotated[
    settings.Mode,
    setting(
        "--mode",
        metavar="MODE",
        help="How tokens are guessed: plain (not at all), jacobi, lookup or lookahead.",
        rich_help_panel=LOOKAHEAD,
    ),
]
Preset = Annotated[
    Literal["code", "text", "creative", "7b", "13b", "34b"] | None,
    setting(
        "--preset",
        metavar="NAME",
        help="W, N and G for a kind of text (code, text, creative) or a size of model (7b, 13b, 34b).",
        rich_help_panel=LOOKAHEAD,
    ),
]
Window = Annotated[
    int | None,
    setting(*spellings("window"), help=f"Columns of the lookahead window; jacobi's block. (default: {DECODE.window})",
            show_default=False, rich_help_panel=LOOKAHEAD),
]  # fmt: skip
Ngram = Annotated[
    int | None,
    setting(*spellings("ngram"), help=f"Tokens of an n-gram. (default: {DECODE.ngram})", show_default=False,
            rich_help_panel=LOOKAHEAD),
]  # fmt: skip
Guesses = Annotated[
    int | None,
    setting(*spellings("guesses"), help=f"Most n-grams verified a step. (default: {DECODE.guesses})",
            show_default=False, rich_help_panel=LOOKAHEAD),
]  # fmt: skip
WindowInit = Annotated[
    settings.WindowInit,
    setting("--window-init", help="What the window starts from.", rich_help_panel=LOOKAHEAD),
]
WindowShift = Annotated[
    settings.WindowShift,
    setting(
        "--window-shift",
        help="After accepted tokens: slide the window once, or drop their columns and refill it.",
        rich_help_panel=LOOKAHEAD,
    ),
]
PoolPrompt = Annotated[
    bool,
    setting("--pool-prompt/--no-pool-prompt", help="N-grams of the prompt enter the pool.",
            rich_help_panel=LOOKAHEAD),
]  # fmt: skip
PoolText = Annotated[
    bool,
    setting("--pool-text/--no-pool-text", help="N-grams of the generated text enter the pool.",
            rich_help_panel=LOOKAHEAD),
]  # fmt: skip
PoolKeys = Annotated[
    int, setting("--pool-keys", help="Most first tokens the pool keeps n-grams for.", rich_help_panel=LOOKAHEAD)
]
JacobiIterations = Annotated[
    int | None,
    setting("--jacobi-iterations", show_default=False, rich_help_panel=LOOKAHEAD,
            help=f"Steps after which jacobi starts a new block. (default: {DECODE.jacobi_iterations})"),
]  # fmt: skip
LookupMatch = Annotated[
    int, setting("--lookup-match", help="Longest match of mode lookup, in tokens.", rich_help_panel=LOOKAHEAD)
]
LookupDraft = Annotated[
    int, setting("--lookup-draft", help="Tokens that mode lookup drafts.", rich_help_panel=LOOKAHEAD)
]

Strict = Annotated[
    bool,
    setting(
        "--strict",
        help="Bit for bit the same text in every mode and with every -W, -N and -G; slower, CPU only. "
        "lacli check --strict shows whether it holds for a model.",
        rich_help_panel=LOOKAHEAD,
    ),
]


def lookahead_group(
    mode: Mode = DECODE.mode,
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
    lookup_match: LookupMatch = DECODE.lookup_match,
    lookup_draft: LookupDraft = DECODE.lookup_draft,
    strict: Strict = DECODE.strict,
) -> DecodeSettings:
    return decode_settings(
        preset,
        window=window,
        ngram=ngram,
        guesses=guesses,
        jacobi_iterations=jacobi_iterations,
        mode=mode,
        window_init=window_init,
        window_shift=window_shift,
        pool_prompt=pool_prompt,
        pool_text=pool_text,
        pool_keys=pool_keys,
        lookup_match=lookup_match,
        lookup_draft=lookup_draft,
        strict=strict,
    )
