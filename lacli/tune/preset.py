"""`--preset tuned`: what `lacli tune` has remembered of a model takes the place of what was left open."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from time import time

from lacli.amounts import age_in_words
from lacli.cost.known import machine_key
from lacli.errors import UsageError
from lacli.settings import DecodeSettings, ModelSettings
from lacli.tune.candidates import words
from lacli.tune.kept import Tuned, TunedStore, chosen


def tuned_settings(
    settings: DecodeSettings,
    left_open: Collection[str],
    path: Path,
    loading: ModelSettings,
    store: TunedStore,
    say: Callable[[str], None],
) -> DecodeSettings:
    """The settings, with the fields that are left open as they were found to be best for this model on this machine.

    say: gets a sentence about them. Raises UsageError where nothing was found yet, or it cannot be read.
    """
    key = machine_key(path, loading)
    tuned, trouble = store.load(key)
    again = "lacli tune MODEL finds one"
    if tuned is None and trouble:
        raise UsageError(f"--preset tuned: {trouble}", "lacli tune MODEL makes a new one")
    if tuned is None:
        other = store.otherwise(key)
        elsewhere = f" with these flags on this machine, only {other}" if other else ""
        raise UsageError(f"--preset tuned: there is no tuned setting of {path.name}{elsewhere}", again)
    say(f"--preset tuned: {_described(tuned)}")
    return replace(settings, **{name: value for name, value in chosen(tuned.settings).items() if name in left_open})


def _described(tuned: Tuned) -> str:
    age = age_in_words(max(time() - tuned.tuned_at, 0.0))
    if tuned.settings.mode == "plain":
        return f"plain, which nothing beat when it was tuned {age}"
    return f"{words(tuned.settings)}, {tuned.speedup:.2f} times plain decoding's speed when it was tuned {age}"
