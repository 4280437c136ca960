"""Function-preserving expansion: write a bigger llama GGUF that computes the same next token as a small one.

usage: python recipes/expand.py SMALL.gguf OUT.gguf TYPE D L H KV FF V [--context N]

D is the width, L the number of layers, H and KV the query and key-value heads, FF the feed-forward width, V the size
of the vocabulary, TYPE one of F16, Q8_0 and Q4_0. Only gguf and numpy are needed. Nothing here trains a model.

Why the function stays the same, for a small width d:

- Extra width meets zeros. The residual stream is zero beyond its first d numbers: the embedding has zeros there, and
  so do the rows of the matrices that add to it. Whatever the other matrices hold in the columns that read those
  numbers counts for nothing, so they hold noise, as real weights would: a zero matrix could be quicker to compute.
- Norms are rescaled. An RMS norm over D numbers of which D - d are zero sees a mean square that is d/D of the small
  one, and so multiplies by sqrt(D/d) too much: the weights are multiplied by sqrt(d/D) and epsilon by d/D.
- Extra layers add zero, because the matrices that lead out of their attention and feed-forward parts are zero; so are
  the columns of those matrices that take extra heads and extra feed-forward units in the layers that were there.
- Heads keep their width and their group. A query head finds its key-value head by its own place, so the query heads
  that shared one take the first places of the same group; the key-value heads take the first places of all.

The extra tokens have logit 0, so the best token stays the same while its logit is positive, up to the rounding of TYPE.
That holds for greedy text only: a hundred thousand such tokens together take a large share of the probability.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

ARCHITECTURE = "llama"
NOISE_SCALE = 0.02
TYPES = {
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama model, in the order of the command line; all count elements."""

    width: int
    layers: int
    heads: int
    key_value_heads: int
    feed_forward: int
    vocabulary: int


class Source:
    """The small model: its metadata, its shape, and its tensors as F32."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        if self.value("general.architecture") != ARCHITECTURE:
            raise SystemExit(f"{path}: only the architecture {ARCHITECTURE} can be expanded")
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.shape = Shape(
            width=self.value("llama.embedding_length"),
            layers=self.value("llama.block_count"),
            heads=self.value("llama.attention.head_count"),
            key_value_heads=self.value("llama.attention.head_count_kv"),
            feed_forward=self.value("llama.feed_forward_length"),
            vocabulary=len(self.value("tokenizer.ggml.tokens")),
        )
        self.head_width = self.tensor("blk.0.attn_q.weight").shape[0] // self.shape.heads
        unknown = self._tensors.keys() - expected_names(self.shape.layers)
        if unknown:
            raise SystemExit(f"{path}: no rule for expanding {', '.join(sorted(unknown))}")

    def value(self, key: str) -> Any:
        """Return the value of a metadata key that must be there."""
        return self.fields[key].contents()

    def tensor(self, name: str) -> Array:
        """Return a tensor, rows x columns or one row of norm weights."""
        tensor = self._tensors[name]
        return gguf.dequantize(tensor.data, tensor.tensor_type)

    def output(self) -> Array:
        """Return the output matrix, vocabulary x width, which is the embedding where the file has no other."""
        return self.tensor("output.weight" if "output.weight" in self._tensors else "token_embd.weight")


def expected_names(layers: int) -> set[str]:
    """Return the names of the tensors that can be expanded."""
    parts = ("attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    blocks = {f"blk.{layer}.{part}.weight" for layer in range(layers) for part in parts}
    return blocks | {"token_embd.weight", "output_norm.weight", "output.weight"}


class Expansion:
    """The tensors of the bigger model, made one at a time from those of the small one."""

    def __init__(self, source: Source, big: Shape) -> None:
        self.source, self.small, self.big = source, source.shape, big
        self._random = np.random.default_rng(0)

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Yield the name and the values of every tensor; matrices are rows x columns, norm weights have one axis."""
        small, big = self.small, self.big
        embedding = np.zeros((big.vocabulary, big.width), np.float32)
        embedding[: small.vocabulary, : small.width] = self.source.tensor("token_embd.weight")
        yield "token_embd.weight", embedding
        output = self._noise(big.vocabulary, big.width)
        output[:, : small.width] = 0
        output[: small.vocabulary, : small.width] = self.source.output()
        yield "output.weight", output
        yield "output_norm.weight", self._norm("output_norm.weight")
        for layer in range(big.layers):
            block = f"blk.{layer}"
            live = layer < small.layers
            for part in ("attn_norm", "ffn_norm"):
                name = f"{block}.{part}.weight"
                yield name, self._norm(name) if live else np.ones(big.width, np.float32)
            for part, matrix in (*self._attention(block, live), *self._feed_forward(block, live)):
                yield f"{block}.{part}.weight", matrix

    def _attention(self, block: str, live: bool) -> Iterator[tuple[str, Array]]:
        """Yield the four attention matrices of one layer; those of a layer that is not `live` add zero."""
        width, head_width = self.small.width, self.source.head_width
        query_rows = self._query_rows()
        queries = self._noise(self.big.heads * head_width, self.big.width)
        back = np.zeros((self.big.width, self.big.heads * head_width), np.float32)
        if live:
            queries[query_rows, :width] = self.source.tensor(f"{block}.attn_q.weight")
            back[:width, query_rows] = self.source.tensor(f"{block}.attn_output.weight")
        yield "attn_q", queries
        yield "attn_output", back
        for part in ("attn_k", "attn_v"):
            yield part, self._reading(f"{block}.{part}.weight", self.big.key_value_heads * head_width, live)

    def _feed_forward(self, block: str, live: bool) -> Iterator[tuple[str, Array]]:
        """Yield the three feed-forward matrices of one layer; those of a layer that is not `live` add zero."""
        for part in ("ffn_gate", "ffn_up"):
            yield part, self._reading(f"{block}.{part}.weight", self.big.feed_forward, live)
        down = np.zeros((self.big.width, self.big.feed_forward), np.float32)
        if live:
            down[: self.small.width, : self.small.feed_forward] = self.source.tensor(f"{block}.ffn_down.weight")
        yield "ffn_down", down

    def _query_rows(self) -> npt.NDArray[np.intp]:
        """Return the row of the bigger query matrix that each row of the small one moves to, head by head."""
        heads = np.arange(self.small.heads)
        group, place = np.divmod(heads, self.small.heads // self.small.key_value_heads)
        moved = group * (self.big.heads // self.big.key_value_heads) + place
        head_width = self.source.head_width
        rows: npt.NDArray[np.intp] = moved[:, np.newaxis] * head_width + np.arange(head_width)
        return rows.ravel()

    def _reading(self, name: str, rows: int, live: bool) -> Array:
        """Return a matrix that reads the residual stream, rows x big width: noise around the small model's own."""
        matrix = self._noise(rows, self.big.width)
        if live:
            own = self.source.tensor(name)
            matrix[: own.shape[0], : own.shape[1]] = own
        return matrix

    def _norm(self, name: str) -> Array:
        """Return norm weights, big width, scaled for the zeros that the bigger mean square takes in."""
        weights = np.ones(self.big.width, np.float32)
        weights[: self.small.width] = self.source.tensor(name) * np.sqrt(self.small.width / self.big.width)
        return weights

    def _noise(self, rows: int, columns: int) -> Array:
        """Return small random values, rows x columns."""
        noise = self._random.standard_normal((rows, columns), dtype=np.float32)
        noise *= NOISE_SCALE
        return noise


def check_fit(source: Source, big: Shape) -> None:
    """Stop with a message where the small model does not fit into the shape asked for."""
    small = source.shape
    for name in Shape.__dataclass_fields__:
        if getattr(big, name) < getattr(small, name):
            raise SystemExit(f"{name}: {getattr(big, name)} is less than the small model's {getattr(small, name)}")
    if big.heads % big.key_value_heads:
        raise SystemExit(f"{big.heads} heads do not divide into {big.key_value_heads} groups")
    if big.heads // big.key_value_heads < small.heads // small.key_value_heads:
        raise SystemExit("the groups of query heads are smaller than the small model's")


def changed_metadata(source: Source, big: Shape, file_type: int, context: int | None) -> dict[str, Any]:
    """Return the metadata keys whose values differ from the small model's."""
    small = source.shape
    extra = range(small.vocabulary, big.vocabulary)
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    return {
        "general.name": f"{source.value('general.name')}, expanded to {big.width} x {big.layers}",
        "general.file_type": file_type,
        "llama.context_length": context or source.value("llama.context_length"),
        "llama.embedding_length": big.width,
        "llama.block_count": big.layers,
        "llama.feed_forward_length": big.feed_forward,
        "llama.attention.head_count": big.heads,
        "llama.attention.head_count_kv": big.key_value_heads,
        epsilon: source.value(epsilon) * small.width / big.width,
        "llama.attention.key_length": source.head_width,
        "llama.attention.value_length": source.head_width,
        "llama.vocab_size": big.vocabulary,
        "tokenizer.ggml.tokens": source.value("tokenizer.ggml.tokens") + [f"<|pad{token}|>" for token in extra],
        "tokenizer.ggml.token_type": source.value("tokenizer.ggml.token_type") + [gguf.TokenType.UNUSED for _ in extra],
    }


def copy_metadata(source: Source, writer: gguf.GGUFWriter, changed: dict[str, Any]) -> None:
    """Write the small model's metadata with the `changed` values in place of its own; new keys are unsigned numbers."""
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue  # the writer makes these itself
        value = changed[key] if key in changed else field.contents()
        writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for key, value in changed.items():
        if key not in source.fields:
            writer.add_uint32(key, value)


def write(source: Source, big: Shape, path: Path, type_name: str, context: int | None) -> None:
    """Write the bigger model; matrices get the type asked for, norm weights stay F32."""
    tensor_type, file_type = TYPES[type_name]
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    copy_metadata(source, writer, changed_metadata(source, big, file_type, context))
    for name, values in Expansion(source, big).tensors():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, tensor_type), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Read the command line and write the file that it asks for."""
    parser = argparse.ArgumentParser(description="Write a bigger GGUF that computes the same next token.")
    parser.add_argument("small", type=Path, metavar="SMALL.gguf")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("type", choices=TYPES)
    for name, metavar in zip(Shape.__dataclass_fields__, ("D", "L", "H", "KV", "FF", "V"), strict=True):
        parser.add_argument(name, type=int, metavar=metavar, help=name.replace("_", " "))
    parser.add_argument("--context", type=int, metavar="N", help="context length, the small model's if not given")
    arguments = parser.parse_args()
    source = Source(arguments.small)
    big = Shape(**{name: getattr(arguments, name) for name in Shape.__dataclass_fields__})
    check_fit(source, big)
    write(source, big, arguments.out, arguments.type, arguments.context)


if __name__ == "__main__":
    main()
