"""Settings of llama.cpp: how a model is loaded, its devices and its context; settings for --strict."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import MAX_SEQUENCES, NOTHING, DecodeSettings, Switch, check_options, option
from lacli.text.format import counted, did_you_mean

CPU = "CPU"
"""ggml's name of the processor, as a backend and as a device."""

RPC = "RPC"
"""The beginning of the names of RPC servers' devices."""

MOST_CELLS = 2**31 - 1
"""Most cells of a context: positions are 32-bit integers."""

RPC_PORT, LARGEST_PORT = 50052, 65535
"""llama.cpp's port of an RPC server, and the largest port of TCP."""

PLAIN_CACHE_TYPES = ("f32", "f16", "bf16")

CACHE_TYPES = (*PLAIN_CACHE_TYPES, "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""KV cache types of llama.cpp's -ctk and -ctv; the plain ones are not quantised."""


def layers(text: str) -> int:
    """Parse -ngl: a whole number; "auto" and "all" give -1. Raises UsageError for other texts."""
    if text not in ("auto", "all") and not re.fullmatch(r"-?\d+", text):
        raise UsageError(f"{text!r} is no number of layers", "give a whole number, auto or all")
    return -1 if text in ("auto", "all") else int(text)


def device_names(text: str) -> tuple[str, ...]:
    """Parse --device, comma-separated: "none" gives ("CPU",), "" gives (). Raises UsageError for an empty name."""
    if text.strip().lower() in NOTHING:
        return ("CPU",)
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    if not all(names):
        raise UsageError(f"{text!r} has an empty name", "separate names by single commas: CUDA0,CUDA1")
    return names


def proportions(text: str) -> tuple[float, ...]:
    """Parse -ts, numbers separated by commas or slashes; "" gives (). Raises UsageError for other texts."""
    try:
        return tuple(float(share) for share in re.split(r"[,/]", text)) if text.strip() else ()
    except ValueError:
        raise UsageError(f"{text!r} is no list of numbers", "separate numbers by commas: 3,1") from None


def endpoints(text: str) -> tuple[str, ...]:
    """Parse --rpc, HOST[:PORT],.., to distinct "host:port" (default port 50052). Raises UsageError for other texts."""
    parts = map(str.strip, text.lower().split(",")) if text.strip() else ()
    found = tuple(dict.fromkeys(part if ":" in part else f"{part}:{RPC_PORT}" for part in parts))
    for each in found:
        address = re.fullmatch(r"[^\s:/\\\[\]\x00]+:([0-9]{1,5})", each)
        if not address or not 0 < int(address[1]) <= LARGEST_PORT:
            raise UsageError(f"{each!r} is no address", f"give an IPv4 address or a name: box:{RPC_PORT}")
    return found


NGL, DEV = ("-ngl", "--gpu-layers", "--n-gpu-layers"), ("-dev", "--device")

THREADS: dict[str, Any] = {"metavar": "N", "least": -1, "most": 512}
"""-1 is llama.cpp's default, and 0 here; 512 is ggml's GGML_MAX_N_THREADS."""


@dataclass(frozen=True)
class ModelSettings:
    """How a model is loaded, its devices and its context; names follow llama.cpp's flags.

    `gpu_layers`: -1 for all. `devices`: ggml's names ("CUDA0", "CPU", "RPC0"), () for llama.cpp's choice.
    `tensor_split`: () for a split by free memory. `engine`: `choose_library` replaces `auto`. `tiled`: use llama.cpp's
    faster CPU kernels for several rows; a process can switch them off only before its first decode. `gives_way`: decode
    with fewer threads while other programs take the cores; set by `with_threads`.
    """

    context: int = option(0, "KV cache in tokens. 0: at most 8192.", "-c", "--ctx-size", least=0, most=MOST_CELLS)
    batch: int = option(2048, "Limit a llama_decode call to this many rows.", "-b", "--batch-size", least=1)
    gpu_layers: int = option(-1, "Layers on the GPU, or all.", *NGL, metavar="N", read=layers, shown="auto")
    threads: int = option(0, "Threads. 0: one a core.", "-t", "--threads", **THREADS)
    threads_batch: int = option(0, "Threads for steps of several rows. 0: as -t.", "-tb", "--threads-batch", **THREADS)
    flash_attention: Switch = option(
        "auto", "Flash attention. auto on a CPU: only from -np 4.", *("-fa", "--flash-attn"), metavar="on|off|auto"
    )
    cache_type_k: str = option("f16", "Type of the cache's keys.", "-ctk", "--cache-type-k", metavar="TYPE")
    cache_type_v: str = option("f16", "Type of the cache's values.", "-ctv", "--cache-type-v", metavar="TYPE")
    engine: Literal["auto", "llama", "ik"] = option("auto", "Library. auto: the faster one.")
    devices: tuple[str, ...] = option(
        (), "Devices of the model (see doctor). none: the CPU.", *DEV, metavar="NAME,..", read=device_names
    )
    split_mode: Literal["none", "layer", "row", "tensor"] = option(
        "layer", "How several devices share the model.", "-sm", "--split-mode"
    )
    tensor_split: tuple[float, ...] = option(
        (), "Share of each device: 3,1.", "-ts", "--tensor-split", metavar="N,N,..", read=proportions
    )
    main_gpu: int = option(0, "Device of the whole model with -sm none.", "-mg", "--main-gpu", metavar="N", least=0)
    replicas: int = option(1, "Copies of the model that decode one answer.", least=1, most=64)
    rpc: tuple[str, ...] = option(
        (), "Servers (lacli rpc-server) with further devices.", metavar="HOST:PORT,..", read=endpoints
    )
    repack: bool = option(True, "Use the CPU's kernels for repacked weights.")
    tiled: bool = True
    gives_way: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        for name in (self.cache_type_k, self.cache_type_v):
            if name not in CACHE_TYPES:
                hint = did_you_mean(name, CACHE_TYPES, "one of " + ", ".join(CACHE_TYPES))
                raise UsageError(f"{name} is no cache type", hint)
        if self.flash_attention == "off" and self.cache_type_v not in PLAIN_CACHE_TYPES:
            raise UsageError(f"-ctv {self.cache_type_v} needs flash attention", "drop -fa off, or use -ctv f16")

    def attention(self, *, on_gpu: bool) -> Switch:
        """Return the value of -fa for llama.cpp: `auto` becomes `off` on the CPU, unless cache values are quantised.

        On the CPU, -fa on is 1.4 to 3 times slower at 3,100 tokens (docs/internals/measured.md).
        """
        if self.flash_attention != "auto" or self.cache_type_v not in PLAIN_CACHE_TYPES:
            return self.flash_attention
        return "auto" if on_gpu else "off"

    @property
    def thread_words(self) -> str:
        """Both numbers of threads in words, such as "4 threads (8 for batches)"; the second only if it differs."""
        batches = f" ({self.threads_batch} for batches)" if self.threads_batch != self.threads else ""
        return f"{counted(self.threads, 'thread')}{batches}"

    @property
    def flags(self) -> str:
        """The flags that change what a context computes, as typed: "-fa auto -ctk f16 -ctv f16 -b 2048"."""
        repack = "" if self.repack else " --no-repack"
        return f"-fa {self.flash_attention} -ctk {self.cache_type_k} -ctv {self.cache_type_v} -b {self.batch}{repack}"

    @property
    def by_name(self) -> dict[str, int | str]:
        """The settings by their names in lacli's JSON. `device`, `tensor_split`: "" if llama.cpp chooses."""
        own = ("batch", "threads", "threads_batch", "gpu_layers", "flash_attention", "cache_type_k", "cache_type_v")
        shares = ",".join(f"{share:g}" for share in self.tensor_split)
        placed = {"device": ",".join(self.devices), "tensor_split": shares}
        return {name: getattr(self, name) for name in (*own, "split_mode", "main_gpu")} | placed


def fit_to_batch(decode_settings: DecodeSettings, model_settings: ModelSettings) -> DecodeSettings:
    """Return `decode_settings`; in mode auto, lower `auto_rows` if a step could have more rows than a batch (-b).

    Raises UsageError if a step of another mode can have more rows.
    """
    fitted, most = decode_settings, model_settings.batch
    if fitted.mode == "auto":
        if fitted.constraints.ordered:
            # The accepted tokens are decoded again with the next step.
            most = min((most + 1) // 2, most + 1 - fitted.constraints.min_outputs)
        fitted = replace(fitted, auto_rows=max(min(fitted.auto_rows, most), 1))
    if (rows := fitted.max_rows) > model_settings.batch:
        raise UsageError(f"a step has up to {rows} rows and -b is {model_settings.batch}", f"-b {rows} is enough")
    return fitted


@dataclass(frozen=True)
class ContextSize:
    """The size of a context for `slots` sequences at a time. `ids`: sequence ids. `max_outputs`: most rows with logits.

    `ordered`: cells must lie in the tokens' order. `max_rollback`: most drafted tokens to remove a step; -1: no limit.
    """

    ids: int
    max_outputs: int
    ordered: bool
    max_rollback: int = -1
    slots: int = 1

    @classmethod
    def of(cls, *settings: DecodeSettings) -> ContextSize:
        """Return the smallest size of a context in which one sequence can decode with each of `settings` in turn."""
        return cls(
            ids=max(each.ids for each in settings),
            max_outputs=max(each.max_outputs for each in settings),
            ordered=any(each.constraints.ordered for each in settings),
            max_rollback=max(each.constraints.max_rollback for each in settings),
        )

    @classmethod
    def for_slots(cls, settings: DecodeSettings, slots: int, batch: int) -> ContextSize:
        """Return the size for `slots` sequences that share each step. `batch`: most rows of a step."""
        # A step of mode auto has a row of each sequence and shares the others.
        outputs = max(settings.max_outputs, slots) if settings.mode == "auto" else slots * settings.max_outputs
        ids = min(slots * settings.ids, MAX_SEQUENCES)
        return cls(ids, min(outputs, batch), settings.constraints.ordered, settings.constraints.max_rollback, slots)


EXACT_CELLS = ("q8_0", "bf16")
"""Cells for which flash attention adds up one row and many in the same order (docs/internals/exactness.md)."""


def strict_settings(
    model_settings: ModelSettings, decode_settings: DecodeSettings, types: frozenset[str], *, on_gpu: bool
) -> tuple[ModelSettings, DecodeSettings]:
    """Return both settings, changed for --strict. `types`: of the weights (q4_K). `on_gpu`: whether a GPU decodes.

    Raises UsageError with a GPU, with -fa off, and for cache types other than f16 and EXACT_CELLS.
    """
    if on_gpu:
        raise UsageError("--strict works on the CPU only", "use -ngl 0; lacli check shows what differs on a GPU")
    if model_settings.flash_attention == "off":
        raise UsageError("--strict needs flash attention", "drop -fa off")
    # llama.cpp repacks these types at loading. Four rows then have another kernel than the rest (ggml-cpu/repack).
    repack = model_settings.repack and not types & {"q2_K", "q3_K", "q4_K"}
    # These weights have a separate kernel for one row: floats always, iq4_nl unless it is repacked.
    one_row_differs = types & {"f32", "f16", "bf16"} or ("iq4_nl" in types and not repack)
    model_settings = replace(
        model_settings,
        flash_attention="on",
        cache_type_k=_exact(model_settings.cache_type_k),
        cache_type_v=_exact(model_settings.cache_type_v),
        # For these types, ggml-cpu/tiled has another kernel from 8 rows on.
        tiled=not any(name.endswith("_K") or (name.startswith("iq") and name != "iq4_nl") for name in types),
        repack=repack,
    )
    return model_settings, decode_settings.constrained(ordered=True, min_outputs=2 if one_row_differs else 1)


def shared_settings(settings: ModelSettings, slots: int, *, on_gpu: bool) -> ModelSettings:
    """Return settings for `slots` sequences at a time: on the CPU, 4 or more change -fa auto to on (measured.md)."""
    if slots < 4 or on_gpu or settings.flash_attention != "auto":
        return settings
    return replace(settings, flash_attention="on")


def check_draws(sampling: SamplingSettings) -> None:
    """Raise UsageError if the random numbers depend on the mode (`draws_otherwise`), because --strict forbids that."""
    if sampling.draws_otherwise:
        raise UsageError("--strict: --verify rejection gives another answer in each mode", "leave --verify out")


def _exact(cache_type: str) -> str:
    """Return the cache type for --strict: q8_0 for f16, EXACT_CELLS unchanged. Raises UsageError for other types."""
    if cache_type == ModelSettings().cache_type_k:
        return EXACT_CELLS[0]
    if cache_type not in EXACT_CELLS:
        raise UsageError(f"--strict needs {' or '.join(EXACT_CELLS)} cells, not {cache_type}", "drop -ctk and -ctv")
    return cache_type
