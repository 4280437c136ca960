"""llama.cpp: weights, vocabulary and one context behind the Engine protocol. The only file that imports llama_cpp.

Everything the rest of the package knows of the library is here: its structs, its return codes, its log; the samplers
are in `chain.py`, which gets the library from here. No algorithm and no text handling beyond bytes in and bytes out.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from llama_cpp.llama_grammar import json_schema_to_gbnf

from lacli.batch import Batch, Ints
from lacli.errors import LacliError, ModelLoadError, PromptError
from lacli.log import Log
from lacli.memory import bounded_by_free_memory
from lacli.settings import PLAIN_CACHE_TYPES, DecodeSettings, ModelSettings

lib = llama_cpp

CONTEXT_PAD = 256
"""llama.cpp rounds a context up to a multiple of this many cells."""

LARGEST_DEFAULT_CONTEXT = 8192
"""A model's own context is used up to here; -c asks for more."""

TILED_SWITCH = "GGML_CPU_TILED_MM"
"""ggml reads it at its first matrix product and has no other switch for the kernels that take 8 rows and more."""

FLASH_ATTENTION = {
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
}


def on_abort(report: Callable[[str], None]) -> None:
    """Call `report` with ggml's last words when one of its assertions fails; the process aborts when it returns.

    A damaged model file can do that. For the command line, which ends the process there in its own way.
    """
    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda message: report(message.decode("utf-8", "replace")))
    if set_callback := getattr(lib.llama_cpp._lib, "ggml_set_abort_callback", None):
        library().callbacks.append(callback)
        set_callback(callback)


@cache
def library() -> Log:
    """Start llama.cpp once a process, with its log connected."""
    log = Log()
    callback = lib.llama_log_callback(lambda level, text, _: log.receive(level, text))
    log.callbacks.append(callback)
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    lib.llama_backend_init()
    return log


def offloads(settings: ModelSettings) -> bool:
    """Whether a model with these settings computes on a GPU."""
    return bool(lib.llama_supports_gpu_offload()) and settings.gpu_layers != 0


def schema_grammar(schema: str) -> str:
    """The GBNF grammar of a JSON schema; it raises many kinds of exceptions, and ignores what it does not know."""
    grammar: str = json_schema_to_gbnf(schema)
    return grammar


class LlamaModel:
    """The weights and the vocabulary of one GGUF file; close it, or use it in `with`.

    Raises ModelLoadError when llama.cpp cannot read the file or lacli cannot decode with its kind of model.
    """

    def __init__(self, path: Path, settings: ModelSettings, *, verbose: bool = False) -> None:
        self._log = library()
        self._log.verbose = verbose
        self._log.forget()
        parameters = lib.llama_model_default_params()
        parameters.n_gpu_layers = settings.gpu_layers
        parameters.use_extra_bufts = settings.repack
        if not settings.tiled:
            os.environ[TILED_SWITCH] = "0"
        self.path = path
        self.offloaded = offloads(settings)
        self.handle = lib.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.handle:
            raise self._not_loaded()
        self.vocabulary_handle = lib.llama_model_get_vocab(self.handle)
        self._refuse()

    @property
    def description(self) -> str:
        """Architecture, size and type in llama.cpp's words."""
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, buffer, len(buffer))
        # It names the sizes of well-known models only.
        millions = lib.llama_model_n_params(self.handle) / 1e6
        size = f"{millions:.1f}M" if millions < 1000 else f"{millions / 1000:.1f}B"
        return buffer.value.decode("utf-8", "replace").replace("?B", size)

    @property
    def devices(self) -> str:
        """Where it computes, in a word or two."""
        return "GPU offload" if self.offloaded else "CPU"

    @property
    def context(self) -> int:
        """Tokens of the context that the model was trained with."""
        return int(lib.llama_model_n_ctx_train(self.handle))

    @property
    def default_context(self) -> int:
        """Tokens of the context that is made when none is asked for."""
        return min(self.context, LARGEST_DEFAULT_CONTEXT)

    @property
    def vocabulary(self) -> int:
        return int(lib.llama_vocab_n_tokens(self.vocabulary_handle))

    @property
    def adds_bos(self) -> bool:
        return bool(lib.llama_vocab_get_add_bos(self.vocabulary_handle))

    @property
    def chain_only(self) -> str:
        """Why this model cannot take a step back and so decodes plainly, or an empty string."""
        if lib.llama_model_is_recurrent(self.handle):
            return "a recurrent model keeps one state and cannot forget a wrong guess"
        if lib.llama_model_is_hybrid(self.handle):
            return "a hybrid model keeps a recurrent state and cannot forget a wrong guess"
        return ""

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a text; the names of special tokens in it become those tokens (llama.cpp's rule for prompts)."""
        raw = text.encode()
        count = -lib.llama_tokenize(self.vocabulary_handle, raw, len(raw), None, 0, add_special, True)
        if count <= 0:
            return []
        tokens = (lib.llama_token * count)()
        lib.llama_tokenize(self.vocabulary_handle, raw, len(raw), tokens, count, add_special, True)
        return list(tokens)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token, which may be a part of a character; special tokens have none unless asked for."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            written = int(lib.llama_token_to_piece(self.vocabulary_handle, token, buffer, size, 0, special))
            if written >= 0:
                return buffer.raw[:written]
            size = -written

    def bos(self) -> str:
        return self._special(lib.llama_vocab_bos(self.vocabulary_handle))

    def eos(self) -> str:
        return self._special(lib.llama_vocab_eos(self.vocabulary_handle))

    def is_end(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self.vocabulary_handle, token))

    def ends(self) -> list[int]:
        """All tokens that end a generation."""
        return [token for token in range(self.vocabulary) if self.is_end(token)]

    @property
    def suppressed(self) -> list[int]:
        """Tokens that the model's file says must never be generated."""
        count = ctypes.c_int32()
        tokens = lib.llama_vocab_get_suppress_tokens(self.vocabulary_handle, ctypes.byref(count))
        return [tokens[index] for index in range(count.value)]

    def chat_formatter(self) -> Callable[..., str] | None:
        """The model's own Jinja template as a function of `messages`, or None where the file has none."""
        template = lib.llama_model_chat_template(self.handle, None)
        if not template:
            return None
        try:
            formatter = Jinja2ChatFormatter(template.decode("utf-8", "replace"), self.eos(), self.bos())
        except Exception as error:  # whatever Jinja raises, the template is at fault
            raise PromptError(f"the model's chat template is broken: {error}", "use --raw to go without it") from error
        return lambda messages: formatter(messages=messages).prompt

    def close(self) -> None:
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _special(self, token: int) -> str:
        return "" if token < 0 else self.piece(token, special=True).decode("utf-8", "replace")

    def _not_loaded(self) -> ModelLoadError:
        reason = self._log.last_error().removeprefix("error loading model: ")
        hint = "the file may be damaged, incomplete or of a newer kind: fetch it again or update llama-cpp-python"
        if "unknown model architecture" in reason:
            hint = "a newer llama-cpp-python may know it"
        return ModelLoadError(f"cannot load {self.path.name}: {reason}", hint)

    def _refuse(self) -> None:
        """Models that do not generate one token after another are not for us."""
        kind = ""
        if lib.llama_model_has_encoder(self.handle):
            kind = "an encoder (or encoder-decoder) model"
        elif lib.llama_model_is_diffusion(self.handle):
            kind = "a diffusion model"
        if kind:
            self.close()
            raise ModelLoadError(f"{self.path.name} is {kind}", "lacli decodes causal text models only")


class LlamaEngine:
    """One llama_context as an Engine; close it before its model, or use it in `with`.

    Raises ModelLoadError when the context does not fit into memory or its options contradict each other.
    """

    def __init__(
        self,
        model: LlamaModel,
        settings: ModelSettings,
        decode: DecodeSettings,
        *,
        backend_greedy: bool | None = None,
    ) -> None:
        """backend_greedy: whether greedy tokens are chosen where the logits are; None: where that is a GPU.

        There it saves the logits' way to the host; on the CPU one vectorised argmax is faster (docs/measured.md).
        """
        self._model = model
        self._log = library()
        self.sequences = decode.sequences
        self.vocabulary = model.vocabulary
        self.calls = 0
        parameters = self._parameters(settings, decode)
        self._samplers: list[Any] = []
        if model.offloaded if backend_greedy is None else backend_greedy:
            self._add_samplers(parameters, decode)
        self._log.forget()
        # A GPU driver reserves addresses, not memory, so no bound there; it refuses what it does not have.
        with nullcontext() if model.offloaded else bounded_by_free_memory():
            self._handle = lib.llama_init_from_model(model.handle, parameters)
        if not self._handle:
            self.close()
            reason = self._log.last_error()
            full = "alloc" in reason
            raise ModelLoadError(
                f"cannot make a context: {'not enough memory, ' if full else ''}{reason}",
                "a smaller one may fit: -c 4096, or -ctk q8_0" if full else "see more with -v",
            )
        self.cells = int(lib.llama_n_ctx(self._handle))
        self.batch_rows = int(lib.llama_n_batch(self._handle))
        self._memory = lib.llama_get_memory(self._handle)
        if not self._memory or lib.llama_pooling_type(self._handle) != lib.LLAMA_POOLING_TYPE_NONE:
            self.close()
            raise ModelLoadError(f"{model.path.name} is an embedding model", "lacli decodes causal text models only")
        self._batch: Batch | None = None
        self._view = np.zeros((0, 0), np.float32)
        self._view_key = (0, 0)

    def decode(self, batch: Batch) -> bool:
        rows = batch.rows
        assert 0 < rows <= self.batch_rows, f"{rows} rows in a batch of at most {self.batch_rows}"
        if batch is not self._batch:
            self._batch, self._struct = batch, _struct_over(batch)
        self._struct.n_tokens = rows
        self.calls += 1
        status = lib.llama_decode(self._handle, self._struct)
        if status == 0:
            return True
        if status == 1:
            self._log.forget()
            return False
        raise LacliError(f"llama_decode failed ({status}): {self._log.last_error()}", "see more with -v")

    def greedy(self) -> Ints:
        if self._samplers:
            assert self._batch is not None
            rows = np.flatnonzero(self._batch.outputs[: len(self._batch)]).tolist()
            tokens = np.fromiter((lib.llama_get_sampled_token_ith(self._handle, row) for row in rows), np.int32)
            if not np.any(tokens < 0):
                return tokens
            # A device that cannot run the sampler gives no token, and raw logits instead.
        best: Ints = self.logits().argmax(axis=1)
        return best

    def logits(self) -> npt.NDArray[np.float32]:
        """The last batch's logits, (outputs, vocabulary) float32, valid until the next decode.

        Not there where the backend chooses the tokens.
        """
        assert self._batch is not None, "nothing is decoded yet"
        address = ctypes.addressof(lib.llama_get_logits(self._handle).contents)
        key = (address, self._batch.wanted)
        if key != self._view_key:
            # Making a view costs as much as reading a row; llama.cpp moves the logits only when it needs more room.
            memory = memoryview((ctypes.c_float * (key[1] * self.vocabulary)).from_address(address))
            self._view = np.asarray(memory, np.float32).reshape(key[1], self.vocabulary)
            self._view_key = key
        return self._view

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return bool(lib.llama_memory_seq_rm(self._memory, sequence, start, end))

    def clear(self) -> None:
        lib.llama_memory_clear(self._memory, False)

    def is_end(self, token: int) -> bool:
        return self._model.is_end(token)

    def close(self) -> None:
        if self._handle:
            lib.llama_free(self._handle)
            self._handle = None
        for sampler in self._samplers:
            lib.llama_sampler_free(sampler)
        self._samplers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _parameters(self, settings: ModelSettings, decode: DecodeSettings) -> Any:
        parameters = lib.llama_context_default_params()
        cells = settings.context or self._model.default_context
        # -b is cut to the context as it is asked for, so ask for what llama.cpp would round it up to.
        parameters.n_ctx = -(-cells // CONTEXT_PAD) * CONTEXT_PAD
        parameters.n_batch = min(settings.batch, parameters.n_ctx)
        parameters.n_seq_max = decode.sequences
        parameters.kv_unified = True
        parameters.swa_full = True
        parameters.n_outputs_max = max(decode.sequences, decode.most_outputs)
        parameters.n_threads = settings.threads
        parameters.n_threads_batch = settings.threads_batch or settings.threads
        parameters.flash_attn_type = FLASH_ATTENTION[self._flash_attention(settings)]
        parameters.type_k = _cache_type(settings.cache_type_k)
        parameters.type_v = _cache_type(settings.cache_type_v)
        return parameters

    def _add_samplers(self, parameters: Any, decode: DecodeSettings) -> None:
        """One greedy chain a sequence: an output row whose id has none would bring all raw logits back."""
        configs = (lib.llama_sampler_seq_config * decode.sequences)()
        for sequence, config in enumerate(configs):
            chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
            self._samplers.append(chain)
            config.seq_id, config.sampler = sequence, ctypes.cast(chain, ctypes.c_void_p)
        self._sampler_configs = configs
        parameters.samplers, parameters.n_samplers = configs, decode.sequences
        parameters.n_outputs_max_per_seq = parameters.n_outputs_max

    def _flash_attention(self, settings: ModelSettings) -> str:
        """What `auto` means: off on the CPU, where it was 1.4 to 3 times slower at 3,100 tokens (docs/measured.md).

        Quantised cache values need it on; with a GPU the choice stays llama.cpp's.
        """
        if settings.flash_attention != "auto" or settings.cache_type_v not in PLAIN_CACHE_TYPES:
            return settings.flash_attention
        return "auto" if self._model.offloaded else "off"


def _cache_type(name: str) -> int:
    """ggml's number of a type; llama_cpp has no name for one of them."""
    number: int = 30 if name == "bf16" else getattr(lib, f"GGML_TYPE_{name.upper()}")
    return number


def _struct_over(batch: Batch) -> Any:
    """A llama_batch whose arrays are the batch's own; it is good as long as the batch lives."""
    return lib.llama_batch(
        token=batch.tokens.ctypes.data_as(ctypes.POINTER(lib.llama_token)),
        pos=batch.positions.ctypes.data_as(ctypes.POINTER(lib.llama_pos)),
        n_seq_id=batch.sequence_counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
        seq_id=batch.sequence_pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id))),
        logits=batch.outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
    )
