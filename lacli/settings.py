"""Frozen settings of a decode and of a model, their presets and their ranges.

Nothing here reads the environment, a file or a model: the command line fills these in and passes them down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from lacli.errors import UsageError
from lacli.flags import check_words
from lacli.placement import Placement

Mode = Literal["plain", "jacobi", "lookup", "lookahead", "auto"]
SourceName = Literal["suffix", "recycling", "pool", "window", "store"]
WindowInit = Literal["prompt", "random", "pool"]
WindowShift = Literal["once", "refill"]

Switch = Literal["on", "off", "auto"]

MODES: tuple[Mode, ...] = ("plain", "jacobi", "lookup", "lookahead", "auto")

SOURCES: tuple[SourceName, ...] = ("suffix", "recycling", "pool", "window", "store")
"""Where mode auto may take its guesses from; all are asked unless some are named, but the store has to be opened."""

LEAVES = 48
"""Candidates that a step of mode auto may have."""

MAX_SEQUENCES = 256
"""Sequence ids that llama.cpp 0.3.36 allows in one context (`llama_max_parallel_sequences`)."""


@dataclass(frozen=True)
class DecodeSettings:
    """How tokens are guessed and verified; the defaults are the paper's for a 7B model.

    window, ngram, guesses are the paper's W, N and G. Mode jacobi (Algorithm 1) has a block of `window` guesses and
    starts a new one after `jacobi_iterations`; mode lookup (Table 3, row 2) matches the text's last `lookup_match`
    tokens and drafts `lookup_draft`. Mode auto asks `sources` and takes steps of at most `auto_rows` rows. back:
    guesses that the model can take back after a step, -1 for any number; otherwise only chains of at most so many are
    drafted. strict: the text must not depend on the rows of the steps; what that takes is found with the model
    (`strict.py`): `ordered` cells and `least_outputs` rows whose logits are computed.
    """

    mode: Mode = "auto"
    window: int = 15
    ngram: int = 5
    guesses: int = 15
    window_init: WindowInit = "pool"
    window_shift: WindowShift = "once"
    pool_prompt: bool = True
    pool_text: bool = True
    pool_keys: int = 10_000
    jacobi_iterations: int = 16
    lookup_match: int = 2
    lookup_draft: int = 10
    sources: tuple[SourceName, ...] = SOURCES
    auto_rows: int = 64
    back: int = -1
    strict: bool = False
    ordered: bool = False
    least_outputs: int = 1

    def __post_init__(self) -> None:
        check_words(self)
        at_least = {"window": 0, "ngram": 2, "guesses": 0, "pool_keys": 1}
        at_least |= {"jacobi_iterations": 1, "lookup_match": 1, "lookup_draft": 1, "auto_rows": 1}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                label = FLAG[name]
                raise UsageError(f"{label} is {getattr(self, name)}", f"{label} must be at least {least}")
        if self.auto_rows > MAX_SEQUENCES:
            raise UsageError(f"--auto-rows is {self.auto_rows}", f"--auto-rows can be at most {MAX_SEQUENCES}")
        if unknown := [name for name in self.sources if name not in SOURCES]:
            raise UsageError(f"--sources: there is no source {unknown[0]!r}", f"some of {', '.join(SOURCES)}, or none")
        if self.sequences > MAX_SEQUENCES:
            fits = MAX_SEQUENCES - 1
            words, hint = f"W + {LEAVES} + 1", f"-W of at most {fits - LEAVES} fits"
            if self.mode == "lookahead":
                words = "W + G + 1"
                hint = f"W + G of at most {fits} fits, for example -W {fits // 2} -G {fits - fits // 2}"
            raise UsageError(f"{words} = {self.sequences} sequences, and llama.cpp has {MAX_SEQUENCES}", hint)

    @property
    def sequences(self) -> int:
        """Sequence ids a context needs for this mode: W + G + 1 in lookahead, one for chains."""
        if self.mode == "lookahead":
            return self.window + self.guesses + 1
        return self.window + LEAVES + 1 if self.mode == "auto" and self.back < 0 else 1

    @property
    def deepest(self) -> int:
        """Guesses that a lookahead step can accept at most: a candidate's, or those of the window's last column.

        A column's guesses count where other paths through them have their choices read.
        """
        return max(self.ngram - 1, self.window + self.ngram - 3)

    @property
    def chain(self) -> int:
        """Guesses that a step of mode jacobi or lookup may have."""
        most = {"jacobi": self.window, "lookup": self.lookup_draft}.get(self.mode, 0)
        return most if self.back < 0 else min(most, self.back)

    @property
    def recycles(self) -> bool:
        """Whether the most probable tokens after every row are asked for."""
        return self.mode == "auto" and "recycling" in self.sources

    @property
    def _auto_rows(self) -> int:
        return self.auto_rows if self.back < 0 else min(self.auto_rows, 1 + self.back)

    @property
    def most_tokens(self) -> int:
        """Tokens that a step can bring at most: the guesses that can be accepted, and the model's own."""
        if self.mode == "auto":
            return self._auto_rows
        return 1 + (self.deepest if self.mode == "lookahead" else self.chain)

    @property
    def most_rows(self) -> int:
        """Rows of the largest step, before prefixes are shared."""
        if self.mode == "lookahead":
            again = self.deepest if self.ordered else 0
            guesses = window_rows(self.window, self.ngram) + self.guesses * (self.ngram - 1)
            return 1 + again + max(guesses, self.least_outputs - 1)
        if self.mode == "auto":
            again = self._auto_rows - 1 if self.ordered else 0
            return again + max(self._auto_rows, self.least_outputs)
        return max(1 + self.chain, self.least_outputs)

    @property
    def most_outputs(self) -> int:
        """Rows of the largest step whose choice is read."""
        if self.mode == "auto":
            return max(self._auto_rows, self.least_outputs)
        if self.mode != "lookahead":
            return self.most_rows
        return 1 + max(self.window + self.guesses * (self.ngram - 1), self.least_outputs - 1)


def window_rows(columns: int, ngram: int) -> int:
    """Rows that a window of so many columns adds to a step, the input not counted: (N-1) columns - 1."""
    return columns * (ngram - 1) - 1 if columns else 0


FLAG = {
    "window": "-W",
    "ngram": "-N",
    "guesses": "-G",
    "pool_keys": "--pool-keys",
    "jacobi_iterations": "--jacobi-iterations",
    "lookup_match": "--lookup-match",
    "lookup_draft": "--lookup-draft",
    "auto_rows": "--auto-rows",
}
"""The command line's name of a setting, for messages."""

SMALLER: dict[Mode, str] = {
    "lookahead": "-W, -N or -G",
    "jacobi": "-W",
    "lookup": "--lookup-draft",
    "auto": "--auto-rows",
}
"""What makes the steps of a mode smaller."""

LETTERS = ("window", "ngram", "guesses")
"""The paper's W, N and G."""

PRESETS: dict[str, dict[str, int]] = {
    "code": {"window": 8, "ngram": 6, "guesses": 15, "jacobi_iterations": 12},
    "text": {"window": 7, "ngram": 5, "guesses": 10, "jacobi_iterations": 16},
    "creative": {"window": 5, "ngram": 4, "guesses": 8, "jacobi_iterations": 20},
    "7b": {"window": 15, "ngram": 5, "guesses": 15},
    "13b": {"window": 10, "ngram": 5, "guesses": 10},
    "34b": {"window": 7, "ngram": 5, "guesses": 7},
}
"""Settings by kind of text and by model size; the sizes are Table 4 of the paper, with G = W."""


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


def decode_settings(preset: str | None = None, **chosen: Any) -> DecodeSettings:
    """Settings from a preset and what was chosen besides; a value of None was not chosen, the others win.

    Who chooses W, N or G, or a preset of them, and no mode means lookahead.
    """
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}", "one of " + ", ".join(PRESETS))
    given = {name: value for name, value in chosen.items() if value is not None}
    if preset or not given.keys().isdisjoint(LETTERS):
        given.setdefault("mode", "lookahead")
    return DecodeSettings(**{**PRESETS.get(preset or "", {}), **given})


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
