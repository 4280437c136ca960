"""Habits of other tools: names of commands that others use, and llama.cpp's flags that are not needed here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from lacli.cli.environment import BARE
from lacli.errors import UsageError

COMMANDS = {"ls": "list", "models": "list", "remove": "rm", "download": "pull", "version": "--version"}
"""Commands of ollama and others, by what they are called here."""

FLAGS = {
    **dict.fromkeys(("--context", "--context-length", "--num-ctx", "--n-ctx"), ("--ctx-size",)),
    "--num-gpu": ("--gpu-layers",),
    **dict.fromkeys(("--format", "--schema"), ("--json-schema", "--json")),
    "--perf": ("--stats",),
    **dict.fromkeys(("-lv", "--verbosity", "--log-verbosity"), ("--verbose",)),
}
"""Flags of other programs that look like none here, by what they are called here; the first that a command has."""

ALREADY_SO = (
    *("--jinja", "--mmap", "--no-display-prompt", "--log-disable", "--no-warmup", "--simple-io"),
    *("--no-escape", "-st", "--single-turn"),
)
"""llama.cpp's flags for what lacli always does."""

REFUSED = {
    "--no-mmap": ("model files are always mapped into memory here", "leave it out"),
    **dict.fromkeys(
        ("-e", "--escape"), ("texts are taken as they stand, backslashes too", "$'a\\nb' has a line break in bash")
    ),
    **dict.fromkeys(
        ("-no-cnv", "--no-conversation"),
        ("a prompt goes through the model's chat template here", "--raw goes without"),
    ),
    **dict.fromkeys(
        ("-md", "--model-draft", "--draft-max", "--draft-min", "--draft"),
        ("lacli needs no draft model", "leave it out"),
    ),
    **dict.fromkeys(("--mmproj", "--image"), ("a prompt is a text here", "leave it out")),
    **dict.fromkeys(("--samplers", "--sampling-seq"), ("samplers have llama.cpp's usual order here", "leave it out")),
    "--prompt-cache": ("what a prompt begins with is not kept between runs", "lacli chat and lacli serve keep it"),
    **dict.fromkeys(("-ub", "--ubatch-size"), ("llama.cpp's own size is used, 512 rows", "-b bounds a call's rows")),
    **dict.fromkeys(("-np", "--parallel"), ("one text is decoded at a time", "leave it out")),
    **dict.fromkeys(("-r", "--reverse-prompt"), ("an answer ends before --stop TEXT here", "write --stop")),
    **dict.fromkeys(
        ("--continue", "--resume"),
        ("nothing is kept of a chat that was not saved", "/save or --log keep it, --load FILE"),
    ),
    "--keep": ("a chat keeps its system prompt when it drops its oldest turns", "leave it out"),
    "--lora": ("adapters are not loaded", "merge it into the model's file with llama-export-lora"),
    "--log-file": ("the log goes to standard error", "2>>FILE adds it to a file"),
    "--mlock": ("memory is not locked", "leave it out"),
    "--numa": ("memory is not placed by socket", "numactl does it"),
}
"""llama.cpp's flags for what lacli does not do: what is so here, and what to do."""


ONCE = {"prompt": "-f adds a file to it", "file": "cat A B | lacli run reads several"}
"""Options of a prompt's parts, and what to do in place of a second one, which would replace the first."""


def translated(arguments: Sequence[str]) -> list[str]:
    """The command line with lacli's own name of the command. Raises UsageError for a command that lacli has not."""
    first, *others = arguments or ["--help"]
    if first == "help":
        return translated([*others[:1], "--help"])
    if first in ("ps", "stop"):
        raise UsageError(f"{first}: no model stays loaded between commands", "lacli list shows the models on this disk")
    return [COMMANDS.get(first, first), *others]


def understood(arguments: Iterable[str], parameters: Sequence[Any]) -> tuple[list[str], str]:
    """The arguments of a command without flags that change nothing, and the first one that is no flag of it or "".

    Typer takes what follows a flag of one letter as its value: -ng would be -n with the value g, and -hff a call for
    help. Here that value begins with a digit or a sign (-W15, -n-1), and letters are flags of their own without
    values (-qv). Raises UsageError for one of llama.cpp's flags that lacli refuses, and for a second part of a prompt.
    """
    takes_value = {
        name: not each.is_flag
        for each in parameters
        if each.param_type_name == "option"
        for name in (*each.opts, *each.secondary_opts)
    }
    names = {flag: each.name for each in parameters if each.param_type_name == "option" for flag in each.opts}
    kept: list[str] = []
    seen: set[str] = set()
    words = iter(arguments)
    for word in words:
        flag = word.partition("=")[0]
        name = names.get(flag, "")
        if name in ONCE and name in seen:
            raise UsageError(f"{flag} is given twice", f"{ONCE[name]}; drop one of them")
        seen.add(name)
        if flag in REFUSED and flag not in takes_value:
            what, hint = REFUSED[flag]
            raise UsageError(f"{word}: {what}", hint)
        if word in ALREADY_SO and word not in takes_value:
            continue
        kept.append(word)
        if word == "--":
            break
        last = word if word in takes_value else _last_letter(word, takes_value)
        if last is None:
            return kept, word
        if takes_value.get(last) and last not in BARE:
            kept += islice(words, 1)
    return [*kept, *words], ""


def _last_letter(word: str, takes_value: dict[str, bool]) -> str | None:
    """The flag at the end of letters behind one dash; "" where they end in a value, None where one is no flag."""
    if word[:1] != "-" or word[:2] == "--" or not word[1:2].isalpha() or word.partition("=")[0] in takes_value:
        return ""
    for place, letter in enumerate(word[1:], start=1):
        flag = f"-{letter}"
        if flag not in takes_value or (letter == "h" and len(word) > 2):
            return None
        if takes_value[flag] and word[place + 1 :]:
            return None if word[place + 1].isalpha() else ""
    return flag
