"""How llama.cpp loads a model, makes a context and divides it between devices; what exact arithmetic asks of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.settings import DecodeSettings, ModeName, Switch, check_words

SplitMode = Literal["none", "layer", "row", "tensor"]

MOST_REPLICAS = 64
"""Copies of a model: each takes a context's memory, and a step has no more branches than sequence ids (256)."""


@dataclass(frozen=True)
class Placement:
    """Where one copy of a model computes; names follow llama.cpp's flags.

    devices: ggml's names ("CUDA0", "CPU", "RPC0"), none for llama.cpp's own choice. tensor_split: each device's
    proportion of the model, none for what its free memory says. main_gpu: which of the devices computes with -sm none.
    """

    devices: tuple[str, ...] = ()
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0

    def __post_init__(self) -> None:
        check_words(self)
        if self.main_gpu < 0:
            raise UsageError(f"-mg is {self.main_gpu}", "-mg must be at least 0; --device none leaves every GPU out")
        shares = self.tensor_split
        if not all(0 <= share < math.inf for share in shares) or (shares and not any(shares)):
            raise UsageError(f"-ts {self._shares} are no proportions", "for example -ts 3,1")
        if shares and self.split_mode == "none":
            raise UsageError("-ts splits the model and -sm none does not", "drop one of them")
        # llama.cpp leaves it out of account then.
        if self.main_gpu and self.split_mode != "none":
            raise UsageError(
                f"-mg {self.main_gpu} says where -sm none computes, and -sm is {self.split_mode}", "add -sm none"
            )

    @property
    def flags(self) -> list[str]:
        """What is not llama.cpp's own choice, as its programs take it."""
        pairs = (
            ("--device", ",".join("none" if name == "CPU" else name for name in self.devices)),
            ("-sm", "" if self.split_mode == "layer" else self.split_mode),
            ("-ts", self._shares),
            ("-mg", str(self.main_gpu) if self.main_gpu else ""),
        )
        return [part for flag, value in pairs if value for part in (flag, value)]

    @property
    def by_name(self) -> dict[str, int | str]:
        """What our JSON says of the flags; '' for what is llama.cpp's own choice."""
        return {
            "device": ",".join(self.devices),
            "split_mode": self.split_mode,
            "tensor_split": self._shares,
            "main_gpu": self.main_gpu,
        }

    @property
    def _shares(self) -> str:
        return ",".join(f"{share:g}" for share in self.tensor_split)


@dataclass(frozen=True)
class ReplicaSettings:
    """Several copies of a model, and devices of other machines.

    groups: the devices of each copy, by name. count: copies on identical devices, which are found; 0 for none asked.
    rpc: addresses of llama.cpp's RPC servers. isolate: every copy in a process of its own. limit_s: seconds that a
    call of its process may take.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    count: int = 0
    rpc: tuple[str, ...] = ()
    isolate: bool = False
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        if max(self.count, len(self.groups)) > MOST_REPLICAS:
            raise UsageError(
                f"--replicas asks for {max(self.count, len(self.groups))}", f"there are at most {MOST_REPLICAS}"
            )
        if not 0 < self.limit_s < math.inf:
            raise UsageError(
                f"--replica-timeout is {self.limit_s:g} s", "give seconds, a number above 0: 3600 is an hour"
            )


SMALLER: dict[ModeName, str] = {
    "lookahead": "-W, -N or -G",
    "jacobi": "-W",
    "lookup": "--lookup-draft",
    "auto": "--auto-rows",
}
"""What makes the steps of a mode smaller."""


@dataclass(frozen=True)
class ModelSettings:
    """How llama.cpp loads a model and makes a context; names follow its flags.

    context: cells, 0 = the model's own (at most 8,192). batch: rows a llama_decode call may have.
    gpu_layers: -1 = all. threads: 0 = one per physical core. flash_attention: on, off or auto. repack, tiled: whether
    llama.cpp may use its faster CPU kernels for several rows; tiled can be switched off before a process's first
    decode only. placement: on which devices.
    """

    context: int = 0
    batch: int = 2048
    gpu_layers: int = -1
    threads: int = 0
    threads_batch: int = 0
    flash_attention: Switch = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    repack: bool = True
    tiled: bool = True
    placement: Placement = Placement()

    def __post_init__(self) -> None:
        check_words(self)
        threads = ("-t", self.threads, 0), ("-tb", self.threads_batch, 0)
        for flag, value, lowest in (("-c", self.context, 0), ("-b", self.batch, 1), *threads):
            if value < lowest:
                raise UsageError(f"{flag} is {value}", f"{flag} must be at least {lowest}")
        # llama.cpp does not check these itself: more threads than it has room for crash it.
        if self.context > MOST_CELLS:
            raise UsageError(f"-c is {self.context}", f"-c can be at most {MOST_CELLS}")
        for flag, value, _ in threads:
            if value > MOST_THREADS:
                raise UsageError(f"{flag} is {value}", f"llama.cpp runs at most {MOST_THREADS} threads")
        for flag, name in (("-ctk", self.cache_type_k), ("-ctv", self.cache_type_v)):
            if name not in CACHE_TYPES:
                raise UsageError(f"{flag} {name} is no cache type", "one of " + ", ".join(CACHE_TYPES))
        if self.flash_attention == "off" and self.cache_type_v not in PLAIN_CACHE_TYPES:
            raise UsageError(f"-ctv {self.cache_type_v} needs flash attention", "leave -fa off out, or use -ctv f16")

    def attention(self, *, on_gpu: bool) -> Switch:
        """What -fa means: `auto` is off on the CPU, where it was 1.4 to 3 times slower at 3,100 tokens.

        Quantised cache values need it on; with a GPU the choice stays llama.cpp's. Source: docs/measured.md.
        """
        if self.flash_attention != "auto" or self.cache_type_v not in PLAIN_CACHE_TYPES:
            return self.flash_attention
        return "auto" if on_gpu else "off"

    @property
    def thread_words(self) -> str:
        """The threads of single-row steps."""
        return "1 thread" if self.threads == 1 else f"{self.threads} threads"

    @property
    def all_thread_words(self) -> str:
        """The same, with those of larger steps where they are others."""
        batches = f" ({self.threads_batch} for batches)" if self.threads_batch != self.threads else ""
        return f"{self.thread_words}{batches}"

    @property
    def flags(self) -> str:
        """The flags of a context that change what it computes, as they are typed."""
        repack = "" if self.repack else " --no-repack"
        return f"-fa {self.flash_attention} -ctk {self.cache_type_k} -ctv {self.cache_type_v} -b {self.batch}{repack}"

    @property
    def by_name(self) -> dict[str, int | str]:
        """What our JSON says of the flags."""
        own = ("batch", "threads", "threads_batch", "gpu_layers", "flash_attention", "cache_type_k", "cache_type_v")
        return {**{name: getattr(self, name) for name in own}, **self.placement.by_name}


PLAIN_CACHE_TYPES = ("f32", "f16", "bf16")

CACHE_TYPES = (*PLAIN_CACHE_TYPES, "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""KV cache types that llama.cpp's -ctk and -ctv take; the plain ones are not quantised."""

MOST_CELLS = 2**31 - 1
"""Positions are 32-bit integers."""

MOST_THREADS = 512
"""ggml's GGML_MAX_N_THREADS."""


def fitted(decoding: DecodeSettings, loading: ModelSettings) -> DecodeSettings:
    """The settings with steps of mode auto no larger than a batch: it takes what room there is."""
    if decoding.mode != "auto":
        return decoding
    most = loading.batch
    if decoding.ordered:
        # The accepted part is decoded again in front of the next step.
        most = min((most + 1) // 2, most + 1 - decoding.least_outputs)
    return replace(decoding, auto_rows=max(min(decoding.auto_rows, most), 1))


def check_rows(decoding: DecodeSettings, loading: ModelSettings) -> None:
    """Raise UsageError when a step would not fit into a batch."""
    if decoding.most_rows > loading.batch:
        smaller = SMALLER.get(decoding.mode, "")
        raise UsageError(
            f"a step has up to {decoding.most_rows} rows and -b is {loading.batch}",
            f"-b {decoding.most_rows}" + (f" or a smaller {smaller}" if smaller else ""),
        )


@dataclass(frozen=True)
class Capacity:
    """What a context must have for several settings that decode in it one after another."""

    sequences: int
    most_outputs: int
    ordered: bool
    back: int = -1
    recycles: bool = False

    @classmethod
    def of(cls, settings: Sequence[DecodeSettings]) -> Capacity:
        """Enough for each of them; they agree about `ordered`, which the model decides."""
        return cls(
            sequences=max(each.sequences for each in settings),
            most_outputs=max(each.most_outputs for each in settings),
            ordered=any(each.ordered for each in settings),
            back=max(each.back for each in settings),
            recycles=any(each.recycles for each in settings),
        )


EXACT_CELLS = ("q8_0", "bf16")
"""Cells for which flash attention computes one row and many in the same order, whatever the number of threads.

The first is faster for single rows; the second is for heads whose width 32 does not divide.
"""

FLOATS = {"f32", "f16", "bf16"}
"""Weights with a kernel of their own for one row."""

REPACKED = {"q2_K", "q3_K", "q4_K"}
"""Weights that llama.cpp stores anew at loading, for kernels that take 4 rows at a time and others for the rest."""

EXACT_REPACKED = {"iq4_nl"}
"""Weights that have a kernel of their own for one row only where they are not stored anew."""


def strict_settings(
    loading: ModelSettings, decoding: DecodeSettings, types: frozenset[str], *, on_gpu: bool
) -> tuple[ModelSettings, DecodeSettings]:
    """The same settings made strict, for weights of these types. Raises UsageError where they contradict it."""
    if on_gpu:
        raise UsageError("--strict holds on the CPU only", "-ngl 0 computes there; lacli check tells what differs")
    if loading.flash_attention == "off":
        raise UsageError("--strict needs flash attention", "leave -fa off out")
    repack = loading.repack and not types & REPACKED
    one_row_differs = types & FLOATS or (types & EXACT_REPACKED and not repack)
    loading = replace(
        loading,
        flash_attention="on",
        cache_type_k=_exact(loading.cache_type_k),
        cache_type_v=_exact(loading.cache_type_v),
        tiled=not any(map(_is_tiled, types)),
        repack=repack,
    )
    return loading, replace(decoding, ordered=True, least_outputs=2 if one_row_differs else 1)


def check_draws(sampling: SamplingSettings) -> None:
    """Raise UsageError where no two modes draw alike."""
    if sampling.draws_otherwise:
        raise UsageError("--verify rejection draws other numbers in every mode", "leave it out with --strict")


def _is_tiled(weights: str) -> bool:
    """Whether there is another kernel for 8 rows and more (ggml-cpu/tiled)."""
    return weights.endswith("_K") or (weights.startswith("iq") and weights != "iq4_nl")


def _exact(cells: str) -> str:
    """The cells that were asked for, or the first exact ones where none were."""
    if cells == ModelSettings().cache_type_k:
        return EXACT_CELLS[0]
    if cells not in EXACT_CELLS:
        raise UsageError(f"--strict needs {' or '.join(EXACT_CELLS)} cells, not {cells}", "leave -ctk and -ctv out")
    return cells
