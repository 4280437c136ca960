"""The nine rows of the paper's Table 3 (section 5.4): what the window and the prompt as reference are worth."""

from __future__ import annotations

from dataclasses import replace

from lacli.bench.sweep import Point, Skipped
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings, check_rows
from lacli.settings import DecodeSettings

SIZES = (
    *((10, 1, 3, True), (5, 1, 10, True), (5, 1, 30, False), (5, 1, 30, True), (5, 30, 1, False)),
    *((5, 15, 15, False), (5, 15, 15, True)),
)
"""N, W, G and the prompt as reference, of rows 3 to 9."""


def table3(
    base: DecodeSettings | None = None, model_settings: ModelSettings | None = None
) -> tuple[list[Point], list[Skipped]]:
    """The rows as points, and those that do not fit into a batch.

    Row 2 is prompt lookup as in transformers 4.37: 10 tokens drafted after a match of at most 2. In the others the
    window starts from prompt tokens drawn at random, and with "prompt as reference" the n-grams of the prompt enter
    the pool, and those of the text as it grows, both as in the authors' program; without it the pool holds what the
    window found. What differs: the authors verify nothing in the first N-2 steps, while their window fills, and their
    greedy loop repeats an accepted run's last token in the n-grams that it takes from the text. Ours starts with a full
    window and takes the text as it is, which is worth most where the window is small, at W = 1.
    """
    base = base or DecodeSettings()
    branches = [
        replace(base, mode="lookahead", ngram=ngram, window=window, guesses=guesses, window_init="prompt",
                pool_prompt=reference, pool_text=reference)
        for ngram, window, guesses, reference in SIZES
    ]  # fmt: skip
    others = [replace(base, mode="plain"), replace(base, mode="lookup", lookup_draft=10, lookup_match=2)]
    found, skipped = [], []
    for row, settings in enumerate([*others, *branches], start=1):
        reference = ", prompt as reference" if settings.mode == "lookahead" and settings.pool_prompt else ""
        point = Point(settings, name=f"{row}: {Point(settings).label}{reference}")
        try:
            check_rows(settings, model_settings or ModelSettings())
            found.append(point)
        except UsageError as error:
            skipped.append(Skipped(point.label, error.what))
    return found, skipped
