"""The options that commands share, spelled as in llama.cpp, with their help and environment names.

Declarations only; ranges are checked by the settings that the values end up in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacli import settings
from lacli.cli.environment import (
    SAID,
    detail,
    setting,
    switch,
    threads,
    variable_of,
    yes_or_no,
)
from lacli.cli.lookahead_options import GUESSING
from lacli.cli.model_names import complete_model, complete_template
from lacli.cli.placement_options import (
    PLACE,
    Devices,
    MainGpu,
    SplitMode,
    TensorSplit,
    placement_of,
)
from lacli.errors import LacliError, ModelLoadError, UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import spellings

if TYPE_CHECKING:
    from lacli.terminal.screen import Screen

MODEL, TEXT, OUTPUT = "Model", "Prompt and answer", "Output"

LOADING = ModelSettings()
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
    """The file of MODEL, fetched where it is a name and not here; what runs without one or for a name is said."""
    from lacli.cli.folders import own_aliases
    from lacli.hub.download import find_model

    path = find_model(model, offline=offline, aliases=own_aliases(), quiet=screen.quiet, say=screen.note)
    if model is None:
        screen.note(f"no MODEL given: this is the bundled demo model {path.name}, trained on Python's standard library")
    return path


@dataclass(frozen=True)
class PromptOptions:
    """The system prompt, the chat template and the end of answers, as the command line gives them.

    `typed`, `file`: -sys and -sysf. `max_tokens`: of an answer, -1 for no limit. `variables`: for the template, beside
    the messages.
    """

    typed: str
    file: str | None
    template: str
    max_tokens: int
    stops: tuple[str, ...]
    variables: Mapping[str, object] = field(default_factory=dict)

    @property
    def system(self) -> str:
        """The system prompt; its file is read now."""
        from lacli.text.question import check_text, read_text

        return read_text(self.file) if self.file else check_text(self.typed, "-sys")

    def check_raw(self) -> None:
        """Refuse what --raw has no place for."""
        if self.template:
            raise UsageError("--raw goes without a template, --chat-template names one", "drop one of them")
        if self.variables:
            raise UsageError("--chat-template-kwargs needs a chat template, and --raw uses none", "drop one of them")
        if self.typed or self.file:
            raise UsageError("--raw leaves no place for a system prompt", "drop --raw, or write it into the prompt")


def _unless_named(context: typer.Context, parameter: typer.CallbackParam, model: str | None) -> str | None:
    """The model of -m; one of the environment makes room for one that is typed, and is neither fetched nor removed.

    A single argument that names no model and stands where a prompt may, without another one, is that prompt; a word
    that is nearly a name is a slip.
    """
    if not variable_of(context, parameter):
        return model
    params = context.params
    named, alone = params.get("argument"), not any(params.get(name) for name in ("words", "prompt", "first"))
    error = no_model(named) if named and named != "-" and alone and "words" in params else None
    if named == "-" or (error and (" " in str(named) or "did you mean" not in error.hint)):
        named = None
    typed = named or params.get("hf_repo") or params.get("models")
    return None if typed or context.info_name in ("pull", "rm") else model


def no_model(text: str) -> LacliError | None:
    """What to say where a text that stands in MODEL's place names no model; None where it may name one."""
    from lacli.cli.folders import own_aliases
    from lacli.hub.names import read_aliases, read_name, shortened

    if text.endswith(".gguf") or os.path.exists(os.path.expanduser(text)):
        return None
    if any(map(str.isspace, text)):
        return UsageError(f"{shortened(text)!r} stands where MODEL does", "put -p in front of it, or a model, as demo")
    try:
        read_name(text, read_aliases(own_aliases()))
    except ModelLoadError as error:
        return ModelLoadError(error.what, f"{error.hint}; a prompt goes behind -p")
    return None


def _unless_in_the_way(context: typer.Context, parameter: typer.CallbackParam, text: str) -> str:
    """The text of an option; one of the environment makes room for these flags, which are processed first."""
    flags = ("raw", "system_file", "load") if parameter.name == "system" else ("raw",)
    given = any(context.params.get(flag) for flag in flags)
    return "" if given and variable_of(context, parameter) else text


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_model,
        help="A GGUF file, owner/repo[:quant] on Hugging Face, or a name of 'lacli list'. hf:owner/repo/file.gguf "
        "names one file there. Without MODEL a small bundled model answers.",
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


def model_name(argument: Model = None, model_file: ModelFile = None, hf_repo: HubRepository = None) -> str | None:
    """MODEL, whichever way it is given. Raises UsageError where two ways name different models."""
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
    flagged = model_name(None, model_file, hf_repo)
    return [*(arguments or ()), *([] if flagged is None else [flagged])]


@dataclass(frozen=True)
class Asked:
    """What the arguments ask for: `model` as MODEL is, a prompt, and whether '-' stands for standard input."""

    model: str | None
    prompt: str | None
    stdin: bool


def asked(
    argument: Model = None, words: Words = None, model_file: ModelFile = None, hf_repo: HubRepository = None
) -> Asked:
    """The arguments of `lacli run`, where '-' may stand in the place of MODEL or of PROMPT.

    Beside -m or -hf a single argument is the prompt, unless it names the same model or a file of one. Raises what
    `no_model` says of one that is neither.
    """
    stdin = "-" in (argument, words)
    name, prompt = (None if each == "-" else each for each in (argument, words))
    flagged = model_file or hf_repo
    if flagged and name and prompt is None and name != flagged and not name.endswith(".gguf"):
        name, prompt = None, name
    elif name and prompt is None and (error := no_model(name)):
        raise error
    return Asked(model_name(name, model_file, hf_repo), prompt, stdin)


def check_path(model: str) -> None:
    """Raise ModelLoadError where MODEL is the path of no model, before the prompt is found missing."""
    from lacli.cli.folders import own_aliases
    from lacli.hub.download import check_file
    from lacli.hub.names import read_aliases, read_name

    path = read_name(model, read_aliases(own_aliases()))
    if isinstance(path, Path):
        check_file(path)


Conversation = Annotated[bool, typer.Option("-cnv", "--conversation", "-i", "--interactive", hidden=True)]
"""llama.cpp's flags for a chat."""
Prompt = Annotated[
    str | None, typer.Option("-p", "--prompt", help="The prompt; '-' reads standard input.", rich_help_panel=TEXT)
]
PromptFile = Annotated[
    str | None,
    typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from a file.", rich_help_panel=TEXT),
]
NoStdin = Annotated[
    bool,
    typer.Option("--no-stdin", help="Leave standard input alone. For a 'while read' loop.", rich_help_panel=TEXT),
]
System = Annotated[
    str,
    setting(
        "-sys",
        "--system-prompt",
        callback=_unless_in_the_way,
        help="The system prompt.",
        rich_help_panel=TEXT,
    ),
]
SystemFile = Annotated[
    str | None,
    typer.Option(
        "-sysf",
        "--system-prompt-file",
        metavar="FILE",
        help="Read the system prompt from a file.",
        rich_help_panel=TEXT,
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.", rich_help_panel=TEXT)
]
ChatTemplate = Annotated[
    str,
    setting(
        "--chat-template",
        metavar="NAME|FILE",
        callback=_unless_in_the_way,
        autocompletion=complete_template,
        show_default=False,
        help="Chat template in the place of the model's own. A bundled one by name (chatml, llama3, ...), or a "
        "Jinja file.",
        rich_help_panel=TEXT,
    ),
]
ChatTemplateKwargs = Annotated[
    str,
    setting(
        "--chat-template-kwargs",
        metavar="JSON",
        callback=_unless_in_the_way,
        show_default=False,
        help="Variables for the chat template. For example '{\"enable_thinking\": false}'.",
        rich_help_panel=TEXT,
    ),
]
Predict = Annotated[
    int,
    setting(
        *spellings("max_tokens"),
        min=-1,
        show_default="no limit",
        help="Tokens of the answer at most. -1: until the answer or the context ends.",
        rich_help_panel=TEXT,
    ),
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="End the answer before this text. Repeatable.", rich_help_panel=TEXT)
]


def prompt_group(
    system: System = "",
    system_file: SystemFile = None,
    chat_template: ChatTemplate = "",
    chat_template_kwargs: ChatTemplateKwargs = "",
    predict: Predict = -1,
    stop: Stop = None,
) -> PromptOptions:
    from lacli.text.question import check_text
    from lacli.text.template import read_variables

    if system and system_file:
        raise UsageError("-sys and -sysf are both given", "give one of them")
    stops = tuple(check_text(part, "--stop") for part in stop or ())
    return PromptOptions(system, system_file, chat_template, predict, stops, read_variables(chat_template_kwargs))


Context = Annotated[
    int,
    setting(
        *spellings("context"),
        show_default="up to 8192",
        help="Tokens of the context. 0: as many as the model takes, but at most 8192.",
        rich_help_panel=MODEL,
    ),
]
GpuLayers = Annotated[
    int,
    setting(
        *spellings("gpu_layers"),
        parser=layers,
        metavar="N",
        show_default="all",
        help="Layers on the GPU. A number, auto or all; -1 is all.",
        rich_help_panel=MODEL,
    ),
]
Threads = Annotated[
    int,
    setting(
        *spellings("threads"),
        parser=threads,
        show_default="one a core",
        help="Threads to compute with. 0: one a physical core; steps of several rows take -tb.",
        rich_help_panel=MODEL,
    ),
]
ThreadsBatch = Annotated[
    int,
    setting(
        *spellings("threads_batch"),
        help="Threads for steps of several rows. 0: as -t.",
        show_default="as -t",
        rich_help_panel=MODEL,
    ),
]
BatchSize = Annotated[
    int,
    setting(
        *spellings("batch"),
        help="Rows of one llama_decode call at most.",
        rich_help_panel=MODEL,
    ),
]
FlashAttention = Annotated[
    settings.Switch,
    setting(
        *spellings("flash_attention"),
        parser=switch,
        metavar="[on|off|auto]",
        autocompletion=lambda: list(SAID),
        help="Flash attention.",
        rich_help_panel=MODEL,
    ),
]
CacheTypeK = Annotated[
    str,
    setting(*spellings("cache_type_k"), metavar="TYPE", help="Type of the cache's keys.", rich_help_panel=MODEL),
]
CacheTypeV = Annotated[
    str,
    setting(*spellings("cache_type_v"), metavar="TYPE", help="Type of the cache's values.", rich_help_panel=MODEL),
]


NoRepack = Annotated[
    bool,
    setting(
        "-nr",
        "--no-repack",
        parser=yes_or_no,
        help="Leave out the CPU's kernels for repacked weights and AMX. They are faster for several rows.",
        rich_help_panel=MODEL,
    ),
]


Offline = Annotated[
    bool,
    setting(
        "--offline",
        parser=yes_or_no,
        help="Use models on this disk, without the network.",
        rich_help_panel=MODEL,
    ),
]


def model_group(
    context: Context = LOADING.context,
    gpu_layers: GpuLayers = LOADING.gpu_layers,
    threads: Threads = LOADING.threads,
    threads_batch: ThreadsBatch = LOADING.threads_batch,
    batch_size: BatchSize = LOADING.batch,
    flash_attention: FlashAttention = LOADING.flash_attention,
    cache_type_k: CacheTypeK = LOADING.cache_type_k,
    cache_type_v: CacheTypeV = LOADING.cache_type_v,
    no_repack: NoRepack = not LOADING.repack,
    device: Devices = "",
    split_mode: SplitMode = PLACE.split_mode,
    tensor_split: TensorSplit = "",
    main_gpu: MainGpu = PLACE.main_gpu,
) -> ModelSettings:
    return ModelSettings(
        context=context,
        batch=batch_size,
        gpu_layers=gpu_layers,
        threads=threads,
        threads_batch=threads_batch,
        flash_attention=flash_attention,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        repack=not no_repack,
        placement=placement_of(device, split_mode, tensor_split, main_gpu),
    )


Store = Annotated[
    bool,
    setting("--store/--no-store", rich_help_panel=TEXT,
            help="Keep prompts and answers on this disk, and guess from them in mode auto. They are token ids in the "
            "user's cache folder."),
]  # fmt: skip
Learn = Annotated[
    bool,
    setting("--learn/--no-learn", rich_help_panel=GUESSING,
            help="Keep what mode auto learns of this model here. Numbers only; later runs begin with them."),
]  # fmt: skip
ShowAccepted = Annotated[
    bool,
    setting("--show-accepted", rich_help_panel=OUTPUT,
            help="Colour tokens that were guessed. By where the guess came from; on a terminal."),
]  # fmt: skip
Stats = Annotated[
    settings.Detail,
    setting("--stats", parser=detail, metavar="[short|full]", autocompletion=lambda: ["short", "full"],
            show_default=False, rich_help_panel=OUTPUT,
            help="Print what the answer cost, on stderr. full adds histograms and what lies behind the numbers."),
]  # fmt: skip
Explain = Annotated[
    bool,
    setting("--explain", rich_help_panel=OUTPUT,
            help="Print a line a step: what was guessed and accepted. It goes to standard error as the answer comes, "
            "or behind the answer where one terminal shows both."),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, setting("-q", "--quiet", help="Print no notes.", rich_help_panel=OUTPUT)]
Verbose = Annotated[bool, setting("-v", "--verbose", help="Print llama.cpp's log.", rich_help_panel=OUTPUT)]
ColorWhen = Annotated[
    settings.Switch, setting("--color", help="Use colours. auto: on a terminal.", rich_help_panel=OUTPUT)
]
