"""lacli on a terminal, as somebody talks with it: a line is sent at the prompt, and what is shown for it comes back.

No test lives here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tests.program import PROGRAM, on_terminal, terminal_code

PASTES, TAKEN = "\x1b[?2004h", "\x1b[?2004l"
"""Marks of pastes are asked for before the prompt is drawn and behind it, and not once it has a line."""

DRAWN = re.compile(r"\x1b\[\?2004h(?:\x1b\[\?1l)?\x1b\[\?25l")
"""The beginning of a prompt: pastes are marked and the cursor is hidden."""

CODES = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b\]52;[^\a]*\a")
ENTER, UP = "\r", "\x1b[A"
CTRL_C, CTRL_D = "\x03", "\x04"


class ChatTerminal:
    """A chat at its prompt.

    greeting: what it showed before the first prompt. drawn: what the last prompt had drawn when it was left, its codes
    included; raw: what was shown between the last two prompts, likewise.
    """

    def __init__(
        self, *arguments: str, env: Mapping[str, str], columns: int = 400, program: Sequence[str] = PROGRAM
    ) -> None:
        self.process = on_terminal(*arguments, env=env, columns=columns, program=program)
        self.process.delaybeforesend = None
        self.drawn = self.raw = ""
        self.greeting = self.shown()

    def says(self, line: str) -> str:
        """What is shown for a line."""
        return self.press(line + ENTER)

    def press(self, keys: str) -> str:
        """What is shown for keys that take the prompt away."""
        self.send(keys)
        return self.shown()

    def send(self, keys: str) -> None:
        """Keys that take the prompt away; what comes then is not waited for."""
        self.process.send(keys)
        self.process.expect_exact(TAKEN)
        self.drawn = self.process.before

    def sees(self, text: str) -> str:
        """Wait for a text; what came before it and the text itself."""
        self.process.expect_exact(text)
        return plain(self.process.before + text)

    def shown(self) -> str:
        """What is shown until the next prompt."""
        self.process.expect(DRAWN)
        self.raw = self.process.before
        return plain(self.raw)

    def ends(self, keys: str = CTRL_D) -> int:
        """The exit code after these keys, which have to end it without a traceback."""
        self.process.send(keys)
        assert "Traceback" not in self.process.read()
        self.process.close()
        return terminal_code(self.process)


def plain(shown: str) -> str:
    """Text as a person reads it: without codes and the mark of Ctrl-C, and with plain line ends."""
    return CODES.sub("", shown).replace("^C", "").replace("\r\n", "\n")
