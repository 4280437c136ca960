"""One llama_context as a `lacli.context.Context`: tokens that a GPU chooses, and states that go back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lacli.batch import Ints
from lacli.errors import ModelLoadError
from lacli.llamacpp.decoding import CONTEXT_PAD, DecodingContext
from lacli.llamacpp.library import lib, library
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.settings import DecodeSettings

MAX_ROLLBACK = 8
"""Drafted tokens by which a recurrent state can be rolled back, at most: each costs a copy of that state."""

MIXED_ROWS_ON_CPU = 63
"""Rows of a step in which a CPU takes those of prompt chunks and of other sequences together without loss.

From 64 rows on llama.cpp's attention takes 64 at once, and all of them read each cell that one of them needs.
"""

FLASH_ATTENTION = {
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
}


class LlamaContext(DecodingContext):
    """One llama_context as a Context; close it before its model, or use it in `with`.

    `backend_greedy`: choose greedy tokens where the logits are; None: only on a GPU, where it saves the
    logits' way to the host, while on the CPU one vectorised argmax is faster (docs/measured.md). Raises ModelLoadError
    when the context does not fit into memory or its options contradict each other.
    """

    def __init__(
        self,
        model: LlamaModel,
        settings: ModelSettings,
        decode: DecodeSettings | Capacity,
        *,
        backend_greedy: bool | None = None,
    ) -> None:
        super().__init__(lib, library(), model, settings, decode)
        parameters = self._parameters(settings, decode)
        self._samplers: list[Any] = []
        if model.chooses if backend_greedy is None else backend_greedy:
            self._add_samplers(parameters, decode.sequences)
        self._open(model.handle, parameters, self._samplers)
        if not model.offloaded:
            self.mixed_rows = MIXED_ROWS_ON_CPU
        self.can_share = not model.chain_only
        self.max_rollback = int(lib.llama_n_rs_seq(self._handle)) if model.chain_only else -1
        if not self._memory or lib.llama_pooling_type(self._handle) != lib.LLAMA_POOLING_TYPE_NONE:
            self.close()
            raise ModelLoadError(f"{model.path.name} is an embedding model", "lacli decodes causal text models only")

    def suits(self, decode: DecodeSettings, *, raw_logits: bool) -> bool:
        fits = self.max_rollback < 0 or decode.max_rollback <= self.max_rollback
        return fits and not (raw_logits and self._samplers) and super().suits(decode, raw_logits=raw_logits)

    def logits(self) -> npt.NDArray[np.float32]:
        if not self._samplers:
            return super().logits()
        # A sampler that the device cannot run leaves the logits as they are; none are copied raw.
        there = lib.llama_get_sampled_logits_count_ith(self._handle, self._first)
        assert there == self.vocabulary, "only the best tokens were copied"
        return self._rows_at(lib.llama_get_sampled_logits_ith(self._handle, self._first))

    def remove(self, sequence: int, start: int, end: int) -> bool:
        if self.max_rollback >= 0 and start > 0:
            last = lib.llama_memory_seq_pos_max(self._memory, sequence)
            if start <= last and not 0 <= end <= last:
                # llama.cpp would also take the snapshot of another step.
                if last + 1 - start > self._snapshots:
                    return False
                self._snapshots = 0
        return super().remove(sequence, start, end)

    def _parameters(self, settings: ModelSettings, decode: DecodeSettings | Capacity) -> Any:
        parameters = super()._parameters(settings, decode)
        parameters.n_rs_seq = max(decode.max_rollback, 0)
        parameters.kv_unified = True
        parameters.swa_full = True
        parameters.n_outputs_max = self._max_outputs
        parameters.flash_attn_type = FLASH_ATTENTION[settings.attention(on_gpu=self._model.offloaded)]
        if decode.ordered:
            # Also with no layer on a GPU one would compute large batches, in its own way.
            parameters.op_offload = parameters.offload_kqv = False
        return parameters

    @property
    def _first(self) -> int:
        """The first output row of the last batch."""
        assert self._batch is not None, "nothing is decoded yet"
        return int(self._batch.outputs.argmax())

    def _best(self) -> tuple[Ints, Iterable[float]]:
        if not self._samplers or lib.llama_get_sampled_candidates_count_ith(self._handle, self._first) != 1:
            return super()._best()
        # One address is enough: llama.cpp lays the rows out a whole vocabulary apart.
        tokens = self._rows_at(lib.llama_get_sampled_candidates_ith(self._handle, self._first)).view(np.int32)
        logits = self._rows_at(lib.llama_get_sampled_logits_ith(self._handle, self._first))
        # The argmax of nothing but NaN is -1 on a GPU.
        return tokens[:, 0], np.where(tokens[:, 0] < 0, np.nan, logits[:, 0]).tolist()

    def _add_samplers(self, parameters: Any, sequences: int) -> None:
        """Give each sequence a sampler chain: an output row without one would bring all raw logits back.

        A temperature of 0 brings the best token and its logit; llama.cpp's greedy sampler would bring all logits too.
        """
        configs = (lib.llama_sampler_seq_config * sequences)()
        for sequence, config in enumerate(configs):
            sampler_chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            lib.llama_sampler_chain_add(sampler_chain, lib.llama_sampler_init_temp(0.0))
            self._samplers.append(sampler_chain)
            config.seq_id, config.sampler = sequence, ctypes.cast(sampler_chain, ctypes.c_void_p)
        self._sampler_configs = configs
        parameters.samplers, parameters.n_samplers = configs, sequences
        parameters.n_outputs_max_per_seq = parameters.n_outputs_max


def max_rollback(model: LlamaModel, model_settings: ModelSettings) -> int:
    """Return the drafted tokens that the model can roll back after a step: -1 for any number and trees."""
    if not model.chain_only:
        return -1
    # llama.cpp needs the rows of a rollback and one more in one ubatch, and aborts otherwise.
    most = min(MAX_ROLLBACK, model_settings.batch - 2)
    if most <= 0:
        return 0
    # Only a context knows whether llama.cpp can do it with this architecture.
    smallest = replace(model_settings, context=CONTEXT_PAD, batch=min(model_settings.batch, CONTEXT_PAD))
    with LlamaContext(model, smallest, DecodeSettings(mode="lookup", max_rollback=1), backend_greedy=False) as engine:
        return most if engine.max_rollback else 0
