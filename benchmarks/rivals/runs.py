"""What one answer of another program cost, and the flags and failures that all of them share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lacli.errors import LacliError
from lacli.llamacpp.settings import ModelSettings

ALL_LAYERS = 999
"""For -ngl: more layers than a model has, which every version of llama.cpp takes as all."""

ENDS_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""A program that asks Linux to be killed when its parent ends (PR_SET_PDEATHSIG), and becomes another one."""

PREFIX = re.compile(r"^[\d.]+ [A-Z] ")
FAILURE = re.compile(r"error|fail|couldn't|cannot|assert|invalid", re.IGNORECASE)


@dataclass(frozen=True)
class RivalRun:
    """One answer by another program's own count and clock.

    tokens: those generated in `seconds`; a first token that comes out of the prefill is not among them. steps: the
    decode calls that brought them. drafted: guesses, None where the program does not say. prompt_s: the prefill, which
    `seconds` leaves out. ids: all generated tokens, text: the same as text with special tokens; None where the
    program does not give them.
    """

    tokens: int
    seconds: float
    steps: int
    accepted: int
    drafted: int | None
    prompt_tokens: int
    prompt_s: float
    ids: tuple[int, ...] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Patience:
    """How long a program may take, in seconds: to load the model, to answer, to end when it is asked to."""

    start_s: float = 300.0
    answer_s: float = 900.0
    end_s: float = 5.0


PATIENCE = Patience()


def shared_flags(model: Path, model_settings: ModelSettings, *, offloaded: bool) -> list[str]:
    """The flags that make a program load a model as lacli does; context and threads must be known, not 0.

    offloaded: whether lacli computes on a GPU. Where it does not, neither may they.
    """
    assert model_settings.context and model_settings.threads, "rivals get the context and the threads that lacli chose"
    pairs = {
        "-m": model,
        "-c": model_settings.context,
        "-t": model_settings.threads,
        "-tb": model_settings.threads_batch or model_settings.threads,
        "-ngl": 0 if not offloaded else ALL_LAYERS if model_settings.gpu_layers < 0 else model_settings.gpu_layers,
        "-fa": model_settings.attention(on_gpu=offloaded),
        "-ctk": model_settings.cache_type_k,
        "-ctv": model_settings.cache_type_v,
    }
    flags = [str(part) for pair in pairs.items() for part in pair]
    if not offloaded:
        flags += ["--device", "none"]
    return flags if model_settings.repack else [*flags, "--no-repack"]


def tied(command: Sequence[str]) -> list[str]:
    """The command so that what it starts ends with this process, even if that is killed; on Linux."""
    return [sys.executable, "-IS", "-c", ENDS_WITH_PARENT, *command] if sys.platform == "linux" else [*command]


def environment() -> dict[str, str]:
    """This process's environment without llama.cpp's own settings, which would change what is compared."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}


def failed(program: str, code: int, log: str) -> LacliError:
    """The error for a program that ended by itself: its exit code (negative: a signal) and its last words."""
    end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    words = last_words(log)
    return LacliError(f"{program} {end}{': ' + words if words else ''}", "the same flags by hand show more")


def last_words(log: str) -> str:
    """The last line that speaks of a failure, or that says anything, without llama.cpp's time and level."""
    lines = [PREFIX.sub("", line).strip() for line in log.splitlines()]
    telling = [line for line in lines if FAILURE.search(line) and "exiting due to" not in line]
    return (telling or [line for line in lines if line] or [""])[-1]
