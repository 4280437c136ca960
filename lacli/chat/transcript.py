"""--log FILE: a chat written down as it goes, one JSON object a line.

Each line has the time and an event. Enough is written that `logged.py` can rebuild the conversation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Conversation, Message
from lacli.chat.logged import (
    BEGINNING_BYTES,
    FORMAT,
    VERSION,
    is_log,
)
from lacli.chat.saved import messages_json, settings_json
from lacli.errors import LacliError, reason_of
from lacli.session.generation import Answer
from lacli.text.files import Closing, for_owner


class Transcript(Closing):
    """A file that grows by a line for each thing that happens in a chat.

    Its methods return a sentence to show when the file cannot be written any more, once, and else an empty text: a
    full disk must not end a chat. clock: the time of a line.
    """

    def __init__(self, path: str, clock: Callable[[], datetime]) -> None:
        """Open a file to add to it. Raises LacliError when that cannot be done, and for a file that is no log."""
        self._path = path
        self._clock = clock
        self._ended = False
        name = os.path.expanduser(path)
        try:
            torn = False
            if os.path.isfile(name):
                _refuse_others(name, path)
                torn = _is_torn(name)
            self._file = open(name, "ab", buffering=0, opener=for_owner)  # noqa: SIM115  # closed by close()
        except (OSError, ValueError) as error:
            raise LacliError(
                f"cannot write the log {path}: {reason_of(error)}", "give another file to --log"
            ) from error
        if torn:
            self._write(b"\n")

    def begin(
        self, model: str, template: str, system: str, adjusted: Adjusted, messages: Sequence[Message] = ()
    ) -> str:
        """A session starts: its model as the user typed it, its settings, and what a loaded chat brings along."""
        return self._add(
            "session",
            format=FORMAT,
            version=VERSION,
            model=model,
            template=template,
            system=system,
            messages=messages_json(messages),
            settings=settings_json(adjusted),
        )

    def message(self, message: Message, answer: Answer | None = None) -> str:
        """A message is complete. answer: what it cost, for the model's own."""
        numbers: dict[str, Any] = {}
        if answer:
            run = answer.statistics
            numbers = {
                "finish_reason": answer.finish_reason,
                "tokens": run.tokens,
                "tokens_per_step": round(run.tokens_per_step, 4),
                "tokens_per_second": round(run.tokens_per_second, 2),
            }
        return self._add("message", role=message.role, content=message.content, **numbers)

    def changed(self, command: str, **what: Any) -> str:
        """A command changed something: undo, regen, clear, system (content), set (changed), compact (dropped)."""
        return self._add(command, **what)

    def loaded(self, file: str, model: str, conversation: Conversation, adjusted: Adjusted) -> str:
        """/load: the conversation and the settings are others now."""
        messages = messages_json(conversation.messages)
        return self._add("load", file=file, model=model, system=conversation.system, messages=messages,
                         settings=settings_json(adjusted))  # fmt: skip

    def close(self) -> None:
        self._file.close()

    def _add(self, event: str, **what: Any) -> str:
        line = {"time": self._clock().isoformat(timespec="milliseconds"), "event": event, **what}
        return self._write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n")

    def _write(self, line: bytes) -> str:
        """Write all of it; after a failure nothing more, since a log with a gap would rebuild another chat."""
        if self._ended:
            return ""
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self._ended = True
            return f"the log {self._path} ends here: {error.strerror}"
        return ""


def _refuse_others(name: str, path: str) -> None:
    """Raise LacliError for a file that holds something else."""
    with open(name, "rb") as file:
        beginning = file.read(BEGINNING_BYTES)
    if beginning and not is_log(beginning):
        raise LacliError(f"{path} exists and is no log of a chat", "give another file to --log")


def _is_torn(name: str) -> bool:
    """Whether a file's last line has no end."""
    with open(name, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
