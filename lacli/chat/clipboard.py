"""Text into the clipboard: through the system's own mechanism, or through the terminal.

Nothing is read from the clipboard but to see whether the text arrived.
"""

from __future__ import annotations

import base64
import sys
from subprocess import SubprocessError
from typing import TextIO

from lacli.errors import LacliError
from lacli.llamacpp.library import captured_stderr
from lacli.terminal.screen import console
from lacli.text.files import is_terminal

MOST_BYTES = 74_994
"""UTF-8 bytes for a terminal: many drop an OSC 52 sequence of more than 100,000, which base64 reaches here."""

INSTALL = "install wl-clipboard (Wayland) or xclip (X11), or keep it with /save"


def copy(text: str, terminal: TextIO | None = None) -> str:
    """Put text into the clipboard and say in a sentence how. terminal: stdout unless given.

    Raises LacliError where there is no way, or where the text is too long for the only one.
    """
    if _copied_by_system(text):
        return "copied to the clipboard"
    terminal = sys.stdout if terminal is None else terminal
    if not is_terminal(terminal) or console(terminal, "auto").is_dumb_terminal:
        raise LacliError("there is no clipboard here", INSTALL)
    raw = text.encode()
    if len(raw) > MOST_BYTES:
        what = f"the text has {len(raw):,} bytes, and terminals take {MOST_BYTES:,} for the clipboard"
        raise LacliError(what, INSTALL)
    terminal.write(f"\x1b]52;c;{base64.b64encode(raw).decode()}\a")
    terminal.flush()
    return "sent to the terminal's clipboard (OSC 52), which the terminal must allow"


def _copied_by_system(text: str) -> bool:
    """Whether the system's clipboard holds the text now."""
    import pyperclip

    try:
        # A program that finds no display complains on stderr and fails without pyperclip noticing.
        with captured_stderr():
            pyperclip.copy(text)
            return _lines(pyperclip.paste()) == _lines(text)
    except (RuntimeError, OSError, ValueError, AssertionError, SubprocessError):
        return False


def _lines(text: str) -> list[str]:
    """Without the differences that clipboards make: line ends, and the last one."""
    return text.rstrip().splitlines()
