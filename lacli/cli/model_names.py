"""What MODEL may become when the user presses Tab: aliases, and the GGUF files and folders below what is typed.

Called by the shell on every Tab, so nothing slow is imported here, and nothing is said about what cannot be read.
"""

from __future__ import annotations

import os
import re

LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf\Z")
"""The end of a split model's file that is not the first."""


def complete_model(incomplete: str) -> list[str]:
    """The names that begin with what is typed: aliases first, then paths."""
    found = [*_aliases(incomplete), *_paths(incomplete)]
    # The other shells quote what they insert.
    return [_quoted(name) for name in found] if os.environ.get("_LACLI_COMPLETE") == "complete_bash" else found


def _quoted(name: str) -> str:
    return re.sub(r"([^\w@%+=:,./~-])", r"\\\1", name)


def _aliases(incomplete: str) -> list[str]:
    from lacli.cli.folders import own_aliases
    from lacli.errors import LacliError
    from lacli.hub.aliases import read_aliases

    try:
        return sorted(name for name in read_aliases(own_aliases()) if name.startswith(incomplete))
    except (OSError, LacliError):
        return []


def _paths(incomplete: str) -> list[str]:
    """GGUF files and folders; a folder that is the only choice is entered, since the shell would end the word there."""
    found = _entries(incomplete)
    while len(found) == 1 and found[0].endswith("/"):
        inside = _entries(found[0])
        if not inside:
            break
        found = inside
    return found


def _entries(typed: str) -> list[str]:
    base, slash, begin = typed.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(base + slash) or ".") as entries:
            return sorted(
                f"{base}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
                for entry in entries
                if entry.name.startswith(begin)
                and (begin or not entry.name.startswith("."))
                and (entry.is_dir() or _is_model(entry.name))
            )
    except OSError:
        return []


def _is_model(name: str) -> bool:
    return name.endswith(".gguf") and not LATER_PART.search(name)
