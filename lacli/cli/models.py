"""`lacli list`, `pull`, `show`, `rm` and `cost`: the models on this disk and on the hub, and their step costs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.options import model_names, with_groups
from lacli.errors import LacliError, ModelLoadError, UsageError
from lacli.hub.names import Alias, HubModel, own_aliases, read_aliases, read_name
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.terminal.input import is_terminal, terminal_columns
from lacli.text.format import listed, printable, size_in_words

if TYPE_CHECKING:
    from lacli.auto.step_cost import Cost
    from lacli.hub.cache import LocalModel

Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL", autocompletion=model_names, help="owner/repo[:quant], or a name of 'lacli list'."),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Remove without asking.")]
Contexts = Annotated[str, typer.Option("--contexts", metavar="TOKENS,..", help="Tokens before a measured step.")]
Rows = Annotated[str, typer.Option("--rows", metavar="ROWS,..", help="Rows of a measured step: 1,4,16,64.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="Limit the measurement to this many seconds.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again instead of showing the saved result.")]


def list_models(json: options.Json = False) -> None:
    """List the models on this disk and the names for MODEL, with file sizes and the memory that running them takes."""
    from lacli.hub.report import inventory_json, inventory_text, take_inventory
    from lacli.terminal.screen import Screen

    screen = Screen()
    found = take_inventory(own_aliases(), screen.note)
    screen.line(inventory_json(found) if json else inventory_text(found, terminal_columns(), time()))


def pull(models: Models, offline: options.Offline = False, quiet: options.Quiet = False) -> None:
    """Download models, or their newest versions, into Hugging Face's cache, and print the paths of their files."""
    from lacli.hub.download import check_file, fetch_model
    from lacli.terminal.screen import Screen

    screen = Screen(quiet=quiet)
    aliases = read_aliases(own_aliases(), screen.note)
    for model in [read_name(name, aliases) for name in models]:
        if isinstance(model, HubModel):
            model = fetch_model(model, offline=offline, quiet=quiet, fresh=not offline, say=screen.note)
        screen.line(str(check_file(model)))


@with_groups(model=options.model_of, lookahead=options.sizes_group, model_settings=options.model_group)
def show(
    model: str | None,
    *,
    lookahead: DecodeSettings,
    model_settings: ModelSettings,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show a model's properties, its modes and the memory that running it takes.

    llama.cpp itself counts the memory, for -c, -ctk, -ctv and -b, without loading the weights. Nothing is downloaded.
    """
    from lacli.hub.report import card_json, card_text, make_card
    from lacli.terminal.screen import Screen, loading_model

    screen = Screen(quiet=quiet)
    path = options.model_path(model, screen, offline=True)
    with loading_model(screen, verbose=verbose):
        card = make_card(path, model_settings, lookahead, verbose=verbose)
    screen.line(card_json(card) if json else card_text(card, lookahead))


def remove(models: Models, yes: Yes = False, quiet: options.Quiet = False) -> None:
    """Remove models from this disk, after asking; other quants of the same repository stay."""
    from lacli.hub.cache import remove as remove_model
    from lacli.terminal.screen import Screen

    screen = Screen(quiet=quiet)
    aliases = read_aliases(own_aliases(), screen.note)
    planned = {each.name: each for each in (find_to_remove(name, aliases) for name in models)}
    for each in planned.values():
        screen.note(f"{each.name}: {size_in_words(each.size)}, {each.path}")
    size = size_in_words(sum(each.size for each in planned.values()))
    if not yes:
        if not is_terminal(sys.stdin):
            raise UsageError("there is no terminal to ask on", "-y removes without asking")
        question = printable(f"remove {listed([*planned])}, {size}?")
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            screen.note("nothing was removed")
            raise typer.Exit(1)
    freed = sum(remove_model(each) for each in planned.values())
    screen.note(f"removed, {size_in_words(freed)} freed")


def find_to_remove(name: str, aliases: Mapping[str, Alias]) -> LocalModel:
    """Return the cached model that `name` means. `aliases`: by name. Raises LacliError for none or several."""
    from lacli.hub.cache import cached_models, matching

    wanted = read_name(name, aliases)
    if isinstance(wanted, Path):
        raise UsageError(f"{wanted} is a file outside the hub's cache", "remove it yourself")
    found = matching(cached_models(wanted.repository, headers=False), wanted)
    if not found:
        raise ModelLoadError(f"not on this disk: {wanted}", "lacli list shows the models")
    if found[1:]:
        choices = ", ".join(model.name for model in found)
        raise ModelLoadError(f"{len(found)} models on this disk fit {wanted}", f"name one of {choices}")
    return found[0]


@with_groups(model=options.model_of, settings=options.model_group)
def cost(
    model: str | None,
    contexts: Contexts = "64,2048",
    rows: Rows = "",
    seconds: Seconds = 20,
    fresh: Fresh = False,
    *,
    settings: ModelSettings,
    offline: options.Offline = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure the time of steps of many rows, save it, and say how many tokens per step make lookahead faster."""
    from lacli.auto.model_cost import cost_of, measure_cost
    from lacli.auto.step_cost import LEAST_MEASURED, ROWS, MeasurePlan
    from lacli.bench.plan import parse_numbers
    from lacli.bench.report import cost_json, cost_lines
    from lacli.engine.libraries import choose_library, model_class, open_context
    from lacli.llamacpp.probe import working_settings
    from lacli.terminal.screen import Screen, loading_model
    from lacli.text.records import state_file

    chosen = sorted(parse_numbers(contexts, "--contexts")), sorted(parse_numbers(rows, "--rows")) if rows else ROWS
    if not all(1 <= number <= 2**20 for numbers in chosen for number in numbers):
        raise UsageError("--contexts and --rows take numbers from 1 to 1048576")
    plan = MeasurePlan(tuple(chosen[0]), tuple(chosen[1]), seconds)
    screen = Screen(quiet=quiet)
    path = options.model_path(model, screen, offline)
    settings, fault = working_settings(settings)
    if fault:
        screen.note(fault)
    settings = choose_library(path, settings)

    def measured() -> Cost:
        with loading_model(screen, verbose=verbose) as loading:
            opened = model_class(settings)(path, settings, verbose=verbose, loading=loading)
        with opened:
            return measure_cost(opened, settings, plan, open_context, screen.note)

    found, is_saved = cost_of(path, settings, plan, state_file(), measured, fresh=fresh, progress=screen.note)
    if not (found.is_usable or found.chain_only or chosen[1][-1] < LEAST_MEASURED):
        what = "the machine is too busy, or too slow, to time steps of enough rows"
        raise LacliError(what, "try again when other programs are idle, or give more --seconds")
    age = time() - found.measured_at if is_saved else None
    screen.line(cost_json(path, settings, found, is_saved=is_saved) if json else cost_lines(settings, found, age))
