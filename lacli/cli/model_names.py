"""What Tab completes: MODEL to aliases, models of the hub's cache, GGUF files and folders; chat templates and modes.

The shell runs this on every Tab, so nothing slow is imported, and what cannot be read is passed over in silence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf\Z")
"""The end of the name of a split model's file that is not the first."""


def complete_model(incomplete: str) -> list[str]:
    """Aliases, models of the hub's cache and paths that begin with what is typed, in this order."""
    return _for_shell([*_aliases(incomplete), *_stored(incomplete), *_paths(incomplete, _is_model)])


def complete_name(incomplete: str) -> list[str]:
    """The same without paths."""
    return _for_shell([*_aliases(incomplete), *_stored(incomplete)])


def complete_stored(incomplete: str) -> list[str]:
    """The models of the hub's cache alone."""
    return _for_shell(_stored(incomplete))


def complete_modes(incomplete: str) -> list[str]:
    """The modes that begin with the last of several words with commas between them."""
    from lacli.settings import MODES

    before, comma, last = incomplete.rpartition(",")
    return _for_shell([f"{before}{comma}{mode}" for mode in MODES if mode.startswith(last)])


def complete_template(incomplete: str) -> list[str]:
    """The bundled chat templates, files and folders that begin with what is typed."""
    from lacli.text.template import STOPS

    bundled = [name for name in STOPS if name.startswith(incomplete)]
    return _for_shell([*bundled, *_paths(incomplete, _is_template)])


def _for_shell(found: list[str]) -> list[str]:
    # The other shells quote what they insert.
    return [_quoted(name) for name in found] if os.environ.get("_LACLI_COMPLETE") == "complete_bash" else found


def _quoted(name: str) -> str:
    return re.sub(r"([^\w@%+=:,./~-])", r"\\\1", name)


def _aliases(incomplete: str) -> list[str]:
    from lacli.errors import LacliError
    from lacli.hub.names import own_aliases, read_aliases

    try:
        return sorted(name for name in read_aliases(own_aliases()) if name.startswith(incomplete))
    except (OSError, LacliError):
        return []


def _stored(incomplete: str) -> list[str]:
    from lacli.hub.cache import cached_models

    try:
        found = cached_models(headers=False)
        return [model.name for model in found if model.name.startswith(incomplete)]
    except OSError:
        return []


def _paths(incomplete: str, is_wanted: Callable[[str], object]) -> list[str]:
    """Wanted files, and folders; a folder that is the only choice is entered, because the shell would end the word."""
    found = _entries(incomplete, is_wanted)
    while len(found) == 1 and found[0].endswith("/"):
        inside = _entries(found[0], is_wanted)
        if not inside:
            break
        found = inside
    return found


def _entries(typed: str, is_wanted: Callable[[str], object]) -> list[str]:
    base, slash, begin = typed.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(base + slash) or ".") as entries:
            return sorted(
                f"{base}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
                for entry in entries
                if entry.name.startswith(begin)
                and (begin or not entry.name.startswith("."))
                and (entry.is_dir() or is_wanted(entry.name))
            )
    except OSError:
        return []


def _is_model(name: str) -> bool:
    return name.endswith(".gguf") and not LATER_PART.search(name)


def _is_template(name: str) -> bool:
    return name.endswith((".jinja", ".jinja2", ".j2"))
