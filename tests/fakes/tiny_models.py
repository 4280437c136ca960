"""Writers of small GGUF models with random weights, one for each kind of model in the tests.

Every file is below 1 MB and the same each time. Most have one byte-level BPE vocabulary: three special tokens, the 256
bytes and a few merges. The weights are scaled so that greedy text depends on the context. The first choice is usually
well above the second. Special tokens have low logits, so greedy text seldom ends by itself.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

CONTEXT_LENGTH = 512
SLIDING_WINDOW = 32
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, _, END_OF_TURN = range(len(SPECIAL_TOKENS))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_MERGES = (
    *("Ġ Ġ", "Ġ t", "h e", "Ġt he", "i n", "r e", "o n", "e r", "Ġ a", "a n", "an d", "s t", "e n", "o r", "Ġ s"),
    *("in g", "e s", "a t", "Ġ c", "e d", "o u", "l l", "Ġ f", "d e", "s e", "c t", "i on", "Ġ =", "t r", "ĠĠ ĠĠ"),
)
_PIECES = (
    *("▁", *"thenisardo", "he", "in", "▁t", "▁a", "<s", "▁th", "▁the", "an", "and", "▁and", "is", "▁is", "er", "or"),
    *("▁▁", "▁▁▁▁", "<unk>", "<s>", "</s>"),
)
_WIDTH = 64
_LAYERS = 2
_HEADS = 2
_KEY_VALUE_HEADS = 1
_HEAD_WIDTH = _WIDTH // _HEADS
_FEED_FORWARD = 128
_EPSILON = 1e-5
_EXPERTS = 4
_STATE_INNER = 2 * _WIDTH  # the only expansion that llama.cpp's first mamba takes
_STATE_SIZE = 16
_STATE_KERNEL = 4
_STATE_RANK = 4
_CONVOLVED = 3
_SPLIT_TENSORS = 11  # the llama model has 21 tensors, so this makes two files
_LOGIT_SCALE = 6.0
_OUTPUT_GAIN = _LOGIT_SCALE / np.sqrt(_WIDTH)
_POST_NORM = 12.0  # embedding and output are one matrix in gemma2; this keeps a token from predicting itself


def _byte_alphabet() -> list[str]:
    """Return the 256 printable characters that stand for the byte values in GPT-2 vocabularies, in byte order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


TOKENS = (*SPECIAL_TOKENS, *_byte_alphabet(), *(merge.replace(" ", "") for merge in _MERGES))


SENTENCEPIECE = (*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), *_PIECES)
assert len(SENTENCEPIECE) == len(TOKENS)


class _Builder:
    """Builds one model file from random tensors, after the keys that every architecture here reads.

    `sentencepiece`: use a vocabulary of scored pieces instead of merges.
    """

    def __init__(
        self,
        path: Path,
        architecture: str,
        *,
        key_value_heads: int | Sequence[int] = _KEY_VALUE_HEADS,
        layers: int = _LAYERS,
        split_tensors: int = 0,
        tokenizer: str = "gpt2",
        sentencepiece: bool = False,
    ) -> None:
        self.writer = writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_tensors)
        self._random = np.random.default_rng(0)
        writer.add_name(f"tiny {architecture}")
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        writer.add_vocab_size(len(TOKENS))
        writer.add_context_length(CONTEXT_LENGTH)
        writer.add_embedding_length(_WIDTH)
        writer.add_block_count(layers)
        writer.add_feed_forward_length(_FEED_FORWARD)
        writer.add_head_count(_HEADS)
        writer.add_head_count_kv(key_value_heads)
        writer.add_layer_norm_rms_eps(_EPSILON)
        self._add_pieces() if sentencepiece else self._add_merges(tokenizer)
        writer.add_bos_token_id(END_OF_TEXT)
        writer.add_eos_token_id(END_OF_TEXT)
        writer.add_eot_token_id(END_OF_TURN)
        writer.add_add_bos_token(sentencepiece)
        writer.add_chat_template(CHAT_TEMPLATE)

    def _add_pieces(self) -> None:
        """Add a vocabulary of scored pieces, as the first llama's."""
        control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
        kinds = [control] * len(SPECIAL_TOKENS) + [gguf.TokenType.BYTE] * 256
        self.writer.add_tokenizer_model("llama")
        self.writer.add_token_list(SENTENCEPIECE)
        # llama.cpp joins the pieces "<s" and ">" to the control token, since their joined text is its name.
        self.writer.add_token_types([*kinds, *(control if piece == "<s>" else normal for piece in _PIECES)])
        self.writer.add_token_scores([*[0.0] * len(kinds), *(float(len(piece)) for piece in _PIECES)])

    def _add_merges(self, kind: str) -> None:
        """Add the BPE vocabulary and its merges. `kind`: the tokenizer's name in GGUF."""
        control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
        self.writer.add_tokenizer_model(kind)
        self.writer.add_tokenizer_pre("gpt-2")
        self.writer.add_token_list(TOKENS)
        self.writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in TOKENS])
        self.writer.add_token_merges(_MERGES)

    def put(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add one tensor as F32; `values` is in row-major order, the reverse of llama.cpp's dimensions."""
        self.writer.add_tensor(name, values.astype(np.float32))

    def normal(self, *shape: int) -> npt.NDArray[np.float32]:
        """Return standard normal values of this shape."""
        return self._random.standard_normal(shape, dtype=np.float32)

    def matrix(self, name: str, rows: int, columns: int = _WIDTH, gain: float = 1.0) -> None:
        """Add a matrix whose outputs have the typical size `gain` for inputs of unit size."""
        self.put(f"{name}.weight", gain / np.sqrt(columns) * self.normal(rows, columns))

    def vector(self, name: str, length: int = _WIDTH, centre: float = 0.0, spread: float = 0.2) -> None:
        """Add a vector of normal values with the mean `centre` and the deviation `spread`."""
        self.put(name, centre + spread * self.normal(length))

    def norm(self, name: str, centre: float = 1.0, length: int = _WIDTH) -> None:
        self.vector(f"{name}.weight", length, centre)

    def tokens_matrix(self, name: str, gain: float = 1.0, likely: int = len(TOKENS)) -> None:
        """Add an embedding or output matrix, vocabulary x width.

        Rows of special tokens, and of tokens from number `likely` on, are a tenth as large.
        """
        values = gain * self.normal(len(TOKENS), _WIDTH)
        values[: len(SPECIAL_TOKENS)] *= 0.1
        values[likely:] *= 0.1
        self.put(f"{name}.weight", values)

    def ends(self) -> None:
        """Add the embedding, the last norm and a separate output matrix."""
        self.tokens_matrix("token_embd")
        self.norm("output_norm")
        self.tokens_matrix("output", _OUTPUT_GAIN)

    def attention(self, block: str, *, biases: bool = False) -> None:
        """Add the four attention matrices of a block. Large queries and keys give few positions much weight."""
        width = _KEY_VALUE_HEADS * _HEAD_WIDTH
        for name, rows, gain in (("q", _WIDTH, 1.7), ("k", width, 1.7), ("v", width, 1.5)):
            self.matrix(f"{block}.attn_{name}", rows, gain=gain)
            if biases:
                self.vector(f"{block}.attn_{name}.bias", rows)
        self.matrix(f"{block}.attn_output", _WIDTH, gain=1.5)

    def feed_forward(self, block: str) -> None:
        """Add the norm and the three matrices of a gated feed-forward part."""
        self.norm(f"{block}.ffn_norm")
        self.matrix(f"{block}.ffn_gate", _FEED_FORWARD, gain=1.5)
        self.matrix(f"{block}.ffn_up", _FEED_FORWARD, gain=1.5)
        self.matrix(f"{block}.ffn_down", _WIDTH, _FEED_FORWARD, 1.5)

    def experts(self, block: str) -> None:
        """Add the norm, the router and the three matrices of each of `_EXPERTS` experts."""
        self.norm(f"{block}.ffn_norm")
        self.matrix(f"{block}.ffn_gate_inp", _EXPERTS)
        for name in ("gate", "up", "down"):
            values = 1.5 / np.sqrt(_WIDTH) * self.normal(_EXPERTS, _WIDTH, _WIDTH)
            self.put(f"{block}.ffn_{name}_exps.weight", values)

    def state_space(self, block: str) -> None:
        """Add the tensors of one mamba mixer. Its state forgets a token after some tens of tokens."""
        self.matrix(f"{block}.ssm_in", 2 * _STATE_INNER, gain=1.5)
        self.matrix(f"{block}.ssm_conv1d", _STATE_INNER, _STATE_KERNEL, 1.5)
        self.vector(f"{block}.ssm_conv1d.bias", _STATE_INNER)
        self.matrix(f"{block}.ssm_x", _STATE_RANK + 2 * _STATE_SIZE, _STATE_INNER, 2.0)
        self.matrix(f"{block}.ssm_dt", _STATE_INNER, _STATE_RANK)
        self.vector(f"{block}.ssm_dt.bias", _STATE_INNER, centre=-1.0)
        self.put(f"{block}.ssm_a", np.tile(-np.linspace(0.05, 2.0, _STATE_SIZE), (_STATE_INNER, 1)))
        self.vector(f"{block}.ssm_d", _STATE_INNER, centre=1.0)
        self.matrix(f"{block}.ssm_out", _WIDTH, _STATE_INNER, 1.5)

    def short_convolution(self, block: str) -> None:
        """Add the tensors of a gated convolution over the last few tokens."""
        self.matrix(f"{block}.shortconv.in_proj", 3 * _WIDTH, gain=1.5)
        self.matrix(f"{block}.shortconv.conv", _WIDTH, _CONVOLVED, 1.5)
        self.matrix(f"{block}.shortconv.out_proj", _WIDTH, gain=1.5)

    def save(self) -> None:
        """Write the file, or the files of a split model."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_llama(
    path: Path,
    tokenizer: str = "gpt2",
    *,
    architecture: str = "llama",
    biases: bool = False,
    query_norms: bool = False,
    experts: bool = False,
    split_tensors: int = 0,
    sentencepiece: bool = False,
    pooled: bool = False,
) -> None:
    """Write a llama model: attention over the whole context, a norm before each part, biases only with `biases`."""
    builder = _Builder(
        path, architecture, split_tensors=split_tensors, tokenizer=tokenizer, sentencepiece=sentencepiece
    )
    if pooled:
        builder.writer.add_pooling_type(gguf.PoolingType.MEAN)
    if experts:
        builder.writer.add_expert_count(_EXPERTS)
        builder.writer.add_expert_used_count(_EXPERTS // 2)
        builder.writer.add_expert_feed_forward_length(_WIDTH)
    builder.writer.add_rope_dimension_count(_HEAD_WIDTH)
    builder.writer.add_rope_freq_base(10000.0)
    builder.ends()
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        builder.norm(f"{block}.attn_norm")
        builder.attention(block, biases=biases)
        for part in "qk" if query_norms else "":
            builder.norm(f"{block}.attn_{part}_norm", length=_HEAD_WIDTH)
        builder.experts(block) if experts else builder.feed_forward(block)
    builder.save()


write_sentencepiece = partial(write_llama, sentencepiece=True)
"""Writes a llama model with a vocabulary of scored pieces that adds BOS."""

write_qwen2 = partial(write_llama, architecture="qwen2", biases=True)
write_qwen3 = partial(write_llama, architecture="qwen3", query_norms=True)
write_qwen3moe = partial(write_llama, architecture="qwen3moe", query_norms=True, experts=True)
write_embedding = partial(write_qwen2, pooled=True)
write_diffusion = partial(write_llama, architecture="dream", biases=True)
write_unknown_architecture = partial(write_llama, architecture="nonesuch")


def write_llama_split(folder: Path) -> list[Path]:
    """Write the model of `write_llama` as two files and return their paths; the first is the one to load."""
    write_llama(folder / "tiny.gguf", split_tensors=_SPLIT_TENSORS)
    return sorted(folder.glob("tiny-?????-of-?????.gguf"))


def write_gemma_swa(path: Path, architecture: str = "gemma2", layers: int = _LAYERS) -> None:
    """Write a gemma2 model: the first block sees the last `SLIDING_WINDOW` tokens, the second the whole context.

    Of a gemma3 model the sixth block is the first that sees the whole context.
    """
    builder = _Builder(path, architecture, layers=layers)
    builder.writer.add_sliding_window(SLIDING_WINDOW)
    builder.tokens_matrix("token_embd", 1 / np.sqrt(_WIDTH))
    builder.norm("output_norm", _LOGIT_SCALE)
    for layer in range(layers):
        block = f"blk.{layer}"
        builder.norm(f"{block}.attn_norm")
        builder.attention(block)
        for part in "qk" if architecture == "gemma3" else "":
            builder.norm(f"{block}.attn_{part}_norm", length=_HEAD_WIDTH)
        builder.norm(f"{block}.post_attention_norm", _POST_NORM)
        builder.feed_forward(block)
        builder.norm(f"{block}.post_ffw_norm", _POST_NORM)
    builder.save()


def write_mamba(path: Path) -> None:
    """Write a mamba model: recurrent, with a state of fixed size instead of a cache."""
    builder = _Builder(path, "mamba")
    builder.writer.add_ssm_conv_kernel(_STATE_KERNEL)
    builder.writer.add_ssm_inner_size(_STATE_INNER)
    builder.writer.add_ssm_state_size(_STATE_SIZE)
    builder.writer.add_ssm_time_step_rank(_STATE_RANK)
    builder.ends()
    for layer in range(_LAYERS):
        builder.norm(f"blk.{layer}.attn_norm")
        builder.state_space(f"blk.{layer}")
    builder.save()


def write_lfm2(path: Path) -> None:
    """Write an lfm2 model: a hybrid of short convolutions and attention, whose state llama.cpp can take back.

    Its answers have few different tokens, so that they repeat themselves and drafts are accepted.
    """
    kinds = (0, _KEY_VALUE_HEADS, 0)
    builder = _Builder(path, "lfm2", key_value_heads=kinds, layers=len(kinds))
    builder.writer.add_shortconv_l_cache(_CONVOLVED)
    builder.writer.add_rope_freq_base(10000.0)
    builder.tokens_matrix("token_embd")
    builder.norm("token_embd_norm")  # the norm before the output has this name here
    builder.tokens_matrix("output", _OUTPUT_GAIN, likely=11)
    for layer, heads in enumerate(kinds):
        block = f"blk.{layer}"
        builder.norm(f"{block}.attn_norm")
        if heads:
            builder.attention(block)
            for name in ("q", "k"):
                builder.norm(f"{block}.attn_{name}_norm", 1.7, _HEAD_WIDTH)
        else:
            builder.short_convolution(block)
        builder.feed_forward(block)
    builder.save()


def flip_to_true(source: Path, target: Path, key: str) -> None:
    """Copy a GGUF file and set the boolean `key` in the copy. Its value is the byte after the key and the type."""
    raw = bytearray(source.read_bytes())
    at = raw.index(key.encode()) + len(key) + 4
    assert raw[at] == 0
    raw[at] = 1
    target.write_bytes(raw)
