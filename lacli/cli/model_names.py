"""What Tab completes: MODEL to aliases and models of the hub's cache; chat templates and modes.

The shell completes files itself where no name fits. It runs this on every Tab, so nothing slow is imported, and what
cannot be read is passed over in silence.
"""

from __future__ import annotations


def complete_model(incomplete: str) -> list[str]:
    """Aliases and models of the hub's cache that begin with what is typed, in this order."""
    from lacli.errors import LacliError
    from lacli.hub.names import own_aliases, read_aliases

    try:
        aliases = sorted(name for name in read_aliases(own_aliases()) if name.startswith(incomplete))
    except (OSError, LacliError):
        aliases = []
    return [*aliases, *complete_stored(incomplete)]


def complete_stored(incomplete: str) -> list[str]:
    """The models of the hub's cache alone."""
    from lacli.hub.cache import cached_models

    try:
        return [model.name for model in cached_models(headers=False) if model.name.startswith(incomplete)]
    except OSError:
        return []


def complete_modes(incomplete: str) -> list[str]:
    """The modes that begin with the last of several words with commas between them."""
    from lacli.settings import MODES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{mode}" for mode in MODES if mode.startswith(last)]


def complete_template(incomplete: str) -> list[str]:
    """The bundled chat templates that begin with what is typed."""
    from lacli.text.template import STOPS

    return [name for name in STOPS if name.startswith(incomplete)]
