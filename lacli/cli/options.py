"""The options that commands share, spelled as in llama.cpp, with their help and environment names.

Declarations only; ranges are checked by the settings that the values end up in.
"""

from __future__ import annotations

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
from lacli.errors import UsageError
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


def split_dash(model: str | None, stdin: str | None) -> tuple[str | None, bool]:
    """MODEL and whether a lone '-' asks for standard input; `lacli run -` has no MODEL."""
    if model == "-" and stdin is None:
        return None, True
    if stdin not in (None, "-"):
        raise UsageError(f"unexpected argument {stdin!r}", "quote the prompt and put -p before it")
    return model, stdin == "-"


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
        help="Path of a GGUF file, owner/repo[:quant] or hf:owner/repo/file.gguf on the Hugging Face Hub, or an alias "
        "('lacli list'). Without it the small bundled demo model runs.",
    ),
]
FromStdin = Annotated[
    str | None,
    typer.Argument(metavar="-", show_default=False, help="A single '-' reads the prompt from standard input."),
]
Prompt = Annotated[
    str | None, typer.Option("-p", "--prompt", help="The prompt; '-' reads standard input.", rich_help_panel=TEXT)
]
PromptFile = Annotated[
    str | None, typer.Option("-f", "--file", help="Read the prompt from a file.", rich_help_panel=TEXT)
]
NoStdin = Annotated[
    bool,
    typer.Option("--no-stdin", help="Leave standard input alone, as in a 'while read' loop.", rich_help_panel=TEXT),
]
System = Annotated[
    str,
    setting(
        "-sys",
        "--system-prompt",
        callback=_unless_in_the_way,
        help="System prompt.",
        rich_help_panel=TEXT,
    ),
]
SystemFile = Annotated[
    str | None, typer.Option("-sysf", "--system-prompt-file", help="System prompt from a file.", rich_help_panel=TEXT)
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
        help="Chat template instead of the model's own: a bundled one by name (chatml, llama3, ...) or a Jinja file.",
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
        help="Variables for the chat template, as a JSON object: '{\"enable_thinking\": false}'.",
        rich_help_panel=TEXT,
    ),
]
Predict = Annotated[
    int,
    setting(
        *spellings("max_tokens"),
        min=-1,
        help="Tokens to generate at most; -1 until the answer or the context ends.",
        rich_help_panel=TEXT,
    ),
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="End the answer before this text; repeatable.", rich_help_panel=TEXT)
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
        help="Context in tokens; 0 is the model's own, but at most 8192.",
        rich_help_panel=MODEL,
    ),
]
GpuLayers = Annotated[
    int,
    setting(
        *spellings("gpu_layers"),
        parser=layers,
        metavar="N|auto|all",
        help="Layers to keep on the GPU; -1 is all.",
        rich_help_panel=MODEL,
    ),
]
Threads = Annotated[
    int,
    setting(
        *spellings("threads"),
        parser=threads,
        help="Threads for single-row steps; 0 is one a physical core.",
        rich_help_panel=MODEL,
    ),
]
ThreadsBatch = Annotated[
    int,
    setting(*spellings("threads_batch"), help="Threads for larger steps; 0 is the same as -t.", rich_help_panel=MODEL),
]
BatchSize = Annotated[
    int,
    setting(
        *spellings("batch"),
        help="Most rows that one llama_decode call may have.",
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
    setting(*spellings("cache_type_k"), help="Type of the cache's keys.", rich_help_panel=MODEL),
]
CacheTypeV = Annotated[
    str,
    setting(*spellings("cache_type_v"), help="Type of the cache's values.", rich_help_panel=MODEL),
]


NoRepack = Annotated[
    bool,
    setting(
        "-nr",
        "--no-repack",
        parser=yes_or_no,
        help="Leave out the CPU kernels for repacked weights and AMX, which are faster for several rows.",
        rich_help_panel=MODEL,
    ),
]


Offline = Annotated[
    bool,
    setting(
        "--offline",
        parser=yes_or_no,
        help="Use what is on this disk, without the network.",
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
            help="Keep prompts and answers on this disk, as token ids in the user's cache folder, and "
            "guess from those of earlier runs (mode auto)."),
]  # fmt: skip
Learn = Annotated[
    bool,
    setting("--learn/--no-learn", rich_help_panel=GUESSING,
            help="Keep what mode auto learns of this model and machine, numbers only, and begin with what earlier "
            "runs have learned."),
]  # fmt: skip
ShowAccepted = Annotated[
    bool,
    setting("--show-accepted", rich_help_panel=OUTPUT,
            help="Colour the tokens that were accepted in parallel, by where they were guessed (on a terminal)."),
]  # fmt: skip
Stats = Annotated[
    settings.Detail,
    setting("--stats", parser=detail, metavar="[short|full]", autocompletion=lambda: ["short", "full"],
            show_default=False, rich_help_panel=OUTPUT,
            help="Print what the answer cost, on stderr; full adds histograms and what lies behind the numbers."),
]  # fmt: skip
Explain = Annotated[
    bool,
    setting("--explain", rich_help_panel=OUTPUT,
            help="Print a line a step on stderr: what was guessed, expected and accepted. It comes as the answer does, "
            "or behind the answer where one terminal shows both."),
]  # fmt: skip
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of the text.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, setting("-q", "--quiet", help="No notes on stderr.", rich_help_panel=OUTPUT)]
Verbose = Annotated[bool, setting("-v", "--verbose", help="Show llama.cpp's log.", rich_help_panel=OUTPUT)]
ColorWhen = Annotated[
    settings.Switch, setting("--color", help="Colours: auto means on a terminal.", rich_help_panel=OUTPUT)
]
