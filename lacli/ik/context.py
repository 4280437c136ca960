"""A model and a context of ik_llama.cpp: the second implementation of `lacli.context.Context`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lacli.errors import ModelLoadError
from lacli.ik.library import library
from lacli.llamacpp.context import PREFILL_ROWS, DecodingContext
from lacli.llamacpp.devices import CPU
from lacli.llamacpp.library import free_with, late_ctrl_c, progress_callback
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.settings import DecodeSettings

OTHERWISE = "--engine llama decodes with llama.cpp"


class IkModel(LlamaModel):
    """The weights of one GGUF file in ik_llama.cpp, repacked as they are loaded; its vocabulary is llama.cpp's.

    Raises ModelLoadError for a file that one of the two cannot read.
    """

    def __init__(
        self,
        path: Path,
        settings: ModelSettings,
        *,
        verbose: bool = False,
        loading: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(path, settings, verbose=verbose, simulated=True)
        self.offloaded = False
        ik = library()
        ik.log.verbose = verbose
        ik.log.forget()
        parameters = ik.llama_model_default_params()
        parameters.n_gpu_layers, parameters.fit = 0, False
        parameters.repack_tensors = settings.repack
        with late_ctrl_c() as is_stopped:
            parameters.progress_callback = progress_callback(ik, loading, is_stopped)
            self.weights = ik.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.weights:
            self.close()
            reason = ik.log.last_error().removeprefix("error loading model: ")
            raise ModelLoadError(f"ik_llama.cpp cannot load {path.name}: {reason}", OTHERWISE)
        self._free_weights = free_with(self, ik.llama_free_model, self.weights)

    @property
    def devices(self) -> str:
        return f"{CPU} with ik_llama.cpp"

    def close(self) -> None:
        if self.weights:
            self._free_weights()
        super().close()


class IkContext(DecodingContext):
    """One context of ik_llama.cpp as a Context; close it before its model, or use it in `with`.

    Its cache is one for all sequences. Raises ModelLoadError when the context does not fit into memory.
    """

    def __init__(self, model: IkModel, settings: ModelSettings, decode: DecodeSettings | Capacity) -> None:
        ik = library()
        super().__init__(ik, ik.log, model, settings, decode)
        parameters = self._parameters(settings, decode)
        # All rows of a batch at once: of several parts the first ones would stay where a later one finds no cells.
        parameters.n_ubatch = min(parameters.n_batch, PREFILL_ROWS)
        # With several sequences the wheel's kernel of flash attention may end the process ("GGML_ASSERT(S > 0)").
        parameters.flash_attn = False
        self._open(model.weights, parameters)
