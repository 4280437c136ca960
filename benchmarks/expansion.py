"""The tensors of a bigger llama model that computes the same next token as a small one.

They are described here, and what they take from the small model is read when it is asked for; types and files are
`expand.py`. Why the function stays the same, for a small width d in a bigger width D:

- Extra width meets zeros. The residual stream is zero beyond its first d numbers: the embedding has zeros there, and
  so do the rows of the matrices that add to it. Whatever the other matrices hold in the columns that read those
  numbers counts for nothing, so they hold noise, as real weights would: a zero matrix could be quicker to compute.
- Norms are rescaled. An RMS norm over D numbers of which D - d are zero sees a mean square that is d/D of the small
  one, and so multiplies by sqrt(D/d) too much: the weights are multiplied by sqrt(d/D) and epsilon by d/D.
- Extra layers add zero, because the matrices that lead out of their attention and feed-forward parts are zero; so are
  the columns of those matrices that take extra heads and extra feed-forward units in the layers that were there.
- Heads keep their group. A query head finds its key-value head by its own place, so the query heads that shared one
  go where they share one again, or share copies of it where the bigger groups are smaller.
- Wider heads: the extra numbers of a query are zero, so what the keys hold there counts for nothing, and the columns
  that read the values' are zero. Queries are multiplied by the square root of the ratio of the widths, which the
  attention's 1/sqrt(width) takes away again. llama.cpp turns the whole head of this architecture, in pairs, at rates
  base^(-2i/width): the base to the power of the ratio leaves the first pairs their rates.
- Extra tokens have the mean of the other tokens' output rows, so their logit is the mean of the logits, which is
  never the highest. Together they take a share of the probability, so this holds for greedy text only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.shapes import Shape, copies
from lacli.errors import ModelLoadError

Array = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]

ARCHITECTURE = "llama"
ROPE_BASE = 10000.0
"""llama.cpp's, where a file names none."""


@dataclass(frozen=True)
class Norm:
    """The weights of a norm."""

    name: str
    values: Array


@dataclass(frozen=True)
class Matrix:
    """A matrix, rows x columns: noise or zeros, and from the first column on rows of the small model.

    own: reads these. places: for each row its index in `own`, -1 for none; None where no row has any.
    """

    name: str
    rows: int
    columns: int
    noise: bool
    own: Callable[[], Array] | None = None
    places: Places | None = None


class Source:
    """The small model: its metadata, its shape, and its tensors as F32."""

    def __init__(self, path: Path) -> None:
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise ModelLoadError(f"cannot read {path} as a GGUF file", str(error)) from error
        self.fields = reader.fields
        if self.value("general.architecture") != ARCHITECTURE:
            raise ModelLoadError(f"{path} is not of the architecture {ARCHITECTURE}", "no other can be expanded")
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        heads = self.value("llama.attention.head_count")
        self.shape = Shape(
            width=self.value("llama.embedding_length"),
            layers=self.value("llama.block_count"),
            heads=heads,
            key_value_heads=self.value("llama.attention.head_count_kv", heads),
            feed_forward=self.value("llama.feed_forward_length"),
            vocabulary=len(self.value("tokenizer.ggml.tokens")),
            head_width=int(self._tensors["blk.0.attn_q.weight"].shape[1]) // heads,
        )
        if unknown := self._tensors.keys() - expected_names(self.shape.layers):
            raise ModelLoadError(f"{path} cannot be expanded", f"no rule for {', '.join(sorted(unknown))}")

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key, which must be there unless a default is given."""
        field = self.fields.get(key)
        if field is None and default is None:
            raise ModelLoadError(f"the small model's file has no {key}", "it is not a whole llama model")
        return default if field is None else field.contents()

    def tensor(self, name: str) -> Array:
        """A tensor, rows x columns or one row of norm weights."""
        tensor = self._tensors[name]
        values: Array = gguf.dequantize(tensor.data, tensor.tensor_type)
        return values

    def output(self) -> Array:
        """The output matrix, vocabulary x width, which is the embedding where the file has no other."""
        return self.tensor("output.weight" if "output.weight" in self._tensors else "token_embd.weight")


def expected_names(layers: int) -> set[str]:
    """The names of the tensors that can be expanded."""
    parts = ("attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    blocks = {f"blk.{layer}.{part}.weight" for layer in range(layers) for part in parts}
    return blocks | {"token_embd.weight", "output_norm.weight", "output.weight"}


class Expansion:
    """What the bigger model is made of."""

    def __init__(self, source: Source, big: Shape) -> None:
        self.source, self.small, self.big = source, source.shape, big
        heads = np.arange(self.small.heads)
        group, place = np.divmod(heads, self.small.group)
        self._copies = copies(self.small, big)
        shared = group * self._copies + place // big.group
        self._heads: Places = shared * big.group + place % big.group
        """Where each query head goes."""

    def tensors(self) -> Iterator[Matrix | Norm]:
        """Every tensor, in the order of the file."""
        small, big, source = self.small, self.big, self.source
        tokens = self._first(big.vocabulary, small.vocabulary)
        yield self._matrix("token_embd", big.vocabulary, False, lambda: source.tensor("token_embd.weight"), tokens)
        yield self._matrix("output", big.vocabulary, True, self._output, np.where(tokens < 0, small.vocabulary, tokens))
        yield self._norm("output_norm")
        for layer in range(big.layers):
            yield from self._layer(f"blk.{layer}", layer < small.layers)

    def _layer(self, block: str, live: bool) -> Iterator[Matrix | Norm]:
        """The tensors of one layer; one that is not `live` adds zero."""
        big = self.big
        for part in ("attn_norm", "ffn_norm"):
            yield self._norm(f"{block}.{part}") if live else Norm(f"{block}.{part}.weight", ones(big.width))
        rows = big.key_value_heads * big.head_width
        matrices = (
            ("attn_q", big.heads * big.head_width, self._queries, self._query_rows()),
            ("attn_k", rows, self._tensor, self._shared_rows()),
            ("attn_v", rows, self._tensor, self._shared_rows()),
            ("ffn_gate", big.feed_forward, self._tensor, self._first(big.feed_forward, self.small.feed_forward)),
            ("ffn_up", big.feed_forward, self._tensor, self._first(big.feed_forward, self.small.feed_forward)),
        )
        for part, count, read, places in matrices:
            name = f"{block}.{part}"
            yield self._matrix(name, count, True, *(later(read, name), places) if live else ())
        for part, columns, read in (
            ("attn_output", big.heads * big.head_width, self._attention_output),
            ("ffn_down", big.feed_forward, self._tensor),
        ):
            name, places = f"{block}.{part}", self._first(big.width, self.small.width)
            yield self._matrix(name, big.width, False, *(later(read, name), places) if live else (), columns=columns)

    def _matrix(
        self,
        name: str,
        rows: int,
        noise: bool,
        own: Callable[[], Array] | None = None,
        places: Places | None = None,
        *,
        columns: int | None = None,
    ) -> Matrix:
        return Matrix(f"{name}.weight", rows, columns or self.big.width, noise, own, places)

    def _norm(self, name: str) -> Norm:
        """Norm weights, big width, scaled for the zeros that the bigger mean square takes in."""
        weights = ones(self.big.width)
        own = self.source.tensor(f"{name}.weight")
        weights[: self.small.width] = own * np.sqrt(self.small.width / self.big.width)
        return Norm(f"{name}.weight", weights)

    def _first(self, rows: int, own: int) -> Places:
        """The small model's rows come first."""
        places = np.full(rows, -1, np.intp)
        places[:own] = np.arange(own)
        return places

    def _query_rows(self) -> Places:
        """Whole heads: what a wider one holds beyond the small model's width is zero, and no noise."""
        width = self.big.head_width
        places = np.full((self.big.heads, width), -1, np.intp)
        places[self._heads] = np.arange(self.small.heads * width).reshape(-1, width)
        return places.ravel()

    def _shared_rows(self) -> Places:
        """The first rows of each key or value head, and of its copies."""
        small, big = self.small, self.big
        rows = np.arange(small.key_value_heads * small.head_width).reshape(-1, small.head_width)
        places = np.full((big.key_value_heads, big.head_width), -1, np.intp)
        places[: small.key_value_heads * self._copies, : small.head_width] = np.repeat(rows, self._copies, axis=0)
        return places.ravel()

    def _tensor(self, name: str) -> Array:
        return self.source.tensor(f"{name}.weight")

    def _queries(self, name: str) -> Array:
        """The query matrix, its heads widened with zeros, scaled for the attention's 1/sqrt(width)."""
        small, big = self.small, self.big
        wide = np.zeros((small.heads, big.head_width, small.width), np.float32)
        own = self._tensor(name).reshape(small.heads, small.head_width, small.width)
        wide[:, : small.head_width] = own * np.float32(np.sqrt(big.head_width / small.head_width))
        return wide.reshape(-1, small.width)

    def _attention_output(self, name: str) -> Array:
        """The matrix that leads out of the attention, small width x heads of the bigger model."""
        small, big = self.small, self.big
        wide = np.zeros((small.width, big.heads, big.head_width), np.float32)
        wide[:, self._heads, : small.head_width] = self._tensor(name).reshape(small.width, small.heads, -1)
        return wide.reshape(small.width, -1)

    def _output(self) -> Array:
        """The output rows of the small model's tokens, and the one that all extra tokens have."""
        own = self.source.output()
        return np.concatenate([own, own.mean(axis=0, keepdims=True)])


def ones(width: int) -> Array:
    """The weights of a norm that scales nothing."""
    return np.ones(width, np.float32)


def later(read: Callable[[str], Array], name: str) -> Callable[[], Array]:
    """The same call, when it is asked for."""
    return lambda: read(name)


def changed_metadata(source: Source, big: Shape, file_type: int, context: int) -> dict[str, Any]:
    """The metadata keys whose values differ from the small model's."""
    small = source.shape
    extra = range(small.vocabulary, big.vocabulary)
    ratio = big.head_width / small.head_width
    if ratio != 1 and source.value("llama.rope.scaling.type", "none") not in ("none", "linear"):
        raise ModelLoadError("the small model's rotary scaling depends on the width of a head", "keep its head width")
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    return {
        "general.name": f"{source.value('general.name', ARCHITECTURE)}, expanded to {big.width} x {big.layers}",
        "general.file_type": file_type,
        "llama.context_length": context,
        "llama.embedding_length": big.width,
        "llama.block_count": big.layers,
        "llama.feed_forward_length": big.feed_forward,
        "llama.attention.head_count": big.heads,
        "llama.attention.head_count_kv": big.key_value_heads,
        epsilon: source.value(epsilon) * small.width / big.width,
        "llama.attention.key_length": big.head_width,
        "llama.attention.value_length": big.head_width,
        "llama.rope.dimension_count": big.head_width,
        "llama.rope.freq_base": float(source.value("llama.rope.freq_base", ROPE_BASE) ** ratio),
        "llama.vocab_size": big.vocabulary,
        "tokenizer.ggml.tokens": source.value("tokenizer.ggml.tokens") + [f"<|pad{token}|>" for token in extra],
        "tokenizer.ggml.token_type": source.value("tokenizer.ggml.token_type") + [gguf.TokenType.UNUSED for _ in extra],
    }
