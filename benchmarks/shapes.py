"""The sizes of llama models: those of known ones by name, and what a bigger shape needs so that a small model fits in.

Numbers only: what is written into the bigger shape is `expansion.py`, the file `expand.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lacli.errors import LacliError


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama model; all count elements. head_width: of one head, so heads * head_width may differ from
    width."""

    width: int
    layers: int
    heads: int
    key_value_heads: int
    feed_forward: int
    vocabulary: int
    head_width: int

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.heads // self.key_value_heads

    @property
    def parameters(self) -> int:
        """Weights of all matrices, where embedding and output are two."""
        attention = 2 * self.width * self.head_width * (self.heads + self.key_value_heads)
        return self.layers * (attention + 3 * self.width * self.feed_forward) + 2 * self.vocabulary * self.width


SHAPES = {
    "0.5b": Shape(896, 24, 14, 2, 4864, 151936, 64),  # Qwen2.5-0.5B
    "1b": Shape(2048, 16, 32, 8, 8192, 128256, 64),  # Llama-3.2-1B
    "3b": Shape(3072, 28, 24, 8, 8192, 128256, 128),  # Llama-3.2-3B
    "7b": Shape(4096, 32, 32, 32, 11008, 32000, 128),  # Llama-2-7B
    "13b": Shape(5120, 40, 40, 40, 13824, 32000, 128),  # Llama-2-13B
    "34b": Shape(8192, 48, 64, 8, 22016, 32000, 128),  # CodeLlama-34B
}
"""By the names of their sizes, after real models; the smaller two count the embedding twice, as their files do not."""


def copies(small: Shape, big: Shape) -> int:
    """Key-value heads of the bigger shape that stand for each one of the small model's.

    More than one where a group of query heads is too large for the bigger shape's groups and has to be split.
    """
    return -(-small.group // big.group)


def check_fit(small: Shape, big: Shape) -> None:
    """Refuse with a LacliError a bigger shape that the small model does not fit into."""
    for size in fields(Shape):
        wanted, least = getattr(big, size.name), getattr(small, size.name)
        if wanted < least:
            flag = "--kv-heads" if size.name == "key_value_heads" else "--" + size.name.replace("_", "-")
            raise LacliError(f"{flag} {wanted} is less than the small model's {least}", "a shape can only grow")
    if big.heads % big.key_value_heads:
        raise LacliError(f"{big.heads} heads do not divide into {big.key_value_heads} groups", "change --kv-heads")
    if big.head_width % 2:
        raise LacliError(f"a head's width of {big.head_width} is odd", "rotary positions turn pairs: use an even one")
    needed = small.key_value_heads * copies(small, big)
    if big.key_value_heads < needed:
        raise LacliError(
            f"the small model's {small.key_value_heads} groups of {small.group} query heads need {needed} groups of "
            f"{big.group}, and there are {big.key_value_heads}",
            "use more --kv-heads or more --heads",
        )
