"""A program that reads a chat's lines and shows each as Python writes it, for tests that drive it on a terminal.

Arguments: --history FILE, --color auto|on|off, --editor COMMAND, --status TEXT, --edit TEXT (offered after "again").
"""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from pathlib import Path

from lacli.chat.adjust import choices
from lacli.chat.commands import argument_of, names
from lacli.chat.completion import Vocabulary
from lacli.chat.keys import KEYS
from lacli.chat.lines import Editing, Lines
from lacli.chat.reader import open_lines
from lacli.errors import LacliError
from lacli.settings import MODES
from lacli.terminal.screen import Screen


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--history", type=Path)
    parser.add_argument("--color", default="auto")
    for name in ("--editor", "--status", "--edit"):
        parser.add_argument(name, default="")
    wanted = parser.parse_args()
    vocabulary = Vocabulary({name: argument_of(name) for name in names()}, KEYS, choices, MODES)
    editing = Editing(
        vocabulary,
        warn=Screen().note,
        history=wanted.history,
        status=lambda width: wanted.status[:width] or None,
        editor=wanted.editor,
        color=wanted.color,
    )
    with open_lines(editing) as lines:
        show(lines, wanted.edit)


def show(lines: Lines, edit: str) -> None:
    while True:
        try:
            read = lines.read()
        except EOFError:
            print("the end")
            break
        except KeyboardInterrupt:
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            print("interrupted")
            continue
        except LacliError as error:
            print(f"error: {error}")
            continue
        print(f"read {read!r}")
        if read == "again":
            lines.edit(edit)


if __name__ == "__main__":
    main()
