"""Strict decoding: the settings under which a token's logits do not depend on the rows that its step has.

A rule by weight type, found by measurement on the CPU (docs/exactness.md says why each part is needed). The parts are
carried out where they belong: kernels and cells in `llama.py` and `context.py`, rows and their order in `decode.py`.
"""

from __future__ import annotations

from dataclasses import replace

from lacli.errors import UsageError
from lacli.sampling import SamplingSettings
from lacli.settings import DecodeSettings, ModelSettings

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
