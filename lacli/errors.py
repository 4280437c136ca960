"""Errors that a user can cause: what happened, what to do about it, and an exit code.

Programming errors are not here: they stay `assert` and a traceback.
"""

from __future__ import annotations


class LacliError(Exception):
    """An error that the user can fix; `hint` says how, in one line."""

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} ({self.hint})" if self.hint else self.what


def reason_of(error: Exception) -> str:
    """The system's own words for an error."""
    return getattr(error, "strerror", None) or str(error)


def in_one_line(error: Exception) -> str:
    """An error's message without line breaks, or the name of its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


class ModelLoadError(LacliError):
    """The model file is missing, broken or of a kind that lacli cannot run."""


class BatchRefused(LacliError):
    """llama.cpp calls a batch invalid, which no user can cause."""


class PromptError(LacliError):
    """The prompt is empty, unreadable or longer than the context."""


class OutputError(LacliError):
    """Standard output cannot take the answer."""


class NumbersError(LacliError):
    """The model computed NaN or infinite logits."""


class SamplingError(LacliError):
    """The sampler has no token left to choose."""


class UsageError(LacliError):
    """Options contradict each other or are out of range."""

    exit_code = 2


class Interrupted(LacliError):
    """The user pressed Ctrl-C; the text printed so far stays."""

    exit_code = 130
