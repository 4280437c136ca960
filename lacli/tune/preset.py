"""`--preset tuned`: what `lacli tune` has remembered of a model takes the place of what was left open."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from pathlib import Path
from time import time

from lacli.amounts import age_in_words
from lacli.cost.known import machine_key
from lacli.errors import LacliError, UsageError
from lacli.settings import DecodeSettings, ModelSettings
from lacli.tune.candidates import typed, words
from lacli.tune.store import Tuned, TunedStore, chosen


def tuned_settings(
    settings: DecodeSettings,
    left_open: Collection[str],
    path: Path,
    loading: ModelSettings,
    store: TunedStore,
    say: Callable[[str], None],
) -> DecodeSettings:
    """The settings, with the fields that are left open as they were found to be best for this model on this machine.

    Where another mode is asked for they stay as they are. say: gets a sentence about what is used. Raises UsageError
    where nothing was found yet, or it cannot be read.
    """
    tuned = _remembered(path, loading, store)
    if "mode" not in left_open and settings.mode != tuned.settings.mode:
        say(f"--preset tuned: {words(tuned.settings)} is not used, because of {typed(settings, 'mode')}")
        return settings
    values = {name: value for name, value in chosen(tuned.settings).items() if name in left_open}
    filled = replace(settings, **values)
    say(f"--preset tuned: {_described(tuned, filled)}")
    return filled


def _remembered(path: Path, loading: ModelSettings, store: TunedStore) -> Tuned:
    key = machine_key(path, loading)
    try:
        tuned = store.load(key)
    except LacliError as error:
        raise UsageError(f"--preset tuned: {error.what}", error.hint) from error
    if tuned is None:
        other = store.otherwise(key)
        elsewhere = f" with these flags on this machine, only {other}" if other else ""
        again = "lacli tune MODEL finds one"
        raise UsageError(f"--preset tuned: there is no tuned setting of {path.name}{elsewhere}", again)
    return tuned


def _described(tuned: Tuned, filled: DecodeSettings) -> str:
    """The setting and how fast it was, which is not known of another one; plain decoding heeds no flag beside it."""
    own = [typed(filled, each.name) for each in fields(filled) if _differs(each.name, filled, tuned.settings)]
    if own and tuned.settings.mode != "plain":
        return f"{words(tuned.settings)}, but with {' '.join(own)}"
    when = f"when it was tuned {age_in_words(max(time() - tuned.tuned_at, 0.0))} at temperature {tuned.temp:g}"
    if tuned.settings.mode == "plain":
        return f"plain, which nothing beat {when}"
    return f"{words(tuned.settings)}, {tuned.speedup:.2f} times plain decoding's speed {when}"


def _differs(name: str, one: DecodeSettings, other: DecodeSettings) -> bool:
    return bool(getattr(one, name) != getattr(other, name))
