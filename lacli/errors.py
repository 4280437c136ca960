"""The errors a user can cause, each with what happened, what to do about it and an exit code.

Programming errors are not here: they stay `assert` and a traceback.
"""

from __future__ import annotations


class LacliError(Exception):
    """Something the user can mend; `hint` says how, in one line."""

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} ({self.hint})" if self.hint else self.what


def reason_of(error: Exception) -> str:
    """What the system says went wrong, in its own words."""
    return getattr(error, "strerror", None) or str(error)


def in_one_line(error: Exception) -> str:
    """An error's message without line breaks; the name of its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


class ModelLoadError(LacliError):
    """The model file is missing, broken or of a kind that lacli cannot run."""


class BatchRefused(LacliError):
    """llama.cpp says that a batch is invalid, which no user can cause."""


class PromptError(LacliError):
    """The prompt is empty, unreadable or longer than the context."""


class OutputError(LacliError):
    """Standard output cannot take the answer."""


class NumbersError(LacliError):
    """The model has computed NaN or infinite logits."""


class SamplingError(LacliError):
    """The sampler has no token left to choose from."""


class UsageError(LacliError):
    """Options that contradict each other or leave their range."""

    exit_code = 2


class Interrupted(LacliError):
    """The user pressed Ctrl-C; what was printed stays."""

    exit_code = 130
