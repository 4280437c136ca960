"""A model's weights and vocabulary: loading, tokenizing, templates, and files that llama.cpp cannot load."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

from lacli.context import Closing
from lacli.errors import LacliError, ModelLoadError, PromptError
from lacli.interrupts import late_ctrl_c
from lacli.llamacpp.devices import apply_placement, devices, named, offloads
from lacli.llamacpp.library import free_with, ggml, lib, progress_callback, start, switch_tiles
from lacli.llamacpp.probe import working_settings
from lacli.llamacpp.settings import CPU, ModelSettings
from lacli.text.format import count_in_words
from lacli.text.reasoning import PAIRS
from lacli.text.template import CALL_MARKERS, compile_template

LARGEST_DEFAULT_LIMIT = 8192
"""Most tokens of a sequence without -c: 1 GiB of F16 cache at 32 layers with 8 key-value heads of width 128."""

DAMAGED = "the file may be damaged, incomplete or of a newer kind: fetch it again or update llama-cpp-python"
TOO_LARGE = "a smaller model, fewer layers on a GPU (-ngl) or more devices (-dev) may fit"


class LlamaModel(Closing):
    """The weights and the vocabulary of one GGUF file; close it, or use it in `with`.

    `simulated`: do not load the weights; contexts then only log the memory that they would take. `loading`: called with
    the loaded share, 0 to 1, while loading. Kernels that fail on this processor are not used (`working_settings`).
    Raises ModelLoadError for a file that llama.cpp cannot load or lacli cannot decode.

    `parameters`, `size`: elements and bytes of all weights. `trained_tokens`: longest sequence of the training.
    `default_limit`: most tokens of a sequence without -c. `vocabulary`: number of tokens. `chain_only`: why drafts
    must be chains of at most `max_rollback` tokens, "" if they can be trees. `window`: how many last tokens some
    layers see, 0 if all layers see all tokens. `scaled_from`: cells above which positions may be scaled, 0 for never.
    """

    def __init__(
        self,
        path: Path,
        settings: ModelSettings,
        *,
        verbose: bool = False,
        simulated: bool = False,
        loading: Callable[[float], None] | None = None,
    ) -> None:
        self._log = start()
        self._log.verbose = verbose
        self._log.forget()
        if not simulated:
            settings, _ = working_settings(settings)
        settings = replace(settings, devices=named(settings.devices, devices(memory=False)))
        parameters = lib.llama_model_default_params()
        pointed_to = apply_placement(parameters, settings)
        parameters.use_extra_bufts = settings.repack
        if simulated:
            parameters.no_alloc, parameters.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
        switch_tiles(settings.tiled)
        self.path, self.settings = path, settings
        self.offloaded = offloads(settings)
        with late_ctrl_c() as is_stopped:
            parameters.progress_callback = progress_callback(lib, loading, is_stopped)
            handle = lib.llama_model_load_from_file(os.fsencode(path), parameters)
            if handle and is_stopped():
                lib.llama_model_free(handle)
        del pointed_to
        if not handle:
            reason = self._log.last_error().removeprefix("error loading model: ")
            raise ModelLoadError(f"cannot load {path.name}: {reason}", TOO_LARGE if "alloc" in reason else DAMAGED)
        self._handle, self._vocabulary_handle = handle, lib.llama_model_get_vocab(handle)
        self._free = free_with(self, lib.llama_model_free, handle)
        self.parameters, self.size = int(lib.llama_model_n_params(handle)), int(lib.llama_model_size(handle))
        self.trained_tokens = int(lib.llama_model_n_ctx_train(handle))
        self.default_limit = min(self.trained_tokens, LARGEST_DEFAULT_LIMIT)
        self.vocabulary = int(lib.llama_vocab_n_tokens(self._vocabulary_handle))
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocabulary_handle))
        self.architecture = architecture = self._metadata("general.architecture")
        self.has_experts = self._metadata(f"{architecture}.expert_count") not in ("", "0")
        self.scaled_from = int(self._metadata(f"{architecture}.rope.scaling.original_context_length") or 0)
        self.window = int(lib.llama_model_n_swa(handle))
        has_state = lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle)
        self.chain_only = "a model with a recurrent state cannot forget a rejected token" if has_state else ""
        is_other = lib.llama_model_has_encoder(handle) or lib.llama_model_is_diffusion(handle)
        if is_other or lib.llama_vocab_type(self._vocabulary_handle) == lib.LLAMA_VOCAB_TYPE_NONE:
            self._free()
            what = "is an encoder, encoder-decoder or diffusion model, or has no vocabulary"
            raise ModelLoadError(f"{path.name} {what}", "lacli decodes causal text models only")

    @property
    def handle(self) -> Any:
        """The pointer to the llama_model. Raises LacliError after the model is closed."""
        self.check_open()
        return self._handle

    @property
    def vocabulary_handle(self) -> Any:
        self.check_open()
        return self._vocabulary_handle

    @property
    def description(self) -> str:
        """Architecture, size and type: "qwen2 1.5B Q4_K - Medium". The size is the file's, not llama.cpp's guess."""
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, buffer, len(buffer))
        architecture, _, kind = buffer.value.decode("utf-8", "replace").split(" ", 2)
        label = self._metadata("general.size_label")
        size = label if re.fullmatch(r"[\w.-]{1,16}", label) else count_in_words(self.parameters)
        return f"{architecture} {size} {kind}"

    @property
    def devices(self) -> str:
        """The names of the devices that compute, joined by " + "; "GPU offload" if llama.cpp chooses them."""
        if not self.offloaded:
            return CPU
        names = self.settings.devices
        if self.settings.split_mode == "none":
            names = names[self.settings.main_gpu :][:1]
        return " + ".join(names) or "GPU offload"

    @property
    def chooses(self) -> bool:
        """Whether a GPU can choose greedy tokens. It cannot with -sm tensor, which spreads a row's logits over GPUs."""
        return self.offloaded and self.settings.split_mode != "tensor"

    def tokenize(self, text: str, *, add_special: bool = True, special: bool = True) -> list[int]:
        """Return the token ids of `text`. `add_special`: add the BOS and EOS tokens that the model wants.

        `special`: whether names of control tokens become tokens or stay text. Raises PromptError for invalid Unicode.
        """
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise PromptError("the prompt is not valid Unicode (half of a character)", "give UTF-8") from error
        # A text rarely has more tokens than bytes, so one call is usually enough.
        count = -(len(raw) + 8)
        while count < 0:
            tokens = (lib.llama_token * -count)()
            count = lib.llama_tokenize(self.vocabulary_handle, raw, len(raw), tokens, -count, add_special, special)
        return tokens[:count]

    @cached_property
    def control_tokens(self) -> frozenset[str]:
        """Names of the tokens that `tokenize` reads as text if `special` is False."""
        control, tokens = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN, range(self.vocabulary)
        attributes = map(lib.llama_vocab_get_attr, repeat(self.vocabulary_handle), tokens)
        return frozenset(self._special(token) for token, has in zip(tokens, attributes, strict=True) if has & control)

    @cached_property
    def schema_tokenizer(self) -> Any:
        """The vocabulary for llguidance, made when a schema first needs it: 150,000 tokens take a second.

        The bytes of a token begin with 255 if its name is never a part of an answer's text.
        """
        from llguidance import LLTokenizer

        printed = {*CALL_MARKERS, *PAIRS, *PAIRS.values()}
        unprinted = {name.encode() for name in self.control_tokens if name not in printed}
        pieces = [self.piece(token, special=True) for token in range(self.vocabulary)]
        tokens = [b"\xff" + piece if piece in unprinted else piece for piece in pieces]
        tokenize = ctypes.cast(ggml.llama_tokenize, ctypes.c_void_p).value
        make: Any = LLTokenizer  # its types leave the function out
        handle = self.vocabulary_handle
        return make.from_llamacpp(tokens=tokens, vocab_ptr=handle, tokenize_fptr=tokenize, eos_token=self.ends)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return a token's bytes, which can be part of a character; b"" for a special token unless `special`.

        Raises PromptError for an unknown token, because llama.cpp would end the process.
        """
        if not 0 <= token < self.vocabulary:
            raise PromptError(f"there is no token {token}", f"token ids are from 0 to {self.vocabulary - 1:,}")
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            written = int(lib.llama_token_to_piece(self.vocabulary_handle, token, buffer, size, 0, special))
            if written >= 0:
                return buffer.raw[:written]
            size = -written

    def bos(self) -> str:
        return self._special(lib.llama_vocab_bos(self.vocabulary_handle))

    def is_end(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self.vocabulary_handle, token))

    @cached_property
    def ends(self) -> list[int]:
        """All tokens that end an answer; finding them takes 44 ms for a vocabulary of 152,000 tokens."""
        vocabulary = self.vocabulary_handle
        return [token for token in range(self.vocabulary) if lib.llama_vocab_is_eog(vocabulary, token)]

    @cached_property
    def infill_tokens(self) -> dict[str, int]:
        """The ids of the vocabulary's fill-in-the-middle tokens, by llama.cpp's names: pre, suf, mid, rep, sep."""
        names, vocabulary = ("pre", "suf", "mid", "rep", "sep"), self.vocabulary_handle
        tokens = {name: getattr(lib, f"llama_vocab_fim_{name}")(vocabulary) for name in names}
        return {name: token for name, token in tokens.items() if token >= 0}

    @property
    def suppressed(self) -> list[int]:
        """Tokens that the model's file forbids in an answer."""
        count = ctypes.c_int32()
        tokens = lib.llama_vocab_get_suppress_tokens(self.vocabulary_handle, ctypes.byref(count))
        return [tokens[index] for index in range(count.value)]

    @property
    def chat_template(self) -> str:
        """The file's own Jinja template, "" if it has none."""
        template = lib.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", "replace") if template else ""

    def compile_template(self, source: str) -> Callable[..., str]:
        """Compile the Jinja `source` to a function from `messages` to text. Raises PromptError if it is invalid."""
        return compile_template(source, self.bos(), self._special(lib.llama_vocab_eos(self.vocabulary_handle)))

    def has_token(self, text: str) -> bool:
        """Return whether the vocabulary has a token that is written `text`, such as <|im_end|>."""
        tokens = self.tokenize(text, add_special=False)
        return len(tokens) == 1 and self._special(tokens[0]) == text

    def close(self) -> None:
        self._free()

    def check_open(self) -> None:
        if not self._free.alive:
            raise LacliError(f"{self.path.name} is closed", "load the model again")

    def _metadata(self, key: str) -> str:
        """Return the value of `key` in the file's metadata, cut to 63 bytes; "" without the key."""
        buffer = ctypes.create_string_buffer(64)
        lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def _special(self, token: int) -> str:
        return "" if token < 0 else self.piece(token, special=True).decode("utf-8", "replace")
