"""What a model with a recurrent state leaves of the settings that were asked for, and what takes the place of the rest.

Settings in, settings and sentences out; how far a model goes back is found in `context.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lacli.settings import DecodeSettings


def possible(
    settings: DecodeSettings, chain_only: str, most_back: Callable[[], int]
) -> tuple[DecodeSettings, list[str]]:
    """The settings that a model can decode with, and what is to be said about it.

    chain_only: why the model takes no trees, '' where it does. most_back: guesses that it can take back after a step.
    """
    if not chain_only:
        return settings, []
    drafts = settings.mode != "plain"
    if drafts and not settings.strict and (back := most_back()):
        return _chained(settings, back)
    why = "--strict has no rule for a recurrent state" if settings.strict else chain_only
    notes = [f"decoding plainly: {why}"] if drafts else []
    # One mode is the same as itself, so nothing has to be done for it, and a second row could not be forgotten.
    return replace(settings, mode="plain", ordered=False, least_outputs=1), notes


def _chained(settings: DecodeSettings, back: int) -> tuple[DecodeSettings, list[str]]:
    """The settings for a model that can take back so many guesses of one chain."""
    if settings.mode == "lookahead":
        why = "mode auto instead of lookahead: a recurrent state goes back along one chain of guesses"
        return replace(settings, mode="auto", back=back), [why]
    chained = replace(settings, back=back)
    shorter = chained.chain < settings.chain
    return chained, [f"at most {back} guesses a step: a recurrent state goes back no further"] if shorter else []
