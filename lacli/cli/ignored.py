"""What a user gave and nobody reads: flags without effect beside the others, and variables that no flag has.

Of flags without effect only typed ones are named; the environment is for all runs, and may hold what one of them does
not need. Keys of a server are named: who may ask is nothing to guess.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import typer

from lacli.cli.environment import known_variables, unknown_variables, variable_of, without_variable
from lacli.cli.groups import typed
from lacli.llamacpp.devices import beyond_cores
from lacli.settings import decode_settings, spellings
from lacli.text.format import listed, no_effect

NARROWING = ("top_k", "top_p", "min_p", "typical", "top_nsigma", "xtc_probability", "dynatemp_range")
PENALTIES = ("repeat_penalty", "presence_penalty", "frequency_penalty")

NEEDED: dict[str, tuple[str, ...]] = {
    "xtc_threshold": ("xtc_probability",),
    "dynatemp_exp": ("dynatemp_range",),
    "repeat_last_n": PENALTIES,
    **dict.fromkeys(
        ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breaker"), ("dry_multiplier",)
    ),
    **dict.fromkeys(("mirostat_lr", "mirostat_ent"), ("mirostat",)),
    "at_a_time": ("prompts",),
}
"""Options that only change what one of others does."""

KEYS = ("api_key", "api_key_file", "no_auth")
"""Options of a server's keys: one that is typed replaces those of the environment."""

OF_GPUS = ("gpu_layers", "split_mode")

ESCAPES = {r"\n": "a line break", r"\r": "a carriage return", r"\t": "a tab"}

ANSWERING = ("run", "chat", "check")
"""Commands that decode in the mode that is given."""


def tell(context: typer.Context) -> None:
    """Print a note for each reason that typed flags have no effect, and for each variable that is probably a slip."""
    sentences = [
        *without_effect(context),
        *replaced_keys(context),
        *escaped_stops(context),
        *too_many_threads(context),
        *unread_variables(context),
    ]
    if sentences and not context.params.get("quiet"):
        from lacli.terminal.screen import Screen

        screen = Screen(color=context.params.get("color", "auto"))
        for sentence in sentences:
            screen.note(sentence)


def escaped_stops(context: typer.Context) -> list[str]:
    """A sentence on the first --stop with a backslash escape, which other programs would expand."""
    for stop in context.params.get("stop") or ():
        if found := re.search(r"\\[nrt](?![a-z])", stop):
            return [f"--stop '{stop}' keeps its backslash; {ESCAPES[found[0]]} is $'{found[0]}' in bash"]
    return []


def without_effect(context: typer.Context) -> list[str]:
    """A sentence for each reason that typed flags do nothing."""
    given = {each.name: each for each in context.command.params if each.name in typed(context)}
    flags: dict[str, list[str]] = {}
    for name, reason in _idle(context, given).items():
        if name in given:
            own = given[name]
            is_no = context.params[name] is False and own.secondary_opts
            flags.setdefault(reason, []).append(own.secondary_opts[0] if is_no else own.opts[0])
    return [f"{no_effect(names)} {reason}" for reason, names in flags.items()]


def replaced_keys(context: typer.Context) -> list[str]:
    """A sentence on a server's keys in the environment where others are typed."""
    own = {each.name: each for each in context.command.params if each.name in KEYS and "no_auth" in context.params}
    given = [own[name].opts[0] for name in typed(context).intersection(own)]
    found = [name for each in own.values() if (name := variable_of(context, each))]
    return [f"{no_effect(found)} with {listed(sorted(given))}"] if given and found else []


def too_many_threads(context: typer.Context) -> list[str]:
    """A sentence on a -t that is more than the cores open to this process, and on the variable that sets it."""
    if not (told := beyond_cores(context.params.get("threads") or 0)):
        return []
    variable = variable_of(context, _option(context, "threads"))
    return [f"{told}: its threads wait for each other{f'; {variable} sets it' if variable else ''}"]


def _idle(context: typer.Context, given: Mapping[str, Any]) -> dict[str, str]:
    """Why options have no effect, by their names; the first reason counts."""
    params = context.params
    idle = _idle_in_mode(context) if context.info_name in ANSWERING else {}
    if params.get("mirostat"):
        idle |= dict.fromkeys((*NARROWING, *PENALTIES, "dry_multiplier"), "with --mirostat")
    elif params.get("temp") == 0:
        from lacli.llamacpp.sampling import NEEDS_TEMPERATURE

        drawn = () if params["xtc_probability"] else ("seed",)
        idle = dict.fromkeys((*NEEDS_TEMPERATURE, "verify", *drawn), "at temperature 0; --temp sets it") | idle
    for name, needed in NEEDED.items():
        if name in params and not any(_is_set(context, other) for other in needed):
            idle.setdefault(name, f"without {listed([spellings(other)[0] for other in needed], 'or')}")
    if "show_accepted" in given and (why := _colourless(params)):
        idle["show_accepted"] = why
    if not given.keys().isdisjoint(OF_GPUS) and params["gpu_layers"] != 0 and not params.get("rpc") and not _has_gpu():
        idle |= dict.fromkeys(OF_GPUS, "here: llama.cpp finds no GPU (lacli doctor)")
    return idle


def _idle_in_mode(context: typer.Context) -> dict[str, str]:
    from lacli.chat.settings import UNUSED

    params = context.params
    if context.info_name == "check" and params["mode"] is None:
        return {}
    chosen = {name: params[name] for name in ("mode", "window", "ngram", "guesses")}
    mode = decode_settings(params["preset"], **chosen).mode
    setter = _option(context, "mode")
    variable = variable_of(context, setter) if setter else ""
    reason = f"in mode {mode}" + (f"; {variable} sets --mode" if variable else "")
    unused = [*UNUSED[mode], *(("verify", "show_accepted") if mode == "plain" else ())]
    if "window" in unused:
        unused.append("preset")
    return dict.fromkeys(unused, reason)


def _option(context: typer.Context, name: str) -> Any:
    """The command's option of this name, None where it has none."""
    return next((each for each in context.command.params if each.name == name), None)


def _is_set(context: typer.Context, name: str) -> bool:
    """True if an option has another value than its default."""
    parameter = _option(context, name)
    return parameter is not None and context.params[name] != parameter.get_default(context)


def _colourless(params: Mapping[str, Any]) -> str:
    """Why nothing is coloured; "" where it is."""
    from lacli.terminal.screen import console

    if params.get("json"):
        return "with --json"
    colored = console(sys.stdout, params["color"]).color_system is not None
    return "" if colored else "where stdout has no colours; --color on writes them all the same"


def _has_gpu() -> bool:
    from lacli.llamacpp.library import devices

    return any(device.is_gpu for device in devices(memory=False))


def unread_variables(context: typer.Context) -> list[str]:
    """A sentence for each variable that no option of any command reads; `lacli doctor` has them in its report."""
    from lacli.cli.main import commands, program

    if context.info_name == "doctor" or not unknown_variables(os.environ, known_variables({"": context.command})):
        return []
    # Most are of `run`; the modules of the others take 50 ms more.
    some = getattr(typer.main.get_command(program(["run", "chat"])), "commands", {})
    if not unknown_variables(os.environ, known_variables(some)):
        return []
    every = commands()
    found = unknown_variables(os.environ, known_variables(every), without_variable(every))
    return [f"no flag reads {name}: {hint}" if hint else f"no flag reads {name}" for name, hint in found.items()]
