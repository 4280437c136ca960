"""The options that commands share, spelled as in llama.cpp, with their help and environment names.

Declarations only; ranges are checked by the settings that the values end up in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacli import settings
from lacli.errors import UsageError
from lacli.settings import ModelSettings

if TYPE_CHECKING:
    from lacli.ui import Screen

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


def model_path(model: str | None, screen: Screen) -> Path:
    """The file of MODEL; what runs without one is said."""
    from lacli.resolve import find_model

    path = find_model(model)
    if model is None:
        screen.note(f"no MODEL given: this is the bundled demo model {path.name}, trained on Python's standard library")
    return path


def check_raw(raw: bool, system: str, system_file: str | None) -> None:
    if raw and (system or system_file):
        raise UsageError("--raw leaves no place for a system prompt", "drop --raw, or write it into the prompt")
    if system and system_file:
        raise UsageError("-sys and -sysf are both given", "give one of them")


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="Path of a GGUF file (any part of a split one). Without it the small bundled demo model runs.",
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
System = Annotated[str, typer.Option("-sys", "--system-prompt", help="System prompt.", rich_help_panel=TEXT)]
SystemFile = Annotated[
    str | None, typer.Option("-sysf", "--system-prompt-file", help="System prompt from a file.", rich_help_panel=TEXT)
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.", rich_help_panel=TEXT)
]
Predict = Annotated[
    int,
    typer.Option(
        "-n",
        "--predict",
        "--n-predict",
        "--max-tokens",
        min=-1,
        envvar=["LACLI_N_PREDICT", "LLAMA_ARG_N_PREDICT"],
        help="Tokens to generate at most; -1 until the answer or the context ends.",
        rich_help_panel=TEXT,
    ),
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="End the answer before this text; repeatable.", rich_help_panel=TEXT)
]
Context = Annotated[
    int,
    typer.Option(
        "-c",
        "--ctx-size",
        envvar=["LACLI_CTX_SIZE", "LLAMA_ARG_CTX_SIZE"],
        help="Context in tokens; 0 is the model's own, but at most 8192.",
        rich_help_panel=MODEL,
    ),
]
GpuLayers = Annotated[
    int,
    typer.Option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        parser=layers,
        metavar="N|auto|all",
        envvar=["LACLI_N_GPU_LAYERS", "LLAMA_ARG_N_GPU_LAYERS"],
        help="Layers to keep on the GPU; -1 is all.",
        rich_help_panel=MODEL,
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "-t",
        "--threads",
        envvar=["LACLI_THREADS", "LLAMA_ARG_THREADS"],
        help="Threads for single-row steps; 0 is one a physical core.",
        rich_help_panel=MODEL,
    ),
]
ThreadsBatch = Annotated[
    int,
    typer.Option(
        "-tb", "--threads-batch", help="Threads for larger steps; 0 is the same as -t.", rich_help_panel=MODEL
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "-b",
        "--batch-size",
        envvar=["LACLI_BATCH", "LLAMA_ARG_BATCH"],
        help="Most rows that one llama_decode call may have.",
        rich_help_panel=MODEL,
    ),
]
FlashAttention = Annotated[
    settings.Switch,
    typer.Option(
        "-fa",
        "--flash-attn",
        envvar=["LACLI_FLASH_ATTN", "LLAMA_ARG_FLASH_ATTN"],
        help="Flash attention.",
        rich_help_panel=MODEL,
    ),
]
CacheTypeK = Annotated[
    str,
    typer.Option(
        "-ctk",
        "--cache-type-k",
        envvar=["LACLI_CACHE_TYPE_K", "LLAMA_ARG_CACHE_TYPE_K"],
        help="Type of the cache's keys.",
        rich_help_panel=MODEL,
    ),
]
CacheTypeV = Annotated[
    str,
    typer.Option(
        "-ctv",
        "--cache-type-v",
        envvar=["LACLI_CACHE_TYPE_V", "LLAMA_ARG_CACHE_TYPE_V"],
        help="Type of the cache's values.",
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
    )


ShowAccepted = Annotated[
    bool,
    typer.Option("--show-accepted", help="Colour the tokens that were accepted in parallel (on a terminal).",
                 rich_help_panel=OUTPUT),
]  # fmt: skip
Stats = Annotated[bool, typer.Option("--stats", help="Print what the answer cost, on stderr.", rich_help_panel=OUTPUT)]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of the text.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No notes on stderr.", rich_help_panel=OUTPUT)]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log.", rich_help_panel=OUTPUT)]
ColorWhen = Annotated[
    settings.Switch, typer.Option("--color", help="Colours: auto means on a terminal.", rich_help_panel=OUTPUT)
]
