"""Which settings a search tries: all that make sense, without those that the cost of rows rules out.

Settings and numbers only; nothing is decoded here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import product

from lacli.cost.store import MachineKey
from lacli.errors import UsageError
from lacli.flags import LOADING, spellings
from lacli.law import PAPER
from lacli.settings import DecodeSettings, Mode, ModelSettings, SourceName, check_rows, fitted
from lacli.staircase import Staircase

WINDOWS = (0, 1, 2, 3, 5, 7, 10, 15)
NGRAMS = (3, 5, 7)
GUESSES = (1, 2, 5, 10, 15)
DRAFTS = (2, 3, 4, 7, 10, 16)
MATCHES = (2, 3)

ALL = DecodeSettings().sources

FEWER: tuple[tuple[SourceName, ...], ...] = (
    ("suffix",),
    ("suffix", "recycling"),
    ("suffix", "pool"),
    ("recycling", "pool"),
    ("suffix", "recycling", "pool"),
)
"""What mode auto may do without; with all of its sources it is what every search compares with."""

SEARCHED: dict[Mode, tuple[str, ...]] = {
    "plain": (),
    "lookahead": ("window", "ngram", "guesses"),
    "lookup": ("lookup_match", "lookup_draft"),
    "auto": ("sources",),
}
"""The fields that a search chooses in each mode; all others keep their defaults."""


@dataclass(frozen=True)
class Candidate:
    """A setting to try. expected: its speed against plain decoding's by the paper's law, 1 where it says nothing."""

    settings: DecodeSettings
    expected: float = 1.0


def candidates(
    staircase: Staircase | None, loading: ModelSettings, back: int = -1
) -> tuple[list[Candidate], list[DecodeSettings]]:
    """What is worth a try, auto and then the most promising first, and what cannot pay even if all guesses come true.

    staircase: the cost of rows behind a text as long as the prompts, None: not known. back: guesses that the model can
    take back, as in DecodeSettings. What does not fit into a batch is in neither of them.
    """
    sensible = (fitted(each, loading) for each in _sensible(back))
    settings = [each for each in sensible if _fits(each, loading)]
    lost = [each for each in settings if staircase and _hopeless(staircase, each)]
    worth = [Candidate(each, _expected(staircase, each)) for each in settings if each not in lost]
    return sorted(worth, key=lambda each: (each.settings.mode == "auto", each.expected), reverse=True), lost


def words(settings: DecodeSettings) -> str:
    """A setting in a table: its mode and what a search chooses in it."""
    match settings.mode:
        case "lookahead":
            return f"lookahead W={settings.window} N={settings.ngram} G={settings.guesses}"
        case "lookup":
            return f"lookup match {settings.lookup_match} draft {settings.lookup_draft}"
        case "auto" if settings.sources != ALL:
            return f"auto {','.join(settings.sources)}"
        case mode:
            return mode


def flags(settings: DecodeSettings) -> str:
    """The same as it is typed."""
    names = [name for name in SEARCHED[settings.mode] if name != "sources" or settings.sources != ALL]
    return " ".join(typed(settings, name) for name in ("mode", *names))


def loading_flags(loading: ModelSettings) -> str:
    """The flags of a model without which a result is not found, as they are typed; '' where all are the defaults."""
    kept = {each.name for each in fields(MachineKey)}
    usual = ModelSettings()
    changed = [name for name in LOADING if name in kept and getattr(loading, name) != getattr(usual, name)]
    return " ".join([*(typed(loading, name) for name in changed), *loading.placement.flags])


def typed(settings: DecodeSettings | ModelSettings, name: str) -> str:
    """One field of settings as a flag."""
    flag, value = spellings(name)[0], getattr(settings, name)
    if isinstance(value, bool):
        return flag if value else f"--no-{flag.removeprefix('--')}"
    return f"{flag} {(','.join(value) or 'none') if isinstance(value, tuple) else value}"


def _sensible(back: int) -> list[DecodeSettings]:
    """All settings but auto's own; without lookahead where only chains can be taken back, and so far only."""
    autos = [DecodeSettings(mode="auto", sources=sources) for sources in FEWER]
    chains = [
        DecodeSettings(mode="lookup", lookup_match=match, lookup_draft=draft)
        for match, draft in product(MATCHES, DRAFTS)
    ]
    if back >= 0:
        return [replace(each, back=back) for each in [*autos, *(one for one in chains if one.lookup_draft <= back)]]
    sizes = product(WINDOWS, NGRAMS, GUESSES)
    trees = [
        DecodeSettings(mode="lookahead", window=window, ngram=ngram, guesses=guesses)
        for window, ngram, guesses in sizes
        if _balanced(window, guesses)
    ]
    return [*autos, *chains, *trees]


def _balanced(window: int, guesses: int) -> bool:
    """About as many guesses as columns, which find them: G = W in the paper. Without a window the text has them."""
    return not window or window / 2 <= guesses <= 2 * window


def _fits(settings: DecodeSettings, loading: ModelSettings) -> bool:
    try:
        check_rows(settings, loading)
    except UsageError:
        return False
    return True


def _hopeless(staircase: Staircase, settings: DecodeSettings) -> bool:
    """Whether a full step costs more plain ones than the tokens that it can bring; auto's are full where that pays."""
    # More rows than were measured cost no less than the most that were.
    needed = staircase.break_even(settings) or staircase.relative(staircase.most_rows)
    return settings.mode != "auto" and needed > settings.most_tokens


def _expected(staircase: Staircase | None, settings: DecodeSettings) -> float:
    """It only orders what is tried, and says about how long that takes: the text decides what a guess is worth."""
    if settings.mode == "auto" or not staircase:
        return 1.0
    gamma, sequences = (
        (settings.lookup_draft, 1) if settings.mode == "lookup" else (settings.ngram - 1, settings.guesses)
    )
    rows = settings.most_rows
    return PAPER.compression(gamma, sequences) / staircase.relative(rows, min(settings.most_outputs, rows))
