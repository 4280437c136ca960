"""Errors for users: what happened, a hint about what to do, and an exit code. Programming errors stay `assert`."""

from __future__ import annotations


class LacliError(Exception):
    """An error to show the user. `what`: what happened. `hint`: what to do, or "". Both have one line."""

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} ({self.hint})" if self.hint else self.what


def reason_of(error: Exception) -> str:
    """Return the operating system's message for an error; if it has none, the error's own text."""
    return getattr(error, "strerror", None) or str(error)


def in_one_line(error: Exception) -> str:
    """Return an error's message without line breaks, or the name of its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


class ModelLoadError(LacliError):
    """The model file is missing, broken or of a kind that lacli cannot run."""


class BatchRefused(LacliError):
    """llama.cpp refuses a batch as invalid: a fault of lacli or llama.cpp, not of the user."""


class PromptError(LacliError):
    """The prompt is empty, unreadable or too long, or the chat template fails."""


class OutputError(LacliError):
    """The answer cannot be written to standard output."""


class NumbersError(LacliError):
    """The model computed NaN or infinite logits."""


class SamplingError(LacliError):
    """The sampler has no token left to choose, because of a grammar or biases for example."""


class UsageError(LacliError):
    """Options or fields of a request contradict each other or are out of range."""

    exit_code = 2


class Interrupted(LacliError):
    """The user pressed Ctrl-C; the text printed so far stays."""

    exit_code = 130
