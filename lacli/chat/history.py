"""The file of earlier lines, which must never be in a chat's way: what is wrong with it is said once.

prompt_toolkit's own format; only `terminal.py` imports this, so that other readers start without prompt_toolkit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from errno import EFBIG
from pathlib import Path

from prompt_toolkit.history import FileHistory

from lacli.errors import reason_of
from lacli.text.files import MAX_TEXT, UnfitFile
from lacli.text.format import size_in_words

LINE_STARTS = (b"+", b"#", b"\n")
"""Every line of such a file: typed text, a time, a blank."""


class CarefulHistory(FileHistory):
    """A history file that is read if it is one, and written for its owner alone; else lines are kept in memory.

    warn: receives a sentence, once. A file that holds something else is never written to.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._trouble = ""
        self._on_disk = True
        super().__init__(path)
        # Reading it while the prompt is drawn would put the warning into the prompt.
        self._loaded_strings = list(self.load_history_strings())
        self._loaded = True
        self.say_trouble()

    def load_history_strings(self) -> Iterable[str]:
        """Earlier lines, the newest first; none where the file is not what it should be."""
        try:
            if _is_history(self._path):
                return super().load_history_strings()
            self._give_up("it is not a history file")
        except FileNotFoundError:
            pass
        except OSError as error:
            self._give_up(reason_of(error))
        return []

    def store_string(self, string: str) -> None:
        """Append a line to the file."""
        if not self._on_disk:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
            super().store_string(string)
        except OSError as error:
            self._give_up(reason_of(error))

    def say_trouble(self) -> None:
        """Give the warning, if there is one; the prompt must not be on the screen."""
        if self._trouble:
            self._warn(self._trouble)
            self._trouble = ""

    def _give_up(self, reason: str) -> None:
        self._on_disk = False
        self._trouble = f"lines are not kept after this chat: {self._path}: {reason}"


def _is_history(path: Path) -> bool:
    """Whether every line looks like one of a history; the last one may have been cut off."""
    # A device or a pipe may have no end; a link to /dev/null is how many people keep no history.
    if path.exists() and not (path.is_file() or path.is_dir() or path.samefile(os.devnull)):
        return False
    if path.stat().st_size > MAX_TEXT:
        raise UnfitFile(EFBIG, f"it is larger than {size_in_words(MAX_TEXT)}")
    with path.open("rb") as file:
        return all(line.startswith(LINE_STARTS) for line in file)
